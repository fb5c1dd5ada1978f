"""The seam between the store and the disk: every file operation of the store goes through here.

There are two real implementations: `RealFileSystem` below, and the simulated one of the crash
tests, which keeps unsynced bytes apart and can lose, tear or refuse them. (`Overlay` keeps what is
written over one of them in memory.) So the seam is as narrow as the store's needs, and says for
each verb what survives a power cut:

* written bytes have reached the disk once `File.sync` has returned, and before that in any order;
* that a file was created, renamed or removed survives a power cut only once `sync_directory` of its
  folder has returned;
* a failed `sync` is final: the kernel may have dropped the pages, so a second `sync` that succeeds
  proves nothing. Callers stop writing.

Paths are plain strings. Everything that the disk refuses is an `OSError` with its errno.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.store.disk.linux_calls import exchange_names, first_byte_locked_by
from cometmq.store.disk.lock_file import LockFile, is_held, is_named
from cometmq.store.disk.real_files import (
    RealFile,
    RealPartition,
    check_writable,
    first_immovable,
    make_folders,
    open_file,
)
from cometmq.store.errors import OF_LINKS, StoreFormatError, leads_nowhere

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.proto.buffer import Buffer


class Entry(NamedTuple):
    """One name in a folder."""

    name: str
    is_directory: bool
    size: int
    is_special: bool = False
    """Neither file nor folder: a pipe, a socket, a device, or a link that leads nowhere."""
    leads_nowhere: bool = False
    """Whether it is a link whose target does not exist."""


class Space(NamedTuple):
    """The size of a path's partition, and its free space, in bytes."""

    total: int
    free: int
    device: int = 0
    """Identifies the partition: a second look may find other numbers for the same one."""


class Mapping(Protocol):
    """A file read as memory. Slices of `view` stay valid until `close`."""

    @property
    def view(self) -> memoryview:
        """The whole file, read-only; bytes written to the file show up in it at once."""
        ...

    def close(self) -> bool:
        """Unmap; False if a slice of the view is still held, and the map stays."""
        ...


class File(Protocol):
    """An open file, addressed by position only: there is no cursor."""

    @property
    def path(self) -> str:
        """The path under which it was opened."""
        ...

    def size(self) -> int:
        """The file's length now."""
        ...

    def read(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, count: int, position: int) -> bytes | bytearray | None:
        """Read from the page cache; None if that would have to wait for the disk."""
        ...

    def is_cached(self, count: int, position: int) -> bool:
        """Whether all of that is in the page cache at this moment; False if nobody can tell."""
        ...

    def is_blank(self, position: int) -> bool:
        """Whether only zeros follow from there on; False if only reading them could tell."""
        ...

    def data_ranges(self) -> Iterator[tuple[int, int]]:
        """Walk the ranges outside which there are only zeros; the whole file if nobody can tell."""
        ...

    def write(self, data: Buffer, position: int) -> None:
        """Write all of it. After an error, an unknown first part may be written."""
        ...

    def allocate(self, length: int) -> None:
        """Make the file `length` bytes long with every block reserved, and zeros if unwritten."""
        ...

    def resize(self, length: int) -> None:
        """Cut or extend the file to `length`; an extension is a hole that reads as zeros."""
        ...

    def sync(self) -> None:
        """Return once everything written, and the length, would survive a power cut."""
        ...

    def map(self) -> Mapping:
        """Map the whole file for reading."""
        ...

    def close(self) -> None:
        """Close it; its maps stay."""
        ...


class Partition(Protocol):
    """Everything on the partition of a folder; for when syncing file by file takes too long."""

    def sync(self) -> None:
        """Return once everything written there, and all names, would survive a power cut.

        Reports failures since this was opened, not earlier ones. Others' files are synced, too.
        """
        ...

    def close(self) -> None:
        """Close it."""
        ...


