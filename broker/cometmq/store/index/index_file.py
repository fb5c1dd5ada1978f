"""One index file that is being filled: keys go in thousands at a time, with numpy.

With every batch, items are appended to the file, and then the header is written. The slots stay in
memory: they are hit at random, and a write for each would cost more than all the rest. They are
written to the file before it counts as full or the store stops; until then they can be rebuilt from
the items, as an unclean start does. So an item is safe as soon as it and the header are synced.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.store.index.index_format import (
    HEADER_SIZE,
    ITEM_SIZE,
    SECONDS_MAX,
    SLOT_SIZE,
    IndexHeader,
    IndexShape,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from cometmq.store.disk.filesystem import File

    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]

PAGE_SLOTS: Final = 4096 // SLOT_SIZE
"""Slots are written page by page."""

_SLOTS_READ: Final = 1 << 18

CHECKED_ITEMS: Final = 65536
"""Items read together when a file is checked."""

ITEMS_OF_RECORD_MAX: Final = 1 << 15
"""More than a record can have: its properties have 32,767 bytes."""

ITEM_FIELDS: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert ITEM_FIELDS.itemsize == ITEM_SIZE


class IndexFile:
    """An index file with its slots in memory."""

    __slots__ = ("_dirty", "_file", "_kept_to", "_shape", "_slots", "header")

    def __init__(self, file: File, shape: IndexShape, header: IndexHeader) -> None:
        self._file = file
        self._shape = shape
        self.header = header
        self._kept_to: int = 0 if header.next_item > 1 else header.end_time
        """The end of the previous file: while this one ends no later, Apache keeps it."""
        self._slots: Ints = np.zeros(shape.slots, ">i4")
        if header.next_item > 1:
            self._read_slots()
        self._dirty = np.zeros(-(-shape.slots // PAGE_SLOTS), np.bool_)

    def _read_slots(self) -> None:
        """Read the slots piece by piece; after the end of a file that is too short, as zeros."""
        for first in range(0, self._shape.slots, _SLOTS_READ):
            data = self._file.read(_SLOTS_READ * SLOT_SIZE, HEADER_SIZE + first * SLOT_SIZE)
            count = min(len(data) // SLOT_SIZE, self._shape.slots - first)
            self._slots[first : first + count] = np.frombuffer(data, ">i4", count)

    @property
    def room(self) -> int:
        """How many more items fit."""
        return self._shape.items - self.header.next_item

    def slot(self, key_hash: int) -> int:
        """Return the number of the newest item of a key's slot."""
        return int(self._slots[key_hash % self._shape.slots])

    def put(self, hashes: Ints, offsets: Longs, times: Longs) -> None:
        """Append an item for each hash; there must be room. The arrays are in the log's order.

        If the disk refuses, nothing has changed, and the call may be repeated.
        """
        header = self.header
        first = header.next_item
        begin = int(times[0]) if first == 1 else header.begin_time
        slots = hashes % np.int32(self._shape.slots)
        previous, newest, fresh = self._chain(slots, first)
        items = np.empty(len(hashes), ITEM_FIELDS)
        items["hash"] = hashes
        items["offset"] = offsets
        items["previous"] = previous
        items["seconds"] = seconds_behind(times, begin)
        if first == 1:
            items["seconds"][0] = seconds_behind(times[:1], header.begin_time)[0]
        after = IndexHeader(
            begin,
            int(times[-1]),
            int(offsets[0]) if first == 1 else header.begin_offset,
            int(offsets[-1]),
            header.used_slots + fresh,
            first + len(items),
        )
        self._file.write(items.tobytes(), self._shape.items_at + first * ITEM_SIZE)
        self._file.write(after.pack(), 0)
        self.header = after
        self._slots[slots[newest]] = newest + first
        self._dirty[slots // PAGE_SLOTS] = True
        if after.end_time <= self._kept_to:
            with suppress(OSError):  # In that case they are written later.
                self.write_slots()

    def _chain(self, slots: Ints, first: int) -> tuple[Ints, npt.NDArray[np.intp], int]:
        """Return each item's predecessor in its slot, each slot's last index, and the new slots."""
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        again = ordered[1:] == ordered[:-1]
        before = self._slots[ordered].astype(np.int32)
        before[(before < 0) | (before >= first)] = 0
        starts = np.concatenate(([True], ~again))
        fresh = int(np.count_nonzero(starts & (before == 0)))
        before[1:][again] = order[:-1][again] + first
        previous = np.empty_like(before)
        previous[order] = before
        return previous, order[np.concatenate((~again, [True]))], fresh

    def write_slots(self, pages_max: int | None = None) -> bool:
        """Write changed slots, at most `pages_max` pages of 4 KiB; whether all are written."""
        pages = np.flatnonzero(self._dirty)
        for start, end in _runs(pages[:pages_max]):
            part = self._slots[start * PAGE_SLOTS : end * PAGE_SLOTS]
            self._file.write(part.tobytes(), HEADER_SIZE + start * PAGE_SLOTS * SLOT_SIZE)
            self._dirty[start:end] = False
        return pages_max is None or len(pages) <= pages_max

    # After an unclean stop

    def recover(
        self, below: int, predecessor: IndexHeader, *, chains: bool, end: int | None = None
    ) -> bool:
        """Keep the items of records below an offset, up to the first bad one; erase the others.

        Also erase those from number `end` on. With `chains` an item must also have the right chain:
        for files of which nothing is known to be synced. Return whether the file is whole, that is,
        was full and stays so.
        """
        header = self.header
        self._slots[:] = 0
        kept, offset, seconds = 1, 0, 0
        for items in self._stored_items(end):
            good = good_items(items["hash"], items["offset"].astype(np.int64), offset, below)
            slots = items["hash"][:good] % np.int32(self._shape.slots)
            if chains and good:
                good = _first_difference(
                    self._chain(slots, kept)[0], items["previous"][:good].astype(np.int32)
                )
                slots = slots[:good]
            if good:
                self._slots[slots] = np.arange(kept, kept + good)  # The last item of a slot stays.
                offset = int(items["offset"][good - 1])
                seconds = int(items["seconds"][good - 1]) if kept + good > 2 else 0
            kept += good
            if good < len(items):
                break
        self._cut(kept, predecessor, header, offset, seconds)
        return kept == self._shape.items

    def last_hashes(self) -> list[int]:
        """Return the hashes of the last record's items, in order; none if the file is empty."""
        count = min(self.header.next_item - 1, ITEMS_OF_RECORD_MAX)
        if count <= 0:
            return []
        items = self._items(self.header.next_item - count, count)
        others = np.flatnonzero(items["offset"] != self.header.end_offset)
        hashes: list[int] = items["hash"][others[-1] + 1 if len(others) else 0 :].tolist()
        return hashes

    def _stored_items(self, end: int | None) -> Iterator[npt.NDArray[np.void]]:
        """Read the items that the header counts, piece by piece."""
        end = min(self.header.next_item if end is None else end, self._shape.items)
        for number in range(1, end, CHECKED_ITEMS):
            yield self._items(number, min(CHECKED_ITEMS, end - number))

    def _items(self, number: int, count: int) -> npt.NDArray[np.void]:
        data = self._file.read(count * ITEM_SIZE, self._shape.items_at + number * ITEM_SIZE)
        return np.frombuffer(data.ljust(count * ITEM_SIZE, b"\0"), ITEM_FIELDS)

    def _cut(
        self, kept: int, predecessor: IndexHeader, header: IndexHeader, offset: int, seconds: int
    ) -> None:
        """Make the file end before item `kept`, with the header and the slots for that."""
        if kept == 1:
            self.header = predecessor.successor()
        elif (kept, offset) == (header.next_item, header.end_offset):
            self.header = header
        else:
            self.header = IndexHeader(
                header.begin_time,
                header.begin_time + seconds * 1000 + 999,
                header.begin_offset,
                offset,
                0,
                kept,
            )
        self.header.used_slots = int(np.count_nonzero(self._slots))
        self._file.resize(self._shape.items_at + kept * ITEM_SIZE)
        self._file.resize(self._shape.file_size)
        self._file.write(self.header.pack(), 0)
        stored = self._file.read(self._shape.slots * SLOT_SIZE, HEADER_SIZE)
        changed = np.frombuffer(stored, ">i4") != self._slots
        self._dirty[np.flatnonzero(changed) // PAGE_SLOTS] = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def seconds_behind(times: Longs, begin: int) -> Longs:
    """Return the items' times: seconds after the begin of the file, or 0 if it has no begin."""
    if begin <= 0:
        return np.zeros(len(times), np.int64)
    return np.clip((times - begin) // 1000, 0, SECONDS_MAX)


def good_items(hashes: Ints, offsets: Longs, least: int, below: int) -> int:
    """Return how many leading items can be right: ordered, below the offset, not zeros."""
    floor = np.concatenate(([least], offsets[:-1]))
    bad = (offsets < floor) | (offsets >= below) | (hashes < 0) | ((hashes == 0) & (offsets == 0))
    return int(np.argmax(bad)) if bad.any() else len(offsets)


def _first_difference(left: Ints, right: Ints) -> int:
    differ = left != right
    return int(np.argmax(differ)) if differ.any() else len(left)


def _runs(pages: npt.NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Join neighbouring pages."""
    if len(pages):
        borders = np.flatnonzero(np.diff(pages) > 1) + 1
        for run in np.split(pages, borders):
            yield int(run[0]), int(run[-1]) + 1
