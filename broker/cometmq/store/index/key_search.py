"""A search for a key, newest record first, in steps: millions of records may have a key or tag.

It follows the chain of the key's slot from item to item. If the next items are near, as they are
for a key that many records have, it reads whole blocks of items and compares their hashes. Between
two steps other work may be done: the index may grow, and its oldest files may expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.disk.cold import Cold
from cometmq.store.index.index_format import HEADER_SIZE, ITEM, ITEM_SIZE, SLOT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from cometmq.store.index.index_folder import IndexFolder, KnownFile

NEAR_ITEMS: Final = 64
"""This many items are followed one by one; a step of the search has at most as many."""
BLOCK_ITEMS: Final = 1 << 15
"""Items read together if they are near: 640 KiB, some 200 µs."""
TIME_GRAIN_MS: Final = 999
"""An item has its time only to the second: the record may be younger by up to this."""


class Wanted(NamedTuple):
    """What is searched for: only hashes are compared, and times only to the second."""

    key_hash: int
    most: int
    begin_ms: int
    end_ms: int


class KeySearch:
    """Finds the records that may have a key. Iterate it to its end: each None ends a step.

    If the next read would have to wait for the disk, it yields a `Cold`; when the iteration
    continues, it reads that, fetched or not.
    """

    __slots__ = ("_accept", "_folder", "_read_whole", "_steps", "_wanted", "found")

    def __init__(
        self,
        folder: IndexFolder,
        wanted: Wanted,
        accept: Callable[[int], bool] | None = None,
        files_without_slots: int = 0,
    ) -> None:
        """`accept` decides by the record itself whether it counts.

        `files_without_slots` of the newest files are read whole: their slots are in another
        process's memory, or were lost in a kill, so their chains have no beginning on the disk. The
        items are there.
        """
        self._folder = folder
        self._wanted = wanted
        self._accept = accept
        self._read_whole = folder.files[max(0, len(folder.files) - files_without_slots) :]
        self._steps = self._run()
        self.found: list[int] = []
        """The records' physical offsets, newest first."""

    def __iter__(self) -> Iterator[Cold | None]:
        return self._steps

    def run(self) -> list[int]:
        """Search to the end, waiting for the disk."""
        for _ in self:
            pass
        return self.found

    def _run(self) -> Iterator[Cold | None]:
        wanted = self._wanted
        for known in reversed(list(self._folder.files) if wanted.most > 0 else ()):
            header = known.header
            if header.begin_time <= wanted.end_ms and wanted.begin_ms <= header.end_time:
                if (yield from self._search(known)):
                    return
                yield None
            if header.begin_time < wanted.begin_ms:
                return

    def _search(self, known: KnownFile) -> Generator[Cold | None, None, bool]:
        """Search one file; return whether enough has been found."""
        wanted, items_at = self._wanted, self._folder.shape.items_at
        number = yield from self._newest_item(known)
        header = known.header  # Not earlier: the file may have grown while its slot was fetched.
        if known in self._read_whole:
            return (yield from self._search_blocks(known, number))
        first, followed = number, 0
        while 0 < number < header.next_item:
            if followed == NEAR_ITEMS:
                if first - number < BLOCK_ITEMS:
                    return (yield from self._search_blocks(known, number))
                yield None
                first, followed = number, 0
            data = yield from self._read(known, ITEM_SIZE, items_at + number * ITEM_SIZE)
            if len(data) < ITEM_SIZE:
                return False
            key_hash, offset, seconds, previous = ITEM.unpack(data)
            time = header.begin_time + (0 if number == 1 else seconds * 1000)
            if time + TIME_GRAIN_MS < wanted.begin_ms:
                return False
            if key_hash == wanted.key_hash and time <= wanted.end_ms and self._take(offset):
                return True
            if previous >= number:
                return False
            number = previous
            followed += 1
        return False

    def _search_blocks(self, known: KnownFile, number: int) -> Generator[Cold | None, None, bool]:
        """Search all items of a file backwards from one of them, as long as they are near."""
        from cometmq.store.index.index_search import search_block  # It needs numpy.

        header, shape, wanted = known.header, self._folder.shape, self._wanted
        while 0 < number < header.next_item:
            yield None
            first = max(1, number + 1 - BLOCK_ITEMS)
            size = (number + 1 - first) * ITEM_SIZE
            data = yield from self._read(known, size, shape.items_at + first * ITEM_SIZE)
            block = search_block(data, first, header.begin_time, shape.slots, wanted)
            for offset in block.offsets:
                if self._take(offset):
                    return True
            if block.is_too_old:
                return False
            number = first - 1 if known in self._read_whole else block.previous
        return False

    def _take(self, offset: int) -> bool:
        """Note a record, once if it has several items; return whether enough have been found."""
        if offset not in self.found[-1:] and (self._accept is None or self._accept(offset)):
            self.found.append(offset)
        return len(self.found) >= self._wanted.most

    def _newest_item(self, known: KnownFile) -> Generator[Cold | None, None, int]:
        """Return the number of the item to begin with."""
        if known in self._read_whole:
            return min(known.header.next_item, self._folder.shape.items) - 1
        key_hash = self._wanted.key_hash
        if known.open is not None:
            return known.open.slot(key_hash)
        position = HEADER_SIZE + key_hash % self._folder.shape.slots * SLOT_SIZE
        data = yield from self._read(known, SLOT_SIZE, position)
        return int.from_bytes(data, "big")

    def _read(
        self, known: KnownFile, size: int, position: int
    ) -> Generator[Cold | None, None, bytes | bytearray]:
        """Read from a file; nothing if it has expired meanwhile."""
        folder = self._folder
        if known in folder.files:
            data = folder.to_read(known).read_cached(size, position)
            if data is not None:
                return data
            yield Cold(folder.path(known), position, size)
        return folder.to_read(known).read(size, position) if known in folder.files else b""
