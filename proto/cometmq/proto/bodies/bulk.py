"""Bodies for reading a broker in bulk (31001, 31004); our own."""

from __future__ import annotations

from cometmq.proto.body import Body, preset
from cometmq.proto.header import I32, I64


class QueueRange(Body):
    """One queue: the offset of its first message, and the one after its last."""

    max_offset: I64
    min_offset: I64
    queue_id: I32


class QueueRanges(Body):
    """The answer to 31001: every queue of the topic that can be read, in order."""

    queues: tuple[QueueRange, ...] = preset(())
    unread: tuple[QueueRange, ...] | None = None
    """The queues that have messages but cannot be read: the topic has fewer queues now.

    Earlier versions leave it out.
    """


class UniqueKeys(Body):
    """31004: the unique keys of messages."""

    keys: tuple[str, ...] = preset(())


class FoundMessage(Body):
    """The place and the store time of the first message with a unique key."""

    key: str
    physical_offset: I64
    queue_id: I32
    queue_offset: I64
    store_timestamp: I64 = preset(0)
    """0 from earlier versions."""


class FoundMessages(Body):
    """The answer to 31004: the messages found, in the order of the request."""

    messages: tuple[FoundMessage, ...] = preset(())