class FileSystem(Protocol):
    """The verbs on names."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open a file; with `create`, create it if it is missing."""
        ...

    def lock(self, path: str) -> File | None:
        """Open (and create) a file and lock it for this process; None if another holds it."""
        ...

    def lock_owner(self, path: str) -> int | None:
        """The process that has a file locked. Only for others: the owner would lose its lock."""
        ...

    def list(self, path: str) -> list[Entry]:
        """The names in a folder, sorted; an empty list if there is no such folder."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        ...

    def immovable(self, folders: Iterable[str]) -> str | None:
        """Return the first of some folders that is a link or a mount point, or None."""
        ...

    def check_writable(self, path: str) -> None:
        """Raise an `OSError` if a file or folder exists and may not be changed."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""
        ...

    def room_of(self, path: str) -> int:
        """How many bytes of the disk a file takes; for a sparse one, less than its length."""
        ...

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step, replacing what had that name."""
        ...

    def exchange(self, left: str, right: str) -> None:
        """Swap the names of two files or folders in one step; EINVAL if the disk cannot."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; maps and open files of it stay readable."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in this folder would survive a power cut."""
        ...

    def partition(self, path: str) -> Partition:
        """Open the partition that a folder is on, to sync it."""
        ...

    def space(self, path: str) -> Space:
        """The partition of a path."""
        ...


_WHOLE_SIZE_MAX: Final = 1 << 30
"""More than any file that is read as a whole has; a longer one would not fit into memory."""


def read_whole(filesystem: FileSystem, path: str) -> bytes | None:
    """Read a whole file; None if there is none; raise `StoreFormatError` if it is too long."""
    try:
        file = filesystem.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        if (size := file.size()) > _WHOLE_SIZE_MAX:
            raise StoreFormatError(
                f"{size} bytes, far too large for this file: restore it from a copy", path
            )
        return file.read(size, 0)
    finally:
        file.close()


_HELD_BY_ANOTHER: Final = (errno.EAGAIN, errno.EACCES)
"""The POSIX errors for a lock that another process holds."""
_BLOCK_SIZE: Final = 512
"""The unit of `st_blocks`, whatever the blocks of the file system."""


class RealFileSystem:
    """`FileSystem` on the machine's disk."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        """Open a file; with `create`, create it if it is missing."""
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        return open_file(path, flags)

    def lock(self, path: str) -> RealFile | None:
        """Open (and create) a file and lock it for this process; None if another holds it.

        The lock is the one that Apache takes (a POSIX record lock on the first byte), so that the
        two keep out of each other's stores; it is released when the process ends, however it ends.
        The kernel lets the same process take it twice, and releases it when any descriptor of the
        file is closed; so a file that is locked here is not even opened.
        """
        if is_held(path):
            return None
        while True:
            file = LockFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            try:
                fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                if is_named(file.fileno(), path):
                    file.hold()
                    return file
            except OSError as error:
                file.close()
                if error.errno in _HELD_BY_ANOTHER:
                    return None
                error.filename = path
                raise
            file.close()  # The previous holder has removed it in between.

    def lock_owner(self, path: str) -> int | None:
        """The id of the process that has a file locked, or None."""
        if is_held(path):
            return os.getpid()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return first_byte_locked_by(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def list(self, path: str) -> list[Entry]:
        """The names in a folder, sorted; an empty list if there is no such folder."""
        try:
            entries = os.scandir(path)
        except OSError as error:
            if error.errno in OF_LINKS and leads_nowhere(path):  # Not just a missing folder.
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
            if not isinstance(error, FileNotFoundError):
                raise
            return []
        with entries:
            return sorted(found for each in entries if (found := _entry(each)) is not None)

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        return os.path.exists(path)

    def immovable(self, folders: Iterable[str]) -> str | None:
        """Return the first of some folders that is a link or a mount point, or None."""
        return first_immovable(folders)

    def check_writable(self, path: str) -> None:
        """Raise an `OSError` if a file or folder exists and may not be changed."""
        check_writable(path)

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def room_of(self, path: str) -> int:
        """How many bytes of the disk a file takes; for a sparse one, less than its length."""
        return os.stat(path).st_blocks * _BLOCK_SIZE

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents."""
        make_folders(path)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step, replacing what had that name."""
        os.replace(source, target)

    def exchange(self, left: str, right: str) -> None:
        """Swap the names of two files or folders in one step."""
        exchange_names(left, right)

    def remove(self, path: str) -> None:
        """Remove a file; maps and open files of it stay readable."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Return once the names in this folder would survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def partition(self, path: str) -> RealPartition:
        """Open the partition that a folder is on, to sync it."""
        return RealPartition(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def space(self, path: str) -> Space:
        """The partition of a path, without what is reserved for others, as `df` counts."""
        stat = os.statvfs(path)
        reserved = stat.f_bfree - stat.f_bavail
        total = (stat.f_blocks - reserved) * stat.f_frsize
        return Space(total, stat.f_bavail * stat.f_frsize, os.stat(path).st_dev)


def _entry(found: os.DirEntry[str]) -> Entry | None:
    """Return the entry for a name in a listing; None if it has vanished meanwhile."""
    try:
        is_folder = found.is_dir()
        is_special = not (is_folder or found.is_file())
        return Entry(found.name, is_folder, found.stat().st_size, is_special)
    except OSError as error:
        if error.errno not in OF_LINKS:
            raise
        with suppress(FileNotFoundError):
            is_lost = found.is_symlink()
            size = found.stat(follow_symlinks=False).st_size
            return Entry(found.name, False, size, is_lost, is_lost)
    return None
