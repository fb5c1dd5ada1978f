"""Local files that survive a power cut.

A file that was written and closed is only in the kernel's memory for up to half a minute, while a
removal may be on the disk within seconds. So a file that replaces something, or that says that
something exists, is synced first; other file systems (HDFS, S3) keep closed files.
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
"""Names there are not ordinary files."""
_OPEN: Final = "/proc/"
"""Names there may be open files, as a shell has opened for us."""
_LINKS_MAX: Final = 40
"""How many links in a row are followed, as many as Linux follows."""
_CANNOT: Final = (errno.EINVAL, errno.ENOTSUP)
"""The errors of file systems that cannot sync folders, such as some network file systems."""


def sync(path: Path) -> None:
    """Sync a file with Hadoop's checksum of it, or everything in a folder, to the disk."""
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
    """Write a file whose old contents stay until all of the new contents are on the disk.

    Anything but a file, such as a pipe, is written to directly. So is a file that cannot be
    replaced: in a folder that is closed to us, of another owner, or a mount point.
    """
    if (name := _of_system(path)) or (path.exists() and not path.is_file()):
        with _opened(name or path) as there:
            there.write(text)
        return
    file = Path(realpath(path))  # Not a link to it.
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
    """Return the name in the system's folders that a path is or links to, or `None`."""
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
    """Open something for direct writing; if a process has it open, continue after its output.

    What was written there before stays. If this process has it open, as stdout, it is not opened
    again: in a file that would be another position, and later output would overwrite the text.
    """
    if own := re.fullmatch(rf"/proc/{os.getpid()}/fd/([0-9]+)", str(path)):
        return os.fdopen(os.dup(int(own[1])), "w", encoding="utf-8")
    return path.open("a" if str(path).startswith(_OPEN) else "w", encoding="utf-8")


def _make_alike(new: Path, old: Path) -> None:
    """Give a new file the owner and permissions of the old one, if there is one."""
    if old.exists():
        is_now, was = new.stat(), old.stat()
        if (is_now.st_uid, is_now.st_gid) != (was.st_uid, was.st_gid):
            os.chown(new, was.st_uid, was.st_gid)
        new.chmod(stat.S_IMODE(was.st_mode))


class Growing:
    """A folder into which others write files, each of which is synced once.

    `None` stands for a folder on another file system.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._there: set[tuple[Path, int, int]] = set()

    def sync(self) -> None:
        """Sync the files that are new since the last call, or were replaced."""
        if self._root is None or not self._root.is_dir():
            return
        before, self._there = self._there, set()
        for folder, _, names in os.walk(self._root, topdown=False):
            here = Path(folder)
            for name in names:
                # Old files may be removed meanwhile, and temporary ones renamed.
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
    """Sync the name of something, in its folder and all folders above.

    These may have been created for it; an unchanged one costs nothing.
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
    # A folder far above may be closed to us.
    with suppress(PermissionError):
        try:
            _sync_file(path)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
