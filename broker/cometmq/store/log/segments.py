"""The CommitLog's files: a row of equal sizes, each named by the offset of its first byte.

A segment is complete before its first record: it is allocated to its full length under another
name, outside the folder, synced, and only then renamed into the row. So a segment has its blocks (a
write into it cannot find the disk full), a power cut leaves none half-made, and Apache, which
refuses to start over a file of another length, never sees one. If the folder is a link or a mount
point, no file from outside can be renamed into it; then segments are made in a folder inside it,
which Apache leaves alone. `prepare` makes the next segment ahead of need, and may run in a
background thread; everything else belongs to one thread.

Files and maps are opened when first needed. Beyond `maps_max` they are closed, least recently used
first. Files with data that is not synced stay open: a file that is closed and reopened may not
report that the disk failed to take its pages. A map whose slices a slow reader still holds is
released as soon as it can be.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from cometmq.store.errors import disk_error_text
from cometmq.store.log.found_segments import found_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.store.disk.filesystem import File, FileSystem, Mapping

log = logging.getLogger(__name__)


class Segment:
    """One file of the row: `start` is the physical offset of its first byte."""

    __slots__ = ("_filesystem", "_read_only", "file", "length", "mapping", "path", "start")

    def __init__(self, filesystem: FileSystem, path: str, length: int, *, read_only: bool) -> None:
        self._filesystem = filesystem
        self._read_only = read_only
        self.path = path
        self.start = int(path.rpartition("/")[2])
        self.length = length
        """Bytes in the file; less than a segment's only until recovery has decided about it."""
        self.file: File | None = None
        self.mapping: Mapping | None = None

    def opened(self) -> File:
        """Return the open file."""
        if self.file is None:
            self.file = self._filesystem.open(self.path, read_only=self._read_only)
        return self.file

    def view(self) -> memoryview:
        """Return the whole file, mapped."""
        if self.mapping is None:
            self.mapping = self.opened().map()
        return self.mapping.view

    def release(self) -> Mapping | None:
        """Close the file and the map, or return the map if it is still being read from."""
        mapping, self.mapping = self.mapping, None
        if self.file is not None:
            self.file.close()
            self.file = None
        return None if mapping is None or mapping.close() else mapping


