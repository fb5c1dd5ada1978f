"""Files of this machine that outlast a power cut.

What was written and closed is in the kernel's memory for up to half a minute, while a removal may
be on the disk within seconds. So what takes the place of something, or says that something is
there, is put on the disk before; other file systems (HDFS, S3) keep what was closed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from os import fsync
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.full_disks import about_full

if TYPE_CHECKING:
    from typing import TextIO

_SYSTEM: Final = "/dev/"
"""Where names are of something else."""
_OPEN: Final = "/proc/"
"""And of what is open, as a shell has opened it for us."""
_LINKS_MAX: Final = 40
"""That lead to another: as many as Linux follows."""
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


def write_whole(path: Path, text: str) -> None:
    """Write a file of which all that was there before stays until all of the new is on the disk.

    What is no file, such as a pipe, is written to as it is; and so is one that cannot be replaced,
    as in a folder that is closed to us, or that is of somebody else, or a mount point.
    """
    if (name := _of_system(path)) or (path.exists() and not path.is_file()):
        with _opened(name or path) as there:
            there.write(text)
        return
    file = Path(realpath(path))  # Not a link that leads to it.
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, "utf-8")
        _make_alike(new, file)
        _sync_file(new)
        new.replace(file)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        if about_full(error):
            raise
        path.write_text(text, "utf-8")
    else:
        sync_name(file)


def _of_system(path: Path) -> Path | None:
    """Return the name of the system's that a path is, or leads to; `None` of any other."""
    found = None
    for _ in range(_LINKS_MAX):
        path = Path(realpath(path.parent), path.name)
        if str(path).startswith(_OPEN):
            return path
        if str(path).startswith(_SYSTEM):
            found = path
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return found


def _opened(path: Path) -> TextIO:
    """Open what is to be written to as it is; what a process has open is gone on with.

    What was written there before stays. What this process has open, as stdout, is not opened again:
    in a file that would be another place, and what goes to stdout next would stand over the text.
    """
    if own := re.fullmatch(rf"/proc/{os.getpid()}/fd/([0-9]+)", str(path)):
        return os.fdopen(os.dup(int(own[1])), "w", encoding="utf-8")
    return path.open("a" if str(path).startswith(_OPEN) else "w", encoding="utf-8")


def _make_alike(new: Path, old: Path) -> None:
    """Have a new file belong to whom the old one does, and closed as that is, if there is one."""
    if old.exists():
        is_now, was = new.stat(), old.stat()
        if (is_now.st_uid, is_now.st_gid) != (was.st_uid, was.st_gid):
            os.chown(new, was.st_uid, was.st_gid)
        new.chmod(stat.S_IMODE(was.st_mode))


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
