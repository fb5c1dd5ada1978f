"""A record with its topic, queue and number put right, if it is known which message it is.

This is for records that are sound except for these, see `wrong_heads`. No byte may move: a topic of
another length has no room, and a record with its own checksum vouches for itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.proto.message import read_message
from cometmq.proto.record import QUEUE_OFFSET_AT

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage

QUEUE_ID_AT: Final = 12
_QUEUE_ID: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">q")


class Place(NamedTuple):
    """Which message of which queue a record is."""

    topic: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        """Return the usual name of a message."""
        return f"{self.topic} queue {self.queue_id} offset {self.queue_offset}"


def said_place(record: StoredMessage) -> Place:
    """Return which message a record says it is."""
    topic = record.topic_raw.decode("utf-8", "replace")
    return Place(topic, record.queue_id, record.queue_offset)


def placed(record: StoredMessage, place: Place) -> StoredMessage | None:
    """Return a record with this message in its head; None if that has no room."""
    topic = place.topic.encode()
    if len(topic) != len(record.topic_raw) or record.is_record_intact() is not None:
        return None
    data = bytearray(record.raw)
    _QUEUE_ID.pack_into(data, QUEUE_ID_AT, place.queue_id)
    _NUMBER.pack_into(data, QUEUE_OFFSET_AT, place.queue_offset)
    start = record.topic_start - record.start
    data[start : start + len(topic)] = topic
    return read_message(bytes(data))
