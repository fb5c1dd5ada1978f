"""The log on disk: CommitLog, ConsumeQueue and IndexFile, byte-compatible with Apache RocketMQ.

No event loop and no socket: time and bytes come in as arguments.
"""
