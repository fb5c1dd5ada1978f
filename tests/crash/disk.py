"""`SimulatedFileSystem`: the seam to the disk, in memory, with power cuts, kills and faults.

It passes the same tests as the real one, and adds:

* `power_cut(rng)` and `kill()` return the disk as the next process finds it. `content.py` and
  `names.py` say what may be lost.
* `hook` is called before and after every operation that changes something, with a running number.
  It may raise an `OSError` (the operation fails; a sync drops its pages, see `content.py`), a
  `Partial` (a write fails after its first bytes) or a `Killed` (the process ends there: nothing
  that its `finally` clauses try reaches the disk any more).
* `total` limits the bytes: a write fails with ENOSPC after the bytes that still fitted, and so does
  `allocate`, which leaves a file half made, as ext4 does.
* `read_only` refuses every change; `make_unreadable` makes reads of a byte range fail with EIO.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tests.crash.content import BLOCK, Content, Luck
from tests.crash.names import Change, Folder, Names, Node, folder_of

from cometmq.proto.buffer import Buffer
from cometmq.store.disk.filesystem import Entry, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from random import Random


class Killed(BaseException):
    """The process ended here. Not an `Exception`: nothing in the store may catch it."""


class Partial(Exception):  # noqa: N818  # it names what happened, as Killed does
    """Raised by a hook before a write: `count` bytes are written, then `error` is raised."""

    def __init__(self, count: int, error: BaseException) -> None:
        super().__init__(count, error)
        self.count = count
        self.error = error


class Moment(Enum):
    """When a hook is called."""

    BEFORE = auto()
    AFTER = auto()


class Operation(NamedTuple):
    """One operation that changes the disk; its two moments have the same number."""

    number: int
    verb: str
    path: str
    moment: Moment


Hook: TypeAlias = "Callable[[Operation], None]"


class KillAt:
    """A hook that ends the process at one operation, and notes which it was."""

    def __init__(self, number: int, moment: Moment = Moment.BEFORE) -> None:
        self._number = number
        self._moment = moment
        self.hit: Operation | None = None

    def __call__(self, operation: Operation) -> None:
        if operation.number == self._number and operation.moment is self._moment:
            self.hit = operation
            raise Killed(operation)


@dataclass(eq=False)
class _Disk:
    """What all processes of one machine share."""

    names: Names
    total: int
    now_ms: int
    used: int = 0
    read_only: bool = False
    is_cold: bool = False
    dead: bool = False
    operations: int = 0
    hook: Hook | None = None
    unreadable: dict[str, list[range]] = field(default_factory=dict[str, list[range]])
    lock: threading.RLock = field(default_factory=threading.RLock)

    def begin(self, verb: str, path: str) -> int:
        self.check_alive()
        if self.read_only:
            raise _error(errno.EROFS, path)
        self.operations += 1
        self._call(Operation(self.operations, verb, path, Moment.BEFORE))
        return self.operations

    def end(self, number: int, verb: str, path: str) -> None:
        self._call(Operation(number, verb, path, Moment.AFTER))

    def _call(self, operation: Operation) -> None:
        if self.hook is None:
            return
        try:
            self.hook(operation)
        except Killed:
            self.dead = True
            raise

    def check_alive(self) -> None:
        if self.dead:
            raise Killed("this process has ended")

    def node(self, path: str) -> Node:
        try:
            return self.names.live[path]
        except KeyError:
            self.check_way(path)
            raise _error(errno.ENOENT, path) from None

    def check_way(self, path: str) -> None:
        """Refuse a path that leads through a file."""
        folder = folder_of(path)
        while folder not in self.names.live:
            folder = folder_of(folder)
        if isinstance(self.names.live[folder], Content):
            raise _error(errno.ENOTDIR, path)

    def reserve(self, content: Content, start: int, end: int) -> int:
        """Take the blocks of a range from the free ones; return how far these sufficed."""
        for block in range(start // BLOCK, -(-end // BLOCK)):
            if block not in content.blocks:
                if self.used + BLOCK > self.total:
                    return max(start, block * BLOCK)
                content.blocks.add(block)
                self.used += BLOCK
        return end

    def release(self, content: Content) -> None:
        """Give the blocks back once no name, no open file and no map holds the file."""
        if content.users == 0 and content not in self.names.live.values():
            self.used -= len(content.blocks) * BLOCK
            content.blocks.clear()


class SimulatedMapping:
    """`Mapping` of a simulated file."""

    def __init__(self, disk: _Disk, content: Content) -> None:
        self._disk = disk
        self._content = content
        self._image = content.map()
        self._open = True
        self.view = memoryview(self._image).toreadonly()
        content.users += 1

    def close(self) -> bool:
        """Unmap; False if a slice of the view is still held, and the map stays."""
        try:
            self.view.release()
            self._content.unmap(self._image)
        except BufferError:
            return False
        if self._open:
            self._open = False
            self._content.users -= 1
            self._disk.release(self._content)
        return True


class SimulatedFile:
    """`File` of a simulated disk."""

    def __init__(self, disk: _Disk, path: str, content: Content, process: object) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._process = process
        self._open = True
        self._writable = True
        content.users += 1

    def refuse_writes(self) -> SimulatedFile:
        """Make this a file opened for reading only."""
        self._writable = False
        return self

    def _check(self, *, writing: bool = False) -> None:
        self._disk.check_alive()
        if not self._open or (writing and not self._writable):
            raise _error(errno.EBADF, self.path)

    def size(self) -> int:
        """The file's length now."""
        self._check()
        return len(self._content.cache)

    def read(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""
        self._check()
        for bad in self._disk.unreadable.get(self.path, ()):
            if position < bad.stop and bad.start < position + count:
                raise _error(errno.EIO, self.path)
        return bytes(self._content.cache[position : position + count])

    def read_cached(self, count: int, position: int) -> bytes | bytearray | None:
        """Read what is in the page cache: here, all of it or, with `is_cold`, nothing."""
        return None if self._disk.is_cold else self.read(count, position)

    def is_cached(self, count: int, position: int) -> bool:
        """Whether all of that is in the page cache: bytes that the disk cannot read never are."""
        end = position + count
        bad = self._disk.unreadable.get(self.path, ())
        reaches = any(position < each.stop and each.start < end for each in bad)
        return not self._disk.is_cold and not reaches and end <= self.size()

    def is_blank(self, position: int) -> bool:
        """Whether only zeros follow from there on."""
        return not any(self.read(len(self._content.cache), position))

    def data_ranges(self) -> Iterator[tuple[int, int]]:
        """The whole file: this disk does not tell where there are only zeros."""
        yield 0, self.size()

    def write(self, data: Buffer, position: int) -> None:
        """Write all of it. After an error, an unknown first part may be written."""
        self._check(writing=True)
        view = memoryview(data).cast("B")
        with self._disk.lock:
            try:
                number = self._disk.begin("write", self.path)
            except Partial as partial:
                self._put(view[: partial.count], position)
                self._disk.dead |= isinstance(partial.error, Killed)
                raise partial.error from None
            self._put(view, position)
            self._disk.end(number, "write", self.path)

    def _put(self, view: memoryview, position: int) -> None:
        end = self._disk.reserve(self._content, position, position + len(view))
        self._content.write(view[: end - position], position)
        self._content.modified_ms = self._disk.now_ms
        if end < position + len(view):
            raise _error(errno.ENOSPC, self.path)

    def allocate(self, length: int) -> None:
        """Make the file `length` bytes long with every block reserved, and zeros if unwritten."""
        self._check(writing=True)
        with self._disk.lock:
            number = self._disk.begin("allocate", self.path)
            reached = self._disk.reserve(self._content, 0, length)
            if reached > len(self._content.cache):
                self._content.resize(reached)
            if reached < length:
                raise _error(errno.ENOSPC, self.path)
            self._content.modified_ms = self._disk.now_ms
            self._disk.end(number, "allocate", self.path)

    def resize(self, length: int) -> None:
        """Cut or extend the file to `length`; an extension is a hole that reads as zeros."""
        self._check(writing=True)
        with self._disk.lock:
            number = self._disk.begin("resize", self.path)
            held = len(self._content.blocks)
            self._content.resize(length)
            self._disk.used -= (held - len(self._content.blocks)) * BLOCK
            self._content.modified_ms = self._disk.now_ms
            self._disk.end(number, "resize", self.path)

    def sync(self) -> None:
        """Return once everything written, and the length, would survive a power cut."""
        self._check()
        with self._disk.lock:
            try:
                number = self._disk.begin("sync", self.path)
            except OSError:
                self._content.fail_sync()
                raise
            self._content.sync()
            self._disk.end(number, "sync", self.path)

    def map(self) -> SimulatedMapping:
        """Map the whole file for reading."""
        self._check()
        if not self._content.cache:
            raise ValueError("cannot mmap an empty file")
        return SimulatedMapping(self._disk, self._content)

    def close(self) -> None:
        """Close it; its maps stay. This process loses its lock on the file, as in POSIX."""
        if self._disk.dead:
            return
        self._check()
        self._open = False
        self._content.users -= 1
        if self._content.lock_owner is self._process:
            self._content.lock_owner = None
        self._disk.release(self._content)


class SimulatedPartition:
    """`Partition` of a simulated disk: all of it."""

    def __init__(self, disk: _Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def sync(self) -> None:
        """Return once everything written, and all names, would survive a power cut."""
        disk = self._disk
        with disk.lock:
            contents = [node for node in disk.names.live.values() if isinstance(node, Content)]
            try:
                number = disk.begin("sync_partition", self._path)
            except OSError:
                for content in contents:
                    content.fail_sync()
                raise
            for content in contents:
                content.sync()
            for path, node in list(disk.names.live.items()):
                if isinstance(node, Folder):
                    disk.names.sync(path)
            disk.end(number, "sync_partition", self._path)

    def close(self) -> None:
        """Close it."""


class SimulatedFileSystem:
    """`FileSystem` in memory, as one process sees it."""

    def __init__(self, *, total: int = 1 << 30, now_ms: int = 0) -> None:
        self._disk = _Disk(Names({"/": Folder()}), total, now_ms)
        self._process = object()

    # The verbs of the seam.

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimulatedFile:
        """Open a file; with `create`, create it if it is missing."""
        disk = self._disk
        disk.check_alive()
        with disk.lock:
            if create and path not in disk.names.live:
                self._check_folder(path)
                node: Node = Content(modified_ms=disk.now_ms)
                self._change("create", path, {path: node})
            node = disk.node(path)
            if isinstance(node, Folder):
                raise _error(errno.EISDIR, path)
            if disk.read_only and not read_only:
                raise _error(errno.EROFS, path)
            file = SimulatedFile(disk, path, node, self._process)
        return file.refuse_writes() if read_only else file

    def lock(self, path: str) -> SimulatedFile | None:
        """Open (and create) a file and lock it; None if any process holds it, even this one."""
        if self.lock_owner(path) is not None:
            return None
        file = self.open(path, create=True)
        content = self._disk.node(path)
        assert isinstance(content, Content)
        content.lock_owner = self._process
        return file

    def lock_owner(self, path: str) -> int | None:
        """The id of the process that has a file locked; all simulated ones are 1."""
        node = self._disk.names.live.get(path)
        return 1 if isinstance(node, Content) and node.lock_owner is not None else None

    def list(self, path: str) -> list[Entry]:
        """The names in a folder, sorted; an empty list if there is no such folder."""
        self._disk.check_alive()
        live = self._disk.names.live
        if isinstance(live.get(path), Content):
            raise _error(errno.ENOTDIR, path)
        self._disk.check_way(path)
        found: list[Entry] = []
        for child in self._disk.names.children(path):
            node = live[child]
            size = len(node.cache) if isinstance(node, Content) else BLOCK
            found.append(Entry(child.rpartition("/")[2], isinstance(node, Folder), size))
        return found

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        self._disk.check_alive()
        return path in self._disk.names.live

    def immovable(self, folders: Iterable[str]) -> str | None:  # noqa: ARG002  # None is one here.
        """Return the first of some folders that is a link or a mount point."""
        return None

    def check_writable(self, path: str) -> None:
        """Refuse nobody: this disk has no users."""

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since 1970."""
        node = self._disk.node(path)
        return node.modified_ms if isinstance(node, Content) else 0

    def room_of(self, path: str) -> int:
        """How many bytes of the disk a file takes."""
        node = self._disk.node(path)
        return len(node.blocks) * BLOCK if isinstance(node, Content) else 0

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents."""
        node = self._disk.names.live.get(path)
        if isinstance(node, Content):
            raise _error(errno.EEXIST, path)
        self._disk.check_way(path)
        if node is None:
            self.make_directories(folder_of(path))
            self._change("make_directory", path, {path: Folder()})

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step, replacing what had that name."""
        disk = self._disk
        disk.check_alive()
        with disk.lock:
            node = disk.node(source)
            self._check_folder(target)
            change: Change = {source: None, target: node}
            if isinstance(node, Folder):
                if disk.names.below(target):
                    raise _error(errno.ENOTEMPTY, target)
                for path in disk.names.below(source):
                    change[path] = None
                    change[target + path[len(source) :]] = disk.names.live[path]
            elif isinstance(disk.names.live.get(target), Folder):
                raise _error(errno.EISDIR, target)
            self._change("rename", source, change)

    def exchange(self, left: str, right: str) -> None:
        """Swap the names of two files or folders in one step."""
        live = self._disk.names.live
        change: Change = {}
        for source, target in ((left, right), (right, left)):
            self._disk.node(source)
            for path in (source, *self._disk.names.below(source)):
                change.setdefault(path, None)
                change[target + path[len(source) :]] = live[path]
        self._change("exchange", left, change)

    def remove(self, path: str) -> None:
        """Remove a file; maps and open files of it stay readable."""
        if isinstance(self._disk.node(path), Folder):
            raise _error(errno.EISDIR, path)
        self._change("remove", path, {path: None})

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        if isinstance(self._disk.node(path), Content):
            raise _error(errno.ENOTDIR, path)
        if self._disk.names.below(path):
            raise _error(errno.ENOTEMPTY, path)
        self._change("remove_directory", path, {path: None})

    def sync_directory(self, path: str) -> None:
        """Return once the names in this folder would survive a power cut."""
        disk = self._disk
        disk.check_alive()
        with disk.lock:
            if isinstance(disk.node(path), Content):
                raise _error(errno.ENOTDIR, path)
            number = disk.begin("sync_directory", path)
            disk.names.sync(path)
            disk.end(number, "sync_directory", path)

    def partition(self, path: str) -> SimulatedPartition:
        """Open the partition that a folder is on, to sync it."""
        self._disk.check_alive()
        if isinstance(self._disk.node(path), Content):
            raise _error(errno.ENOTDIR, path)
        return SimulatedPartition(self._disk, path)

    def space(self, path: str) -> Space:
        """The partition that the path is on: this disk."""
        self._disk.node(path)
        return Space(self._disk.total, self._disk.total - self._disk.used)

    def _check_folder(self, path: str) -> None:
        if not isinstance(self._disk.node(folder_of(path)), Folder):
            raise _error(errno.ENOTDIR, path)

    def _change(self, verb: str, path: str, change: Change) -> None:
        disk = self._disk
        with disk.lock:
            number = disk.begin(verb, path)
            replaced = [disk.names.live.get(name) for name in change]
            disk.names.change(change)
            for node in replaced:
                if isinstance(node, Content):
                    disk.release(node)
            disk.end(number, verb, path)

    # What only a simulation can do.

    @property
    def now_ms(self) -> int:
        """The time that files are stamped with; set it to let time pass."""
        return self._disk.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._disk.now_ms = now_ms

    @property
    def total(self) -> int:
        """The size of the disk in bytes; set it to make the disk full or to make room."""
        return self._disk.total

    @total.setter
    def total(self, total: int) -> None:
        self._disk.total = total

    @property
    def used(self) -> int:
        """How many bytes of it are taken."""
        return self._disk.used

    @property
    def read_only(self) -> bool:
        """Whether every change is refused with EROFS."""
        return self._disk.read_only

    @read_only.setter
    def read_only(self, read_only: bool) -> None:
        self._disk.read_only = read_only

    @property
    def is_cold(self) -> bool:
        """Whether the page cache seems empty to `read_cached` and `is_cached`."""
        return self._disk.is_cold

    @is_cold.setter
    def is_cold(self, is_cold: bool) -> None:
        self._disk.is_cold = is_cold

    @property
    def hook(self) -> Hook | None:
        """What is called before and after each changing operation."""
        return self._disk.hook

    @hook.setter
    def hook(self, hook: Hook | None) -> None:
        self._disk.hook = hook

    @property
    def operations(self) -> int:
        """How many changing operations were begun."""
        return self._disk.operations

    def make_unreadable(self, path: str, start: int, end: int) -> None:
        """Let reads of these bytes fail with EIO from now on."""
        self._disk.unreadable.setdefault(path, []).append(range(start, end))

    def other_process(self) -> SimulatedFileSystem:
        """The same disk as another process of the machine sees it."""
        other = SimulatedFileSystem()
        other._disk = self._disk
        return other

    def kill(self) -> SimulatedFileSystem:
        """End the process; the machine and its page cache live on."""
        self._disk.dead = True
        copies: dict[int, Node] = {}
        for node in self._disk.names.nodes():
            if id(node) not in copies:
                copies[id(node)] = node.after_kill() if isinstance(node, Content) else node
        return self._restarted(self._disk.names.copy(copies))

    def power_cut(self, rng: Random) -> SimulatedFileSystem:
        """Cut the machine's power: only what was synced is sure to survive."""
        self._disk.dead = True
        luck = Luck(rng)
        names = self._disk.names.after_power_cut(luck)
        return self._restarted(
            Names(
                {
                    path: node.after_power_cut(luck) if isinstance(node, Content) else node
                    for path, node in names.items()
                }
            )
        )

    def _restarted(self, names: Names) -> SimulatedFileSystem:
        next_one = SimulatedFileSystem(total=self._disk.total, now_ms=self._disk.now_ms)
        next_one._disk.names = names
        next_one._disk.used = BLOCK * sum(
            len(node.blocks) for node in names.live.values() if isinstance(node, Content)
        )
        return next_one


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
