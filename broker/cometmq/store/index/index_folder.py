"""The files of the index: named by time, which of them are open, and which are not synced."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import has_place_of, in_place_of, is_index_file
from cometmq.store.disk.open_files import OpenFiles
from cometmq.store.disk.unsynced import Unsynced
from cometmq.store.errors import MOUNT, StoreFormatError
from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader, in_log_order, index_name

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.index.index_file import IndexFile
    from cometmq.store.index.index_format import IndexShape

INDEX_FOLDER: Final = "index"
OPEN_FILES_MAX: Final = 64
"""Limit for files that are only read."""


class KnownFile:
    """A file on disk, with its slots while they are in memory."""

    __slots__ = ("header", "name", "open")

    def __init__(self, name: str, header: IndexHeader) -> None:
        self.name = name
        self.header = header
        self.open: IndexFile | None = None

    def close(self) -> None:
        """Forget the slots, which are written or will be rebuilt."""
        if self.open is not None:
            self.open.close()
            self.open = None


class IndexFolder:
    """The row of an index's files."""

    def __init__(
        self, filesystem: FileSystem, root: str, shape: IndexShape, *, clean: bool
    ) -> None:
        """Raise `StoreFormatError` for a file of an impossible size, see `_load_files`."""
        self.shape = shape
        self.root = root
        self.files = _load_files(filesystem, root, shape, clean=clean)
        """In order: each begins where the previous one was full."""
        self._filesystem = filesystem
        self._open_files = OpenFiles(OPEN_FILES_MAX)
        self._maker = _FileMaker(filesystem)
        self._unsynced_files: set[str] = set()
        self._unsynced_directories: set[str] = set()

    def make(self, now_ms: int) -> KnownFile:
        """Make the file that follows the last one."""
        name, header = index_name(now_ms), IndexHeader()
        if self.files:
            last_name = max(known.name for known in self.files)
            name = max(name, f"{int(last_name) + 1:017d}")
            header = self.files[-1].header.successor()
        known = KnownFile(name, header)
        if not self._filesystem.exists(self.root):
            self._filesystem.make_directories(self.root)
            self._unsynced_directories.add(self.root.rpartition("/")[0])
        self._maker.make(self.path(known), self.shape.file_size)
        self._unsynced_directories.add(self.root)
        self.files.append(known)
        return known

    def remove_half_made(self) -> None:
        """Remove files whose creation failed and that could not be removed at once."""
        if self._maker.remove_half_made():
            self._unsynced_directories.add(self.root)

    def opened(self, known: KnownFile) -> IndexFile:
        """Return a file with its slots in memory, 20 MB, as filling it requires."""
        from cometmq.store.index.index_file import IndexFile  # It needs numpy.

        if known.open is None:
            file = self._filesystem.open(self.path(known))
            known.open = IndexFile(file, self.shape, known.header)
        return known.open

    def to_read(self, known: KnownFile) -> File:
        """Return a file that is only read; it stays open for a while."""
        file = self._open_files.get(known, 0)
        if file is None:
            file = self._filesystem.open(self.path(known), read_only=True)
            self._open_files.put(known, 0, file)
        return file

    def touch(self, known: KnownFile) -> None:
        """Note that a file has changes that are not synced."""
        self._unsynced_files.add(self.path(known))

    def doubt_names(self) -> None:
        """Note that the names of the files may not be on the disk."""
        self._unsynced_directories |= {self.root, self.root.rpartition("/")[0]}

    def take_unsynced(self) -> Unsynced:
        """Return what has changed since the last call."""
        unsynced = Unsynced(self._filesystem, self._unsynced_files, self._unsynced_directories)
        self._unsynced_files, self._unsynced_directories = set(), set()
        return unsynced

    def remove(self, known: KnownFile) -> None:
        """Remove a file."""
        self.forget(known)
        self._filesystem.remove(self.path(known))

    def forget(self, known: KnownFile) -> None:
        """Take a file out of the row; the caller may remove it."""
        known.close()
        self._open_files.close(known, 0)
        self._unsynced_files.discard(self.path(known))
        self._unsynced_directories.add(self.root)
        self.files.remove(known)

    def path(self, known: KnownFile) -> str:
        """Return the path of a file."""
        return f"{self.root}/{known.name}"

    def close(self) -> None:
        """Close every file, and forget the slots."""
        for known in self.files:
            known.close()
        self._open_files.close_all()


class _FileMaker:
    """Makes files, and knows those that it could neither make nor remove again.

    A file that is too short would come before the file that is made next.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._half_made: set[str] = set()

    def make(self, path: str, size: int) -> None:
        """Make an empty file of full length, or none."""
        self._half_made.add(path)
        file = self._filesystem.open(path, create=True)
        try:
            file.resize(size)
        except OSError:
            with suppress(OSError):
                self._remove(path)
            raise
        finally:
            file.close()
        self._half_made.remove(path)

    def remove_half_made(self) -> bool:
        """Remove what is left, which the next clean start would refuse; whether anything was."""
        left = bool(self._half_made)
        for path in list(self._half_made):
            self._remove(path)
        return left

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.remove(path)
        self._half_made.remove(path)


def _load_files(
    filesystem: FileSystem, root: str, shape: IndexShape, *, clean: bool
) -> list[KnownFile]:
    """Return the files in order; raise `StoreFormatError` for one of an impossible size.

    Raise it also for a link that leads nowhere, whose keys would not be found.
    """
    files: list[KnownFile] = []
    for entry in filesystem.list(root):
        path = f"{root}/{entry.name}"
        if entry.leads_nowhere and has_place_of(entry, is_index_file):
            raise StoreFormatError(f"{in_place_of(entry, 'file of the index')}: {MOUNT}", path)
        if not is_index_file(entry):
            continue
        if entry.size > shape.file_size or (clean and entry.size != shape.file_size):
            raise wrong_size(path, entry.size, shape)
        files.append(KnownFile(entry.name, read_header(filesystem, path)))
    return in_log_order(files)


def read_header(filesystem: FileSystem, path: str) -> IndexHeader:
    """Read the header of a file; one that was never written reads as that of an empty file."""
    with closing(filesystem.open(path, read_only=True)) as file:
        return IndexHeader.unpack(file.read(HEADER_SIZE, 0))


def wrong_size(path: str, size: int, shape: IndexShape) -> StoreFormatError:
    """Return the error for a file of an impossible size."""
    return StoreFormatError(
        f"{size} bytes, but {shape.slots} slots and {shape.items} items make {shape.file_size};"
        f" run `cometmq store rebuild --index-slots {shape.slots} --index-items {shape.items}`,"
        " which rebuilds the index, or set index_slots and index_items to what the store has",
        path,
    )
