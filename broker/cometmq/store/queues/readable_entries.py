"""The entries of one queue, read from its files and from what is not written to them yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeVar, cast

from cometmq.store.disk.cold import Cold, ColdError
from cometmq.store.disk.names import is_offset_file
from cometmq.store.errors import REBUILD, CorruptionError
from cometmq.store.queues.entry_search import (
    KEEPS_OFFSET,
    NO_CUT,
    WINDOW_ENTRIES,
    Front,
    first_kept,
)
from cometmq.store.queues.queue_ends import UNKNOWN, QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.disk.filesystem import File
    from cometmq.store.queues.entry_disk import Shelf
    from cometmq.store.queues.entry_tail import Tail
    from cometmq.store.queues.queue_ends import QueueEnd

    T = TypeVar("T")

_LOOK_ENTRIES: Final = 512
"""Entries to look at after a queue's end: more than fit into two pages of zeros."""


class ReadableEntries:
    """The reading half of `EntryFiles`; its module has the picture."""

    is_batch: ClassVar[bool] = False
    """Whether it is the queue of a batch topic."""

    __slots__ = (
        "_first",
        "_min",
        "_min_physical_offset",
        "_shelf",
        "_tail",
        "end",
        "fetched",
        "queue_id",
        "topic",
    )

    def __init__(self, shelf: Shelf, topic: str, queue_id: int) -> None:
        self._shelf = shelf
        self.topic = topic
        self.queue_id = queue_id
        self.end: int = 0
        self.fetched: frozenset[Cold] | None = None
        """Entries that were fetched; None if reads wait for the disk."""
        self._first: int | None = None  # The first file's first entry, once there is a file.
        self._tail: Tail = b""
        self._min: int = 0
        self._min_physical_offset = -1  # What `_min` was last corrected for.

    @property
    def directory(self) -> str:
        """The queue's folder."""
        return f"{self._shelf.root}/{self.topic}/{self.queue_id}"

    @property
    def key(self) -> QueueKey:
        """Which queue it is."""
        return QueueKey(self.is_batch, self.topic, self.queue_id)

    @property
    def entry_size(self) -> int:
        """The length of each entry, in bytes."""
        return self._shelf.entry_size

    @property
    def start(self) -> int:
        """The index at which the queue's first file begins."""
        return self.written if self._first is None else self._first

    @property
    def written(self) -> int:
        """How far entries are in the files: the index of the first one that is not."""
        return self.end - len(self._tail) // self._shelf.entry_size

    @property
    def min_entry(self) -> int:
        """The first entry whose record is still in the log; `end` if there is none."""
        if self._min_physical_offset != self._shelf.disk.min_physical_offset:
            self._correct_min()
        return self._min

    @property
    def min_cached(self) -> int:
        """The value of `min_entry`; -1 if that would have to wait for the disk."""
        if self._min_physical_offset != self._shelf.disk.min_physical_offset and isinstance(
            self.without_waiting(self._correct_min), Cold
        ):
            return -1
        return self._min

    @property
    def cold_front(self) -> Cold | None:
        """What has to be fetched so that the queue's begin can be found without waiting."""
        if self.min_cached >= 0:
            return None
        return Cold(*self.place_of(self._min), self.entry_size, warm=self.front.warm)

    @property
    def _known(self) -> QueueEnd | None:
        """The end in the list; None if its last record was cut, and the queue is rebuilt."""
        return self._shelf.disk.ends.known.get(self.key)

    @property
    def _kept_by_list(self) -> int:
        """The first entry of the first file that must exist; `NO_CUT` if nobody noted it."""
        known = self._known
        return NO_CUT if known is None or known.kept_from == UNKNOWN else known.kept_from

    @property
    def front(self) -> Front:
        """The part of the queue that a thread may warm for the search of `min_entry`."""
        offset = self._shelf.disk.min_physical_offset
        place = (self._shelf, self.topic, self.queue_id)
        return Front(*place, self._min, self.written, self.end, offset)

    def without_waiting(
        self, look: Callable[[], T], fetched: Iterable[tuple[Cold, bytes]] = ()
    ) -> T | Cold:
        """Return what a look at the queue finds, or the entries, or record, that it needs first.

        Each call must be given everything that was fetched so far.
        """
        self.fetched = frozenset(cold for cold, _ in fetched)
        try:
            return look()
        except ColdError as needs:
            return needs.cold
        finally:
            self.fetched = None

    def read_entries(self, index: int, count: int) -> bytes:
        """Return up to `count` entries from `index` on, none from beyond the end of a file.

        Empty if there is nothing at `index`, or if its file is gone, or ends there. Waits for the
        disk, or raises `ColdError` if `fetched` is set.
        """
        if self.fetched is not None:
            if (data := self.read_entries_cached(index, count)) is not None:
                return bytes(data)
            cold = Cold(*self.place_of(index), count * self._shelf.entry_size)
            if cold not in self.fetched:
                raise ColdError(cold)
        return bytes(self._read(index, count, waits=True) or b"")

    def read_entries_cached(self, index: int, count: int) -> bytes | bytearray | None:
        """Return what `read_entries` does, or None if that would have to wait for the disk."""
        return self._read(index, count, waits=False)

    def _read(self, index: int, count: int, *, waits: bool) -> bytes | bytearray | None:
        size = self._shelf.entry_size
        written = self.end - len(self._tail) // size
        if index >= written:
            start = (index - written) * size
            return bytes(self._tail[start : start + count * size])
        number, place = divmod(index, self._shelf.file_entries)
        stop = min(count, self._shelf.file_entries - place) + index
        try:
            file = self._file(number)
        except FileNotFoundError:
            return b""
        wanted, position = (min(stop, written) - index) * size, place * size
        data = file.read(wanted, position) if waits else file.read_cached(wanted, position)
        if data is None:
            return None
        if len(data) < wanted:
            return data[: len(data) // size * size]
        if stop > written:
            data += self._tail[: (stop - written) * size]
        return data

    def head(self, index: int) -> tuple[int, int]:
        """Return the physical offset and record size in an entry; (0, 0) if it cannot be read."""
        data = self.read_entries(index, 1)
        if len(data) < self._shelf.entry_size:
            return 0, 0
        head: tuple[int, int] = self._shelf.heads.unpack(data)
        return head

    def heads(self, index: int, count: int) -> Iterator[tuple[int, int]]:
        """Return the same for up to `count` entries of one file."""
        shelf = self._shelf
        count = min(count, self.end - index, shelf.file_entries - index % shelf.file_entries)
        data = self.read_entries(index, count).ljust(count * shelf.entry_size, b"\0")
        return cast("Iterator[tuple[int, int]]", shelf.heads.iter_unpack(data))

    def check_files(self) -> None:
        """Refuse a queue that has lost a file, or bytes of one, after its first message.

        Called if there is nothing where a message should be. In a store that another process
        writes, files before the existing ones count as lost only if the list asks for them: that
        process may have let them expire.
        """
        shelf = self._shelf
        sizes = {
            int(entry.name) // shelf.file_size: entry.size
            for entry in shelf.disk.filesystem.list(self.directory)
            if is_offset_file(entry)
        }
        first = self.min_entry // shelf.file_entries
        if shelf.disk.read_only:
            kept = min(sizes, default=0), self._kept_by_list // shelf.file_entries
            first = max(first, min(kept))
        for number in range(first, -(-self.written // shelf.file_entries)):
            size = sizes.get(number, 0)
            entries = min(shelf.file_entries, self.written - number * shelf.file_entries)
            if size < entries * shelf.entry_size:
                problem = "too short" if number in sizes else "missing"
                raise CorruptionError(
                    shelf.path(self.topic, self.queue_id, number),
                    size,
                    f"this file of a ConsumeQueue is {problem}; {REBUILD}",
                )

    def index_of(self, queue_offset: int) -> int:
        """Return the index of the entry of a message, as far as the other entries show it."""
        return queue_offset

    def damaged(self, index: int, problem: str) -> CorruptionError:
        """Return the error for an entry that cannot be right, with its place and what to do."""
        return CorruptionError(*self.place_of(index), f"{problem}; {REBUILD}")

    def place_of(self, index: int) -> tuple[str, int]:
        """Return the path of the file that an entry is in, and its position there."""
        number, place = divmod(index, self._shelf.file_entries)
        path = self._shelf.path(self.topic, self.queue_id, number)
        return path, place * self._shelf.entry_size

    def next_file(self, index: int) -> int:
        """Return the first index in the file after the one that an entry is in."""
        per_file = self._shelf.file_entries
        return index - index % per_file + per_file

    def check_end(self, log_end: int) -> None:
        """Refuse a queue whose end is followed by bytes: its next messages would overwrite them.

        Also refuse one whose last entry cannot be right: its next messages would be numbered from
        there.
        """
        if self.end > self.start:
            offset, size = self.head(self.end - 1)
            if size not in KEEPS_OFFSET and offset + size > log_end:
                problem = f"not an entry: it leads past the log, which ends at {log_end}"
                raise self.damaged(self.end - 1, problem)
        number, place = divmod(self.end, self._shelf.file_entries)
        if place or self.end == self._first:
            file, position = self._file(number), place * self._shelf.entry_size
            if any(file.read(WINDOW_ENTRIES * self._shelf.entry_size, position)):
                raise self.damaged(self.end, "not an entry")

    def behind_end(self) -> Iterator[tuple[int, int, int]]:
        """Walk possible entries in the file after the end: index, physical offset and size.

        They come after zeros or a damaged entry, and lead past the last entry, which may itself be
        damaged.
        """
        shelf = self._shelf
        number, place = divmod(self.end, shelf.file_entries)
        if self._first is None:
            place, number = 0, next(iter(shelf.numbers(self.directory)), 0)
        position, data = place * shelf.entry_size, b""
        try:
            file = self._file(number)
        except FileNotFoundError:
            return
        if not file.is_blank(position):
            data = file.read(_LOOK_ENTRIES * shelf.entry_size, position)
        if not place:
            shelf.disk.open_files.close(self, number)  # When opened for writing, it is resized.
        last, _ = self.head(self.end - 1) if self.end > self.start else (-1, 0)
        whole = data[: len(data) // shelf.entry_size * shelf.entry_size]
        first = number * shelf.file_entries + place
        for index, (offset, size) in enumerate(shelf.heads.iter_unpack(whole), first):
            if offset > last and size > 0 and size not in KEEPS_OFFSET:
                yield index, offset, size

    def _correct_min(self) -> None:
        """Move the minimum past entries whose records have expired, and past pre-blank ones."""
        offset = self._shelf.disk.min_physical_offset
        self._min = first_kept(self, self._min, offset)
        self._min_physical_offset = offset

    def _file(self, number: int) -> File:
        disk = self._shelf.disk
        file = disk.open_files.get(self, number)
        if file is None:
            path = self._shelf.path(self.topic, self.queue_id, number)
            file = disk.filesystem.open(path, read_only=disk.read_only)
            disk.open_files.put(self, number, file)
        return file
