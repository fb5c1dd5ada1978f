"""Whether the folder of a topic holds queues, told by the files alone.

The folder itself says nothing: it stays when a topic is deleted and others have put files into it.
Nor do the files of a deleted topic, which a power cut may bring back: they end in front of the mark
in `deletions`.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.store.names import is_offset_file, is_queue_folder

if TYPE_CHECKING:
    from cometmq.store.filesystem import FileSystem

_OFFSET: Final = Struct(">q")  # Of the record: what each entry begins with.
_CHUNK_ENTRIES: Final = 4096


def has_files(filesystem: FileSystem, folder: str) -> bool:
    """Whether a queue's folder has a file of it, if only a blank one."""
    return any(is_offset_file(entry) for entry in filesystem.list(folder))


def holds_queues(filesystem: FileSystem, folder: str, entry_size: int, mark: int | None) -> bool:
    """Whether a topic's folder has files of a queue; a file in its place has none.

    Of a topic that was deleted, only those with an entry of a record at or behind its `mark`.
    """
    try:
        entries = filesystem.list(folder)
    except NotADirectoryError:
        return False
    for queue in filter(is_queue_folder, entries):
        path = f"{folder}/{queue.name}"
        names = [entry.name for entry in filesystem.list(path) if is_offset_file(entry)]
        if names and mark is None:
            return True
        for name in reversed(names):
            last = _last_offset(filesystem, f"{path}/{name}", entry_size)
            if last is not None and mark is not None and last >= mark:
                return True
            if last is not None:
                break
    return False


def _last_offset(filesystem: FileSystem, path: str, entry_size: int) -> int | None:
    """Return where the last entry of a file leads that is not zeros; None when there is none."""
    file = filesystem.open(path, read_only=True)
    try:
        chunk = _CHUNK_ENTRIES * entry_size
        for position in reversed(range(0, file.size(), chunk)):
            data = file.read(chunk, position)
            used = len(data.rstrip(b"\0"))
            if used:
                entry = data[(used - 1) // entry_size * entry_size :].ljust(_OFFSET.size, b"\0")
                return int(_OFFSET.unpack_from(entry)[0])
        return None
    finally:
        file.close()
