"""Which messages were in damaged ranges of a log, for a repair that steps over them.

Four things show that there was a message without a sound record. An entry of its queue, or of the
entry journal, leads into a range: then it was there. The numbers of its queue have a gap between
two sound records: then it was in a range between these. The list of the queues' ends names it. Or
the damaged record itself says so: the last message of a queue of a killed store may be in none of
the others, but its number is the next one. Entries are looked at first, because a gap may span
several ranges, and each has limited room: messages with lower numbers were earlier in the log, too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cometmq.store.checking.journal_witness import JournalWitness
from cometmq.store.checking.known_ends import queue_keys
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.queue_files import files_of
from cometmq.store.mending.lost_messages import Front
from cometmq.store.mending.placeholders import Lost, least_size
from cometmq.store.messages.dispatch import BATCH_COUNT_MAX, has_entry, message_count
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.queues.record_check import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage
    from cometmq.store.mending.lost_messages import Fronts


class Gap(NamedTuple):
    """Numbers of a queue that no sound record has."""

    first: int
    end: int
    low: int
    """The offset of the last record before the gap; the messages came after it."""
    high: int
    """The offset of the first record after the gap; the messages came before it."""
    has_begun: bool = True
    """Whether the queue had the first of these numbers; if not, some may have expired."""


Gaps = dict[tuple[str, int], list[Gap]]
"""By topic and queue id, the gaps between sound records, in order."""


class _Seen(NamedTuple):
    """Messages that are known to have been in a certain range."""

    first: int
    end: int
    damage: int


_NONE = _Seen(0, 0, 0)


def said_by(store: Inspected, damage: Damage) -> Iterator[Lost]:
    """Yield the message that a range says it was, if it is one record with undamaged lengths.

    Also yield the messages that records of an earlier repair in it stand for.
    """
    for part in damage.parts:
        yield from said_by(store, part)
    if damage.instead is not None and damage.instead.messages:
        yield Lost(*damage.instead.place, damage.instead.messages)
    if damage.said is not None or damage.instead is not None or damage.parts:
        return
    head = store.segments.read(damage.start, 4)
    size, room = int.from_bytes(head, "big"), damage.end - damage.start
    # The last record may end in zeros, which do not count as data.
    if size != room and not (damage.is_last and room < size <= store.segments.size):
        return
    record = read_record(store.segments, damage.start, size)
    if record is None or not has_entry(record):
        return
    topic, count = record.topic_raw.decode("utf-8", "replace"), message_count(record)
    is_deleted = store.deletions.covers(record) or damage.start < store.gone_topics.gone_to(topic)
    if record.queue_offset >= 0 and record.queue_id >= 0 and not is_deleted:
        yield Lost(topic, record.queue_id, record.queue_offset, count)


class LostInDamage:
    """Finds the lost messages; `lost` has them by the number of the range."""

    def __init__(self, store: Inspected, damages: list[Damage], gaps: Gaps, fronts: Fronts) -> None:
        """`fronts` say how far the sound records of each queue go."""
        self.lost: dict[int, list[Lost]] = {}
        self._store = store
        self._damages = damages
        self._starts = [damage.start for damage in damages]
        self._journal = JournalWitness(store)
        self._rooms = [damage.end - damage.start for damage in damages]
        self._said: dict[tuple[str, int], list[_Seen]] = {}
        for number, damage in enumerate(damages):
            for lost in said_by(store, damage):
                said = _Seen(lost.queue_offset, lost.queue_offset + lost.count, number)
                self._said.setdefault((lost.topic, lost.queue_id), []).append(said)
        found: list[tuple[QueueKey, Gap, list[_Seen]]] = []
        for key in self._keys(gaps) if damages else ():
            for gap, seen in self._gaps_of(key, gaps, fronts):
                found.append((key, gap, seen))
                for each in seen:
                    self._add(key, each)
        for key, gap, seen in sorted(found, key=lambda each: each[1].high):
            self._place_rest(key, gap, seen)  # The gaps with the least choice first.
        for messages in self.lost.values():
            messages.sort(key=lambda each: (each.topic, each.queue_id, each.queue_offset))

    def _keys(self, gaps: Gaps) -> dict[QueueKey, None]:
        """Return the queues that have files, or are in a list, or that only the log shows."""
        store = self._store
        keys = dict.fromkeys([*queue_keys(store), *self._journal.keys])
        named = {(key.topic, key.queue_id) for key in keys}
        for topic, queue_id in sorted((gaps.keys() | self._said.keys()) - named):
            keys[QueueKey(store.is_batch_topic(topic), topic, queue_id)] = None
        return keys

    def _gaps_of(
        self, key: QueueKey, gaps: Gaps, fronts: Fronts
    ) -> Iterator[tuple[Gap, list[_Seen]]]:
        """Yield each gap of a queue with the messages seen in it; the last gap ends the queue."""
        name = key.topic, key.queue_id
        deleted = self._store.deletions.deleted_to(key.topic) - 1
        front = fronts.get(name, Front(0, deleted))
        has_begun = front.physical_offset != deleted or not self._store.segments.first_offset
        last = Gap(front.next_offset, NEVER, front.physical_offset, NEVER, has_begun)
        all_gaps = [*gaps.get(name, ()), last]
        seen = self._seen(key, all_gaps)
        yield from zip(all_gaps[:-1], seen, strict=False)
        gap, seen_last = self._at_end(key, all_gaps[-1], seen[-1])
        yield self._as_said(name, gap, seen_last)

    def _seen(self, key: QueueKey, gaps: list[Gap]) -> list[list[_Seen]]:
        """Return, by gap, the messages whose entries lead into a range.

        If a gap may begin with expired messages, let it begin after the last entry that shows some.
        """
        seen: list[list[_Seen]] = [[] for _ in gaps]
        # The index of an entry in a batch queue is no message number.
        sound = [] if key.is_batch else _between(gaps)
        files, first_offset = files_of(self._store, key), self._store.segments.first_offset
        row_start = files.row_start()  # A power cut may bring back files that expired before.
        for index, entry in self._journal.entries(key, files.entries_outside(sound)):
            offset, base, count = _messages(entry, index)
            end, at = base + count, bisect_right(gaps, base, key=lambda gap: gap.first) - 1
            if at < 0 or end > gaps[at].end:
                continue
            gap, before = gaps[at], seen[at][-1] if seen[at] else _NONE
            if offset < first_offset:
                if gap.low < first_offset and offset >= 0 and index >= row_start:
                    gaps[at] = gap._replace(first=end, has_begun=True)
                continue
            damage = bisect_right(self._starts, offset) - 1
            is_there = damage >= 0 and offset < self._damages[damage].end
            if is_there and self._damages[damage].said == (key.topic, key.queue_id, base):
                continue  # Exactly the message that the record wrongly says it is.
            follows = base >= before.end and damage >= before.damage
            if is_there and follows and gap.low < offset < gap.high:
                seen[at].append(_Seen(base, end, damage))
        files.close()
        return seen

    def _at_end(self, key: QueueKey, gap: Gap, seen: list[_Seen]) -> tuple[Gap, list[_Seen]]:
        """Return the gap after the last sound record, up to the known end of the queue."""
        end = seen[-1].end if seen else gap.first
        known = self._store.ends.get(key)
        if known is None or known.next_offset <= end:
            return gap._replace(end=end), seen
        # If a queue lacks entries, its last record is somewhere after the first lacking one.
        behind = NEVER if known.lacks_from is not None else known.reaches + 1
        first = bisect_right([damage.end for damage in self._damages], known.reaches)
        last = bisect_left(self._starts, behind) - 1
        if first > last:
            return gap._replace(end=end), seen
        if not (gap.has_begun or seen):
            end = known.next_offset - 1  # Nobody knows how many of the messages have expired.
            gap = gap._replace(first=end, has_begun=True)
        high = min(behind, self._damages[last].end)
        return gap._replace(end=known.next_offset, high=high), seen

    def _as_said(
        self, name: tuple[str, int], gap: Gap, seen: list[_Seen]
    ) -> tuple[Gap, list[_Seen]]:
        """Return a queue's last gap extended by the damaged records that say they follow."""
        end, low = gap.end, bisect_right(self._starts, gap.low)
        low = max(low, seen[-1].damage if seen else low)
        for each in self._said.get(name, ()):
            if each.damage >= low and each.first == end:
                seen = [*seen, each]
                end, low = each.end, each.damage
        return gap._replace(end=end), seen

    def _place_rest(self, key: QueueKey, gap: Gap, seen: list[_Seen]) -> None:
        """Put messages that no entry shows into the ranges between the seen ones."""
        low = bisect_right(self._starts, gap.low)
        high = bisect_left(self._starts, gap.high) - 1
        first, has_begun = gap.first, gap.has_begun
        for each in [*seen, _Seen(gap.end, gap.end, high)]:
            if has_begun and first < each.first:
                self._place(key, first, each.first, low, each.damage)
            first, low, has_begun = each.end, max(low, each.damage), True

    def _place(self, key: QueueKey, first: int, end: int, low: int, high: int) -> None:
        """Put some messages into the first ranges that have room for them.

        If they do not fit, they are missing for another reason: their topic was recreated.
        """
        count = 1 if key.is_batch else end - first
        size = _size(key, first, end)
        rooms = self._rooms[low : high + 1]
        if count > sum(room // size for room in rooms):
            return
        for damage, room in enumerate(rooms, low):
            here = min(room // size, count)
            if here:
                until = end if key.is_batch else first + here
                self._add(key, _Seen(first, until, damage))
                first, count = until, count - here
            if not count:
                return

    def _add(self, key: QueueKey, seen: _Seen) -> None:
        count = seen.end - seen.first
        lost = Lost(key.topic, key.queue_id, seen.first, count)
        self.lost.setdefault(seen.damage, []).append(lost)
        records = 1 if key.is_batch else count
        self._rooms[seen.damage] -= records * _size(key, seen.first, seen.end)


def _size(key: QueueKey, first: int, end: int) -> int:
    """Return the least size of the record of a message, or of a batch."""
    return least_size(Lost(key.topic, key.queue_id, first, end - first if key.is_batch else 1))


def _between(gaps: list[Gap]) -> list[tuple[int, int]]:
    """Return the numbers that are in none of the gaps, which are in order."""
    ends = [0, *(gap.end for gap in gaps[:-1])]
    return [(end, gap.first) for end, gap in zip(ends, gaps, strict=True) if end < gap.first]


def _messages(entry: bytes, index: int) -> tuple[int, int, int]:
    """Return the physical offset, first queue offset and number of messages of an entry."""
    if len(entry) == ENTRY_SIZE:
        return ENTRY.unpack(entry)[0], index, 1
    offset, _, _, _, base, count, *_ = BATCH_ENTRY.unpack(entry)
    return offset, base, max(1, min(count, BATCH_COUNT_MAX))
