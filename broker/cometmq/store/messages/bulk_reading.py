"""Reading much of a queue at once, for readers of the whole queue: a scan, a copy, an archive.

A consumer's pull is small, so that every consumer gets one soon. A bulk read is as large as its
caller says, some MiB. It avoids holding up others in another way: what is not in memory is read in
a thread, in a few large reads, and the entries are looked at with numpy. The result is like that of
a pull: whole records in the order of the queue.

Reads that must look into each record to know whether it is wanted (SQL92, a tag behind an extension
of the queue), and reads of queues of batches, are done like a pull, with its limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from cometmq.proto.record import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import CorruptionError
from cometmq.store.log.log_stretch import ENTRY_COLUMNS
from cometmq.store.messages.damaged import in_front, told
from cometmq.store.messages.picking import check_head
from cometmq.store.messages.reading import ReadResult, ReadStatus, outside, without_status
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE

if TYPE_CHECKING:
    import numpy.typing as npt

    from cometmq.proto.buffer import Buffer
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.messages.reading import Fetched, Filter, QueueReader
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.consume_queues import ConsumeQueues

    Longs = npt.NDArray[np.int64]

ENTRIES_MAX: Final = 16_384
"""Entries that one read looks at: 0.2 ms."""
SAMPLED: Final = 64
"""Entries whose sizes show how many of the following ones may fit."""
SIZED_MAX: Final = 262_144
"""Entries that one call of `size_of` looks at: 5 MiB, 2 ms."""
_GAP_MAX: Final = 64 * 1024
"""Up to this many bytes between two records of the queue are read rather than skipped."""
_SPAN_FACTOR: Final = 4
"""One read takes at most this many times the wanted bytes from the disk."""
_RANGES_MAX: Final = 1024
_JOINED_FROM: Final = 64
"""If there are more slices than this, they are joined: each costs its sender."""
_HEAD_SIZE: Final = 36


class RangeSize(NamedTuple):
    """The size of a range of a queue."""

    end_offset: int
    """The queue offset after the last message that was counted."""
    size: int
    """Bytes of the records of the counted messages."""


class BulkReader:
    """Reads the queues of one store in large pieces; for the thread that owns the store."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, reader: QueueReader) -> None:
        self._log = log
        self._queues = queues
        self._reader = reader

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        end_offset: int,
        size_max: int,
        *,
        wanted: Filter | None = None,
        fetched: Fetched | None = None,
    ) -> ReadResult:
        """Read messages of a range of a queue, up to `size_max` bytes, but at least one message.

        Like `QueueReader.read` it may say what has to be fetched first, in any thread, and given to
        the next call. Raise `CorruptionError` if an entry does not lead to its record.
        """
        queue = self._queues.simple.find(topic, queue_id)
        if queue is None or (wanted is not None and wanted.matches is not None):
            return self._as_a_pull(topic, queue_id, queue_offset, end_offset, wanted, fetched)
        if not fetched and (needed := queue.cold_front) is not None:
            return without_status(queue_offset, needed)
        bounds = (queue.min_offset, queue.max_offset)
        if not bounds[0] <= queue_offset < bounds[1]:
            return outside(queue_offset, *bounds)
        count = min(end_offset - queue_offset, ENTRIES_MAX, size_max // RECORD_SIZE_MIN + 1)
        if wanted is None and count > SAMPLED:
            count = min(count, self._likely_count(queue, queue_offset, size_max))
        entries = self._entries(queue, queue_offset, count, fetched)
        if isinstance(entries, Cold):
            return without_status(queue_offset, entries)
        if not len(entries):
            queue.check_files()
            next_file = queue.next_file(queue_offset)
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, next_file, *bounds, [])
        if wanted is not None and (entries["code"] <= ADDRESS_MAX).any():
            return self._as_a_pull(topic, queue_id, queue_offset, end_offset, wanted, fetched)
        try:
            return self._picked(entries, queue_offset, bounds, size_max, wanted, fetched)
        except CorruptionError as error:
            if sound := in_front(error, entries["offset"].tolist()):
                front = entries[:sound]
                return self._picked(front, queue_offset, bounds, size_max, wanted, fetched)
            raise told(error, self._log, queue, queue_offset, entries.tolist()) from error

    def _likely_count(self, queue: ConsumeQueue, queue_offset: int, size_max: int) -> int:
        """Return roughly how many records of a queue have `size_max` bytes, by the first ones.

        Looking at all entries that could fit would take as long as reading those that do.
        """
        sample = queue.read_cached(queue_offset, SAMPLED)
        if not sample:
            return ENTRIES_MAX
        sizes = np.frombuffer(bytes(sample), ENTRY_COLUMNS)["size"]
        mean = max(float(sizes.mean()), RECORD_SIZE_MIN)
        return SAMPLED + int(size_max / mean * 1.125)

    def _as_a_pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        end_offset: int,
        wanted: Filter | None,
        fetched: Fetched | None,
    ) -> ReadResult:
        count = max(end_offset - queue_offset, 1)
        return self._reader.read(
            topic, queue_id, queue_offset, count, wanted=wanted, fetched=fetched
        )

    def size_of(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        end_offset: int,
        size_max: int,
        *,
        fetched: Fetched | None = None,
    ) -> RangeSize | Cold:
        """Return how many bytes the records of a range have.

        Count from the first offset on up to `size_max` bytes, but at least one message, and at most
        `SIZED_MAX`: for more, the caller calls again. A range outside the queue has nothing.
        Records of queues of batches are counted by their first message.
        """
        queue = self._queues.simple.find(topic, queue_id)
        if queue is None:
            batch_queue = self._queues.batch.find(topic, queue_id)
            if batch_queue is None:
                return RangeSize(queue_offset, 0)
            return batch_queue.without_waiting(
                lambda: _size_of_batches(batch_queue, queue_offset, end_offset, size_max),
                fetched or (),
            )
        if not fetched and (needed := queue.cold_front) is not None:
            return needed
        place = max(queue_offset, queue.min_offset)
        stop = min(end_offset, queue.max_offset, place + SIZED_MAX)
        size = 0
        while place < stop:
            entries = self._entries(queue, place, stop - place, fetched)
            if isinstance(entries, Cold):
                return entries
            if not len(entries):
                break  # The file is gone: expired just now.
            sizes = np.cumsum(entries["size"].astype(np.int64)) + size
            fitting = int(np.searchsorted(sizes, size_max, "right"))
            if fitting < len(sizes):
                fitting = max(fitting, 0 if size else 1)
                size = int(sizes[fitting - 1]) if fitting else size
                return RangeSize(place + fitting, size)
            place += len(entries)
            size = int(sizes[-1])
        return RangeSize(max(place, queue_offset), size)

    def _entries(
        self, queue: ConsumeQueue, queue_offset: int, count: int, fetched: Fetched | None
    ) -> npt.NDArray[np.void] | Cold:
        entries = queue.read_cached(queue_offset, count)
        if entries is None:
            path, position = queue.place_of(queue_offset)
            size = min(count * ENTRY_SIZE, self._queues.simple.file_size - position)
            cold = Cold(path, position, size, -1)
            if not any(each == cold for each, _ in fetched or ()):
                return cold
            entries = queue.read(queue_offset, count)  # They were in memory a moment ago.
        return np.frombuffer(bytes(entries), ENTRY_COLUMNS)

    def _picked(
        self,
        entries: npt.NDArray[np.void],
        queue_offset: int,
        bounds: tuple[int, int],
        size_max: int,
        wanted: Filter | None,
        fetched: Fetched | None,
    ) -> ReadResult:
        """Return the bytes of the records that these entries name, as far as the limits allow."""
        offsets = entries["offset"].astype(np.int64)
        sizes = entries["size"].astype(np.int64)
        # No record from the queue's first entry on has expired: an entry that says so is damaged.
        sound = (sizes > 0) & (sizes < PRE_BLANK_SIZE) & (offsets >= self._log.first_offset)
        count = len(sound) if sound.all() else int(np.argmin(sound))
        if not count:
            raise self._reader.misled(int(offsets[0]), int(sizes[0]))
        rows = np.arange(count)
        if wanted is not None and wanted.codes is not None:
            codes = entries["code"][:count].astype(np.int32)
            rows = np.flatnonzero(np.isin(codes, list(wanted.codes)))
        if not len(rows):
            return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, queue_offset + count, *bounds, [])
        offsets, sizes = offsets[rows], sizes[rows]
        borders = self._ranges(offsets, sizes, size_max)
        found = int(borders[-1])
        end = queue_offset + (count if found == len(rows) else int(rows[found]))
        slices = self._slices(offsets[:found], sizes[:found], borders, fetched)
        empty = ReadResult(ReadStatus.FOUND, end, *bounds, [])
        if slices is None:
            return replace(empty, status=ReadStatus.MESSAGE_WAS_REMOVING)
        if isinstance(slices, tuple):
            return replace(empty, cold=slices)
        return replace(
            empty,
            slices=slices,
            record_count=found,
            size=int(sizes[:found].sum()),
            last_physical_offset=int(offsets[found - 1]),
        )

    def _ranges(self, offsets: Longs, sizes: Longs, size_max: int) -> Longs:
        """Divide records into ranges of the log to read in one go, as far as the limits allow.

        Return the numbers of the records at which the ranges begin, and the end of the last.
        """
        segment_size = self._log.segments.size
        ends = offsets + sizes
        gaps = offsets[1:] - ends[:-1]
        apart = (gaps < 0) | (gaps > _GAP_MAX)
        apart |= offsets[1:] // segment_size != offsets[:-1] // segment_size
        spans = np.cumsum(np.concatenate([sizes[:1], sizes[1:] + np.where(apart, 0, gaps)]))
        fits = (np.cumsum(sizes) <= size_max) & (spans <= size_max * _SPAN_FACTOR)
        fits[1:] &= np.cumsum(apart) < _RANGES_MAX
        count = max(len(fits) if fits.all() else int(np.argmin(fits)), 1)
        return np.concatenate([[0], np.flatnonzero(apart[: count - 1]) + 1, [count]])

    def _slices(
        self, offsets: Longs, sizes: Longs, borders: Longs, fetched: Fetched | None
    ) -> list[Buffer] | tuple[Cold, ...] | None:
        """Return the bytes of these records, or what has to be fetched first; None if expired."""
        slices: list[Buffer] = []
        cold: list[Cold] = []
        for first, last in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            start = int(offsets[first])
            span = int(offsets[last - 1] + sizes[last - 1]) - start
            piece = self._piece(start, span, fetched)
            if piece is None:
                return None
            if isinstance(piece, Cold):
                cold.append(piece)
            elif not cold:
                slices += _records(piece, start, offsets[first:last], sizes[first:last])
        if cold:
            return tuple(cold)
        return slices if len(slices) <= _JOINED_FROM else [b"".join(slices)]

    def _piece(self, start: int, size: int, fetched: Fetched | None) -> Buffer | Cold | None:
        """Return a range of the log: from the map, or as it was fetched."""
        log = self._log
        room = log.segments.size - start % log.segments.size
        if size > room or start + size > log.end_offset:
            return self._reader.piece(start, size, fetched)  # That raises the error.
        if start >= log.hot_offset or log.is_warm(start, size):
            return self._reader.piece(start, size, fetched)
        for cold, data in fetched or ():
            if cold.physical_offset == start and cold.size == size:
                return data if len(data) == size else None
        segment = log.segments.at(start)
        return None if segment is None else Cold(segment.path, start - segment.start, size, start)


