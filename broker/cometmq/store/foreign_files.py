"""What others have put into the folders that a rebuild makes anew, and how these folders stand.

People keep copies and notes there. A rebuild moves them over into the new folders, and refuses
folders that it could not put new ones in the place of: links, and mount points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.entry_disk import is_folder_of_topic
from cometmq.store.errors import StoreFormatError
from cometmq.store.index import INDEX_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.filesystem import Entry, FileSystem

_NAME_SIZE: Final = 20
_DEPTHS: Final[dict[str, int]] = {SIMPLE_FOLDER: 2, BATCH_FOLDER: 2, INDEX_FOLDER: 0}
"""In how many levels of folders, of topics and their queues, the files lie."""


def check_folders(filesystem: FileSystem, root: str) -> None:
    """Refuse folders that cannot be swapped, before any work is done for it."""
    for folder, depth in _DEPTHS.items():
        _check(filesystem, f"{root}/{folder}", depth)


def _check(filesystem: FileSystem, path: str, depth: int) -> None:
    if not filesystem.exists(path):
        return
    if not filesystem.is_movable(path):
        raise StoreFormatError(
            f"{path}: a link or a mount point, in whose place a rebuild cannot put a new folder;"
            " put a folder with the same files there for the time of the rebuild"
        )
    if depth:
        for entry in filesystem.list(path):
            if entry.is_directory:
                _check(filesystem, f"{path}/{entry.name}", depth - 1)


def move_foreign(filesystem: FileSystem, source: str, root: str) -> None:
    """Move what is not of a store from old folders, in `source`, to those that took their place."""
    for folder, depth in _DEPTHS.items():
        for old in (folder, f"{folder}.old"):
            is_index = folder == INDEX_FOLDER
            found = _foreign(filesystem, f"{source}/{old}", "", depth, is_index=is_index)
            for name in list(found):
                target = f"{root}/{folder}/{name}"
                if filesystem.exists(target):
                    continue
                parent = target.rpartition("/")[0]
                filesystem.make_directories(parent)
                filesystem.rename(f"{source}/{old}/{name}", target)
                filesystem.sync_directory(parent)


def _foreign(
    filesystem: FileSystem, path: str, within: str, depth: int, *, is_index: bool
) -> Iterator[str]:
    is_level = is_folder_of_topic if depth > 1 else _is_queue
    for entry in filesystem.list(path):
        name = f"{within}{entry.name}"
        if depth and is_level(entry):
            yield from _foreign(
                filesystem, f"{path}/{entry.name}", f"{name}/", depth - 1, is_index=is_index
            )
        elif depth or not _is_ours(entry, is_index=is_index):
            yield name


def _is_queue(entry: Entry) -> bool:
    return entry.is_directory and entry.name.isdecimal()


def _is_ours(entry: Entry, *, is_index: bool) -> bool:
    is_named = entry.name.isdecimal() and (is_index or len(entry.name) == _NAME_SIZE)
    return is_named and not entry.is_directory
