"""The machine's disk for mending the store of another user, as root may.

A file that root creates there belongs to root, and that user's broker could no longer write it: it
would tell its own user to run it as the user that the store belongs to. So what is created is given
to the owner of the log, and is as open to others as the log, whatever mask the mending process has.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.starting.folder import LOG_FOLDER

if TYPE_CHECKING:
    from collections.abc import Generator

    from cometmq.store.disk.real_files import RealFile


class OwnedFileSystem(RealFileSystem):
    """`RealFileSystem` whose new files and folders belong to a given user."""

    __slots__ = ("_group", "_user")

    def __init__(self, user: int, group: int) -> None:
        self._user = user
        self._group = group

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        """Open a file; if it is created, give it away."""
        is_made = create and not self.exists(path)
        file = super().open(path, create=create, read_only=read_only)
        if is_made:
            self._give(file.fileno())
        return file

    def lock(self, path: str) -> RealFile | None:
        """Open (and create) a file and lock it; if it is created, give it away."""
        is_made = not self.exists(path)
        file = super().lock(path)
        if is_made and file is not None:
            self._give(file.fileno())
        return file

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents, and give the new ones away."""
        made: list[str] = []
        above = path
        while above and not self.exists(above):
            made.append(above)
            above = os.path.dirname(above)
        super().make_directories(path)
        for folder in made:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(folder, flags)
            try:
                self._give(descriptor)
            finally:
                os.close(descriptor)

    def _give(self, descriptor: int) -> None:
        found = os.fstat(descriptor)  # If a mount sets the owner of all files, change nothing.
        if (found.st_uid, found.st_gid) != (self._user, self._group):
            os.fchown(descriptor, self._user, self._group)


def file_system_for(root: str) -> RealFileSystem:
    """Return the disk for changing a store: what root creates is given to the log's owner."""
    if os.geteuid() == 0:
        try:
            found = os.stat(f"{root}/{LOG_FOLDER}")
        except OSError:
            return RealFileSystem()  # Looking for a store there will report what is wrong.
        if found.st_uid:
            return OwnedFileSystem(found.st_uid, found.st_gid)
    return RealFileSystem()


@contextmanager
def as_open_as_log(root: str) -> Generator[None, None, None]:
    """Let what is created be as open to others as the log: whoever it keeps out stays out."""
    try:
        mode = os.stat(f"{root}/{LOG_FOLDER}").st_mode
    except OSError:
        yield  # Looking for a store there will report what is wrong.
        return
    before = os.umask(~mode & 0o077)
    try:
        yield
    finally:
        os.umask(before)
