"""Giving the ConsumeQueues and the index what they lack: the entries and keys of records read back.

Stretches of common records are taken queue by queue: the entries of one queue are packed together
and appended in one go if they follow its last one. If they do not, and for every other record,
`place_record` decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.message import StoredMessage
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.messages.dispatch import (
    SCHEDULE_TOPIC,
    TagsCodes,
    batch_entry,
    note_record,
    place_record,
    tags_code_of,
)
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.deletions import Deletions
    from cometmq.store.index.index import Index
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.queues.consume_queues import ConsumeQueues

_BUILD: Final = 4096
"""Records indexed at a time, because numpy costs per call."""

_DELAYED: Final = SCHEDULE_TOPIC.encode()

_TOGETHER_MIN: Final = 8
"""With fewer records of one queue it does not pay to pack them together."""


class Replay:
    """Reads the records of a log back once, or twice if earlier entries are missing."""

    def __init__(
        self,
        queues: ConsumeQueues,
        index: Index | None,
        deletions: Deletions,
        *,
        is_batch_topic: Callable[[str], bool],
        levels: DelayLevels,
        now_ms: int,
    ) -> None:
        """The queues, and the index if there is one, get what they lack."""
        self._queues = queues
        self._index = index
        self._deletions = deletions
        self._is_batch_topic = is_batch_topic
        self._levels = levels
        self._now_ms = now_ms
        self._noted_to = 0
        self._codes = TagsCodes()

    def run(
        self, records: Iterable[StoredMessage | Stretch], queues_from: int, until: int
    ) -> int | None:
        """Take records in the order of the log, up to an offset; return that of the next one.

        The queues have the records before `queues_from`.
        """
        for each in records:
            if isinstance(each, StoredMessage):
                if each.physical_offset >= until:
                    return each.physical_offset
                self._take(each, queues_from)
            else:
                count = int(each.offsets.searchsorted(until))
                if count:
                    self._take_stretch(each.first(count), queues_from)
                if count < len(each.offsets):
                    return int(each.offsets[count])
        return None

    def _take(self, message: StoredMessage, queues_from: int) -> None:
        offset, index, deletions = message.physical_offset, self._index, self._deletions
        if offset >= queues_from and not (deletions.offsets and deletions.covers(message)):
            try:
                place_record(self._queues, message, self._is_batch_topic, self._levels)
            except (CorruptionError, StoreFormatError):
                if self._can_take(message):
                    raise
        if index is not None and offset >= self._noted_to:
            note_record(index, message)
            self._noted_to = offset + 1  # A second replay must not note it again.
            if index.waiting >= _BUILD:
                index.build(_BUILD, self._now_ms)

    def _can_take(self, message: StoredMessage) -> bool:
        """Whether the queue of a message is sound; see `ConsumeQueues.can_take`."""
        topic, following = message.topic, message.queue_offset + 1
        key = QueueKey(self._is_batch_topic(topic), topic, message.queue_id)
        if key.is_batch:
            following = batch_entry(message, self._levels).end_offset
        return self._queues.can_take(key, message.physical_offset, following)

    def _take_stretch(self, stretch: Stretch, queues_from: int) -> None:
        offsets = stretch.offsets
        topics = {topic: topic.decode() for topic in set(stretch.topics)}
        if any(self._is_special(raw, topic) for raw, topic in topics.items()):
            for message in stretch.messages():
                self._take(message, queues_from)
            return
        first = int(offsets.searchsorted(queues_from))
        if first < len(offsets):
            self._place(stretch, first, topics)
        if self._index is not None:
            least = max(self._noted_to, self._index.resume_offset)
            self._note(self._index, stretch, int(offsets.searchsorted(least)))
            self._noted_to = max(self._noted_to, int(offsets[-1]) + 1)

    def _is_special(self, raw: bytes, topic: str) -> bool:
        return raw in self._deletions.offsets or self._is_batch_topic(topic)

    def _place(self, stretch: Stretch, first: int, topics: dict[bytes, str]) -> None:
        """Put the entries where they belong, from the record of row `first` on."""
        codes = self._codes_of(stretch)
        entries = stretch.entries(codes)
        sizes: list[int] = (stretch.ends - stretch.starts).tolist()
        for rows in stretch.rows_by_queue(first):
            some = int(rows[0])
            topic, queue_id = topics[stretch.topics[some]], int(stretch.queue_ids[some])
            key = QueueKey(is_batch=False, topic=topic, queue_id=queue_id)
            following = int(stretch.queue_offsets[rows[-1]]) + 1
            if not self._queues.can_take(key, int(stretch.offsets[some]), following):
                continue
            queue = self._queues.simple.get(topic, queue_id)
            together = len(rows) >= _TOGETHER_MIN
            if together and stretch.first_gap(rows, queue.end) is None:
                queue.extend(entries[rows].tobytes(), len(rows))
                queue.next_offset = queue.end
            else:
                chosen: list[int] = rows.tolist()
                numbers: list[int] = stretch.queue_offsets[rows].tolist()
                for number, row in zip(numbers, chosen, strict=True):
                    queue.place(number, int(stretch.offsets[row]), sizes[row], codes[row])

    def _codes_of(self, stretch: Stretch) -> list[int]:
        codes: list[int] = [self._codes.code_of(raw) for raw in stretch.properties]
        if _DELAYED in stretch.topics:
            for row, topic in enumerate(stretch.topics):
                if topic == _DELAYED:
                    delays = self._levels.at(int(stretch.offsets[row]))
                    stored = int(stretch.store_times[row])
                    properties = stretch.properties[row]
                    codes[row] = tags_code_of(SCHEDULE_TOPIC, properties, stored, delays)
        return codes

    def _note(self, index: Index, stretch: Stretch, first: int) -> None:
        columns = (
            stretch.offsets[first:].tolist(),
            stretch.topics[first:],
            stretch.properties[first:],
            stretch.store_times[first:].tolist(),
        )
        noted = list(zip(*columns, strict=True))
        for begin in range(0, len(noted), _BUILD):
            some = noted[begin : begin + _BUILD]
            index.add_many(some, len(some))
            index.build(_BUILD, self._now_ms)
