"""Reading a broker in bulk: our own commands, which an Apache broker does not know.

It answers them with REQUEST_CODE_NOT_SUPPORTED. Then the caller falls back to a request for each
queue, to pulls, or to a query for each key.
"""

from __future__ import annotations

from cometmq.proto.codes import ResponseCode
from cometmq.proto.header import I32, I64, Header


class GetQueueRanges(Header):
    """31001 GET_QUEUE_RANGES: where each queue of a topic begins and ends."""

    topic: str


class BulkPullMessage(Header):
    """31002 BULK_PULL_MESSAGE: messages of a range of a queue, as many as fit."""

    consumer_group: str  # The reading group: for statistics, and topics that it may not read.
    topic: str
    queue_id: I32
    queue_offset: I64
    end_offset: I64  # The range ends before this; the end of the queue may come first.
    max_msg_bytes: I32  # Of the answer's body; one message is returned whatever its size.
    subscription: str | None = None
    expression_type: str = "TAG"  # Or SQL92.


# A bulk pull answered with one of these was served.
BULK_PULLED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class BulkPullMessageResponse(Header):
    """The contents of the body, and where to continue, as for a pull."""

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    record_count: I32


class GetRangeSize(Header):
    """31003 GET_RANGE_SIZE: the size in bytes of the messages in a range of a queue."""

    topic: str
    queue_id: I32
    queue_offset: I64
    end_offset: I64
    max_bytes: I64 | None = None  # Count only up to the last message that fits.


class GetRangeSizeResponse(Header):
    """How far the broker counted, and the size up to there."""

    end_offset: I64  # The end of the queue or the range, or where the next request continues.
    size: I64


class FindUniqueKeys(Header):
    """31004 FIND_UNIQUE_KEYS: which of the messages named in the body are stored."""

    topic: str
    begin_timestamp: I64 | None = None  # Store time in ms; the earlier, the longer it takes.
