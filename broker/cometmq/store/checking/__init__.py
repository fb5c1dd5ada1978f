"""`cometmq store verify`: every record, entry, item and block, one against the other."""
