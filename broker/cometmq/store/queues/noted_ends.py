"""Where the queues of an open store end, kept up to date while entries are written to their files.

`queue_ends` says what that list is for, and when it is saved.
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

    One thread notes what is written; another one saves it when a checkpoint is taken.
    """

    def __init__(self) -> None:
        self.sizes = Sizes(0, 0, IndexShape(0, 0))
        self.known: Ends = {}
        """The ends on the disk: later changes wait for the next checkpoint."""
        self._listed: Ends = {}
        """The ends in the list's file: older than `known` if the disk refused it."""
        self.is_saved = False
        """Whether the file has what is known."""
        self.is_whole = False
        """Whether every queue is known, or among the written ones; until then no list is saved."""
        self._written: dict[EntryFiles, tuple[int, bytes]] = {}
        """By queue, its end and its last entry."""
        self._later: dict[EntryFiles, tuple[int, bytes]] = {}
        """The same for entries of records after the mark."""
        self._gone: set[QueueKey] = set()
        self._mark: int | None = None

    def begin_with(self, listed: Ends, known: Ends) -> None:
        """Begin with the ends in the file; those that are listed but not `known` no longer hold."""
        self.known = self._listed = known
        self.is_saved = len(known) == len(listed)
        self.is_whole = True

    def save(self, known: Ends, filesystem: FileSystem, root: str) -> None:
        """Save these ends to the file; they are the known ones from now on."""
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
        """Note the end of a queue that is not listed yet."""
        if queue.key not in self.known and queue.end > queue.start:
            self._written[queue] = queue.end, queue.read_entries(queue.end - 1, 1)

    def note_lacking(self, key: QueueKey, physical_offset: int, next_offset: int) -> None:
        """Note that a queue, which is damaged, cannot be given the entry of a record.

        Once no start reads that record any more, the queue must not count as whole: not even if its
        files are restored from a copy.
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
        """Save in the list that files of some queues may be gone; for the thread that saves it."""
        known = self.known.copy()
        for key, first in kept_from.items():
            if key in known:  # Others will be listed with their queue's own value.
                known[key] = known[key]._replace(kept_from=first)
        if self.is_whole:
            self.save(known, filesystem, root)
        else:
            self.known = known

    def lets_go(self, queue: EntryFiles) -> bool:
        """Whether no start would count the files that the queue does not keep as lost."""
        end = self._listed.get(queue.key)
        return end is None or end.kept_from >= queue.kept_from

    def begin(self, mark: int) -> None:
        """From now on, leave out entries of records at or after a physical offset."""
        self._written.update(self._later)
        self._later = {}
        self._mark = mark

    def take(self) -> Changes:
        """Return what changed before the mark since the last call."""
        changes = Changes(self, self._written, self._gone, is_whole=self.is_whole)
        self._written, self._later, self._gone, self._mark = self._later, {}, set(), None
        return changes


class Changes:
    """What has changed since the list was last saved; for the thread that saves it."""

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
        """Bring the list up to date; every entry that it names must be on the disk."""
        ends = self._ends
        if self._gone or self._written:
            ends.is_saved = False
        known = ends.known.copy()
        for key in self._gone:
            known.pop(key, None)
        for queue, (end, last) in self._written.items():
            known[queue.key] = QueueEnd.of(last, end, queue.kept_from)
        ends.known = known  # Even if the disk refuses it: the next save begins with these changes.
        if self._is_whole and not ends.is_saved:
            ends.save(known, filesystem, root)


def end_of(queue: EntryFiles) -> QueueEnd | None:
    """Return where a queue ends; None if it has no message."""
    if queue.end == queue.start:
        return None
    end = QueueEnd.of(queue.read_entries(queue.end - 1, 1), queue.end, queue.kept_from)
    return None if end.physical_offset == NO_RECORD else end
