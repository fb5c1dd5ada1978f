"""The CommitLog: its segments, the records in them, and what a turn appends."""
