"""The cometmq command line."""
