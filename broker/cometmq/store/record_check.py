"""Whether an entry of a queue leads to a record of that queue."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.proto.record import MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from cometmq.store.segments import Segments

_HEAD: Final = Struct(">iI20xq")  # Size, magic and physical offset, see `proto.record`.

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
"""Of Apache's light queues: their entries lead to records of other topics."""


class RecordCheck:
    """Looks records up in a log; blocking reads of one record each."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def __call__(self, topic: str, queue_id: int, physical_offset: int, size: int) -> bool:
        """Whether such a record stands there; of what has expired nobody can say, so it may."""
        segments = self._segments
        if physical_offset < segments.first_offset or topic.startswith(LIGHT_QUEUE_PREFIX):
            return True
        segment = segments.at(physical_offset)
        if segment is None or not 0 < size <= segments.size:
            return False
        data = segments.file(segment).read(size, physical_offset - segment.start)
        try:
            message = read_message(data)
        except MessageError:
            return False
        return (message.size, message.queue_id, message.topic_raw) == (
            size,
            queue_id,
            topic.encode(),
        ) and message.physical_offset == physical_offset

    def begins_at(self, physical_offset: int) -> bool:
        """Whether a record begins there; of what has expired nobody can say, so it may."""
        segments = self._segments
        if physical_offset < segments.first_offset:
            return True
        segment = segments.at(physical_offset)
        if segment is None:
            return False
        head = segments.file(segment).read(_HEAD.size, physical_offset - segment.start)
        if len(head) < _HEAD.size:
            return False
        _, magic, noted_offset = _HEAD.unpack(head)
        return magic in (MAGIC_V1, MAGIC_V2) and noted_offset == physical_offset
