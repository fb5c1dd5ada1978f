"""The items of index files as a table.

A file has a header of 40 bytes, slots of 4 bytes, and items of 20 bytes (big-endian):

==  ====  ============================================================================
at  size  field of an item
==  ====  ============================================================================
0   4     hash of the key, made positive; its slot is the hash modulo the slots
4   8     physical offset of the record
12  4     seconds between the header's first time and the record's
16  4     the number of the slot's item before this one, 0 for none
==  ====  ============================================================================

The first 8 bytes of the header are the first time in ms, and its last 4 are the number of the next
item. Item 0 is never used. The number of slots is not stored: the driver finds it out.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cometmq.pipeline.columns import BIGINT, INT, STRING, TIMESTAMP, Column, schema_of
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.store.files import Opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from cometmq.store.index.index_format import IndexShape

COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("file", STRING, "The name of its file."),
        Column("item", INT, "Its number in the file."),
        Column("key_hash", INT, "The hash of topic, '#' and key."),
        Column("physical_offset", BIGINT, "Where the record begins in the log."),
        Column("store_time", TIMESTAMP, "When the record was stored, to the second."),
        Column("previous", INT, "The item of the same slot before it; 0 for none."),
    )
}
"""The columns of the view `index`."""

_ITEM: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert _ITEM.itemsize == 20
_HEADER: Final = Struct(">q28xi")
HEADER_SIZE: Final = 40
assert _HEADER.size == HEADER_SIZE
_ROWS: Final = 16_384


class IndexPart(NamedTuple):
    """A run of items of one index file."""

    root: str
    path: str
    name: str
    items_at: int
    """Where in the file item 0 would be."""
    first: int
    stop: int


def index_files(root: str) -> tuple[IndexShape | None, dict[str, int]]:
    """Return the number of slots and items of index files, as the store finds it; and the sizes."""
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import RealFileSystem
    from cometmq.store.disk.names import is_index_file
    from cometmq.store.index.index_shape import find_shape

    if "://" in root:
        raise OptionError("view: index is for local stores only")
    filesystem = RealFileSystem()
    folder = f"{root}/index"
    shape = find_shape(filesystem, folder, StoreConfig(), clean=False)
    entries = filesystem.list(folder)
    return shape, {each.name: each.size for each in entries if is_index_file(each)}


def index_batches(part: IndexPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the items."""
    size = _ITEM.itemsize
    with Opened(part.root, part.path) as file:
        begin, next_item = _HEADER.unpack(file.read(HEADER_SIZE, 0).ljust(HEADER_SIZE, b"\0"))
        stop = min(part.stop, next_item)
        for first in range(part.first, stop, _ROWS):
            count = min(_ROWS, stop - first)
            data = file.read(count * size, part.items_at + first * size)
            items = np.frombuffer(data[: len(data) // size * size], _ITEM)
            if len(items):
                yield _batch(part, items, first, begin, columns)


def _batch(
    part: IndexPart, items: npt.NDArray[np.void], first: int, begin: int, columns: Sequence[str]
) -> pa.RecordBatch:
    numbers = np.arange(first, first + len(items), dtype=np.int32)
    # The first item's seconds count from the start of the previous file.
    seconds = np.where(numbers == 1, 0, items["seconds"].astype(np.int64))
    found = {
        "file": pa.repeat(part.name, len(items)),
        "item": pa.array(numbers),
        "key_hash": pa.array(items["hash"].astype(np.int32)),
        "physical_offset": pa.array(items["offset"].astype(np.int64)),
        "store_time": pa.array((seconds * 1000 + begin) * 1000).view(TIMESTAMP),
        "previous": pa.array(items["previous"].astype(np.int32)),
    }
    return pa.RecordBatch.from_arrays(
        [found[name] for name in columns], schema=schema_of(COLUMNS, columns)
    )
