"""Whether the files of the index fit the settings, and have all that was synced of them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cometmq.proto.message import StoredMessage
from cometmq.store.disk.data_end import data_end_of
from cometmq.store.disk.names import is_index_file
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.index.index_folder import INDEX_FOLDER, read_header, wrong_size
from cometmq.store.index.index_format import ITEM, ITEM_SIZE
from cometmq.store.index.index_off import load_off
from cometmq.store.index.index_shape import find_shape
from cometmq.store.queues.queue_ends import listed_sizes
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.starting.recovery import records_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.index.index_format import IndexHeader, IndexShape
    from cometmq.store.starting.found import Found
    from cometmq.store.upkeep.checkpoint import Checkpoint


def noted_shape(filesystem: FileSystem, root: str, checkpoint: Checkpoint) -> IndexShape | None:
    """Return the shape of the index files that the store noted; None where nobody did."""
    if checkpoint.claims is not None and checkpoint.claims.index_shape is not None:
        return checkpoint.claims.index_shape
    listed = None if checkpoint.is_of_others else listed_sizes(filesystem, root)
    return None if listed is None else listed.index_shape


def fit_index(
    filesystem: FileSystem, root: str, config: StoreConfig, checkpoint: Checkpoint, *, clean: bool
) -> StoreConfig:
    """Return the settings, for as long as the index is off with the shape that its files have.

    `StoreFormatError` for an index that is on, and was made with other settings: behind a kill its
    files would pass for half made ones, and lose their items, or be removed.
    """
    noted, folder = noted_shape(filesystem, root, checkpoint), f"{root}/{INDEX_FOLDER}"
    if config.index:
        _refuse_others(filesystem, folder, config, noted, clean=clean)
        return config
    shape = noted or find_shape(filesystem, folder, config, clean=clean)
    return config if shape is None else config.with_index_shape(shape)


def _refuse_others(
    filesystem: FileSystem,
    folder: str,
    config: StoreConfig,
    noted: IndexShape | None,
    *,
    clean: bool,
) -> None:
    wanted = config.index_shape
    if noted == wanted:
        return
    if noted is None:
        found = find_shape(filesystem, folder, config, clean=clean)
    else:  # What is noted may be of a start that was cut off, or with the index off: files tell.
        found = find_shape(filesystem, folder, config.with_index_shape(noted), clean=True)
        found = found if found == noted else None
    if found is None or found == wanted:
        return
    raise StoreFormatError(
        f"its files were made with {found.slots} slots and {found.items} items, where the settings"
        f" say {wanted.slots} and {wanted.items}: set index_slots to {found.slots} and index_items"
        f" to {found.items}, or run `cometmq store rebuild --index-slots {wanted.slots}"
        f" --index-items {wanted.items}`, which makes the index anew",
        folder,
    )


def was_index_synced(filesystem: FileSystem, root: str, found: Found) -> bool:
    """Whether a killed store has noted up to which offset its index was synced.

    While the index was off nobody knows what is there.
    """
    is_noted = found.config.index and found.checkpoint.claims is not None
    return is_noted and load_off(filesystem, root) is None


def refuse_shortened_index(filesystem: FileSystem, root: str, found: Found) -> None:
    """Refuse a file that lost items, of a killed store whose index was synced up to an offset.

    What a kill or a power cut leaves half made lies behind that, and a start that is killed while
    it erases items leaves those in front.
    """
    shape, before = found.config.index_shape, 0
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
        if is_begun:  # What is empty, or torn, says nothing of where the next one begins.
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
    check = RecordCheck(segments)
    with closing(filesystem.open(path, read_only=True)) as file:
        last_hash, begin = last_synced(file, size, shape, check, until) or (
            None,
            header.begin_offset,
        )
    try:
        for offset in _records(found, max(begin, segments.first_offset), until):
            hashes = check.hashes_of(offset)
            if hashes and (offset > begin or hashes[-1] != last_hash):
                return True
    except CorruptionError:
        return True  # It does not lead to a record, so it is not what was synced.
    return False


def last_synced(
    file: File, size: int, shape: IndexShape, check: RecordCheck, until: int
) -> tuple[int, int] | None:
    """Return the hash and the offset of the last item of a record in front of `until`, if any.

    Behind it stand items that were not synced, and a power cut may have torn them. What a start
    erased are zeros, should the file be longer again.
    """
    used = (data_end_of(file, size) - 1 - shape.items_at) // ITEM_SIZE
    for number in range(min(used, (size - shape.items_at) // ITEM_SIZE - 1), 0, -1):
        items = file.read(2 * ITEM_SIZE, shape.items_at + (number - 1) * ITEM_SIZE)
        (_, before, _, _), (code, offset, _, _) = ITEM.iter_unpack(items)
        # Zeros would pass for an item of a record that has expired.
        is_next = (number == 1 or before <= offset) and (code, offset) != (0, 0)
        if is_next and offset < until and check.count_items(offset, (code,)):
            return code, offset
    return None


def _records(found: Found, begin: int, until: int) -> Iterator[int]:
    for each in records_up_to(found.segments, begin, found.start, until):
        if isinstance(each, StoredMessage):
            yield each.physical_offset
        else:
            yield from each.offsets.tolist()
