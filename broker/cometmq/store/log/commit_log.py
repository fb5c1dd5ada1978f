"""The CommitLog: all records of all topics, one after another over the segments.

Appending is one write per turn and segment. A record becomes part of the log once that write has
returned and `end_offset` has moved past the record. Whatever a failed write left after `end_offset`
is erased before anything else is written, so that no later start can take it for a record.

Hot data, that is, the last `hot_size` bytes, is read through the map: it was written recently and
is in memory. So is data that the kernel has just said is in memory, see `warm`. Other data is only
looked for in the page cache; if it is not there, the caller gets a `Cold`, which any thread can
`fetch`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.cold import Cold
from cometmq.store.errors import StoreNotWriteableError, SyncFailedError, disk_error_text
from cometmq.store.log.warm import WarmBlocks

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer
    from cometmq.store.disk.filesystem import File
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.log.segments import Segments
    from cometmq.store.log.turn import Turn
    from cometmq.store.log.zero_ahead import ZeroAhead

_ERASE_SIZE: Final = 65536
_ZEROS: Final = bytes(_ERASE_SIZE)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class CommitLog:
    """The records of a store that recovery has found sound."""

    def __init__(
        self,
        segments: Segments,
        syncer: Syncer,
        end_offset: int,
        *,
        hot_size: int,
        zeros: ZeroAhead | None = None,
        maps_warm: bool = True,
    ) -> None:
        """Without `maps_warm`, only hot data is mapped: for files that others may cut short."""
        self.end_offset = end_offset
        """Where the next record goes."""
        self._segments = segments
        self._syncer = syncer
        self._hot_size = hot_size
        self._zeros = zeros
        self._warm = WarmBlocks(segments) if maps_warm else None
        self._active_start = self._active_end = 0  # Of the segment that is written to.
        self._file: File
        self._unerased: list[tuple[int, int]] = []
        self._refusal: StoreNotWriteableError | None = None

    @property
    def segments(self) -> Segments:
        """The files."""
        return self._segments

    @property
    def first_offset(self) -> int:
        """Where the log begins: everything before it has expired."""
        return self._segments.first_offset

    @property
    def hot_offset(self) -> int:
        """From here on the log is read through the map."""
        return self.end_offset - self._hot_size

    # Writing

    def append(self, turn: Turn) -> None:
        """Write a turn's records. If the turn is refused, the log is as it was before.

        Raise `StoreNotWriteableError` if the disk has no room or failed, and `SyncFailedError` if
        what the disk took of the turn could not be erased.
        """
        if self._unerased:
            self.erase_refused()
        position, end, zeros = turn.start - self._active_start, turn.end, self._zeros
        is_inside = position >= 0 and end <= self._active_end  # True of nearly every turn.
        writes = None if is_inside else self._over_segments(turn)
        if zeros is not None and end > zeros.asks_at:
            zeros.make_way(end)
        try:
            if writes is None:
                self._file.write(b"".join(turn.pieces), position)
            else:
                for file, position, pieces in writes:
                    file.write(b"".join(pieces), position)
        except OSError as error:
            self._unerased = [
                (offset, sum(map(len, pieces))) for offset, pieces in turn.writes if pieces
            ]
            self.erase_refused()
            raise _not_writeable(error) from error
        self.end_offset = end

    def _over_segments(self, turn: Turn) -> list[tuple[File, int, list[Buffer]]]:
        """Return each file with the position and the pieces to write; all have room for them."""
        if self._refusal is not None:
            raise self._refusal
        try:
            writes = [
                (self._obtain(offset), offset % self._segments.size, pieces)
                for offset, pieces in turn.writes
                if pieces
            ]
        except OSError as error:
            raise _not_writeable(error) from error
        if self._zeros is not None:
            last = self._segments.at(self._active_start)
            assert last is not None, self._active_start
            self._zeros.follow(last, turn.end)
        return writes

    def _obtain(self, position: int) -> File:
        """Return the file of the segment that holds `position`, with its blocks reserved.

        It stays open until it is synced to its end, see `Segments`.
        """
        if self._active_start <= position < self._active_end:
            return self._file
        start = position - position % self._segments.size
        is_new = start not in self._segments
        segment = self._segments.obtain(start)
        file = self._segments.file(segment)
        if not is_new:
            # Another program may have left it sparse: a write into a hole could find the disk full.
            self._segments.complete(segment)
        self._active_start, self._active_end = start, start + self._segments.size
        self._file = file
        self._syncer.add(file, self._active_end)
        return file

    def leave(self, refusal: StoreNotWriteableError) -> None:
        """Stop writing, and refuse turns with this: the files now belong to another process."""
        self._refusal = refusal
        self._unerased = []
        self._active_start = self._active_end = 0  # No turn is inside, so each finds the refusal.

    def erase_refused(self) -> None:
        """Erase what a refused turn left after the end of the log, if there was one."""
        if not self._unerased:
            return
        for position, size in reversed(self._unerased):
            self._erase(position, size)
        self._unerased = []

    def _erase(self, position: int, size: int) -> None:
        segment = self._segments.at(position)
        assert segment is not None, position
        file = self._segments.file(segment)
        try:
            erase(file, position - segment.start, size)
        except OSError as error:
            raise _not_writeable(error) from error
        try:
            file.sync()  # An earlier try may have written the zeros without reaching the sync.
        except OSError as error:
            self._syncer.fail(error)
            raise SyncFailedError(f"{segment.path}: {error}") from error

    # Reading

    def forget_warm(self) -> None:
        """Ask the kernel again what is in memory; call this every few milliseconds."""
        if self._warm is not None:
            self._warm.forget()

    def is_warm(self, physical_offset: int, size: int) -> bool:
        """Whether all of a range in one segment is in memory, though it is not hot."""
        segment = self._segments.at(physical_offset)
        if segment is None or self._warm is None:
            return False
        return self._warm.hold(segment, physical_offset - segment.start, size)

    def find(self, physical_offset: int, size: int) -> Buffer | Cold | None:
        """Return bytes of the log, all in one segment; None if they have expired.

        The caller must make sure that the range ends before `end_offset`.
        """
        segment = self._segments.at(physical_offset)
        if segment is None:
            return None
        position = physical_offset - segment.start
        if physical_offset >= self.end_offset - self._hot_size or (
            self._warm is not None and self._warm.hold(segment, position, size)
        ):
            return self._segments.view(segment)[position : position + size]
        data = self._segments.file(segment).read_cached(size, position)
        if data is None:
            return Cold(segment.path, position, size, physical_offset)
        return data


def erase(file: File, position: int, size: int) -> bool:
    """Write zeros over what is not zeros; return whether there was any. Syncs nothing.

    Parts that were never written are left alone: in a sparse file zeros would need room.
    """
    dirty = False
    for place in range(position, position + size, _ERASE_SIZE):
        data = file.read(min(_ERASE_SIZE, position + size - place), place)
        if data != _ZEROS[: len(data)]:
            file.write(_ZEROS[: len(data)], place)
            dirty = True
    return dirty


def _not_writeable(error: OSError) -> StoreNotWriteableError:
    what = "the disk is full" if error.errno in NO_ROOM else "the disk failed a write"
    return StoreNotWriteableError(f"{what}: {disk_error_text(error)}")
