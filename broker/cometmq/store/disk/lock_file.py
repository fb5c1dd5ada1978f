"""A file by which this process keeps others out, and itself.

The kernel lets the process that has a POSIX lock take it twice, and gives the lock up when any
descriptor of the file is closed. So the files that are locked here are noted, to be left alone.
"""

from __future__ import annotations

import os
from typing import Final

from cometmq.store.disk.real_files import RealFile

_held: Final[set[tuple[int, int]]] = set()
"""Device and number of the files that this process has locked."""
os.register_at_fork(after_in_child=_held.clear)  # A child has no lock of its parent's.


def is_held(path: str) -> bool:
    """Whether this process has the file locked, under whatever name."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _held


def is_named(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class LockFile(RealFile):
    """A file that is locked until it is closed."""

    __slots__ = ("_identity",)

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._identity: tuple[int, int] | None = None

    def hold(self) -> None:
        """Note that it is locked."""
        found = os.fstat(self.fileno())
        self._identity = found.st_dev, found.st_ino
        _held.add(self._identity)

    def close(self) -> None:
        """Close it, and so unlock it."""
        if self._identity is not None:
            _held.discard(self._identity)
            self._identity = None
        super().close()
