"""Whether the files of the index fit the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import load_off
from cometmq.store.index.index_shape import find_shape
from cometmq.store.queues.queue_ends import listed_sizes

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_format import IndexShape
    from cometmq.store.starting.found import Found
    from cometmq.store.upkeep.checkpoint import Checkpoint


def noted_shape(filesystem: FileSystem, root: str, checkpoint: Checkpoint) -> IndexShape | None:
    """Return the shape of the index files that the store noted, if it did."""
    if checkpoint.claims is not None and checkpoint.claims.index_shape is not None:
        return checkpoint.claims.index_shape
    listed = None if checkpoint.is_of_others else listed_sizes(filesystem, root)
    return None if listed is None else listed.index_shape


def fit_index(
    filesystem: FileSystem, root: str, config: StoreConfig, checkpoint: Checkpoint, *, clean: bool
) -> StoreConfig:
    """Return the settings; while the index is off, with the shape of its files.

    Raise `StoreFormatError` if the index is on, and was made with other settings: after a kill its
    files would count as half made, and would lose their items, or be removed.
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
    else:  # The note may be of an interrupted start, or with the index off: the files decide.
        found = find_shape(filesystem, folder, config.with_index_shape(noted), clean=True)
        found = found if found == noted else None
    if found is None or found == wanted:
        return
    raise StoreFormatError(
        f"its files were made with {found.slots} slots and {found.items} items, but the settings"
        f" say {wanted.slots} and {wanted.items}: set index_slots to {found.slots} and"
        f" index_items to {found.items}, or run `cometmq store rebuild --index-slots"
        f" {wanted.slots} --index-items {wanted.items}`, which rebuilds the index",
        folder,
    )


def was_index_synced(filesystem: FileSystem, root: str, found: Found) -> bool:
    """Whether a killed store has noted up to which offset its index was synced.

    If the index was off, nobody knows what it has.
    """
    is_noted = found.config.index and found.checkpoint.claims is not None
    return is_noted and load_off(filesystem, root) is None
