"""Items of the index that were synced, and are damaged or lost.

An item that is out of order ends a file when that is repaired, as one does that a power cut tore,
and those behind it go. But a power cut tears none in front of one whose record was synced to the
index. So what stands behind a damaged item tells it from a torn one, and the log has what is cut.
Where a file ends in front of such items it has lost them, and the start is refused.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.proto.message import StoredMessage
from cometmq.store.errors import CorruptionError
from cometmq.store.index.index_file import good_items
from cometmq.store.index.index_folder import INDEX_FOLDER, wrong_size
from cometmq.store.index.index_format import ITEM_SIZE, begun_before
from cometmq.store.index.index_items import IndexItems, read_headers
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.starting.recovery import records_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_items import IndexedFile, Items
    from cometmq.store.starting.found import Found


class DamagedItem(NamedTuple):
    """Where the index stops to be what was synced of it."""

    path: str
    number: int
    resume: int
    """The record of the last sound item in front of it: from there on the log is read."""


class _Last(NamedTuple):
    """The last sound item of a file, or what the file begins with."""

    key_hash: int | None
    offset: int


def find_damaged_item(filesystem: FileSystem, root: str, found: Found) -> DamagedItem | None:
    """Find it in the file that was the newest when the checkpoint was taken.

    Of a killed store whose index was synced as far as `found.complete_to`. `StoreFormatError` for
    a file that lost items. What a kill or a power cut leaves half made lies behind that, and a
    start that is killed while it erases items leaves those in front.
    """
    shape, below, check = found.config.index_shape, found.complete_to, RecordCheck(found.segments)
    files = list(read_headers(filesystem, f"{root}/{INDEX_FOLDER}", shape))
    begun = begun_before([each.header for each in files], below)
    with closing(IndexItems(filesystem, files, shape)) as items:
        for file in (files[number] for number in begun):
            whole = (file.size - shape.items_at) // ITEM_SIZE
            is_short = whole < file.header.next_item
            if not is_short and file is not files[begun[-1]]:
                continue  # It was full, and nothing is written to it any more.
            last, damaged = _look(items, file, min(whole, file.header.next_item), found, check)
            if damaged is not None:
                return DamagedItem(
                    file.path, damaged, max(last.offset, found.segments.first_offset)
                )
            until = min(below, file.header.end_offset + 1)
            if is_short and _lacks_synced(found, check, last, until):
                raise wrong_size(file.path, file.size, shape)
    return None


def _look(
    items: IndexItems, file: IndexedFile, end: int, found: Found, check: RecordCheck
) -> tuple[_Last, int | None]:
    """Return the last item that a repair keeps of those up to a number, and the damaged one."""
    below, least = found.complete_to, 0
    last, bad = None, end
    for first, chunk in items.chunks(file, end):
        begin = 0
        if last is None:
            begin = good_items(chunk.hashes, chunk.offsets, least, below)
            if begin == len(chunk.offsets):
                least = int(chunk.offsets[-1])
                continue
            bad = first + begin
            last = _last_sound(items, file, bad, check)
        synced = range(max(last.offset, found.segments.first_offset), below)
        if _holds_synced(chunk, begin, synced, check):
            return last, bad
    return last or _last_sound(items, file, bad, check), None


def _last_sound(items: IndexItems, file: IndexedFile, end: int, check: RecordCheck) -> _Last:
    """Return the last item in front of a number that is of the record that it leads to.

    The last ones may not have been synced, and a power cut may have torn them.
    """
    for number in range(end - 1, 0, -1):
        key_hash, offset = items.at(file, number)
        if check.count_items(offset, (key_hash,)):
            return _Last(key_hash, offset)
    return _Last(None, file.header.begin_offset)


def _holds_synced(chunk: Items, begin: int, synced: range, check: RecordCheck) -> bool:
    """Whether an item from a number on is of a record in a range."""
    offsets, hashes = chunk.offsets[begin:], chunk.hashes[begin:]
    is_inside = (offsets >= synced.start) & (offsets < synced.stop)
    inside = np.flatnonzero(is_inside & ((offsets != 0) | (hashes != 0))) + begin
    return any(
        check.count_items(int(chunk.offsets[number]), (int(chunk.hashes[number]),))
        for number in inside.tolist()
    )


def _lacks_synced(found: Found, check: RecordCheck, last: _Last, until: int) -> bool:
    """Whether records behind an item, in front of an offset, have keys, and are there."""
    try:
        for offset in _records(found, max(last.offset, found.segments.first_offset), until):
            hashes = check.hashes_of(offset)
            if hashes and (offset > last.offset or hashes[-1] != last.key_hash):
                return True
    except CorruptionError:
        return True  # It does not lead to a record, so it is not what was synced.
    return False


def _records(found: Found, begin: int, until: int) -> Iterator[int]:
    for each in records_up_to(found.segments, begin, found.start, until):
        if isinstance(each, StoredMessage):
            yield each.physical_offset
        else:
            yield from each.offsets.tolist()
