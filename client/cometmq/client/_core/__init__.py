"""A client's decisions: plain functions and tables without a loop, a socket or a clock."""
