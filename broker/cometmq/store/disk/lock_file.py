"""A file by which this process keeps others out, and also itself.

The kernel lets a process take a POSIX lock twice, and releases it when any descriptor of the file
is closed. So the files that are locked here are noted, to be left alone.
"""

from __future__ import annotations

import os
from typing import Final

from cometmq.store.disk.real_files import RealFile

_held: Final[set[tuple[int, int]]] = set()
"""Device and inode number of each file that this process has locked."""
os.register_at_fork(after_in_child=_held.clear)  # A child does not inherit its parent's locks.


def is_held(path: str) -> bool:
    """Whether this process has the file locked, under whatever name."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _held


def is_named(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one of this name."""
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
