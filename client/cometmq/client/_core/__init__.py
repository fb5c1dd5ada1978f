"""What a client decides: plain functions and tables without a loop, a socket or a clock."""
