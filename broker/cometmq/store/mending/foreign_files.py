"""Foreign files in the folders that a rebuild replaces, and whether these folders can be replaced.

People keep copies and notes there. A rebuild moves them into the new folders, and refuses folders
that it could not replace: links, and mount points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import (
    has_place_of,
    is_index_file,
    is_offset_file,
    is_queue_folder,
    is_topic_folder,
)
from cometmq.store.errors import StoreFormatError
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.queue_ends import NO_RECORD
from cometmq.store.starting.swap import BESIDE, remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.store.disk.filesystem import Entry, FileSystem
    from cometmq.store.queues.queue_ends import Ends

    Levels = Sequence[Callable[[Entry], bool]]


_OF_QUEUES: Final[Levels] = (is_topic_folder, is_queue_folder, is_offset_file)
_OURS: Final[dict[str, Levels]] = {
    SIMPLE_FOLDER: _OF_QUEUES,
    BATCH_FOLDER: _OF_QUEUES,
    INDEX_FOLDER: (is_index_file,),
}
"""What belongs to a store, level by level below each folder."""


def check_folders(filesystem: FileSystem, root: str) -> None:
    """Refuse folders that cannot be swapped, before any work is done.

    Raise `OSError` for a folder that this user may not move, or whose content it may not remove.
    """
    folders = [
        path
        for folder, levels in _OURS.items()
        for path in _folders(filesystem, f"{root}/{folder}", len(levels) - 1)
    ]
    path = filesystem.immovable(folders)
    if path is not None:
        raise StoreFormatError(
            "a link or a mount point, which a rebuild cannot replace with a new folder; put a"
            " folder with the same files there during the rebuild",
            path,
        )
    for folder in folders:
        filesystem.check_writable(folder)


def _folders(filesystem: FileSystem, path: str, depth: int) -> Iterator[str]:
    yield path
    for entry in filesystem.list(path) if depth else ():
        if entry.is_directory:
            yield from _folders(filesystem, f"{path}/{entry.name}", depth - 1)


class InTheWay:
    """Foreign things in the place of queues' folders and files, refused as soon as possible.

    Once the new folders exist, all of them are refused, see `check_misplaced`; with a large log
    that is late.
    """

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._paths = {
            f"{folder}/{'/'.join(name.split('/')[:2])}": f"{root}/{folder}/{name}"
            for folder in (SIMPLE_FOLDER, BATCH_FOLDER)
            for name in _in_place_of_ours(filesystem, f"{root}/{folder}", "", _OURS[folder])
        }
        """By the topic or the queue in whose place each is."""

    def refuse(self, topic: str, queue_id: int, *, is_batch: bool) -> None:
        """Refuse what is in the place of a folder or a file of a queue that will be made."""
        if not self._paths:
            return
        of_topic = f"{BATCH_FOLDER if is_batch else SIMPLE_FOLDER}/{topic}"
        path = self._paths.get(of_topic) or self._paths.get(f"{of_topic}/{queue_id}")
        if path is not None:
            raise _misplaced(path)

    def refuse_known(self, ends: Ends) -> None:
        """Refuse the same for all queues whose ends are known."""
        for key, end in ends.items():
            if end.physical_offset != NO_RECORD:
                self.refuse(key.topic, key.queue_id, is_batch=key.is_batch)


def _in_place_of_ours(
    filesystem: FileSystem, path: str, within: str, levels: Levels
) -> Iterator[str]:
    is_ours, *below = levels
    for entry in filesystem.list(path):
        name = f"{within}{entry.name}"
        if not is_ours(entry):
            if below or has_place_of(entry, is_ours):
                yield name
        elif below:
            yield from _in_place_of_ours(filesystem, f"{path}/{entry.name}", f"{name}/", below)


def _misplaced(path: str) -> StoreFormatError:
    return StoreFormatError(
        "is where the store needs a file or a folder of its own; move it elsewhere, and run"
        " this again",
        path,
    )


def check_misplaced(filesystem: FileSystem, root: str, beside: str) -> None:
    """Refuse what is where one of the new folders has a file or a folder: it could not stay."""
    for folder, levels in _OURS.items():
        for name in _foreign(filesystem, f"{root}/{folder}", "", levels):
            if filesystem.exists(f"{beside}/{folder}/{name}"):
                raise _misplaced(f"{root}/{folder}/{name}")


def clear_beside(filesystem: FileSystem, root: str) -> None:
    """Remove the old folders, or the rest of an interrupted run, but keep foreign files."""
    move_foreign(filesystem, f"{root}/{BESIDE}", root)
    remove_tree(filesystem, f"{root}/{BESIDE}")


def move_foreign(filesystem: FileSystem, source: str, root: str) -> None:
    """Move foreign files from the old folders in `source` to the folders that replaced them."""
    for folder, levels in _OURS.items():
        for old in (folder, f"{folder}.old"):
            for name in list(_foreign(filesystem, f"{source}/{old}", "", levels)):
                target = f"{root}/{folder}/{name}"
                if filesystem.exists(target):
                    continue
                parent = target.rpartition("/")[0]
                filesystem.make_directories(parent)
                filesystem.rename(f"{source}/{old}/{name}", target)
                filesystem.sync_directory(parent)


def _foreign(filesystem: FileSystem, path: str, within: str, levels: Levels) -> Iterator[str]:
    is_ours, *below = levels
    for entry in filesystem.list(path):
        name = f"{within}{entry.name}"
        if not is_ours(entry):
            yield name
        elif below:
            yield from _foreign(filesystem, f"{path}/{entry.name}", f"{name}/", below)
