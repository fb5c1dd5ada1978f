"""Where the queues of an open store end, kept up to date while entries are written to their files.

What that list is for, and when it is saved, is told by `queue_ends`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from cometmq.store.index.index_format import IndexShape
from cometmq.store.queues.queue_ends import NO_RECORD, QueueEnd, Sizes, save_queue_ends

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.queues.entry_files import EntryFiles
    from cometmq.store.queues.queue_ends import Ends, QueueKey


class QueueEnds:
    """The ends of the queues of an open store, kept up to date as their entries are written.

    One thread notes what is written; another one, when a checkpoint is taken, saves it.
    """

    def __init__(self) -> None:
        self.sizes = Sizes(0, 0, IndexShape(0, 0))
        self.known: Ends = {}
        """As they are on the disk: what is changed since waits for the next checkpoint."""
        self._listed: Ends = {}
        """As the file says: less than what is known, when the disk refuses it."""
        self.is_saved = False
        """Whether the file says what is known."""
        self.is_whole = False
        """Whether every queue is among them, or among what is written; until then none is saved."""
        self._written: dict[EntryFiles, tuple[int, bytes]] = {}
        """By queue, its end and its last entry."""
        self._later: dict[EntryFiles, tuple[int, bytes]] = {}
        """The same with entries of records behind the mark."""
        self._gone: set[QueueKey] = set()
        self._mark: int | None = None

    def begin_with(self, listed: Ends, known: Ends) -> None:
        """Take over what the file says; of that, what is not known is no longer true."""
        self.known = self._listed = known
        self.is_saved = len(known) == len(listed)
        self.is_whole = True

    def save(self, known: Ends, filesystem: FileSystem, root: str) -> None:
        """Have the file say what is known from now on."""
        save_queue_ends(filesystem, root, known, self.sizes)
        self.known = self._listed = known
        self.is_saved = True

    def note(self, queue: EntryFiles, end: int, entries: bytes | bytearray | memoryview) -> None:
        """Note that a queue has these entries, up to that end, in its files."""
        size, mark = queue.entry_size, self._mark
        last = bytes(entries[-size:])
        if mark is None or int.from_bytes(last[:8], "big") < mark:
            self._written[queue] = end, last
            return
        self._later[queue] = end, last
        count = len(entries) // size
        kept = bisect_left(
            range(count),
            mark,
            key=lambda at: int.from_bytes(entries[at * size : at * size + 8], "big"),
        )
        if kept:
            self._written[queue] = (
                end - count + kept,
                bytes(entries[(kept - 1) * size : kept * size]),
            )

    def note_loaded(self, queue: EntryFiles) -> None:
        """Note where a queue ends that nobody listed yet."""
        if queue.key not in self.known and queue.end > queue.start:
            self._written[queue] = queue.end, queue.read_entries(queue.end - 1, 1)

    def note_lacking(self, key: QueueKey, physical_offset: int, next_offset: int) -> None:
        """Note that a queue, which is damaged, cannot be given the entry of a record.

        Once no start reads that record any more, the queue must not be taken for whole: not even if
        its files are put back from a copy.
        """
        end = self.known.get(key, QueueEnd(1, NO_RECORD, 0))
        self.known[key] = end.lacking(physical_offset, next_offset)
        self.is_saved = False

    def vouches(self, queue: EntryFiles) -> bool:
        """Whether the queue is known to end where it does."""
        end = self.known.get(queue.key)
        return end is not None and end.entries == queue.end

    def forget(self, queue: EntryFiles) -> None:
        """Note that a queue is removed for good."""
        self._written.pop(queue, None)
        self._later.pop(queue, None)
        self._gone.add(queue.key)

    def let_go(self, kept_from: dict[QueueKey, int], filesystem: FileSystem, root: str) -> None:
        """Have the list say that files of some queues may be gone; for the thread that saves it."""
        known = self.known.copy()
        for key, first in kept_from.items():
            if key in known:  # The others are listed by what their queue says.
                known[key] = known[key]._replace(kept_from=first)
        if self.is_whole:
            self.save(known, filesystem, root)
        else:
            self.known = known

    def lets_go(self, queue: EntryFiles) -> bool:
        """Whether a start would not miss what the queue does not keep."""
        end = self._listed.get(queue.key)
        return end is None or end.kept_from >= queue.kept_from

    def begin(self, mark: int) -> None:
        """Leave out, from now on, entries of records at or behind a physical offset."""
        self._written.update(self._later)
        self._later = {}
        self._mark = mark

    def take(self) -> Changes:
        """Return what changed in front of the mark, since the last time."""
        changes = Changes(self, self._written, self._gone, is_whole=self.is_whole)
        self._written, self._later, self._gone, self._mark = self._later, {}, set(), None
        return changes


class Changes:
    """What changed since the list was saved last; for the thread that saves it."""

    def __init__(
        self,
        ends: QueueEnds,
        written: dict[EntryFiles, tuple[int, bytes]],
        gone: set[QueueKey],
        *,
        is_whole: bool,
    ) -> None:
        self._ends = ends
        self._written = written
        self._gone = gone
        self._is_whole = is_whole

    def save(self, filesystem: FileSystem, root: str) -> None:
        """Bring the list up to date; all that it names must be on the disk."""
        ends = self._ends
        if self._gone or self._written:
            ends.is_saved = False
        known = ends.known.copy()
        for key in self._gone:
            known.pop(key, None)
        for queue, (end, last) in self._written.items():
            known[queue.key] = QueueEnd.of(last, end, queue.kept_from)
        ends.known = known  # Even if the disk refuses it: the next one takes up what came since.
        if self._is_whole and not ends.is_saved:
            ends.save(known, filesystem, root)


def end_of(queue: EntryFiles) -> QueueEnd | None:
    """Return where a queue ends; None if it has no message."""
    if queue.end == queue.start:
        return None
    end = QueueEnd.of(queue.read_entries(queue.end - 1, 1), queue.end, queue.kept_from)
    return None if end.physical_offset == NO_RECORD else end
