"""What the log, while it is read, calls for in one queue, and what of that is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE

if TYPE_CHECKING:
    from cometmq.store.looking.queue_files import AboutQueue

NOTHING: Final = bytes(ENTRY_SIZE)
"""The bytes where there is no entry."""


@dataclass(frozen=True, slots=True)
class Missed:
    """An entry that is not what its record calls for."""

    index: int
    expected: bytes
    found: bytes

    @property
    def physical_offset(self) -> int:
        """That of the record that calls for the entry."""
        return int.from_bytes(self.expected[:8], "big")

    @property
    def is_blank(self) -> bool:
        """Whether nothing is there, or an entry that fills a queue before its begin."""
        return self.found == NOTHING or ENTRY.unpack(self.found)[:2] == (0, PRE_BLANK_SIZE)


class QueueTrack:
    """What the log calls for in one queue, and what of it is there."""

    __slots__ = (
        "collected",
        "exists",
        "files",
        "first",
        "gap",
        "gone_to",
        "is_mixed",
        "jumped",
        "jumps",
        "last",
        "matched",
        "missed",
        "next",
        "ours_from",
        "queue",
        "settled_to",
        "unnamed",
        "unnamed_to",
    )

    def __init__(self, queue: AboutQueue, ours_from: int) -> None:
        self.queue = queue
        self.files = files = queue.files
        self.ours_from = ours_from
        self.exists = bool(files)
        self.collected = bytearray()
        self.first = self.gone_to = 0
        self.next = self.settled_to = 0
        self.matched: list[tuple[int, int]] = []
        self.is_mixed = False
        """Whether an entry leads further back in the log than an earlier one."""
        self.missed: list[Missed] = []
        self.unnamed = 0
        """How many missed entries there are beyond those that are remembered."""
        self.unnamed_to = 0
        """The physical offset of the last record that calls for one of these."""
        self.last = -1
        """The offset of the last record so far."""
        self.jumps: set[int] = set()
        """Offsets of records whose number does not follow, and of the records before these."""
        self.jumped: tuple[int, int] = (-1, 0)
        """The last record that does not follow, and the number that it should have had."""
        self.gap: tuple[int, int] = (0, 0)
        """The last numbers that are missing between two records."""

    def last_matched(self) -> tuple[int, int]:
        """Return the last right entry, and the physical offset in it; -1 if there is none."""
        last = max((end for _, end in self.matched), default=0) - 1
        return last, -1 if last < 0 else int.from_bytes(self.files.read(last, 1)[:8], "big")

    def first_matched(self) -> int:
        """Return the first right entry; -1 if there is none."""
        return min((start for start, _ in self.matched), default=-1)

    def note_matched(self, start: int, end: int) -> None:
        """Note that these entries are right; earlier records may have had these numbers before."""
        if self.missed and self.missed[-1].index >= start:
            # The numbers went back: the missed records are of a topic that was deleted. In our own
            # stores we note that, and such records do not come here.
            self.missed = [
                missed
                for missed in self.missed
                if missed.index < start or missed.physical_offset >= self.ours_from
            ]
            if self.unnamed_to < self.ours_from:
                self.unnamed = 0
        self.is_mixed |= any(start < each for each, _ in self.matched[-1:])
        if self.matched and self.matched[-1][1] == start:
            self.matched[-1] = (self.matched[-1][0], end)
        else:
            self.matched.append((start, end))
