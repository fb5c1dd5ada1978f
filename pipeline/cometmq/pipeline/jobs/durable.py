"""Files of this machine that outlast a power cut.

What was written and closed is in the kernel's memory for up to half a minute, while a removal may
be on the disk within seconds. So what takes the place of something, or says that something is
there, is put on the disk before; other file systems (HDFS, S3) keep what was closed.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from os import fsync
from pathlib import Path
from typing import Final

_CANNOT: Final = (errno.EINVAL, errno.ENOTSUP)
"""What file systems say that do not sync folders: some of those over a network."""


def sync(path: Path) -> None:
    """Put a file, or all that is in a folder, on the disk; and Hadoop's checksum of a file."""
    if path.is_dir():
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                _sync_file(Path(folder, name))
            _sync_folder(Path(folder))
        return
    _sync_file(path)
    with suppress(FileNotFoundError):
        _sync_file(path.with_name(f".{path.name}.crc"))


class Growing:
    """A folder into which others write files, each of which is put on the disk once.

    `None` is one of another file system.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._there: set[tuple[Path, int, int]] = set()

    def sync(self) -> None:
        """Put on the disk what was not there when this was done last, or is another one."""
        if self._root is None or not self._root.is_dir():
            return
        before, self._there = self._there, set()
        for folder, _, names in os.walk(self._root, topdown=False):
            here = Path(folder)
            for name in names:
                # What is old is removed meanwhile, and what has no name yet gets one.
                with suppress(FileNotFoundError):
                    self._sync(here / name, before)
            self._sync(here, before)
        if not before:
            sync_name(self._root)

    def _sync(self, path: Path, before: set[tuple[Path, int, int]]) -> None:
        found = path.stat()
        each = (path, found.st_ino, found.st_mtime_ns)
        if each not in before:
            (_sync_folder if path.is_dir() else _sync_file)(path)
        self._there.add(each)


def sync_name(path: Path) -> None:
    """Put on the disk that something has its name, in its folder and in all those above.

    They may have been made for it; one in which nothing has changed costs nothing.
    """
    for folder in path.absolute().parents:
        _sync_folder(folder)
        if os.path.ismount(folder):
            return


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    # One far above may be closed to us.
    with suppress(PermissionError):
        try:
            _sync_file(path)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
