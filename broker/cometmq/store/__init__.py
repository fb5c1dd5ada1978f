"""The log on disk: CommitLog, ConsumeQueue and IndexFile, byte-compatible with Apache RocketMQ.

No event loop and no socket: time and bytes come in as arguments. `message_store` is what a broker
has open; `docs/architecture.md` says what is in which of the folders, each of which knows only
those below it.
"""
