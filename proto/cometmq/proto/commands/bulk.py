"""Reading a broker in bulk: our own commands, which an Apache broker does not know.

It answers them with REQUEST_CODE_NOT_SUPPORTED, and whoever asked does without: with a request for
each queue, with pulls, with a query for each key.
"""

from __future__ import annotations

from cometmq.proto.codes import ResponseCode
from cometmq.proto.header import I32, I64, Header


class GetQueueRanges(Header):
    """31001 GET_QUEUE_RANGES: where each queue of a topic begins and ends."""

    topic: str


class BulkPullMessage(Header):
    """31002 BULK_PULL_MESSAGE: messages of a range of a queue, as many as fit."""

    consumer_group: str  # Who reads: for the statistics, and for what the group may not read.
    topic: str
    queue_id: I32
    queue_offset: I64
    end_offset: I64  # In front of which the range ends; the end of the queue may come first.
    max_msg_bytes: I32  # Of the answer's body; one message is given whatever its size.
    subscription: str | None = None
    expression_type: str = "TAG"  # Or SQL92.


# A bulk pull that is answered with one of these was served.
BULK_PULLED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


class BulkPullMessageResponse(Header):
    """What the body holds, and where to go on; as of a pull."""

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    record_count: I32


class GetRangeSize(Header):
    """31003 GET_RANGE_SIZE: how many bytes the messages of a range of a queue have."""

    topic: str
    queue_id: I32
    queue_offset: I64
    end_offset: I64
    max_bytes: I64 | None = None  # Counts no further than to the last message that fits.


class GetRangeSizeResponse(Header):
    """How far the broker counted, and how much there is up to there."""

    end_offset: I64  # The queue's or the range's end, or where the next request goes on.
    size: I64


class FindUniqueKeys(Header):
    """31004 FIND_UNIQUE_KEYS: which of the messages that the body names are stored."""

    topic: str
    begin_timestamp: I64 | None = None  # Store time in ms: the earlier, the longer it takes.
