"""Offsets: those of groups, and where a queue begins and ends."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header


class QueryConsumerOffset(Header):
    """14 QUERY_CONSUMER_OFFSET: ask where a group continues."""

    consumer_group: str
    topic: str
    queue_id: I32
    # If explicitly false, never answer 0 for a group that has no offset.
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header):
    """15 UPDATE_CONSUMER_OFFSET: set where a group continues."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class GetMaxOffset(Header):
    """30 GET_MAX_OFFSET: the offset that the next message gets."""

    topic: str
    queue_id: I32
    committed: bool = True


class GetMinOffset(Header):
    """31 GET_MIN_OFFSET: the smallest offset that can be read."""

    topic: str
    queue_id: I32


class SearchOffsetByTimestamp(Header):
    """29 SEARCH_OFFSET_BY_TIMESTAMP: the offset for a store time in ms."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None  # LOWER (the default) or UPPER, in any letter case.


class OffsetResponse(Header):
    """A queue offset: the answer to 14, 29, 30 and 31."""

    offset: I64


class GetEarliestMsgStoretime(Header):
    """32 GET_EARLIEST_MSG_STORETIME: when the first readable message was stored."""

    topic: str
    queue_id: I32


class GetEarliestMsgStoretimeResponse(Header):
    """A store time in ms; -1 if there is no message."""

    timestamp: I64
