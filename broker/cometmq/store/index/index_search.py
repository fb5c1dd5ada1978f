"""Searching a stretch of an index file at once; not in `key_search`, because it needs numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cometmq.store.index.index_file import ITEM_FIELDS
from cometmq.store.index.index_format import ITEM_SIZE
from cometmq.store.index.key_search import TIME_GRAIN_MS

if TYPE_CHECKING:
    from cometmq.store.index.key_search import Wanted


class Block(NamedTuple):
    """What was found in a stretch of items, and where its slot's chain continues."""

    offsets: list[int]
    """The records' physical offsets, newest first."""
    previous: int
    """The slot's last item before the stretch, 0 for none."""
    is_too_old: bool
    """Whether all items before it are too old."""


def search_block(
    data: bytes | bytearray, first: int, begin_time: int, slots: int, wanted: Wanted
) -> Block:
    """Search items from number `first` on, in a file that begins at a time."""
    items = np.frombuffer(data, ITEM_FIELDS, len(data) // ITEM_SIZE)
    if not len(items):
        return Block([], 0, is_too_old=False)
    times = begin_time + items["seconds"].astype(np.int64) * 1000
    if first == 1:
        times[0] = begin_time  # Its seconds count from the begin of the previous file.
    hits = items["hash"] == wanted.key_hash
    hits &= (times <= wanted.end_ms) & (times + TIME_GRAIN_MS >= wanted.begin_ms)
    in_slot = np.flatnonzero(items["hash"] % np.int32(slots) == wanted.key_hash % slots)
    oldest = int(in_slot[0]) if len(in_slot) else 0
    previous = int(items["previous"][oldest])
    return Block(
        items["offset"][np.flatnonzero(hits)[::-1]].tolist(),
        previous if previous < first + oldest else 0,
        is_too_old=bool(times[oldest] + TIME_GRAIN_MS < wanted.begin_ms),
    )
