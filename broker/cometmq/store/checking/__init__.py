"""`cometmq store verify`: every record, entry, item and block, checked against each other."""
