"""What lies in the folder of the index: files named by time, and which of them are open."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from cometmq.store.disk.names import is_index_file
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_format import HEADER_SIZE, IndexHeader
from cometmq.store.index.index_off import load_off

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_file import IndexFile
    from cometmq.store.index.index_format import IndexShape


class KnownFile:
    """A file on disk, and its slots as long as they are in memory."""

    __slots__ = ("header", "name", "open")

    def __init__(self, name: str, header: IndexHeader) -> None:
        self.name = name
        self.header = header
        self.open: IndexFile | None = None

    def close(self) -> None:
        """Forget the slots, which are written or will be made again."""
        if self.open is not None:
            self.open.close()
            self.open = None


def load_files(
    filesystem: FileSystem, root: str, shape: IndexShape, *, clean: bool
) -> list[KnownFile]:
    """Return the files in order; `StoreFormatError` for one of a size that it cannot have."""
    files: list[KnownFile] = []
    for entry in filesystem.list(root):
        if not is_index_file(entry):
            continue
        path = f"{root}/{entry.name}"
        if entry.size > shape.file_size or (clean and entry.size != shape.file_size):
            raise _wrong_size(path, entry.size, shape)
        files.append(KnownFile(entry.name, _header(filesystem, path)))
    return files


def refuse_shortened_index(
    filesystem: FileSystem, root: str, config: StoreConfig, below: int
) -> None:
    """Refuse a file that lost items, of a killed store whose index was synced below an offset.

    What a kill or a power cut leaves half made lies behind that, and a start that is killed while
    it erases items leaves those in front. While the index was off nobody knows what is there.
    """
    if load_off(filesystem, root) is not None:
        return
    shape, before = config.index_shape, 0
    for entry in filesystem.list(f"{root}/index"):
        if not is_index_file(entry):
            continue
        path = f"{root}/index/{entry.name}"
        header = _header(filesystem, path)
        is_synced = before <= header.begin_offset <= header.end_offset < below
        size = shape._replace(items=min(header.next_item, shape.items)).file_size
        if header.next_item > 1 and is_synced and entry.size < size:
            raise _wrong_size(path, entry.size, shape)
        before = header.end_offset


def _header(filesystem: FileSystem, path: str) -> IndexHeader:
    with closing(filesystem.open(path, read_only=True)) as file:
        return IndexHeader.unpack(file.read(HEADER_SIZE, 0))


def _wrong_size(path: str, size: int, shape: IndexShape) -> StoreFormatError:
    return StoreFormatError(
        f"{size} bytes, where {shape.slots} slots and {shape.items} items make {shape.file_size};"
        f" run `cometmq store rebuild --index-slots {shape.slots} --index-items {shape.items}`,"
        " which makes the index anew, or set index_slots and index_items to what the store has",
        path,
    )


class FileMaker:
    """Makes files, and knows those that it could neither make nor remove again.

    One that is too short would stand in front of the file that is made next.
    """

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self._half_made: set[str] = set()

    def make(self, path: str, size: int) -> None:
        """Make an empty file, or none."""
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
        """Remove what is left, which the next clean start would refuse; whether something was."""
        left = bool(self._half_made)
        for path in list(self._half_made):
            self._remove(path)
        return left

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.remove(path)
        self._half_made.remove(path)
