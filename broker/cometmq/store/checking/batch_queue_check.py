"""Checking the ConsumeQueues of batch topics against the log.

An entry's index does not follow from its record, so the expected entries of a queue are kept until
the log has been read, and then found by the physical offsets that they lead to. There are few such
topics, and an entry covers a batch: this costs 46 bytes for each of their records.
"""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.store.checking.batch_heads import BatchHeads
from cometmq.store.checking.block_check import and_more
from cometmq.store.checking.copied_queues import is_copied, report_copy
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.queue_files import AboutQueue, files_of
from cometmq.store.looking.right_heads import Place, said_place
from cometmq.store.messages.dispatch import batch_entry, has_entry, says_number_twice
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY, BatchEntry
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.checking.batch_heads import Expected
    from cometmq.store.checking.wrong_heads import WrongHeads
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage

_NEAR_MAX: Final = 8
"""In at most this many bytes an entry may differ from the one that it is taken for."""


class BatchQueueCheck:
    """The check of all batch queues of a store."""

    def __init__(self, store: Inspected, report: Report, heads: WrongHeads) -> None:
        """`heads` gets the records that, according to their entries, are not what they say."""
        self._store = store
        self._report = report
        self._heads = heads
        self._promised_to = store.promised_to
        self._expected: Expected = {}
        self._batch_heads = BatchHeads(store, self._expected)
        self._contradictory: list[int] = []
        settled = store.settled_offset
        self._settled = settled if settled is not None else NEVER

    def take(self, message: StoredMessage, topic: str) -> None:
        """Take the next record of the log."""
        if has_entry(message):
            entry = batch_entry(message, self._store.delay_levels)
            held = self._expected.setdefault((topic, message.queue_id), {})
            held[message.physical_offset] = BATCH_ENTRY.pack(*entry)
            if not says_number_twice(message):
                self._contradictory.append(message.physical_offset)

    def finish(
        self, damages: list[Damage], queues: Iterator[tuple[str, int, str]]
    ) -> Iterator[None]:
        """Report what is missing, and what is there without reason; one queue a step."""
        left = dict(self._expected)
        for topic, queue_id, _ in queues:
            files = files_of(self._store, QueueKey(True, topic, queue_id))
            about = AboutQueue(topic, queue_id, files)
            about.report_files(self._report)
            self._check(about, damages, left.pop((topic, queue_id), {}))
            files.close()
            yield
        for (topic, queue_id), expected in left.items():
            about = AboutQueue(
                topic, queue_id, files_of(self._store, QueueKey(True, topic, queue_id))
            )
            about.report_files(self._report)
            self._check(about, damages, expected)

    def _check(self, about: AboutQueue, damages: list[Damage], expected: dict[int, bytes]) -> None:
        self._report.entries += len(expected)
        first_offset = self._store.segments.first_offset
        unexplained: list[tuple[int, bytes]] = []
        right: list[BatchEntry] = []
        missing = _Missing(expected)
        last = settled_to = reached = -1
        for index, entry in about.files.entries_outside([]):
            found = BatchEntry.read(entry)
            offset = found.physical_offset
            if missing.entries.get(offset) == entry and index > last:
                del missing.entries[offset]
                if offset < reached:
                    problem = f"{_text(entry)}: it comes after the entry of a later record"
                    self._report.add(about.finding(Kind.WRONG_ENTRY, index, problem))
                    continue
                right.append(found)
                last, reached = index, offset
                if offset < self._settled:
                    settled_to = index
            elif not 0 <= offset < first_offset:
                unexplained.append((index, entry))
        for index, entry in unexplained:
            original = None if expected else self._copied(index, entry)
            if original is not None:
                report_copy(self._report, about.files.folder, *original)
                continue
            is_last = index > settled_to
            if not self._is_left_out(about, damages, index, entry, is_last=is_last):
                self._explain(about, index, entry, missing, right)
        self._report_missing(about, missing.entries, right, last + 1)

    def _copied(self, index: int, entry: bytes) -> tuple[str, int] | None:
        """Return the queue of which one without a record in the log has the very same entry."""
        offset = BatchEntry.read(entry).physical_offset
        for (topic, queue_id), expected in self._expected.items():
            if expected.get(offset) == entry:
                files = files_of(self._store, QueueKey(True, topic, queue_id))
                return (topic, queue_id) if is_copied(entry, index, files) else None
        return None

    def _report_missing(
        self, about: AboutQueue, missing: dict[int, bytes], right: list[BatchEntry], end: int
    ) -> None:
        """Report the entries that are missing in a queue, which ends at index `end`."""
        for offset, wanted in missing.items():
            if offset >= self._settled:
                self._report.unsettled_entries += 1
            elif self._was_given_again(wanted, right):
                if offset < self._store.start.ours_from:
                    continue  # Its topic was deleted; in our own stores we note that.
                problem = "its offsets were given out again, to other messages"
                kind, text = Kind.OFFSET_TWICE, _text(wanted)
                self._report.add(about.finding(kind, end, problem, text, offset))
            else:
                kind, text = Kind.MISSING_ENTRY, _text(wanted)
                self._report.add(about.finding(kind, end, "there is none", text, offset))

    def _was_given_again(self, wanted: bytes, right: list[BatchEntry]) -> bool:
        """Whether the numbers of a queue began again after a record."""
        entry = BatchEntry.read(wanted)
        at = bisect(right, entry.physical_offset, key=lambda each: each.physical_offset)
        return at < len(right) and right[at].base_offset <= entry.base_offset

    def _is_left_out(
        self,
        about: AboutQueue,
        damages: list[Damage],
        index: int,
        entry: bytes,
        *,
        is_last: bool,
    ) -> bool:
        """Whether to leave out an entry that no record calls for; if so, count it."""
        found = BatchEntry.read(entry)
        if found.size == PRE_BLANK_SIZE:
            return True
        if found.physical_offset < self._settled and any(
            d.start <= found.physical_offset < d.end for d in damages
        ):
            problem = "the record that it leads to is damaged"
            self._report.add(about.finding(Kind.LOST_MESSAGE, index, problem))
            return True
        # A torn one is cut off by the next start.
        is_torn = is_last and not self._store.is_clean
        deleted_to = self._store.deletions.deleted_to(about.topic)
        is_unsettled = is_torn or not deleted_to <= found.physical_offset < self._settled
        self._report.unsettled_entries += is_unsettled
        return is_unsettled

    def _explain(
        self,
        about: AboutQueue,
        index: int,
        entry: bytes,
        missing: _Missing,
        right: list[BatchEntry],
    ) -> None:
        """Report an entry that no record calls for: as a damaged one, if one is missing."""
        place = Place(about.topic, about.queue_id, BatchEntry.read(entry).base_offset)
        record = self._batch_heads.wrong_head(place, entry, right)
        if record is not None:
            self._heads.note(record, f"the entry of {place} leads to it", place)
            problem = f"the record that it leads to says that it is {said_place(record)}"
            self._report.add(about.finding(Kind.LOST_MESSAGE, index, problem))
            missing.entries.pop(record.physical_offset, None)
            return
        likely = missing.like(entry)
        if likely is not None:
            wanted = _text(missing.entries.pop(likely))
            self._report.add(about.finding(Kind.WRONG_ENTRY, index, _text(entry), wanted))
        else:
            problem = f"{_text(entry)}: no record calls for it"
            self._report.add(about.finding(Kind.EXTRA_ENTRY, index, problem))

    def notes(self) -> Iterator[str]:
        """Name the records that contradict themselves, though no checksum shows damage."""
        if damaged := self._contradictory:
            path, position = self._store.segments.place_of(damaged[0])
            yield (
                f"the batch at byte {position} of {path}{and_more(damaged)}: its number"
                " (INNER_BASE) cannot be read from its properties, or differs from that of its"
                " head; restore the log from a copy"
            )

    def gaps(self) -> Iterator[str]:
        """Say which messages the log lacks without a known reason; for each queue the last gap."""
        for (topic, queue_id), expected in () if self._heads.found else self._expected.items():
            entries = [BatchEntry.read(each) for each in expected.values()]
            lacking = [
                (before.end_offset, entry.base_offset)
                for before, entry in pairwise(entries)
                if before.end_offset < entry.base_offset
                and entry.physical_offset < self._promised_to
            ]
            for first, end in lacking[-1:]:
                yield f"missing from the log: {topic} queue {queue_id} offset {first} to {end - 1}"


