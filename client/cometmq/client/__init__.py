"""The SDK: produce and consume, async and sync."""
