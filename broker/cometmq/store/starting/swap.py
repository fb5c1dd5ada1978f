"""Putting new folders, made beside those of a store, in their place.

Each takes one step if the disk can exchange two names. If it cannot, there are two: the old folder
moves beside the new one under another name, then the new one takes its place. A process that ends
between them leaves the store without that folder, and `finish_swap` does the second step: whoever
opens a store for writing calls it first.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem

BESIDE: Final = "rebuilding"
"""The folder inside the store's in which the new folders are made."""
FOLDERS: Final = (SIMPLE_FOLDER, BATCH_FOLDER, INDEX_FOLDER)

_OLD: Final = ".old"
_CANNOT_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


def swap(filesystem: FileSystem, root: str, folder: str) -> None:
    """Put the new folder, which is on the disk completely, in the place of the old one."""
    new, old = f"{root}/{BESIDE}/{folder}", f"{root}/{folder}"
    if not filesystem.exists(old):
        filesystem.rename(new, old)
    else:
        try:
            filesystem.exchange(new, old)
        except OSError as error:
            if error.errno not in _CANNOT_EXCHANGE:
                raise
            filesystem.rename(old, new + _OLD)
            _sync(filesystem, root)
            filesystem.rename(new, old)
    _sync(filesystem, root)


def finish_swap(filesystem: FileSystem, root: str) -> None:
    """Finish a swap that was interrupted between its two steps; the caller has locked the store."""
    for folder in unfinished_swaps(filesystem, root):
        filesystem.rename(f"{root}/{BESIDE}/{folder}", f"{root}/{folder}")
        _sync(filesystem, root)


def unfinished_swaps(filesystem: FileSystem, root: str) -> list[str]:
    """Return the folders whose old one has left its place, and whose new one is not there yet."""
    beside = f"{root}/{BESIDE}"
    return [
        folder
        for folder in FOLDERS
        if filesystem.exists(f"{beside}/{folder}{_OLD}")
        and filesystem.exists(f"{beside}/{folder}")
        and not filesystem.exists(f"{root}/{folder}")
    ]


def remove_tree(filesystem: FileSystem, path: str) -> None:
    """Remove a folder with everything in it; do nothing if it does not exist."""
    if not filesystem.exists(path):
        return
    for entry in filesystem.list(path):
        if entry.is_directory:
            remove_tree(filesystem, f"{path}/{entry.name}")
        else:
            with suppress(FileNotFoundError):
                filesystem.remove(f"{path}/{entry.name}")
    filesystem.remove_directory(path)


def _sync(filesystem: FileSystem, root: str) -> None:
    filesystem.sync_directory(root)
    filesystem.sync_directory(f"{root}/{BESIDE}")