class _Missing:
    """The entries that the records of a queue call for, but that were not found."""

    def __init__(self, expected: dict[int, bytes]) -> None:
        self.entries = dict(expected)
        """By the offsets of their records."""
        self._by_base: dict[int, int] | None = None

    def like(self, entry: bytes) -> int | None:
        """Return the record whose entry this is, except for a few bytes.

        It is looked up by place and number, one of which must be right: all entries of a queue may
        be those of another queue.
        """
        if self._by_base is None:
            self._by_base = {
                BatchEntry.read(e).base_offset: offset for offset, e in self.entries.items()
            }
        found = BatchEntry.read(entry)
        near = {
            offset: _distance(self.entries[offset], entry)
            for offset in (found.physical_offset, self._by_base.get(found.base_offset))
            if offset in self.entries
        }
        offset = min(near, key=near.__getitem__, default=None)
        return None if offset is None or near[offset] > _NEAR_MAX else offset


def _distance(left: bytes, right: bytes) -> int:
    """Return the number of bytes in which two entries differ."""
    return sum(a != b for a, b in zip(left, right, strict=True))


def _text(entry: bytes) -> str:
    offset, size, code, time, base, count, *_ = BATCH_ENTRY.unpack(entry)
    return (
        f"physical offset {offset}, size {size}, tags code {code}, store time {time},"
        f" base {base}, {count} messages"
    )
