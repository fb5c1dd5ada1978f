"""Whether an entry of a queue, or an item of the index, belongs to the record that it leads to."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.proto.message import read_message
from cometmq.proto.record import MAGIC_V1, MAGIC_V2
from cometmq.proto.sysflag import TRANSACTION_MASK, TransactionType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.segments import Segments

_HEAD: Final = Struct(">iI20xq")  # Size, magic and physical offset, see `proto.record`.

LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
"""The names of Apache's light queues, whose entries lead to records of other topics."""


class RecordCheck:
    """Looks records up in a log; blocking reads of one record each."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def __call__(self, topic: str, queue_id: int, physical_offset: int, size: int) -> bool:
        """Whether such a record is there; True if it has expired, for then nobody can say."""
        segments = self._segments
        if physical_offset < segments.first_offset or topic.startswith(LIGHT_QUEUE_PREFIX):
            return True
        message = read_record(segments, physical_offset, size)
        return message is not None and (
            message.size == size
            and message.queue_id == queue_id
            and message.topic_raw == topic.encode()
            and message.physical_offset == physical_offset
        )

    def count_items(self, physical_offset: int, hashes: Sequence[int]) -> int:
        """Return how many of these hashes, from the first on, are of keys of the record there.

        They follow one another as the record's keys do; the first keys may be in the previous index
        file. If the record has expired, all hashes count, for then nobody can say.
        """
        if physical_offset < self._segments.first_offset:
            return len(hashes)
        expected = self.hashes_of(physical_offset)
        runs = (expected[start:] for start in range(len(expected)))
        return max((_common(run, hashes) for run in runs), default=0)

    def hashes_of(self, physical_offset: int) -> list[int]:
        """Return the hashes of the keys of the record that begins there; none if none does."""
        from cometmq.store.index.index_hash import record_hashes

        segments = self._segments
        head = segments.read(physical_offset, _HEAD.size)
        if len(head) < _HEAD.size:
            return []
        size, magic, noted_offset = _HEAD.unpack(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or noted_offset != physical_offset or size <= 0:
            return []
        room = segments.size - physical_offset % segments.size
        message = read_record(segments, physical_offset, min(size, room))
        if message is None or message.sys_flag & TRANSACTION_MASK == TransactionType.ROLLED_BACK:
            return []
        found: list[int] = record_hashes([message.topic_raw], [message.properties_raw])[0].tolist()
        return found


def read_record(segments: Segments, physical_offset: int, size: int) -> StoredMessage | None:
    """Read the record that an entry leads to; None if there is none."""
    if not 0 < size <= segments.size:
        return None
    try:
        return read_message(segments.read(physical_offset, size))
    except MessageError:
        return None


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many elements from the first on are the same."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
