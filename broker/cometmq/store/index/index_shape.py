"""How many slots and items the index files of a store have, derived from one of them.

Apache's store notes these two numbers nowhere (ours does, in the list of the queues' ends), and the
length of a file gives one equation for two unknowns: 40 + 4 * slots + 20 * items. The second
equation is the end of the items: the header says how many there are, and after the last one
everything is zero. So the items begin at one of the 20 places that the end of the data allows, and
exactly one of these fits the length. The first and the last item must then be where the header
says.

If a crash took the last items, that leads to a shape of five or ten slots less, because the keys of
one record have items of one offset. So a file that has the noted length, or that for which a broker
is configured, and begins as such a file would, is taken for one.
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
    """Return the shape that most of the files in a folder have; None if they do not show it.

    The `noted` shape counts as one of them. If the last process did not stop `clean`, it is
    believed outright: a short file may be half made, and a power cut may tear the others alike.
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
    # With equal votes the longest wins: a file that was cut short may fit a shape of fewer items.
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
    """Whether the first item is of the record in the header, and there is room for all items."""
    return header.next_item <= shape.items and _is_of(file, shape, 1, header.begin_offset)


def _fits(file: File, shape: IndexShape, header: IndexHeader) -> bool:
    """Whether that holds, and the last item is of the last record in the header."""
    last = header.next_item - 1
    return _begins(file, shape, header) and _is_of(file, shape, last, header.end_offset)


def _is_of(file: File, shape: IndexShape, number: int, physical_offset: int) -> bool:
    data = file.read(ITEM_SIZE, shape.items_at + number * ITEM_SIZE)
    # Zeros, for instance those of slots, are no item of the log's first record.
    is_item = len(data) == ITEM_SIZE and any(data)
    return is_item and bool(ITEM.unpack(data)[1] == physical_offset)
