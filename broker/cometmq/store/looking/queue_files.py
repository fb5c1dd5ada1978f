"""The files of one queue as they are on the disk, read without judging their content.

This is for the offline tools: unlike `EntryFiles` it takes any file as it is, and says what is odd.
A file in the place of the folder, or a folder or a pipe in that of a file, is no file of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.disk.names import has_place_of, in_place_of, is_offset_file
from cometmq.store.errors import LEADS_NOWHERE
from cometmq.store.looking.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.store.disk.filesystem import Entry, File, FileSystem
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.queue_ends import QueueKey

_CHUNK_ENTRIES: Final = 50_000


class QueueFiles:
    """The files of one queue; one of them is open at a time."""

    def __init__(
        self, filesystem: FileSystem, folder: str, file_size: int, entry_size: int, *, clean: bool
    ) -> None:
        """After a `clean` stop, files of odd sizes are foreign, not half made."""
        self.folder = folder
        self.problems: list[tuple[Kind, str, str]] = []
        """What is odd about files, or does not belong there."""
        self._filesystem = filesystem
        self._entry_size = entry_size
        self._file_entries = file_size // entry_size
        self._numbers: dict[int, None] = {}  # In order.
        self._open: tuple[int, File] | None = None
        for entry in self._entries_of(folder):
            name, size = entry.name, entry.size
            path = f"{folder}/{name}"
            if has_place_of(entry, is_offset_file):
                self._note(Kind.MISPLACED, path, f"{in_place_of(entry, 'file')}: move it elsewhere")
            elif not is_offset_file(entry):
                self._note(Kind.MISPLACED, path, "not a file of a queue; move it elsewhere")
            elif int(name) % file_size:
                self._note(Kind.QUEUE_FILE, path, f"no file of {file_size} bytes begins there")
            else:
                if clean and size not in (0, file_size):
                    problem = f"has {size} bytes, the others {file_size}"
                    self._note(Kind.QUEUE_FILE, path, problem)
                self._numbers[int(name) // file_size] = None

    def _entries_of(self, folder: str) -> list[Entry]:
        try:
            return self._filesystem.list(folder)
        except NotADirectoryError:
            parent, _, name = folder.rpartition("/")
            try:
                path, beside = folder, self._filesystem.list(parent)
            except NotADirectoryError:
                path, beside = parent, []
            is_link = any(each.name == name and each.leads_nowhere for each in beside)
            problem = f"a {LEADS_NOWHERE if is_link else 'file'} in place of a folder"
            self._note(Kind.MISPLACED, path, f"{problem}: move it elsewhere")
            return []

    def _note(self, kind: Kind, path: str, problem: str) -> None:
        self.problems.append((kind, path, problem))

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def place(self, index: int) -> tuple[str, int]:
        """Return an entry's file, and its position there."""
        number, place = divmod(index, self._file_entries)
        name = f"{number * self._file_entries * self._entry_size:020d}"
        return f"{self.folder}/{name}", place * self._entry_size

    def row_start(self) -> int:
        """Return the index from which on no file is missing before the last one."""
        first = max(self._numbers, default=0)
        while first - 1 in self._numbers:
            first -= 1
        return first * self._file_entries

    def read(self, index: int, count: int) -> bytes:
        """Return entries, across the ends of files; zeros where there is no file."""
        parts: list[bytes] = []
        while count:
            number, place = divmod(index, self._file_entries)
            here = min(count, self._file_entries - place)
            size = here * self._entry_size
            file = self._file(number)
            data = b"" if file is None else file.read(size, place * self._entry_size)
            parts.append(data.ljust(size, b"\0"))
            index += here
            count -= here
        return b"".join(parts)

    def entries_outside(self, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Yield the entries, with their indexes, that are not zeros and in none of the ranges."""
        for number in self._numbers:
            start = number * self._file_entries
            end = start + self._used(number)
            for first, last in [*ranges, (end, end)]:
                yield from self._entries(start, min(first, end))
                start = max(start, last)

    def _used(self, number: int) -> int:
        """Return how many entries a file has before the hole at its end.

        Most files are nearly all hole: reading those of 80,000 queues would take half an hour.
        """
        file = self._file(number)
        ends = () if file is None else (end for _, end in file.data_ranges())
        return min(-(-max(ends, default=0) // self._entry_size), self._file_entries)

    def _entries(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        size = self._entry_size
        for first in range(start, end, _CHUNK_ENTRIES):
            data = self.read(first, min(_CHUNK_ENTRIES, end - first))
            used = -(-len(data.rstrip(b"\0")) // size) * size
            for place in range(0, used, size):
                entry = data[place : place + size]
                if any(entry):
                    yield first + place // size, entry

    def _file(self, number: int) -> File | None:
        """Return a file; None if there is none, or if a broker at work has removed it."""
        if number not in self._numbers:
            return None
        if self._open is None or self._open[0] != number:
            self.close()
            path, _ = self.place(number * self._file_entries)
            try:
                self._open = (number, self._filesystem.open(path, read_only=True))
            except FileNotFoundError:
                return None
        return self._open[1]

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def files_of(store: Inspected, key: QueueKey) -> QueueFiles:
    """Return the files of a queue; it has none without a folder."""
    return QueueFiles(store.filesystem, *store.place_of(key), clean=store.is_clean)


class AboutQueue(NamedTuple):
    """The queue that findings are about."""

    topic: str
    queue_id: int
    files: QueueFiles

    def finding(
        self,
        kind: Kind,
        index: int,
        problem: str,
        expected: str = "",
        physical_offset: int | None = None,
    ) -> Finding:
        """Return a finding about one entry, with its place."""
        path, position = self.files.place(index)
        return Finding(
            kind=kind,
            path=path,
            position=position,
            problem=problem,
            expected=expected,
            physical_offset=physical_offset,
            topic=self.topic,
            queue_id=self.queue_id,
            queue_offset=index,
        )

    def report_files(self, report: Report) -> None:
        """Report what is odd about its files."""
        for kind, path, problem in self.files.problems:
            if kind is Kind.MISPLACED:
                if (kind, path) not in report.alike:  # Each queue reports the topic's folder.
                    report.find(kind, path, 0, problem)
            else:
                finding = Finding(
                    kind=kind,
                    path=path,
                    position=0,
                    problem=problem,
                    topic=self.topic,
                    queue_id=self.queue_id,
                    queue_offset=0,
                )
                report.add(finding)
