"""What the queues of a store share: the disk, and the shape of the files on it."""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import has_place_of, in_place_of, is_offset_file
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.noted_ends import QueueEnds

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.disk.filesystem import FileSystem, Partition
    from cometmq.store.disk.open_files import OpenFiles
    from cometmq.store.queues.entry_files import EntryFiles


_MOVE: Final = (
    "stop the broker, restore the file from a copy or move it elsewhere, and run `cometmq store"
    " rebuild`"
)


class EntryDisk:
    """What all queues of a store share: the file system, open files, what is not yet on disk."""

    __slots__ = (
        "_half_written",
        "backs",
        "clean",
        "ends",
        "filesystem",
        "forgotten",
        "may_restart",
        "min_physical_offset",
        "open_files",
        "partition",
        "read_only",
        "unsynced_directories",
        "unsynced_files",
        "unwritten",
        "whole_to",
    )

    def __init__(
        self, filesystem: FileSystem, open_files: OpenFiles, *, clean: bool, read_only: bool
    ) -> None:
        self.filesystem = filesystem
        self.open_files = open_files
        self.clean = clean
        self.read_only = read_only
        self.ends = QueueEnds()
        self.unwritten: deque[EntryFiles] = deque()
        self.unsynced_files: set[str] = set()
        self.unsynced_directories: set[str] = set()
        self.min_physical_offset = 0
        self.whole_to: int | None = None
        """The log's end, if this store wrote and synced every entry up to it: then a queue's last
        entry leads before it, and nothing may follow that entry. None if it may not have."""
        self.may_restart = False
        """Whether the log is replayed from its first record, so that no entry can be missing."""
        self.backs: Callable[[str, int, int, int], bool] | None = None
        """Whether a record of a topic and queue is at a physical offset, with that size."""
        self.forgotten: set[EntryFiles] = set()
        """Queues that had files from which nothing was taken."""
        self._half_written: int | None = None
        self.partition: Partition | None = None
        """Opened before the first write: it reports only failures that happen while it is open."""

    def first_unwritten(self) -> int | None:
        """Return the physical offset from which on entries may be missing in the files."""
        if not self.unwritten:
            return None
        # The queues after a half-written one may have waited as long as all of it did.
        half_written = self._half_written
        return self.unwritten[0].first_unwritten() if half_written is None else half_written

    def write_first(self, waited: int) -> None:
        """Write the queue that has waited longest, or the next part of it.

        `waited` is what `first_unwritten` has just returned.
        """
        if self.unwritten[0].write():
            self.unwritten.popleft()
            self._half_written = None
        else:
            self._half_written = waited


class Shelf:
    """The place of the queues of one kind: their folder and the shape of their files."""

    __slots__ = ("disk", "entry_size", "file_entries", "file_size", "heads", "root")

    def __init__(self, disk: EntryDisk, root: str, entry_size: int, file_entries: int) -> None:
        assert file_entries > 0, file_entries
        self.disk = disk
        self.root = root
        self.entry_size = entry_size
        self.file_entries = file_entries
        self.file_size: Final = entry_size * file_entries
        """The length of each file, in bytes."""
        self.heads = Struct(f">qi{entry_size - 12}x")

    def path(self, topic: str, queue_id: int, number: int) -> str:
        """Return the path of a queue's file with a number."""
        return f"{self.root}/{topic}/{queue_id}/{number * self.file_size:020d}"

    def numbers(self, directory: str) -> list[int]:
        """Return the numbers of a queue's files; check their sizes, and ignore other files.

        Refuse anything else, such as a folder, with the name of a file: it hides the queue's data.
        """
        disk, file_size = self.disk, self.file_size
        numbers: list[int] = []
        listed = disk.filesystem.list(directory)
        entries = [each for each in listed if is_offset_file(each)]
        if len(entries) < len(listed):
            for entry in listed:
                if has_place_of(entry, is_offset_file) and not int(entry.name) % file_size:
                    raise StoreFormatError(
                        f"{in_place_of(entry, 'file of a ConsumeQueue')}; {_MOVE}",
                        f"{directory}/{entry.name}",
                    )
        for entry in entries:
            number, odd = divmod(int(entry.name), file_size)
            # A file is short if its creation was interrupted; a clean stop leaves only empty ones.
            short = entry.size < file_size and not disk.clean
            unused = entry.size == 0 and entry is entries[-1]
            if odd or not (entry.size == file_size or short or unused):
                odd_name = f"a name that is not a multiple of {file_size}"
                what = odd_name if odd else f"{entry.size} bytes"
                raise StoreFormatError(
                    f"{what}, in a store with queue files of {file_size} bytes; {_MOVE}",
                    f"{directory}/{entry.name}",
                )
            numbers.append(number)
        return numbers
