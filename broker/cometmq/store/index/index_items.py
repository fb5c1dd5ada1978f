"""The items of all index files of a store as one sequence, read thousands at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.store.disk.names import is_index_file
from cometmq.store.index.index_file import ITEM_FIELDS
from cometmq.store.index.index_folder import read_header
from cometmq.store.index.index_format import ITEM_SIZE, in_log_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.index.index_format import IndexHeader, IndexShape

CHUNK_ITEMS: Final = 65536


@dataclass(slots=True)
class IndexedFile:
    """One index file, and what its header should be according to the log."""

    path: str
    size: int
    header: IndexHeader
    first_time: int | None = None
    first_offset: int | None = None
    last_time: int | None = None
    last_offset: int | None = None

    @property
    def end_time(self) -> int | None:
        """The last time that the header should have.

        After an unclean stop it was derived from the last item, which has it only to the second.
        """
        if self.last_time is None:
            return None
        found = self.header.end_time
        return found if self.last_time <= found < self.last_time + 1000 else self.last_time


def read_headers(filesystem: FileSystem, folder: str, shape: IndexShape) -> list[IndexedFile]:
    """Read the index files in order; files of other names do not concern the index."""
    files: list[IndexedFile] = []
    for entry in filesystem.list(folder):
        if not is_index_file(entry):
            continue
        path = f"{folder}/{entry.name}"
        header = read_header(filesystem, path)
        header.next_item = min(header.next_item, shape.items)
        files.append(IndexedFile(path, entry.size, header))
    return in_log_order(files)


class Items(NamedTuple):
    """Some items, column by column."""

    hashes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.int32]
    previous: npt.NDArray[np.int32]

    @classmethod
    def of(cls, raw: npt.NDArray[np.void]) -> Items:
        """Take them from a file's bytes."""
        return cls(
            raw["hash"].astype(np.int32),
            raw["offset"].astype(np.int64),
            raw["seconds"].astype(np.int32),
            raw["previous"].astype(np.int32),
        )


class IndexItems:
    """A place in the sequence of all items."""

    def __init__(self, filesystem: FileSystem, files: list[IndexedFile], shape: IndexShape) -> None:
        self.shape = shape
        self.passed = (0, 1)
        """The file and the number after the item that comes before this place."""
        self._filesystem = filesystem
        self._files = files
        self._file = 0
        self._number = 1
        self._first_offset = 0
        self._open: tuple[int, File] | None = None
        self._chunk: tuple[int, int, npt.NDArray[np.void]] = (-1, 0, np.empty(0, ITEM_FIELDS))
        self._settle()

    def position(self, number: int) -> int:
        """Return the position in a file at which an item begins."""
        return self.shape.items_at + number * ITEM_SIZE

    def where(self) -> tuple[str, int]:
        """Return the file and the number of the next item; at the end, the place after the last."""
        if self._file < len(self._files):
            return self._files[self._file].path, self._number
        return self._files[-1].path, self._files[-1].header.next_item

    def end_time_before(self, file: IndexedFile) -> int | None:
        """Return the last time of the previous file; None if it may have expired.

        A power cut may undo the removal of just an older one of the expired files.
        """
        number = self._files.index(file)
        before = self._files[number - 1]
        if not number or before.header.end_offset < self._first_offset:
            return None
        return before.header.end_time if before.end_time is None else before.end_time

    def _settle(self) -> None:
        """Step over files that have been walked to their end."""
        while self._file < len(self._files):
            if self._number < self._files[self._file].header.next_item:
                return
            self._file, self._number = self._file + 1, 1

    def run(self, count: int) -> tuple[IndexedFile, int, int]:
        """Return the next item's file and number, and how many follow in it, up to `count`."""
        file = self._files[self._file]
        return file, self._number, min(count, file.header.next_item - self._number)

    def peek(self, count: int) -> Items:
        """Return up to `count` of the next items, across the ends of files."""
        parts: list[npt.NDArray[np.void]] = []
        file, number = self._file, self._number
        while count and file < len(self._files):
            here = min(count, self._files[file].header.next_item - number)
            if here > 0:
                parts.append(self._read(file, number, here))
                count -= here
            file, number = file + 1, 1
        return Items.of(np.concatenate(parts) if parts else np.empty(0, ITEM_FIELDS))

    def advance(self, count: int) -> None:
        """Step over the next items."""
        while count:
            here = min(count, self._files[self._file].header.next_item - self._number)
            self._number += here
            count -= here
            self.passed = self._file, self._number
            self._settle()

    def skip_expired(self, first_offset: int, *, is_closed: bool) -> None:
        """Step over items of records before the log, about which nothing can be said.

        Zeros are no such items: after a power cut they are where items were not written.
        """
        self._first_offset = first_offset
        while len((items := self.peek(CHUNK_ITEMS)).offsets):
            is_zero = (items.offsets == 0) & (items.hashes == 0)
            kept = np.flatnonzero((items.offsets >= first_offset) | (is_zero & (not is_closed)))
            self.advance(int(kept[0]) if len(kept) else len(items.offsets))
            if len(kept):
                return

    def chunks(self, file: IndexedFile, end: int) -> Iterator[tuple[int, Items]]:
        """Walk the items of one file up to a number: in chunks, each with its first number."""
        number = self._files.index(file)
        for first in range(1, end, CHUNK_ITEMS):
            count = min(CHUNK_ITEMS, end - first)
            yield first, Items.of(self._read(number, first, count))

    def at(self, file: IndexedFile, number: int) -> tuple[int, int]:
        """Return the hash and the physical offset of one item of a file."""
        (item,) = self._read(self._files.index(file), number, 1)
        return int(item["hash"]), int(item["offset"])

    def _read(self, file: int, number: int, count: int) -> npt.NDArray[np.void]:
        held, first, items = self._chunk
        if held != file or not first <= number <= number + count <= first + len(items):
            size = max(count, min(CHUNK_ITEMS, self._files[file].header.next_item - number))
            data = self._opened(file).read(size * ITEM_SIZE, self.position(number))
            items = np.frombuffer(data.ljust(size * ITEM_SIZE, b"\0"), ITEM_FIELDS)
            self._chunk = (file, number, items)
            first = number
        return items[number - first : number - first + count]

    def _opened(self, number: int) -> File:
        if self._open is None or self._open[0] != number:
            self.close()
            self._open = number, self._filesystem.open(self._files[number].path, read_only=True)
        return self._open[1]

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
