"""The extension of ConsumeQueues, which Apache's brokers write if configured to: read only.

With `enableConsumeQueueExt` an entry of a ConsumeQueue holds not a tags code but the address of a
unit in `consumequeue_ext/{topic}/{queue id}/`: the unit's position, counted from the smallest
64-bit number. Units follow one another in files of one size, named like those of queues:

==  ====  ==============================================================================
at  size  field (big-endian)
==  ====  ==============================================================================
0   2     size of the unit, 20 more than its bitmap; -1: the rest of the file is unused
2   8     tags code, as in an entry without extension
10  8     store timestamp, ms
18  2     size of the bitmap
20  n     bitmap: bits of a Bloom filter, for filters by SQL
==  ====  ==============================================================================
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.disk.names import is_offset_file
from cometmq.store.disk.open_files import OpenFiles

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File, FileSystem

EXT_FOLDER: Final = "consumequeue_ext"
UNIT_HEAD: Final = Struct(">hqqh")
UNIT_HEAD_SIZE: Final = UNIT_HEAD.size
assert UNIT_HEAD_SIZE == 20

ADDRESS_MAX: Final = -2147483649
"""A tags code of at most this is an address: no hash of tags is as small, no time is negative."""

ADDRESS_OF_FIRST: Final = -(1 << 63)
OPEN_FILES_MAX: Final = 64
QUEUES_LISTED_MAX: Final = 1024


def is_address(tags_code: int) -> bool:
    """Return whether an entry's tags code is the address of a unit."""
    return tags_code <= ADDRESS_MAX


class ExtUnit(NamedTuple):
    """What the extension knows about a message."""

    tags_code: int
    store_time: int
    bitmap: bytes


class ConsumeQueueExt:
    """The extensions of all queues of a store."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = f"{root}/{EXT_FOLDER}"
        self._open_files = OpenFiles(OPEN_FILES_MAX)
        self._ranges: dict[tuple[str, int], list[tuple[range, str]]] = {}  # Files by queue.

    def exists(self) -> bool:
        """Return whether the store has extensions at all."""
        return self._filesystem.exists(self._root)

    def unit(self, topic: str, queue_id: int, address: int) -> ExtUnit | None:
        """Return the unit at an address; None if there is none, or if it is damaged."""
        position = address - ADDRESS_OF_FIRST
        found = self._file(topic, queue_id, position)
        if found is None:
            return None
        file, start = found
        head = file.read(UNIT_HEAD_SIZE, position - start)
        if len(head) < UNIT_HEAD_SIZE:
            return None
        size, tags_code, store_time, bitmap_size = UNIT_HEAD.unpack(head)
        if bitmap_size < 0 or size != UNIT_HEAD_SIZE + bitmap_size:
            return None
        bitmap = file.read(bitmap_size, position - start + UNIT_HEAD_SIZE) if bitmap_size else b""
        return ExtUnit(tags_code, store_time, bitmap) if len(bitmap) == bitmap_size else None

    def tags_code(self, topic: str, queue_id: int, tags_code: int) -> int:
        """Return the tags code of an entry, looked up if it is an address; 0 if that is lost."""
        if not is_address(tags_code):
            return tags_code
        unit = self.unit(topic, queue_id, tags_code)
        return 0 if unit is None else unit.tags_code

    def close(self) -> None:
        """Close the files."""
        self._open_files.close_all()

    def _file(self, topic: str, queue_id: int, position: int) -> tuple[File, int] | None:
        """Return the file that holds a position, and where that file begins."""
        queue = (topic, queue_id)
        files = self._ranges.get(queue)
        if files is None:
            if len(self._ranges) >= QUEUES_LISTED_MAX:
                self._ranges.clear()
            files = self._ranges[queue] = self._list(topic, queue_id)
        for positions, path in files:
            if position in positions:
                file = self._open_files.get(queue, positions.start)
                if file is None:
                    file = self._filesystem.open(path, read_only=True)
                    self._open_files.put(queue, positions.start, file)
                return file, positions.start
        return None

    def _list(self, topic: str, queue_id: int) -> list[tuple[range, str]]:
        folder = f"{self._root}/{topic}/{queue_id}"
        return [
            (range(int(entry.name), int(entry.name) + entry.size), f"{folder}/{entry.name}")
            for entry in self._filesystem.list(folder)
            if is_offset_file(entry)
        ]
