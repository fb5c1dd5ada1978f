"""A queue of fixed-size entries over fixed-size files: the base of both kinds of ConsumeQueue.

Entry `n` is at byte `n * entry_size` of one endless file, cut into sparse files of equal full
length, each named by the position of its first byte (20 decimal digits). Every entry starts with
the physical offset and the size of a CommitLog record; within a queue both only grow. Three regions
follow one another::


    first file       min              written              end
    |  expired or    |  entries in     |  entries in        |
    |  pre-blank     |  files          |  the tail (memory)  |

* `append` only extends the tail: a `pwrite` costs ten times as much. A queue whose tail was empty
  enters `EntryDisk.unwritten`. So that list is ordered by each queue's first unwritten record, and
  its head says up to which physical offset everything is in the files. That makes the checkpoint
  fuzzy: there need be no moment at which all queues are written.
* Bytes reach the disk when they are synced. After a power cut, bytes that were not synced may be
  there, be zeros, or be torn: `load` with a `cut` (an unclean start) trusts only what was synced.
* Entries that are cut off are erased: no later start may take them for entries.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq.store.errors import MissingEntriesError
from cometmq.store.queues.entry_search import (
    GONE_SIZE,
    NO_CUT,
    PRE_BLANK_SIZE,
    backed_end,
    count_leftovers,
    sound_entries,
)
from cometmq.store.queues.entry_tail import behind
from cometmq.store.queues.readable_entries import ReadableEntries

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File
    from cometmq.store.queues.entry_disk import Shelf

WRITE_BYTES_MAX: Final = 65536
"""Written in one go at most, in about 20 µs, so that a busy queue does not hold up the loop."""


class EntryFiles(ReadableEntries):
    """The entries of one queue, appended in memory and written behind."""

    __slots__ = ("_kept_from", "journal_number", "next_offset", "run")

    def __init__(self, shelf: Shelf, topic: str, queue_id: int) -> None:
        super().__init__(shelf, topic, queue_id)
        self._kept_from: int = 0  # Files before it may be removed.
        self.journal_number: int = -1  # The queue's number in the journal that is being written.
        self.next_offset: int = 0
        """What the next put gets: the store moves it, and takes it back if the turn fails."""
        self.run: list[bytes] | None = None
        """The entries that the queue gets once the turn is written; None if it gets none."""

    @property
    def has_files(self) -> bool:
        """Whether the queue has a file, if only a blank one."""
        return self._first is not None

    @property
    def kept_from(self) -> int:
        """The first entry of the first file that exists and has not expired."""
        return max(self.start, self._kept_from)

    def first_unwritten(self) -> int:
        """Return the physical offset of the first entry that is only in memory; there is one."""
        return int.from_bytes(self._tail[:8], "big")

    # Writing

    def extend(self, entries: bytes, count: int) -> None:
        """Add entries to the tail."""
        if not self._tail:
            self._shelf.disk.unwritten.append(self)
        elif type(self._tail) is bytes:
            self._tail = bytearray(self._tail)
        self._tail += entries
        self.end += count

    def restart_at(self, index: int) -> None:
        """Forget every entry and begin at `index`, after pre-blank entries in its file."""
        self._restart(index, index)

    def restart_behind(self, last: bytes, index: int) -> None:
        """The same if no entry follows: an entry without a message stays before `index`."""
        self._restart(index, index - 1, last)
        self._shelf.disk.ends.note(self, index, last)

    def _restart(self, index: int, within: int, last: bytes = b"") -> None:
        """Begin at `index`, after blank entries in the file that has the index `within`.

        The blank entries, the last one replaced by `last`, are written at once: they may fill a
        whole file, for each of many queues.
        """
        if self.end or self._first is not None:
            self._clear()
        shelf = self._shelf
        number = within // shelf.file_entries
        size = (index - number * shelf.file_entries) * shelf.entry_size
        if size:
            file = self._open_for_writing(number, 0)
            shelf.disk.unsynced_files.add(file.path)
            try:
                blank = shelf.heads.pack(0, PRE_BLANK_SIZE)
                data = blank * (min(size, WRITE_BYTES_MAX) // shelf.entry_size)
                for position in range(0, size, len(data)):
                    file.write(data[: size - position], position)
                if last:
                    file.write(last, size - len(last))
            finally:
                file.close()
        self.end = self._min = index

    def write(self) -> bool:
        """Write the tail, or its first `WRITE_BYTES_MAX`; return whether all of it is written.

        If the disk refuses, the tail stays as it was: the next call writes the same.
        """
        shelf = self._shelf
        disk, size = shelf.disk, shelf.entry_size
        tail = self._tail
        number, place = divmod(self.end - len(tail) // size, shelf.file_entries)
        room = (shelf.file_entries - place) * size
        count = min(len(tail), room, WRITE_BYTES_MAX // size * size)
        # A copy of a buffer, because an error that somebody keeps would keep it from growing.
        data = tail if type(tail) is bytes and count == len(tail) else tail[:count]
        file = disk.open_files.get(self, number)
        if file is not None:
            file.write(data, place * size)
        else:
            file = self._open_for_writing(number, place)
            # With more queues than open files, each file is closed before its next write anyway.
            is_kept = len(disk.unwritten) <= disk.open_files.files_max
            try:
                file.write(data, place * size)
            finally:
                if is_kept:
                    disk.open_files.put(self, number, file)
                else:
                    file.close()
        self._tail = behind(tail, count)
        disk.ends.note(self, self.written, data)
        disk.unsynced_files.add(file.path)
        return not self._tail

    def _open_for_writing(self, number: int, place: int) -> File:
        """Open a file that may not exist yet; it gets its full length, and stays sparse.

        It already has that length if entries are before the place that is to be written.
        """
        shelf = self._shelf
        disk = shelf.disk
        path = shelf.path(self.topic, self.queue_id, number)
        try:
            file, is_new = disk.filesystem.open(path), not place
        except FileNotFoundError:
            disk.filesystem.make_directories(self.directory)
            self._note_names()
            file, is_new = disk.filesystem.open(path, create=True), True
        try:
            if is_new and file.size() < shelf.file_size:
                file.resize(shelf.file_size)
        except OSError:
            file.close()
            raise
        if disk.partition is None:
            disk.partition = disk.filesystem.partition(self.directory)
        if self._first is None:
            self._first = number * shelf.file_entries
        return file

    def _note_names(self) -> None:
        root, names = self._shelf.root, self._shelf.disk.unsynced_directories
        names.update((self.directory, f"{root}/{self.topic}", root))

    def _check_no_gap(self, end: int, index: int, physical_offset: int) -> None:
        """Refuse a record that does not follow the last message of its queue.

        If the log is read from its first record on, expired messages may be missing.
        """
        if index <= end:
            return
        if self._shelf.disk.may_restart:
            is_gap = self.min_entry < self.end
        else:
            had_files = self._first is not None or self in self._shelf.disk.forgotten
            is_gap = had_files or self.start < self.end
        if is_gap:
            raise MissingEntriesError(self.topic, self.queue_id, end, index, physical_offset)

    # Opening

    def load(self, cut: int | None) -> None:
        """Find where the entries on disk start and end.

        With a `cut`, entries of records at or after that physical offset are erased, and nothing
        after the first such entry is trusted.
        """
        disk = self._shelf.disk
        numbers = self._shelf.numbers(self.directory)
        if cut is not None and not disk.read_only:
            self._note_names()  # The stopped process may not have synced them.
            leftovers = self._count_leftovers(numbers, cut)
            for number in numbers[:leftovers]:
                self._remove(number)
            numbers = numbers[leftovers:]
        elif disk.read_only and not (disk.clean and self._kept_by_list == NO_CUT):
            numbers = numbers[self._count_leftovers(numbers, NO_CUT if cut is None else cut) :]
        if not numbers:
            return
        per_file, holds_messages = self._shelf.file_entries, False
        self._first = self._min = self._first_of(numbers)
        for number in reversed(numbers):
            count = sound_entries(self._file(number), self._shelf, NO_CUT if cut is None else cut)
            self.end = number * per_file + count
            if count and cut is not None:
                self.end, holds_messages = backed_end(self, disk, self._known)
            if self.end > number * per_file:
                break  # Otherwise all of this file was torn: the cut is in an earlier one.
            disk.open_files.close(self, number)  # When it is opened for writing, it is resized.
        if cut is not None:
            self._cut_unsure(numbers, holds_messages=holds_messages)
            return
        self._check_known()
        if disk.whole_to is not None:
            self.check_end(disk.whole_to)

    def _first_of(self, numbers: list[int]) -> int:
        """Return where the first file begins, also by the list: a lost file has not expired."""
        return min(numbers[0] * self._shelf.file_entries, self._kept_by_list)

    def _count_leftovers(self, numbers: list[int], cut: int) -> int:
        """Count the expired files whose removal a power cut undid, or a kill prevented."""
        first = self._kept_by_list
        if first == NO_CUT:
            return count_leftovers(self._file, self._shelf, numbers, cut)
        return bisect_left(numbers[:-1], first // self._shelf.file_entries)

    def miss_nothing(self) -> None:
        """Begin at the first file that exists: the log is replayed from its first record."""
        if numbers := self._shelf.numbers(self.directory):
            self._first = self._min = numbers[0] * self._shelf.file_entries
            self._min_physical_offset = -1

    def _cut_unsure(self, numbers: list[int], *, holds_messages: bool) -> None:
        """Erase what a power cut may have left of unsynced entries."""
        disk = self._shelf.disk
        self._check_known()
        is_vouched = holds_messages or disk.ends.vouches(self) or self._is_held()
        if self.end and not is_vouched:
            self._forget()
        elif not disk.read_only:
            self._erase(numbers)

    def _is_held(self) -> bool:
        """Whether the last entry is there to keep the offset, though no list says so.

        In an ordinary queue its size shows it, if the log's beginning had expired. In a queue of
        batches only such an entry has no message.
        """
        if self._shelf.disk.ends.is_whole or self.end <= self.start:
            return False
        return self.is_batch or self.head(self.end - 1)[1] == GONE_SIZE

    def _forget(self) -> None:
        """Take nothing from files without a synced entry, not even where they begin.

        A power cut may have lost the files before them. The log says where the queue continues.
        """
        self._shelf.disk.forgotten.add(self)
        if self._shelf.disk.read_only:
            self._first, self.end, self._min = None, 0, 0
        else:
            self._clear()

    def _check_known(self) -> None:
        """Refuse a queue that has a hole before entries that were synced."""
        known = self._known
        if known is not None and (self.end < known.entries or known.lacks_from is not None):
            problem = f"not an entry, though {known.entries} were safe on the disk"
            if known.lacks_from is not None:
                problem = f"the entry of the record at {known.lacks_from} is missing"
            raise self.damaged(self.end, problem)

    # Cutting

    def truncate(self, physical_offset: int) -> None:
        """Erase the entries of records at or after a physical offset."""
        low = self._first if self._first is not None else self.written
        self.cut_to(
            bisect_left(range(self.end), physical_offset, lo=low, key=lambda i: self.head(i)[0])
        )

    def cut_to(self, index: int) -> None:
        """Erase the entries from `index` on.

        Erase them from the files even if all were in the tail: a failed write may have put some of
        them there.
        """
        if index < self.end:
            self._drop_tail(max(0, index - self.written))
            self.end = index
            self._min = min(self._min, index)
            self._erase(self._shelf.numbers(self.directory))

    def erase_rest(self) -> None:
        """Erase what the files hold after the last entry."""
        self._erase(self._shelf.numbers(self.directory))

    def _drop_tail(self, kept: int) -> None:
        if self._tail:
            self._tail = self._tail[: kept * self._shelf.entry_size] or b""
            if not self._tail:
                self._shelf.disk.unwritten.remove(self)

    def _erase(self, numbers: list[int]) -> None:
        """Erase what the files with these numbers hold after `end`.

        The first file stays, even without entries: its name keeps the queue's offset.
        """
        disk = self._shelf.disk
        last, place = divmod(self.end, self._shelf.file_entries)
        for number in reversed(numbers):
            if number > last or (number == last and not place and number != numbers[0]):
                self._remove(number)
            elif number == last:
                file = self._file(number)
                size = place * self._shelf.entry_size
                if file.size() < self._shelf.file_size or not file.is_blank(size):
                    file.resize(size)
                    file.resize(self._shelf.file_size)
                disk.unsynced_files.add(file.path)  # A blank part may not be blank on the disk.

    def _remove(self, number: int) -> None:
        disk = self._shelf.disk
        path = self._shelf.path(self.topic, self.queue_id, number)
        disk.open_files.close(self, number)
        with suppress(FileNotFoundError):  # A power cut may undo one removal but not the next.
            disk.filesystem.remove(path)
        disk.unsynced_files.discard(path)
        disk.unsynced_directories.add(self.directory)

    # The front

    def let_go(self, settled_offset: int) -> bool:
        """Let go of files without an entry of a record in the log; return whether there are any.

        The last file always stays: its entries keep the queue's offset. So does one if a power cut
        could lose the next file: only entries of records below `settled_offset` are surely synced.
        """
        kept_from, per_file = self.kept_from, self._shelf.file_entries
        while (following := kept_from + per_file) <= self.min_entry:
            if following >= self.written or self.head(following)[0] >= settled_offset:
                break
            kept_from = following
        self._kept_from = kept_from
        return self.start < kept_from

    def expire(self) -> int:
        """Remove the files that were let go, after the list of the queues' ends says so."""
        removed = 0
        while self._first is not None and self._first < self._kept_from:
            self._remove(self._first // self._shelf.file_entries)
            self._first += self._shelf.file_entries
            removed += 1
        return removed

    def destroy(self) -> None:
        """Remove the queue with its files; its folder may hold files of others."""
        self._clear()
        self._shelf.disk.ends.forget(self)

    def _clear(self) -> None:
        self._drop_tail(0)
        for number in self._shelf.numbers(self.directory):
            self._remove(number)
        self._first, self.end, self._min, self._kept_from = None, 0, 0, 0
