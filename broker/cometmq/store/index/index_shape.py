"""How many slots and items the index files of a store have, worked out from one of them.

Apache's store notes these two numbers nowhere (ours does, in the list of where queues end), and the
length of a file is one equation for two unknowns: 40 + 4 * slots + 20 * items. The second is where
the items end: the header says how many there are, and behind the last one everything is zero. So
the items begin at one of the 20 places that the end of the data leaves, of which exactly one fits
the length. The first and the last item then have to be where the header says.

Where a crash took the last items, that leads to a shape of five slots less, or ten: the keys of
one record have items of one offset. So a file that is as long as those that are noted, or that a
broker is set to, and begins as one of them would, is taken for one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from cometmq.store.disk.data_end import data_end_of
from cometmq.store.disk.names import is_index_file
from cometmq.store.index.index_format import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexHeader,
    IndexShape,
)

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import File, FileSystem


def find_shape(
    filesystem: FileSystem,
    folder: str,
    config: StoreConfig,
    *,
    clean: bool,
    noted: IndexShape | None = None,
) -> IndexShape | None:
    """Return the shape of the files in a folder, by most of them; None when they do not tell.

    What was `noted` counts as one of them, and where the last process did not stop `clean`, it is
    believed: a short file may be one that was half made, and a power cut tears others alike.
    """
    if noted is not None and not clean:
        return noted
    expected = noted or config.index_shape
    votes: Counter[IndexShape] = Counter(() if noted is None else (noted,))
    for entry in reversed(filesystem.list(folder)):
        if not is_index_file(entry):
            continue
        with closing(filesystem.open(f"{folder}/{entry.name}", read_only=True)) as file:
            shape = _shape_of(file, expected, clean=clean)
        if shape is not None:
            votes[shape] += 1
            if votes[shape] >= 3:
                break
    # Of as many votes the longest counts: a file that was cut short may fit a shape of less items.
    return max(votes, key=lambda shape: (votes[shape], shape.file_size), default=None)


def _shape_of(file: File, expected: IndexShape, *, clean: bool) -> IndexShape | None:
    size = file.size()
    header = IndexHeader.unpack(file.read(HEADER_SIZE, 0))
    if size < HEADER_SIZE + SLOT_SIZE + 2 * ITEM_SIZE or header.next_item <= 1:
        return None
    is_whole = size == expected.file_size or (size < expected.file_size and not clean)
    if is_whole and _begins(file, expected, header):
        return expected
    end = data_end_of(file, size)
    for items_end in range(end, end + ITEM_SIZE):
        items_at = items_end - header.next_item * ITEM_SIZE
        slots, odd = divmod(items_at - HEADER_SIZE, SLOT_SIZE)
        items, rest = divmod(size - items_at, ITEM_SIZE)
        if slots > 0 and not odd and not rest and items >= header.next_item:
            shape = IndexShape(slots, items)
            if _fits(file, shape, header):
                return shape
    return None


def _begins(file: File, shape: IndexShape, header: IndexHeader) -> bool:
    """Whether the first item is of the record that the header names, and there is room for all."""
    return header.next_item <= shape.items and _is_of(file, shape, 1, header.begin_offset)


def _fits(file: File, shape: IndexShape, header: IndexHeader) -> bool:
    """Whether the last one is, too."""
    last = header.next_item - 1
    return _begins(file, shape, header) and _is_of(file, shape, last, header.end_offset)


def _is_of(file: File, shape: IndexShape, number: int, physical_offset: int) -> bool:
    data = file.read(ITEM_SIZE, shape.items_at + number * ITEM_SIZE)
    # Zeros, of slots for instance, are none of the log's first record.
    is_item = len(data) == ITEM_SIZE and any(data)
    return is_item and bool(ITEM.unpack(data)[1] == physical_offset)
