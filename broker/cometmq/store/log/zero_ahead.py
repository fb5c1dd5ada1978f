"""Zeros written into the log's file ahead of the records, so that a sync has less to do.

A segment's blocks are reserved when it is made, but for each block the file system notes whether it
was ever written. The sync after the first write to a block must bring that note to the journal,
which costs as much again as the record itself: 206 µs instead of 103 for 32 records on ext4. So
while every send waits for a sync, a thread keeps a few MiB ahead of the writer filled with zeros,
and synced. It fills no more, because the pages must still be in memory when the records come: a
written block that is not in memory must be read before a part of it can be changed.

Zeros never overwrite a record. The thread writes only from `_reached` on, and holds a lock while it
does; `_reached` only grows; so the thread cannot meet a turn that ends before `_reached`. A turn
that ends later takes the lock and moves `_reached` past its end, and somewhat further, so that the
thread gets ahead of it again.

Nothing depends on the zeros: a reserved block reads as zeros anyway. If writing them fails, only
the filling of that segment ends. A *sync* that fails is final, like any other: the kernel does not
say whose pages it lost, and they may be pages of records. This sync need not be the first to fail:
the file is opened a second time here, and the kernel reports an error to each opening of a file, so
the sync that a send waits for fails by itself.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from cometmq.store.config import Flush
from cometmq.store.disk.sync import BackgroundThread
from cometmq.store.log.found_segments import PAGE_SIZE

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.log.segments import Segment

_PIECES: Final = 8
"""What is kept ahead is written and synced in this many pieces, because a sync of records may have
to wait for that of a piece."""
_NEVER: Final = 1 << 62


class ZeroAhead:
    """Keeps `size` bytes ahead of the writer filled; all offsets are physical ones."""

    def __init__(self, filesystem: FileSystem, syncer: Syncer, size: int) -> None:
        self.thread = BackgroundThread("store-zeros", self.step)
        self.asks_at = _NEVER
        """A turn that ends after this has to call `make_way` before it is written."""
        self._filesystem = filesystem
        self._syncer = syncer
        self._size = size
        self._piece_size = -(-size // _PIECES // PAGE_SIZE) * PAGE_SIZE
        self._zeros = bytes(self._piece_size)
        self._lock = Lock()
        self._segment: Segment | None = None
        self._reached = self._log_end = 0
        self._file: tuple[Segment, File] | None = None  # The thread's own.

    @classmethod
    def of(cls, filesystem: FileSystem, syncer: Syncer, config: StoreConfig) -> ZeroAhead | None:
        """Return one for a store; None if sends do not wait for a sync, or if it is turned off."""
        if config.flush is not Flush.SYNC or not config.zero_ahead_size:
            return None
        return cls(filesystem, syncer, config.zero_ahead_size)

    def follow(self, segment: Segment, end: int) -> None:
        """Fill this segment from now on, after a turn that ends at `end` and is not yet written."""
        with self._lock:
            self._segment = segment
            self._log_end = end
            self._move_to(end)
        self.thread.wake()

    def make_way(self, end: int) -> None:
        """Keep out of the way of a turn that ends at `end`, and continue ahead of it."""
        self._log_end = end
        if end > self._reached:
            with self._lock:
                self._move_to(end + self._piece_size)
        self.thread.wake()

    def _move_to(self, offset: int) -> None:
        if self._segment is None:  # A write failed meanwhile.
            return
        segment_end = self._segment.start + self._segment.length
        offset = min(-(-offset // PAGE_SIZE) * PAGE_SIZE, segment_end)
        self._reached = max(offset, self._reached)
        self._ask(segment_end)

    def _ask(self, segment_end: int) -> None:
        """Set `asks_at`: soon enough to fill the next piece, and never after `_reached`."""
        left = self._size - self._piece_size if self._reached < segment_end else 0
        self.asks_at = self._reached - left

    def step(self) -> None:
        """Fill, piece by piece, what should be filled ahead by now."""
        while (file := self._fill()) is not None:
            try:
                file.sync()
            except OSError as error:
                self._syncer.fail(error)

    def _fill(self) -> File | None:
        """Write the next zeros and return their file; None if there are enough."""
        with self._lock:
            segment, start = self._segment, self._reached
            if segment is None or self._syncer.failure is not None:
                return None
            segment_end = segment.start + segment.length
            end = min(start + self._piece_size, segment_end)
            if end <= start or start >= self._log_end + self._size:
                return None
            try:
                file = self._opened(segment)
                file.write(self._zeros[: end - start], start - segment.start)
            except OSError:
                self._segment = None
                self.asks_at = _NEVER
                return None
            self._reached = end
            self._ask(segment_end)
            return file

    def _opened(self, segment: Segment) -> File:
        if self._file is None or self._file[0] is not segment:
            self.close()
            self._file = segment, self._filesystem.open(segment.path)
        return self._file[1]

    def close(self) -> None:
        """Close the file; the thread must be at rest."""
        if self._file is not None:
            self._file[1].close()
            self._file = None
