"""A file system that keeps all writes in memory: the disk below is only read.

It is for trying out what would become of files. It has only the verbs that queues and the list of
their ends use, and nothing survives the object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cometmq.store.disk.filesystem import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.proto.buffer import Buffer
    from cometmq.store.disk.filesystem import File, FileSystem, Mapping, Space


class _Content:
    """The changes to one file."""

    __slots__ = ("kept", "size", "writes")

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept = size
        """Bytes from the beginning that are still those of the disk, apart from the writes."""
        self.writes: list[tuple[int, bytes]] = []

    def write(self, data: Buffer, position: int) -> None:
        if kept := bytes(data):
            self.writes.append((position, kept))
            self.size = max(self.size, position + len(kept))

    def resize(self, length: int) -> None:
        self.kept = min(self.kept, length)
        self.writes = [
            (position, data[: length - position])
            for position, data in self.writes
            if position < length
        ]
        self.size = length

    def read(self, below: File | None, count: int, position: int) -> bytes:
        end = max(position, min(position + count, self.size))
        of_disk = max(0, min(end, self.kept) - position)
        found = bytearray(below.read(of_disk, position) if below and of_disk else b"")
        found = found.ljust(end - position, b"\0")
        for at, data in self.writes:
            low, high = max(at, position), min(at + len(data), end)
            if low < high:
                found[low - position : high - position] = data[low - at : high - at]
        return bytes(found)


class _OverlaidFile:
    """`File` of an `Overlay`."""

    def __init__(self, path: str, below: File | None, contents: dict[str, _Content]) -> None:
        self._path = path
        self._below = below
        self._contents = contents

    @property
    def path(self) -> str:
        """The path under which it was opened."""
        return self._path

    def size(self) -> int:
        """The file's length now."""
        content = self._contents.get(self._path)
        if content is not None:
            return content.size
        return 0 if self._below is None else self._below.size()

    def read(self, count: int, position: int) -> bytes:
        """Read up to `count` bytes; fewer only at the end of the file."""
        content = self._contents.get(self._path)
        if content is not None:
            return content.read(self._below, count, position)
        return b"" if self._below is None else self._below.read(count, position)

    def read_cached(self, count: int, position: int) -> bytes | bytearray | None:
        """Read, and wait for the disk."""
        return self.read(count, position)

    def is_cached(self, count: int, position: int) -> bool:  # noqa: ARG002  # The seam's
        """Nobody can tell."""
        return False

    def is_blank(self, position: int) -> bool:
        """Whether only zeros follow from there on; False if only reading them could tell."""
        content = self._contents.get(self._path)
        if content is None:
            return self._below is None or self._below.is_blank(position)
        return position >= content.kept and not content.writes

    def data_ranges(self) -> Iterator[tuple[int, int]]:
        """Walk all of it."""
        yield 0, self.size()

    def write(self, data: Buffer, position: int) -> None:
        """Keep it in memory."""
        self._changed().write(data, position)

    def allocate(self, length: int) -> None:
        """Make the file `length` bytes long."""
        self.resize(length)

    def resize(self, length: int) -> None:
        """Cut or extend the file to `length`, in memory."""
        self._changed().resize(length)

    def sync(self) -> None:
        """Nothing is to be synced."""

    def map(self) -> Mapping:
        """Map the file below; nobody maps one that was changed."""
        if self._below is None or self._path in self._contents:
            raise NotImplementedError
        return self._below.map()

    def close(self) -> None:
        """Close the file below."""
        if self._below is not None:
            self._below.close()

    def _changed(self) -> _Content:
        content = self._contents.get(self._path)
        if content is None:
            content = self._contents[self._path] = _Content(self.size())
        return content


class Overlay:
    """`FileSystem` over another one, which it does not change."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._contents: dict[str, _Content] = {}
        self._made: dict[str, set[str]] = {}
        """By folder, the files and folders made here: new ones, or in place of those below."""
        self._gone: set[str] = set()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:  # noqa: ARG002  # Each is.
        """Open a file; with `create`, create it if it is missing."""
        if self._is_made(path):
            return _OverlaidFile(path, None, self._contents)
        if path not in self._gone:
            try:
                below = self._below.open(path, read_only=True)
                return _OverlaidFile(path, below, self._contents)
            except FileNotFoundError:
                if not create:
                    raise
        elif not create:
            raise FileNotFoundError(2, "No such file or directory", path)
        self._contents[path] = _Content(0)
        self._make(path)
        return _OverlaidFile(path, None, self._contents)

    def list(self, path: str) -> list[Entry]:
        """The names in a folder, sorted; an empty list if there is no such folder."""
        found = {
            each.name: self._entry(each, f"{path}/{each.name}")
            for each in self._below.list(path)
            if f"{path}/{each.name}" not in self._gone
        }
        for name in self._made.get(path, ()):
            content = self._contents.get(f"{path}/{name}")
            found[name] = Entry(name, content is None, 0 if content is None else content.size)
        return sorted(found.values())

    def _entry(self, entry: Entry, path: str) -> Entry:
        content = self._contents.get(path)
        return entry if content is None else entry._replace(size=content.size)

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name exists."""
        return self._is_made(path) or (path not in self._gone and self._below.exists(path))

    def make_directories(self, path: str) -> None:
        """Make a folder and its parents."""
        while path and not self.exists(path):
            self._make(path)
            path = path.rpartition("/")[0]

    def rename(self, source: str, target: str) -> None:
        """Give a file that was made here another name, replacing what had that name."""
        self._contents[target] = self._contents.pop(source)
        self._unmake(source)
        self._make(target)

    def remove(self, path: str) -> None:
        """Forget a file."""
        if not self.exists(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        self._unmake(path)
        self._contents.pop(path, None)
        self._gone.add(path)

    def remove_directory(self, path: str) -> None:
        """Forget an empty folder."""
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        """Nothing is to be synced."""

    def partition(self, path: str) -> Overlay:  # noqa: ARG002  # The seam's
        """Nothing is to be synced."""
        return self

    def sync(self) -> None:
        """As a `Partition`: nothing is to be synced."""

    def close(self) -> None:
        """As a `Partition`: nothing is open."""

    def _is_made(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        return name in self._made.get(folder, ())

    def _make(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._made.setdefault(folder, set()).add(name)

    def _unmake(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._made.get(folder, set()).discard(name)

    def modified_ms(self, path: str) -> int:
        """When the file on the disk was last written."""
        return self._below.modified_ms(path)

    def room_of(self, path: str) -> int:
        """How many bytes of the disk the file there takes."""
        return self._below.room_of(path)

    def immovable(self, folders: Iterable[str]) -> str | None:
        """Return the first of some folders that is a link or a mount point, or None."""
        return self._below.immovable(folders)

    def check_writable(self, path: str) -> None:
        """Everything may be changed here."""

    def space(self, path: str) -> Space:
        """The partition of a path."""
        return self._below.space(path)

    def lock(self, path: str) -> NoReturn:
        """Nothing is locked here."""
        raise NotImplementedError

    def lock_owner(self, path: str) -> int | None:
        """The process that has a file locked."""
        return self._below.lock_owner(path)

    def exchange(self, left: str, right: str) -> None:
        """Nothing is exchanged here."""
        raise NotImplementedError