def _records(piece: Buffer, start: int, offsets: Longs, sizes: Longs) -> list[Buffer]:
    """Return the records of a range, neighbours as one slice; each must match its entry."""
    places = offsets - start
    if len(piece) < _HEAD_SIZE or int(places[-1]) > len(piece) - _HEAD_SIZE:
        check_head(piece, int(offsets[-1]), int(sizes[-1]), int(places[-1]))
    raw = np.frombuffer(piece, np.uint8)
    named = np.ndarray(len(raw) - 3, ">i4", raw, strides=(1,))[places]
    placed = np.ndarray(len(raw) - 35, ">i8", raw, offset=28, strides=(1,))[places]
    magics = np.ndarray(len(raw) - 7, ">u4", raw, offset=4, strides=(1,))[places]
    wrong = (named != sizes) | (placed != offsets)
    wrong |= (magics != MAGIC_V1) & (magics != MAGIC_V2)
    if wrong.any():
        row = int(np.argmax(wrong))
        check_head(piece, int(offsets[row]), int(sizes[row]), int(places[row]))
    ends = places + sizes
    apart = np.flatnonzero(places[1:] != ends[:-1])
    firsts = np.concatenate([places[:1], places[apart + 1]]).tolist()
    lasts = np.concatenate([ends[apart], ends[-1:]]).tolist()
    if len(firsts) == 1:
        return [piece]
    view = memoryview(piece)
    return [view[first:last] for first, last in zip(firsts, lasts, strict=True)]


def _size_of_batches(
    queue: BatchConsumeQueue, queue_offset: int, end_offset: int, size_max: int
) -> RangeSize:
    place = max(queue_offset, queue.min_offset)
    stop = min(end_offset, queue.max_offset)
    size = 0
    for entry in queue.read(place, ENTRIES_MAX) if place < stop else ():
        if entry.base_offset >= stop or (size and size + entry.size > size_max):
            break
        size += entry.size
        place = entry.end_offset
    return RangeSize(max(place, queue_offset), size)
