"""A bounded cache of open files: 80,000 queues do not keep 80,000 descriptors.

Files are known by (owner, number), not by path: making a path costs as much as the read itself. The
cache is only for the thread that writes the store; other threads open files for themselves.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import File


class OpenFiles:
    """Open files by owner and number; the one not used for longest is closed to make room."""

    __slots__ = ("_files", "files_max")

    def __init__(self, files_max: int) -> None:
        assert files_max > 0, files_max
        self._files: OrderedDict[tuple[object, int], File] = OrderedDict()
        self.files_max = files_max
        """How many are kept open."""

    def __len__(self) -> int:
        return len(self._files)

    def get(self, owner: object, number: int) -> File | None:
        """Return the file if it is open."""
        key = (owner, number)
        file = self._files.get(key)
        if file is not None:
            self._files.move_to_end(key)
        return file

    def put(self, owner: object, number: int, file: File) -> File:
        """Keep an open file; close another one if there are too many."""
        while len(self._files) >= self.files_max:
            self._files.popitem(last=False)[1].close()
        self._files[owner, number] = file
        return file

    def close(self, owner: object, number: int) -> None:
        """Close one file, if it is open: it is about to be removed or cut."""
        file = self._files.pop((owner, number), None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close every file."""
        while self._files:
            self._files.popitem()[1].close()
