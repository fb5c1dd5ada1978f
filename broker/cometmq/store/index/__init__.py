"""The index: records by key."""
