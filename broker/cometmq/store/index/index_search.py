"""Searching an index file by its items, for who reads a store that another process has open.

That process has the slots of the newest files in memory, so their chains have no beginning on the
disk; after a kill neither. The items are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cometmq.store.index.index_file import CHECKED_ITEMS, ITEM_FIELDS
from cometmq.store.index.index_format import ITEM_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk.filesystem import File
    from cometmq.store.index.index_format import IndexHeader, IndexShape


def search_items(
    file: File, shape: IndexShape, header: IndexHeader, key_hash: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the items of a hash as `walk_chain` does, newest first; 1 ms for 40,000 of the file."""
    end = min(header.next_item, shape.items)
    while end > 1:
        start = max(1, end - CHECKED_ITEMS)
        data = file.read((end - start) * ITEM_SIZE, shape.items_at + start * ITEM_SIZE)
        items = np.frombuffer(data[: len(data) // ITEM_SIZE * ITEM_SIZE], ITEM_FIELDS)
        for place in np.flatnonzero(items["hash"] == key_hash)[::-1].tolist():
            # The first item's seconds count from the begin of the file before.
            seconds = int(items["seconds"][place]) if start + place > 1 else 0
            yield key_hash, int(items["offset"][place]), header.begin_time + seconds * 1000
        end = start
