"""An item of the index that was synced and is damaged: what the repair of its file would cut.

An item that is out of order ends a file, as one does that a power cut tore, and those behind it go.
But a power cut tears none in front of one whose record was synced to the index. So what stands
behind a damaged item tells it from a torn one, and the log has what is cut.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.store.index.index_file import good_items
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_format import last_before
from cometmq.store.index.index_items import IndexItems, read_headers
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.starting.index_files import last_synced

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_items import Items
    from cometmq.store.starting.found import Found


class DamagedItem(NamedTuple):
    """Where the index stops to be what was synced of it."""

    path: str
    number: int
    resume: int
    """The record of the last sound item in front of it: from there on the log is read."""


def find_damaged_item(filesystem: FileSystem, root: str, found: Found) -> DamagedItem | None:
    """Find it in the file that was the newest when the checkpoint was taken.

    Of a killed store whose index was synced as far as `found.complete_to`.
    """
    shape, below = found.config.index_shape, found.complete_to
    files = list(read_headers(filesystem, f"{root}/{INDEX_FOLDER}", shape))
    number = last_before([each.header for each in files], below)
    if number == len(files):
        return None
    file, check, last = files[number], RecordCheck(found.segments), 0
    damaged: DamagedItem | None = None
    with closing(IndexItems(filesystem, files, shape)) as items:
        for first, chunk in items.chunks(file, file.header.next_item):
            good = 0
            if damaged is None:
                good = good_items(chunk.hashes, chunk.offsets, last, below)
                if good == len(chunk.offsets):
                    last = int(chunk.offsets[-1])
                    continue
                with closing(filesystem.open(file.path, read_only=True)) as opened:
                    at = min(items.position(first + good), file.size)
                    known = last_synced(opened, at, shape, check, below)
                resume = file.header.begin_offset if known is None else known[1]
                resume = max(resume, found.segments.first_offset)
                damaged = DamagedItem(file.path, first + good, resume)
            if _holds_synced(chunk, good, range(damaged.resume, below), check):
                return damaged
    return None


def _holds_synced(chunk: Items, begin: int, synced: range, check: RecordCheck) -> bool:
    """Whether an item from a number on is of a record in a range."""
    offsets, hashes = chunk.offsets[begin:], chunk.hashes[begin:]
    is_inside = (offsets >= synced.start) & (offsets < synced.stop)
    inside = np.flatnonzero(is_inside & ((offsets != 0) | (hashes != 0))) + begin
    return any(
        check.count_items(int(chunk.offsets[number]), (int(chunk.hashes[number]),))
        for number in inside.tolist()
    )
