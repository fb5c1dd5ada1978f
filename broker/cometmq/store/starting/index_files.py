"""Whether the files of the index have all that was synced of them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cometmq.proto.message import StoredMessage
from cometmq.store.disk.data_end import data_end_of
from cometmq.store.disk.names import is_index_file
from cometmq.store.errors import CorruptionError
from cometmq.store.index.index_folder import INDEX_FOLDER, read_header, wrong_size
from cometmq.store.index.index_format import ITEM, ITEM_SIZE
from cometmq.store.index.index_off import load_off
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.starting.recovery import records_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_format import IndexHeader, IndexShape
    from cometmq.store.starting.found import Found


def refuse_shortened_index(
    filesystem: FileSystem, root: str, config: StoreConfig, found: Found, *, clean: bool
) -> None:
    """Refuse a file that lost items, of a killed store whose index was synced up to an offset.

    What a kill or a power cut leaves half made lies behind that, and a start that is killed while
    it erases items leaves those in front. While the index was off nobody knows what is there.
    """
    if clean or not config.index or found.checkpoint.claims is None:
        return
    if load_off(filesystem, root) is not None:
        return
    shape, before = config.index_shape, 0
    for entry in filesystem.list(f"{root}/{INDEX_FOLDER}"):
        if not is_index_file(entry):
            continue
        path = f"{root}/{INDEX_FOLDER}/{entry.name}"
        header = read_header(filesystem, path)
        is_begun = header.next_item > 1 and before <= header.begin_offset < found.complete_to
        size = shape._replace(items=min(header.next_item, shape.items)).file_size
        lacks = is_begun and entry.size < size
        if lacks and _lacks_synced(filesystem, path, entry.size, header, shape, found):
            raise wrong_size(path, entry.size, shape)
        before = header.end_offset


def _lacks_synced(
    filesystem: FileSystem,
    path: str,
    size: int,
    header: IndexHeader,
    shape: IndexShape,
    found: Found,
) -> bool:
    """Whether a file that ends early lacks items of records that were synced, and are there."""
    segments, until = found.segments, min(found.complete_to, header.end_offset + 1)
    begin, last_hash = header.begin_offset, None
    with closing(filesystem.open(path, read_only=True)) as file:
        # What a start erased are zeros, should a power cut have made the file longer again.
        used = (data_end_of(file, size) - 1 - shape.items_at) // ITEM_SIZE
        last = min(used, (size - shape.items_at) // ITEM_SIZE - 1)
        if last > 0:
            item = file.read(ITEM_SIZE, shape.items_at + last * ITEM_SIZE)
            last_hash, begin, _, _ = ITEM.unpack(item)
    check = RecordCheck(segments)
    try:
        for offset in _records(found, max(begin, segments.first_offset), until):
            hashes = check.hashes_of(offset)
            if hashes and (offset > begin or hashes[-1] != last_hash):
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
