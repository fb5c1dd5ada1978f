"""Whether the folder of a topic holds queues, judged by the files alone.

The folder itself proves nothing: it stays if a topic is deleted and others have put files into it.
Nor do files of a deleted topic, which a power cut may bring back: they end before the mark in
`deletions`, or have no entry at all. These may stay until the mark is forgotten, so a file without
an entry belongs to no queue, unless its name keeps an offset: pre-blank entries count as entries.
"""

from __future__ import annotations

from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import OFFSET_DIGITS, is_offset_file, is_queue_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk.filesystem import FileSystem

_OFFSET: Final = Struct(">q")  # The record's physical offset, at the beginning of each entry.
_CHUNK_ENTRIES: Final = 4096
_CHUNK_SIZE: Final = 65536


def has_files(filesystem: FileSystem, folder: str) -> bool:
    """Whether a queue's folder has a file of the queue, if only a blank one."""
    return any(is_offset_file(entry) for entry in filesystem.list(folder))


def has_queue_files(filesystem: FileSystem, folder: str) -> bool:
    """Whether a topic's folder has files of queues, blank ones included."""
    return any(_queue_files(filesystem, folder))


def has_any_queue(filesystem: FileSystem, folder: str) -> bool:
    """Whether one of the topics in a folder has a file of a queue."""
    return any(
        has_queue_files(filesystem, f"{folder}/{topic.name}") for topic in filesystem.list(folder)
    )


def holds_queues(filesystem: FileSystem, folder: str, entry_size: int, mark: int | None) -> bool:
    """Whether a topic's folder has a queue; a file in place of the folder has none.

    For a deleted topic, only a queue with an entry of a record at or after its `mark` counts.
    """
    if mark is None:
        queues = _queue_files(filesystem, folder)
        return any(
            int(paths[-1][-OFFSET_DIGITS:]) or _has_entry(filesystem, paths[-1]) for paths in queues
        )
    for paths in _queue_files(filesystem, folder):
        lasts = (_last_offset(filesystem, path, entry_size) for path in reversed(paths))
        if next((last for last in lasts if last is not None), -1) >= mark:
            return True
    return False


def _queue_files(filesystem: FileSystem, folder: str) -> Iterator[list[str]]:
    """Yield the files of each queue that has any, in order."""
    try:
        entries = filesystem.list(folder)
    except NotADirectoryError:
        return
    for queue in filter(is_queue_folder, entries):
        path = f"{folder}/{queue.name}"
        files = [f"{path}/{each.name}" for each in filesystem.list(path) if is_offset_file(each)]
        if files:
            yield files


def _has_entry(filesystem: FileSystem, path: str) -> bool:
    with closing(filesystem.open(path, read_only=True)) as file:
        # If it is not all a hole, look from the front, where entries begin.
        return not file.is_blank(0) and any(
            file.read(_CHUNK_SIZE, position).rstrip(b"\0")
            for position in range(0, file.size(), _CHUNK_SIZE)
        )


def _last_offset(filesystem: FileSystem, path: str, entry_size: int) -> int | None:
    """Return the physical offset in a file's last entry that is not zeros; None without one."""
    with closing(filesystem.open(path, read_only=True)) as file:
        chunk = _CHUNK_ENTRIES * entry_size
        for position in reversed(range(0, file.size(), chunk)):
            data = file.read(chunk, position)
            used = len(data.rstrip(b"\0"))
            if used:
                entry = data[(used - 1) // entry_size * entry_size :].ljust(_OFFSET.size, b"\0")
                return int(_OFFSET.unpack_from(entry)[0])
        return None
