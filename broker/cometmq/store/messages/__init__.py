"""Putting messages into the log and its queues, and reading them by queue offset."""
