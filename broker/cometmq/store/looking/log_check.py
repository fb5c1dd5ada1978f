"""Reading a whole log, past damage.

`LogScan` ends at the first place at which no sound record begins. Whether that place is the end of
the log, a torn tail or damage is decided as a start decides it, see `recovery.VERDICTS`. After
damage the next sound record is searched for byte by byte, because no length leads there.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from cometmq.store.errors import StoreFormatError
from cometmq.store.log.record_search import data_end, next_record
from cometmq.store.looking.right_heads import placed
from cometmq.store.starting.recovery import Verdict, judge, queues_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.log.log_scan import LogScan
    from cometmq.store.log.segments import Segments
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.right_heads import Place


class Instead(NamedTuple):
    """Which messages a record of a repair stands for."""

    place: Place
    messages: int
    """0 if the record only fills a range."""


class Damage(NamedTuple):
    """A range of the log without a sound record."""

    start: int
    end: int
    """Where the next sound record begins, or the log's data ends."""
    problem: str
    is_last: bool
    """Whether no sound record follows it."""
    said: Place | None = None
    """For a record that is sound, but not the message that it says it is: that message."""
    truth: Place | None = None
    """Which message that record is, if this can be written into it."""
    instead: Instead | None = None
    """For a record that a repair put there: what it stands for."""
    parts: tuple[Damage, ...] = ()
    """For a range with such records: these, and the parts that are still damaged."""


class LogCheck:
    """One pass over a whole log: iterate it, then look at what it found."""

    def __init__(
        self,
        store: Inspected,
        start: int | None = None,
        wrong_heads: dict[int, Damage] | None = None,
    ) -> None:
        """Read with `wrong_heads`, by their offsets, see that module.

        A wrong head that can be put right is yielded as it will be then; the others count as
        damage. So do records that an earlier repair put beside damage: they form one range with it.
        """
        self._store = store
        self._wrong_heads = wrong_heads or {}
        self._start = store.segments.first_offset if start is None else start
        self.damages: list[Damage] = []
        self.end_offset = self._start
        """The end of the last record."""
        self.data_end = self._start
        """The end of the last nonzero byte, if that was looked for."""
        self.torn_problem: str | None = None
        """Why the tail between `end_offset` and `data_end` begins with no record."""
        self.torn_records = 0
        """Sound records in that tail nevertheless, which nobody promised."""

    def __iter__(self) -> Iterator[StoredMessage]:
        """Yield the sound records."""
        segments = self._store.segments
        position = self._start
        while True:
            scan = self._store.start.scan(segments, position)
            for message in scan:
                right = self._right(message) if self._wrong_heads else message
                if right is not None:
                    yield right
            self.end_offset = self.data_end = end = scan.end_offset
            if not self._is_damage(scan):
                return
            found = next_record(segments, end + 1, self.data_end)
            what = scan.problem or "there are zeros"
            damage = Damage(end, found or max(self.data_end, end), what, found is None)
            self._add(damage)
            if found is None:
                return
            position = found

    def _count_behind(self, end: int) -> int:
        """Return how many sound records follow a place at which none begins."""
        count, segments = 0, self._store.segments
        while (found := next_record(segments, end + 1, self.data_end)) is not None:
            scan = self._store.start.scan(segments, found)
            count += sum(1 for _ in scan)
            end = max(found, scan.end_offset - 1)
        return count

    def _right(self, message: StoredMessage) -> StoredMessage | None:
        """Return a record with a right head; None if it counts as damage."""
        head = self._wrong_heads.get(message.physical_offset)
        if head is None:
            return message
        if head.truth is not None:
            return placed(message, head.truth)
        self._add(head)
        return None

    def _add(self, damage: Damage) -> None:
        """Note a range; join it with the previous one if a record of a repair is in it."""
        before = self.damages[-1] if self.damages else None
        if before is None or before.end != damage.start or damage.is_last:
            self.damages.append(damage)
            return
        parts = (*(before.parts or (before,)), damage)
        if any(part.said for part in parts) or not any(part.instead for part in parts):
            self.damages.append(damage)
            return
        problem = next((part.problem for part in parts if part.instead is None), damage.problem)
        self.damages[-1] = Damage(before.start, damage.end, problem, is_last=False, parts=parts)

    def _is_damage(self, scan: LogScan) -> bool:
        """Whether the place where a scan ended must have been sound, as a start would judge it."""
        store = self._store
        segments, start = store.segments, store.start
        end = scan.end_offset
        self.data_end = data_end(segments, end)
        if end < start.scan_from:
            return True  # No start looks there: it was safe when the checkpoint was written.
        if store.is_clean and start.synced_offset is None and self.data_end > end:
            # Apache leaves what it once cut; the queues know where its log ended.
            start = start._replace(synced_offset=self._queues_end(segments) or None)
        verdict = judge(
            segments,
            start,
            end,
            self.data_end,
            clean=store.is_clean,
            unsynced_size_max=store.config.unsynced_size_max,
        )
        if verdict is Verdict.CUT and self.data_end > end:
            self.torn_problem = scan.problem or "there are zeros"
            self.torn_records = self._count_behind(end)
        return verdict is Verdict.CORRUPT

    def missing_end(self) -> int | None:
        """Return how far the log went, if files at its end are missing."""
        store, start = self._store, self._store.start
        with closing(store.open_queues(clean=False)) as queues, suppress(StoreFormatError):
            start = start.with_witnesses(queues, store.segments, clean=store.is_clean)
        return start.missing_end(store.segments)

    def _queues_end(self, segments: Segments) -> int:
        with closing(self._store.open_queues(clean=False)) as queues, suppress(StoreFormatError):
            # An entry that reaches beyond the log is damaged, and no witness.
            return min(queues_end(queues), segments.end_offset)
        return 0
