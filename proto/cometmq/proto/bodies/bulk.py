"""What a broker tells who reads it in bulk (31001, 31004); our own."""

from __future__ import annotations

from cometmq.proto.body import Body, preset
from cometmq.proto.header import I32, I64


class QueueRange(Body):
    """One queue: its first message, and behind its last."""

    max_offset: I64
    min_offset: I64
    queue_id: I32


class QueueRanges(Body):
    """The answer to 31001: every queue of the topic that can be read, in order."""

    queues: tuple[QueueRange, ...] = preset(())


class UniqueKeys(Body):
    """31004: the unique keys of messages."""

    keys: tuple[str, ...] = preset(())


class FoundMessage(Body):
    """Where the first message with a unique key is, and when it was stored."""

    key: str
    physical_offset: I64
    queue_id: I32
    queue_offset: I64
    store_timestamp: I64 = preset(0)
    """Earlier versions do not tell."""


class FoundMessages(Body):
    """The answer to 31004: those that there are, in the order of the question."""

    messages: tuple[FoundMessage, ...] = preset(())
