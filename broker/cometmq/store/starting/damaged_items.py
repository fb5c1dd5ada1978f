"""Items of the index that were synced, and are damaged or lost.

When a file is repaired, it is cut at an item that is out of order, as at one that a power cut tore.
But a power cut tears no item before one whose record was synced to the index. So the items after a
damaged one tell it from a torn one, and the log has what is cut. If a file ends before such items,
it has lost them, and the start is refused.
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
    """Where the index stops being what was synced."""

    path: str
    number: int
    resume: int
    """The record of the last sound item before it: from there on the log is read."""


class _Last(NamedTuple):
    """The last of a file's leading sound items; if there is none, the begin of the file."""

    number: int
    offset: int
    hashes: list[int]
    """Those of its record's items here, up to this one."""

    def is_all_of(self, hashes: list[int]) -> bool:
        """Whether the items are of all the record's keys; the first may be in another file."""
        begins_file = self.number == len(self.hashes)
        return self.hashes == (hashes[-self.number :] if begins_file else hashes)


def find_damaged_item(filesystem: FileSystem, root: str, found: Found) -> DamagedItem | None:
    """Find a damaged item in the file that was the newest when the checkpoint was taken.

    This is for a killed store whose index was synced up to `found.complete_to`. Raise
    `StoreFormatError` for a file that lost items. What a kill or a power cut leaves half made is
    after that offset, and a start that is killed while it erases items leaves those before it.
    """
    shape, below, check = found.config.index_shape, found.complete_to, RecordCheck(found.segments)
    files = read_headers(filesystem, f"{root}/{INDEX_FOLDER}", shape)
    begun = begun_before([each.header for each in files], below)
    with closing(IndexItems(filesystem, files, shape)) as items:
        for file in (files[number] for number in begun):
            whole = (file.size - shape.items_at) // ITEM_SIZE
            is_short = whole < file.header.next_item
            if not is_short and file is not files[begun[-1]]:
                continue  # It was full, and is not written to any more.
            end = min(whole, file.header.next_item)
            last, is_damaged = _look(items, file, end, found, check)
            # The log shows whether the last items are there, if the start reads it anyway.
            if not is_damaged and (is_short or last.offset >= found.start.scan_from):
                is_damaged = _lacks_synced(found, check, last, file.header.end_offset)
                if is_damaged and is_short:
                    raise wrong_size(file.path, file.size, shape)
            if is_damaged:
                resume = max(last.offset, found.segments.first_offset)
                return DamagedItem(file.path, last.number + 1, resume)
    return None


def _look(
    items: IndexItems, file: IndexedFile, end: int, found: Found, check: RecordCheck
) -> tuple[_Last, bool]:
    """Return the last item before a number that counts, and whether a synced one follows it."""
    below, least = found.complete_to, 0
    last: _Last | None = None
    for first, chunk in items.chunks(file, end):
        begin = 0
        if last is None:
            begin = good_items(chunk.hashes, chunk.offsets, least, below)
            if begin == len(chunk.offsets):
                least = int(chunk.offsets[-1])
                continue
            last = _last_sound(items, file, first + begin, check)
        synced = range(max(last.offset, found.segments.first_offset), below)
        if _holds_synced(chunk, begin, synced, check):
            return last, True
    return last or _last_sound(items, file, end, check), False


def _last_sound(items: IndexItems, file: IndexedFile, end: int, check: RecordCheck) -> _Last:
    """Return the last item before a number that belongs to the record that it leads to.

    The last items may not have been synced, and a power cut may have torn them. All items of a
    record are looked at together, as in the repair of the file.
    """
    number = end - 1
    while number > 0:
        key_hash, offset = items.at(file, number)
        hashes = [key_hash]
        while number > 1 and items.at(file, number - 1)[1] == offset:
            number -= 1
            hashes.insert(0, items.at(file, number)[0])
        if sound := check.count_items(offset, hashes):
            return _Last(number + sound - 1, offset, hashes[:sound])
        number -= 1
    return _Last(0, file.header.begin_offset, [])


def _holds_synced(chunk: Items, begin: int, synced: range, check: RecordCheck) -> bool:
    """Whether an item from a number on belongs to a record in a range."""
    offsets, hashes = chunk.offsets[begin:], chunk.hashes[begin:]
    is_inside = (offsets >= synced.start) & (offsets < synced.stop)
    inside = np.flatnonzero(is_inside & ((offsets != 0) | (hashes != 0))) + begin
    return any(
        check.count_items(int(chunk.offsets[number]), (int(chunk.hashes[number]),))
        for number in inside.tolist()
    )


def _lacks_synced(found: Found, check: RecordCheck, last: _Last, end_offset: int) -> bool:
    """Whether there are records after an item, up to an offset, that were synced and have keys."""
    until = min(found.complete_to, end_offset + 1)
    try:
        for offset in _records(found, max(last.offset, found.segments.first_offset), until):
            hashes = check.hashes_of(offset)
            if hashes and (offset > last.offset or not last.is_all_of(hashes)):
                return True
    except CorruptionError:
        return True  # The item does not lead to a record, so it is not what was synced.
    return False


def _records(found: Found, begin: int, until: int) -> Iterator[int]:
    for each in records_up_to(found.segments, begin, found.start, until):
        if isinstance(each, StoredMessage):
            yield each.physical_offset
        else:
            yield from each.offsets.tolist()
