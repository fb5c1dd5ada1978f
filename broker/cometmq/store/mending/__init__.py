"""`cometmq store repair` and `rebuild`: the tools that write."""
