"""Whether the records that nobody promised follow one another in their queues.

Without a checksum of the whole record, a power cut may tear the head of one and leave its body
whole: its queue, or its number in the queue, are then others. Such a record would take the place of
messages that were promised, or leave a gap in front of those behind it. So the tail behind what was
known to be synced is a tail up to the first record that is not the next one of its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.message import StoredMessage
from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.dispatch import RECORDS_WITHOUT_ENTRY, batch_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.deletions import Deletions
    from cometmq.store.log_stretch import Stretch


def first_contradiction(
    records: Iterable[StoredMessage | Stretch],
    queues: ConsumeQueues,
    deletions: Deletions,
    is_batch_topic: Callable[[str], bool],
    *,
    end: int,
    first_offset: int,
) -> int | None:
    """Return the physical offset of the first record in front of `end` that is not the next one.

    The queues hold all records in front of these. Where the log has lost its front, up to
    `first_offset`, a queue that has no record in it may go on with any number.
    """
    check = _Check(queues, deletions, is_batch_topic, first_offset)
    for each in records:
        if isinstance(each, StoredMessage):
            if each.physical_offset >= end:
                return None
            contradiction = check.look_at(each)
        else:
            count = int(each.offsets.searchsorted(end))
            contradiction = check.look_at_stretch(each.first(count)) if count else None
            if contradiction is None and count < len(each.offsets):
                return None
        if contradiction is not None:
            return contradiction
    return None


class _Check:
    """What number the next record of each queue has."""

    def __init__(
        self,
        queues: ConsumeQueues,
        deletions: Deletions,
        is_batch_topic: Callable[[str], bool],
        first_offset: int,
    ) -> None:
        self._queues = queues
        self._deletions = deletions
        self._is_batch_topic = is_batch_topic
        self._first_offset = first_offset
        self._following: dict[tuple[bytes, int], int] = {}

    def look_at(self, message: StoredMessage) -> int | None:
        """Return the record's offset if it is not the next one of its queue."""
        if message.sys_flag & TRANSACTION_MASK in RECORDS_WITHOUT_ENTRY:
            return None
        if self._deletions.offsets and self._deletions.covers(message):
            return None
        number, count = message.queue_offset, 1
        if self._is_batch_topic(message.topic):
            entry = batch_entry(message, ())
            assert entry is not None
            number, count = entry.base_offset, entry.batch_size
        expected = self._expected(message.topic_raw, message.queue_id)
        if expected is not None and number != expected:
            return message.physical_offset
        self._following[message.topic_raw, message.queue_id] = number + count
        return None

    def look_at_stretch(self, stretch: Stretch) -> int | None:
        """Return the offset of the first record that is not the next one of its queue."""
        topics = set(stretch.topics)
        if topics & self._deletions.offsets.keys() or any(
            self._is_batch_topic(topic.decode()) for topic in topics
        ):
            found = (self.look_at(message) for message in stretch.messages())
            return next((offset for offset in found if offset is not None), None)
        contradictions: list[int] = []
        for rows in stretch.rows_by_queue(0):
            topic, queue_id = stretch.topics[int(rows[0])], int(stretch.queue_ids[rows[0]])
            expected = self._expected(topic, queue_id)
            first = int(stretch.queue_offsets[rows[0]]) if expected is None else expected
            gap = stretch.first_gap(rows, first)
            if gap is not None:
                contradictions.append(int(stretch.offsets[gap]))
            self._following[topic, queue_id] = first + len(rows)
        return min(contradictions, default=None)

    def _expected(self, topic: bytes, queue_id: int) -> int | None:
        """Return the number that the next record of a queue has; None when it may have any."""
        expected = self._following.get((topic, queue_id))
        if expected is None:
            name = topic.decode()
            table = self._queues.batch if self._is_batch_topic(name) else self._queues.simple
            queue = table.find(name, queue_id)
            if queue is not None and queue.end > queue.start:
                last_offset, _ = queue.head(queue.end - 1)
                if last_offset >= self._first_offset:
                    return queue.max_offset
            return None if self._first_offset else 0
        return expected
