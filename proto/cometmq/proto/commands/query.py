"""Finding messages by key, by place and in a queue's index."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class QueryMessage(Header):
    """12 QUERY_MESSAGE: messages by key, by unique key or by tag."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64  # Store time in ms, like `end_timestamp`.
    end_timestamp: I64
    unique_key_query: bool | None = wire("_UNIQUE_KEY_QUERY", default=None)
    index_type: str | None = None  # K key, U unique key, T tag.
    last_key: str | None = None


class QueryMessageResponse(Header):
    """The progress of the index; both fields are 0 if nothing was found."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessageById(Header):
    """33 VIEW_MESSAGE_BY_ID: the message at a physical offset."""

    offset: I64
    topic: str | None = None


class QueryConsumeQueue(Header):
    """321 QUERY_CONSUME_QUEUE: raw entries of a queue's index."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None  # The group whose subscription the entries are judged by.