class Segments:
    """The row of files, and which of them are open."""

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        size: int,
        *,
        known_size: int | None = None,
        may_end_short: bool = True,
        maps_max: int = 32,
        read_only: bool = False,
    ) -> None:
        """Take the files that `directory` holds, without changing any.

        `found_segments` says how the size is found, and what is refused.
        """
        self.directory = directory
        self.synced_offset = 0
        """Set by the owner: segments that reach beyond it are not closed."""
        self.lack: str | None = None
        """Why the next segment, which records wait for, cannot be made; None if it can."""
        self._lacking = 0
        self._filesystem = filesystem
        self._read_only = read_only
        self._maps_max = maps_max
        self._spare_path = f"{directory}.new"
        self._spare_folder = f"{directory}/.new"
        self._making = Lock()
        self._prepared: Segment | None = None
        self._pinned: list[tuple[int, Mapping]] = []  # With the start of their segments.
        self._open: dict[int, Segment] = {}  # The longest unused first.
        self.size, lengths = found_segments(
            filesystem, directory, size, known_size, may_end_short=may_end_short
        )
        self._row = {
            start: Segment(filesystem, self._path(start), length, read_only=read_only)
            for start, length in lengths.items()
        }

    def __iter__(self) -> Iterator[Segment]:
        """The segments in order; the last may not have a record yet."""
        return iter(self._row.values())

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, start: int) -> bool:
        return start in self._row

    @property
    def first_offset(self) -> int:
        """The physical offset of the first byte that is kept; 0 in an empty store."""
        return next(iter(self._row), 0)

    @property
    def end_offset(self) -> int:
        """The physical offset at the end of the last segment."""
        return next(reversed(self._row)) + self.size if self._row else 0

    @property
    def data_limit(self) -> int:
        """The physical offset at the end of the last file: below `end_offset` if it is short."""
        if not self._row:
            return 0
        last = next(reversed(self._row.values()))
        return last.start + last.length

    @property
    def pinned_count(self) -> int:
        """The number of maps of removed segments that slow readers hold: they take disk space."""
        self._pinned = [pinned for pinned in self._pinned if not pinned[1].close()]
        return sum(start not in self._row for start, _ in self._pinned)

    def at(self, physical_offset: int) -> Segment | None:
        """Return the segment that holds an offset, if there is one."""
        return self._row.get(physical_offset - physical_offset % self.size)

    def place_of(self, physical_offset: int) -> tuple[str, int]:
        """Return an offset's file (or the folder, if there is no file) and its position in it."""
        segment = self.at(physical_offset)
        path = self.directory if segment is None else segment.path
        return path, physical_offset % self.size

    def _path(self, start: int) -> str:
        return f"{self.directory}/{start:020d}"

    def file(self, segment: Segment) -> File:
        """Return the segment's open file, and keep it open for a while."""
        self._touch(segment)
        return segment.opened()

    def read(self, physical_offset: int, size: int) -> bytes:
        """Read up to `size` bytes of one segment, from an offset on; none if there is no file.

        Waits for the disk.
        """
        segment = self.at(physical_offset)
        if segment is None:
            return b""
        return self.file(segment).read(size, physical_offset - segment.start)

    def overwrite(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Overwrite bytes at some offsets, in this order, and sync the files."""
        files: dict[int, File] = {}
        for offset, data in pieces:
            segment = self.at(offset)
            assert segment is not None, offset
            files[segment.start] = file = self.file(segment)
            file.write(data, offset - segment.start)
        for file in files.values():
            file.sync()

    def view(self, segment: Segment) -> memoryview:
        """Return the segment as memory, and keep it mapped for a while."""
        self._touch(segment)
        return segment.view()

    def _touch(self, segment: Segment) -> None:
        opened = self._open
        is_new = opened.pop(segment.start, None) is None
        opened[segment.start] = segment
        if is_new and len(opened) > self._maps_max:
            self.release_unused()

    def release_unused(self) -> None:
        """Close open segments beyond the limit, the longest unused first."""
        for start, segment in list(self._open.items())[: -self._maps_max]:
            if start + self.size <= self.synced_offset:
                self._release(segment)

    def _release(self, segment: Segment) -> None:
        self._open.pop(segment.start, None)
        mapping = segment.release()
        if mapping is not None:
            self._pinned.append((segment.start, mapping))

    def obtain(self, start: int) -> Segment:
        """Return the segment that begins at `start`, making it if it is not prepared.

        Raise `OSError` if the disk has no room for it; then no file of it is left.
        """
        with self._making:  # Held until it is in the row: a thread could make it once more.
            segment = self._row.get(start)
            if segment is None:
                try:
                    self._prepare(start)
                except OSError as error:
                    self._tell_lack(start, error)
                    raise
                segment, self._prepared = self._prepared, None
                if segment is None or segment.start != start:
                    raise AssertionError(f"segment {start} was asked for behind {self.end_offset}")
                self._row[start] = segment
            return segment

    def prepare(self, start: int) -> None:
        """Make the segment that begins at `start`, for `obtain` to return; from any thread."""
        with self._making:
            self._prepare(start)

    def prepare_lacking(self) -> None:
        """Retry making the segment for which there was no room; from any thread."""
        with self._making, suppress(OSError):
            if self.lack is not None:
                self._prepare(self._lacking)

    def _prepare(self, start: int) -> None:
        if self._prepared is None and start not in self._row:
            self._prepared = self._make(start)
        if self.lack is not None:
            self.lack = None
            log.warning("puts are accepted again: the next file of the log is there")

    def _tell_lack(self, start: int, error: OSError) -> None:
        is_told = self.lack is not None
        self._lacking = start
        self.lack = (
            f"the next file of the log, of {self.size} bytes, cannot be created:"
            f" {disk_error_text(error)}"
        )
        if not is_told:
            log.error("puts are refused: %s", self.lack)

    def _make(self, start: int) -> Segment:
        path, spare = self._path(start), self._spare_path
        filesystem = self._filesystem
        if self.is_apart:
            filesystem.make_directories(self._spare_folder)
            spare = f"{self._spare_folder}/segment"
        try:
            file = filesystem.open(spare, create=True)
            try:
                file.allocate(self.size)
                file.sync()
            finally:
                file.close()
            filesystem.rename(spare, path)
        finally:
            self.remove_spare()
        filesystem.sync_directory(self.directory)
        return Segment(filesystem, path, self.size, read_only=False)

    @cached_property
    def is_apart(self) -> bool:
        """Whether the log may be on a separate disk: its folder is a link, or a mount point."""
        return self._filesystem.immovable([self.directory]) is not None

    def remove_spare(self) -> None:
        """Remove what an interrupted `prepare` leaves."""
        for path in (self._spare_path, f"{self._spare_folder}/segment"):
            with suppress(FileNotFoundError):
                self._filesystem.remove(path)
        with suppress(OSError):  # It may stay: everybody leaves folders in there alone.
            self._filesystem.remove_directory(self._spare_folder)

    def complete(self, segment: Segment) -> None:
        """Give a segment its full length and all its blocks; what was missing reads as zeros."""
        self.file(segment).allocate(self.size)
        segment.length = self.size

    def settle(self) -> None:
        """Bring the row of files to the disk, the last one with its full length, if with a hole.

        Another file may be made before a record is written here; then this one is not the last.
        """
        segment = next(reversed(self._row.values()), None)
        if segment is not None and segment.length < self.size:
            file = self.file(segment)
            file.resize(self.size)
            file.sync()
            segment.length = self.size
        self.sync_names()

    def detach_first(self) -> Segment:
        """Take the oldest segment out of the log; the caller removes its file.

        Slices of it stay readable. The caller passes what its `release` returns, in any thread, to
        `pin`.
        """
        segment = next(iter(self._row.values()))
        self._open.pop(segment.start, None)
        del self._row[segment.start]
        return segment

    def pin(self, mapping: Mapping) -> None:
        """Count a map of a removed segment that is still being read from."""
        self._pinned.append((-1, mapping))

    def remove_from(self, start: int) -> None:
        """Remove this segment and all after it, the last one first.

        Each removal is on the disk before the next one. Otherwise a power cut could undo only the
        later of two removals, and leave a gap in the row.
        """
        self.sync_names()  # A process that was killed in here may have left unsynced removals.
        for segment in reversed(list(self._row.values())):
            if segment.start >= start:
                self._remove(segment)
                self.sync_names()

    def sync_names(self) -> None:
        """Return once the present row of files would survive a power cut."""
        self._filesystem.sync_directory(self.directory)

    def _remove(self, segment: Segment) -> None:
        self._release(segment)
        self._filesystem.remove(segment.path)
        del self._row[segment.start]

    def close(self) -> None:
        """Close every file; a map that is still being read from closes with its last slice."""
        for segment in list(self._row.values()):
            self._release(segment)
