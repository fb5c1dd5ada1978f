"""The real disk with a hook before and after each operation that changes it.

A writer process uses it to kill itself at a named point: see `failpoint_of`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.crash.disk import Hook, Moment, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.proto.buffer import Buffer
    from cometmq.store.disk.filesystem import Entry, File, FileSystem, Mapping, Partition, Space


def failpoint_of(operation: Operation, root: str) -> str:
    """Name an operation by its moment, its verb, and what kind of file it is done to."""
    path = operation.path.removeprefix(root).strip("/") or "root"
    folder, _, name = path.rpartition("/")
    kind = folder.split("/")[0] or name
    if folder and re.fullmatch(r"[0-9]+", name):
        kind += " file"
    elif folder:
        kind += f" {name}" if folder == kind else ""
    return f"{operation.moment.name.lower()} {operation.verb} {kind}"


class Hooks:
    """Calls one hook and numbers the operations."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._number = 0

    def around(self, verb: str, path: str, action: Callable[[], None]) -> None:
        """Do it between two calls of the hook."""
        self._number += 1
        number = self._number
        self._hook(Operation(number, verb, path, Moment.BEFORE))
        action()
        self._hook(Operation(number, verb, path, Moment.AFTER))


class HookedFile:
    """`File` that tells a hook what is done to it."""

    def __init__(self, inner: File, hooks: Hooks) -> None:
        self._inner = inner
        self._hooks = hooks

    @property
    def path(self) -> str:
        """The path under which it was opened."""
        return self._inner.path

    def size(self) -> int:
        """The file's length now."""
        return self._inner.size()

    def read(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""
        return self._inner.read(count, position)

    def read_cached(self, count: int, position: int) -> bytes | bytearray | None:
        """Read from the page cache; None if that would have to wait for the disk."""
        return self._inner.read_cached(count, position)

    def is_cached(self, count: int, position: int) -> bool:
        """Whether all of that is in the page cache."""
        return self._inner.is_cached(count, position)

    def is_blank(self, position: int) -> bool:
        """Whether only zeros follow from there on."""
        return self._inner.is_blank(position)

    def data_ranges(self) -> Iterator[tuple[int, int]]:
        """Walk the ranges outside which there are only zeros."""
        return self._inner.data_ranges()

    def write(self, data: Buffer, position: int) -> None:
        """Write all of it."""
        self._hooks.around("write", self.path, lambda: self._inner.write(data, position))

    def allocate(self, length: int) -> None:
        """Make the file `length` bytes long with every block reserved."""
        self._hooks.around("allocate", self.path, lambda: self._inner.allocate(length))

    def resize(self, length: int) -> None:
        """Cut or extend the file."""
        self._hooks.around("resize", self.path, lambda: self._inner.resize(length))

    def sync(self) -> None:
        """Sync the file."""
        self._hooks.around("sync", self.path, self._inner.sync)

    def map(self) -> Mapping:
        """Map the whole file for reading."""
        return self._inner.map()

    def close(self) -> None:
        """Close it."""
        self._inner.close()


class HookedFileSystem:
    """`FileSystem` that tells a hook what is done to it."""

    def __init__(self, inner: FileSystem, hook: Hook) -> None:
        self._inner = inner
        self._hooks = Hooks(hook)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> HookedFile:
        """Open a file; with `create`, create it if it is missing."""
        if create and not self._inner.exists(path):
            self._hooks.around("create", path, lambda: self._inner.open(path, create=True).close())
        return HookedFile(self._inner.open(path, create=create, read_only=read_only), self._hooks)

    def lock(self, path: str) -> HookedFile | None:
        """Open (and create) a file and lock it for this process."""
        file = self._inner.lock(path)
        return None if file is None else HookedFile(file, self._hooks)

    def lock_owner(self, path: str) -> int | None:
        """The process that has a file locked."""
        return self._inner.lock_owner(path)

    def list(self, path: str) -> list[Entry]:
        """The names in a folder, sorted."""
        return self._inner.list(path)

    def immovable(self, folders: Iterable[str]) -> str | None:
        """Return the first of some folders that is a link or a mount point."""
        return self._inner.immovable(folders)

    def check_writable(self, path: str) -> None:
        """Raise an `OSError` if a file or folder may not be changed."""
        self._inner.check_writable(path)

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        return self._inner.exists(path)

    def modified_ms(self, path: str) -> int:
        """When the file was last written."""
        return self._inner.modified_ms(path)

    def room_of(self, path: str) -> int:
        """How many bytes of the disk a file takes."""
        return self._inner.room_of(path)

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents."""
        if not self._inner.exists(path):
            self._hooks.around("make_directory", path, lambda: self._inner.make_directories(path))

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step."""
        self._hooks.around("rename", source, lambda: self._inner.rename(source, target))

    def exchange(self, left: str, right: str) -> None:
        """Swap the names of two files or folders in one step."""
        self._hooks.around("exchange", left, lambda: self._inner.exchange(left, right))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._hooks.around("remove", path, lambda: self._inner.remove(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        self._hooks.around("remove_directory", path, lambda: self._inner.remove_directory(path))

    def sync_directory(self, path: str) -> None:
        """Sync the names in a folder."""
        self._hooks.around("sync_directory", path, lambda: self._inner.sync_directory(path))

    def partition(self, path: str) -> Partition:
        """Open the partition that a folder is on, to sync it."""
        return self._inner.partition(path)

    def space(self, path: str) -> Space:
        """The partition that the path is on."""
        return self._inner.space(path)
