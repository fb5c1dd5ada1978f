"""Whether the records that nobody promised follow one another in their queues.

Without a checksum of the whole record, a power cut may tear the head of a record and leave its body
whole: then its queue, or its number in the queue, is wrong. Such a record would take the place of
promised messages, or leave a gap before those after it. So the tail after what was known to be
synced only counts up to the first record that is not the next one of its queue.

A start looks at the records while it verifies them, when it does not know yet with which number a
queue continues. `Succession` notes with which number it did, and asks the queues later, when they
have all earlier records: that saves reading the tail again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.message import StoredMessage
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.log.log_scan import NEVER
from cometmq.store.messages.dispatch import batch_entry, has_entry, says_number_twice
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.deletions import Deletions
    from cometmq.store.log.log_stretch import Stretch
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.starting.recovery import Start
    from cometmq.store.upkeep.checkpoint import Claims

_TOGETHER_MIN: Final = 16
"""With fewer records of one queue it does not pay to look at them together."""

_ANY_LEVELS: Final = DelayLevels.always(())


class Succession:
    """The numbers of a log's records in their queues, from a physical offset on."""

    def __init__(
        self,
        start: int,
        deletions: Deletions,
        is_batch_topic: Callable[[str], bool],
        *,
        until: int = NEVER,
    ) -> None:
        self.start = start
        """The offset of the first record to look at: mostly the first that nobody promised."""
        self._until = until
        self._deletions = deletions
        self._is_batch_topic = is_batch_topic
        self._firsts: dict[tuple[bytes, int], tuple[int, int]] = {}
        """By queue: the number of its first record here, and the offset of that record."""
        self.following: dict[tuple[bytes, int], int] = {}
        """By queue: the number after its last record here."""
        self._gap = NEVER
        """The offset of the first record that does not follow the previous one of its queue."""
        self._behind_gap: dict[bytes, int] = {}
        """By topic, the offset of its first record after the gap, or of one shortly before it."""

    def look_at(self, each: StoredMessage | Stretch) -> None:
        """Look at what comes next in the log."""
        if isinstance(each, StoredMessage):
            if self.start <= each.physical_offset < min(self._gap, self._until):
                self._look_at_record(each)
            elif self._gap <= each.physical_offset < self._until and has_entry(each):
                self._note_topics([each.topic_raw], [each.physical_offset])
            return
        first, end = (int(each.offsets.searchsorted(at)) for at in (self.start, self._until))
        if first < end and each.offsets[0] < self._gap:
            self._look_at_stretch(each if end == len(each.offsets) else each.first(end), first)
        if self.has_gap:
            self._note_topics(each.topics[first:end], each.offsets[first:end].tolist())

    def _note_topics(self, topics: list[bytes], places: list[int]) -> None:
        for topic, place in zip(topics, places, strict=True):
            if place >= self._deletions.offsets.get(topic, 0):
                self._behind_gap.setdefault(topic, place)

    def _look_at_record(self, message: StoredMessage) -> None:
        if not has_entry(message):
            return
        if self._deletions.offsets and self._deletions.covers(message):
            return
        number, count = message.queue_offset, 1
        if self._is_batch_topic(message.topic):
            entry = batch_entry(message, _ANY_LEVELS)
            number, count = entry.base_offset, entry.batch_size
            if not says_number_twice(message):  # We write it twice.
                self._gap = message.physical_offset
        queue = message.topic_raw, message.queue_id
        if number != self._expected(queue, number, message.physical_offset):
            self._gap = message.physical_offset
        self.following[queue] = number + count

    def _look_at_stretch(self, stretch: Stretch, first: int) -> None:
        topics = set(stretch.topics)
        if topics & self._deletions.offsets.keys() or any(
            self._is_batch_topic(topic.decode()) for topic in topics
        ):
            for message in stretch.messages():
                self.look_at(message)
            return
        if len(topics) * _TOGETHER_MIN > len(stretch.topics):
            self._look_one_by_one(stretch, first)
            return
        for rows in stretch.rows_by_queue(first):
            row = int(rows[0])
            queue = stretch.topics[row], int(stretch.queue_ids[row])
            number = int(stretch.queue_offsets[row])
            expected = self._expected(queue, number, int(stretch.offsets[row]))
            gap = stretch.first_gap(rows, expected)
            if gap is not None:
                self._gap = min(self._gap, int(stretch.offsets[gap]))
            self.following[queue] = expected + len(rows)

    def _look_one_by_one(self, stretch: Stretch, first: int) -> None:
        """Do the same for records of so many queues that each has only a few."""
        following, queue_ids = self.following, stretch.queue_ids[first:].tolist()
        places, numbers = stretch.offsets[first:].tolist(), stretch.queue_offsets[first:].tolist()
        queues = zip(stretch.topics[first:], queue_ids, strict=True)
        for queue, number, place in zip(queues, numbers, places, strict=True):
            expected = following.get(queue)
            if expected is None:
                self._firsts[queue] = number, place
            elif expected != number:
                self._gap = min(self._gap, place)
                return
            following[queue] = number + 1

    def _expected(self, queue: tuple[bytes, int], number: int, physical_offset: int) -> int:
        expected = self.following.get(queue)
        if expected is None:
            self._firsts[queue] = number, physical_offset
            return number
        return expected

    @property
    def has_gap(self) -> bool:
        """Whether some record does not follow the previous one of its queue."""
        return self._gap != NEVER

    def topics_in_front(self, physical_offset: int) -> set[str]:
        """Return the topics that have a record here before a place in the log."""
        firsts = [(topic, place) for (topic, _), (_, place) in self._firsts.items()]
        firsts += self._behind_gap.items()
        return {topic.decode() for topic, place in firsts if place < physical_offset}

    def first_numbers(self) -> Iterator[tuple[tuple[bytes, int], int]]:
        """Yield each queue that has a record here, with the number of the first."""
        return ((queue, number) for queue, (number, _) in self._firsts.items())

    def first_contradiction(self, queues: ConsumeQueues, first_offset: int) -> int | None:
        """Return the physical offset of the first record that is not the next one of its queue.

        The queues have all records before these. If the log before `first_offset` has expired, a
        queue without entries may continue with any number: perhaps the list no longer names it
        because an interrupted start was about to rebuild it. Not if its topic was deleted after
        that offset.
        """
        found = self._gap
        for (topic, queue_id), (number, physical_offset) in self._firsts.items():
            if physical_offset < found and number != self._next(
                queues, topic.decode(), queue_id, number, first_offset
            ):
                found = physical_offset
        return None if found == NEVER else found

    def _next(
        self, queues: ConsumeQueues, topic: str, queue_id: int, number: int, first_offset: int
    ) -> int:
        """Return the number with which a queue continues; `number` if it may be any."""
        key = QueueKey(self._is_batch_topic(topic), topic, queue_id)
        table = queues.table(is_batch=key.is_batch)
        queue = table.find_sound(topic, queue_id)
        if queue is not None and queue.end > queue.start:
            return queue.max_offset  # Even if all of its messages have expired.
        known = queues.ends.known.get(key)
        is_damaged = (topic, queue_id) in table.problems
        if known is not None:
            # If the topic was deleted, the queue may have begun at 0 again.
            is_any = is_damaged or topic.encode() in self._deletions.offsets
            return min(number, known.next_offset) if is_any else known.next_offset
        # Everything that was put after a mark in the log is still there, and began at 0.
        is_any = is_damaged or self._deletions.deleted_to(topic) < first_offset
        return number if is_any else 0


class Successions:
    """The numbers of all records that a start is about to read back for their queues."""

    def __init__(
        self,
        start: Start,
        claims: Claims | None,
        deletions: Deletions,
        is_batch_topic: Callable[[str], bool],
    ) -> None:
        replay_from, border = start.replay_from, start.unpromised_from
        if claims is not None:
            replay_from = max(replay_from, claims.complete_to)
            # The start that took over from another program accepted all its sound records.
            border = max(border, claims.ours_from)
        self.promised = Succession(replay_from, deletions, is_batch_topic, until=border)
        """Those of the records that may not be cut any more."""
        self.unpromised = Succession(border, deletions, is_batch_topic)
        self.placed = Succession(
            start.scan_from, deletions, is_batch_topic, until=start.replay_from
        )
        """Those of records before what is read back, which the queues had; only for Apache's."""
        self._parts = [self.promised, self.unpromised]
        if claims is None:
            self._parts.append(self.placed)

    def look_at(self, each: StoredMessage | Stretch) -> None:
        """Look at what comes next in the log."""
        for part in self._parts:
            part.look_at(each)
