"""The start of `cometmq store rebuild` and `cometmq store repair`, the two commands that write."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from cometmq.store.disk.lock import acquire_lock, give_up_lock
from cometmq.store.errors import StoreLockedError
from cometmq.store.looking.inspection import check_store, looking_at
from cometmq.store.mending.owned_files import as_open_as_log
from cometmq.store.starting.rocksdb import refuse_rocksdb
from cometmq.store.starting.swap import finish_swap, unfinished_swaps

if TYPE_CHECKING:
    from collections.abc import Generator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.looking.inspection import Inspected


@contextmanager
def taken(
    filesystem: FileSystem, root: str, config: StoreConfig
) -> Generator[Inspected, None, None]:
    """Look at a store, then lock it and look again; a refused store is not touched."""
    check_store(filesystem, root)
    refuse_rocksdb(filesystem, root)
    if unfinished_swaps(filesystem, root):
        with closing(acquire_lock(filesystem, root)):
            finish_swap(filesystem, root)
    with looking_at(filesystem, root, config) as found:
        _refuse_open(found)
    is_made = not filesystem.exists(f"{root}/lock")
    lock = acquire_lock(filesystem, root)
    try:
        looking = looking_at(filesystem, root, config, is_locked=True)
        with as_open_as_log(root), looking as found:
            yield found
    finally:
        give_up_lock(filesystem, root, lock, is_made=is_made)


@contextmanager
def seen(
    filesystem: FileSystem, root: str, config: StoreConfig
) -> Generator[Inspected, None, None]:
    """Look at a store, for a dry run."""
    check_store(filesystem, root)
    refuse_rocksdb(filesystem, root)
    with looking_at(filesystem, root, config) as found:
        _refuse_open(found)
        yield found


def _refuse_open(inspected: Inspected) -> None:
    if inspected.opened_by is not None:
        raise StoreLockedError(
            f"{inspected.root}: the store is open in process {inspected.opened_by}; stop it first"
        )
