"""The log on disk: CommitLog, ConsumeQueue and IndexFile, byte-compatible with Apache RocketMQ.

There is no event loop and no socket here: time and bytes come in as arguments. `message_store` is
the store as a broker has it open. `docs/architecture.md` lists the folders and their contents; each
folder knows only those below it.
"""
