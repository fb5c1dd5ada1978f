"""Reading messages by queue offset: which records an answer has, and their bytes uncopied.

A read looks at a stretch of ConsumeQueue entries, picks records by tag and by content until a limit
is reached, and returns their bytes: neighbours in the log as one slice. Hot data is returned as
slices of the map. Older data is copied out of the page cache if it is there. Only if it is not, the
lower limits of cold data apply. If even that much is not there, the result's `cold` says what is
missing; the caller has any thread `fetch` it and reads again with the result.

Before a slice is returned, its first record must be the one that its entry names: a damaged entry
causes an error that names it, never an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from cometmq.proto.buffer import Buffer
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import REBUILD, CorruptionError
from cometmq.store.messages.damaged import in_front, told
from cometmq.store.messages.picking import Selection, check_head, picked
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cometmq.proto.message import StoredMessage
    from cometmq.store.config import StoreConfig
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.messages.bulk_reading import BulkReader
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue, BatchEntry
    from cometmq.store.queues.consume_queues import ConsumeQueues

_first: Final = Struct(">q").unpack_from  # The physical offset of an entry, see `consume_queue`.

SPAN_MAX: Final = 8
"""If reading means copying, up to this many times the wanted bytes are read to get them at once."""
Fetched: TypeAlias = "Sequence[tuple[Cold, bytes]]"
"""Bytes read from the disk for an earlier `cold`."""


class ReadStatus(Enum):
    """How a read ended; the names are Apache's.

    There is no NO_MATCHED_LOGIC_QUEUE: a queue that does not exist yet reads as an empty one, as in
    Apache's store.
    """

    FOUND = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_TOO_SMALL = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_OVERFLOW_BADLY = auto()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages of a queue a reader wants."""

    codes: Collection[int] | None = None
    """Tag codes, as signed 32-bit numbers; None for all."""
    matches: Callable[[StoredMessage], bool] | None = None
    """A test of the message itself, which costs a look at each record; None for all."""
    entries_max: int | None = None
    """How many entries one read may look at, if `matches` costs more than a tag."""


class ReadResult(msgspec.Struct, frozen=True, gc=False):
    """What a read found. (A `NamedTuple` takes 0.3 µs more to make.)"""

    status: ReadStatus
    next_begin_offset: int
    """Where the reader should continue."""
    min_offset: int
    max_offset: int
    slices: list[Buffer]
    """The records, in order; neighbours in the log share a slice."""
    record_count: int = 0
    """The number of records."""
    size: int = 0
    """Their size in bytes."""
    last_physical_offset: int = -1
    """The offset of the last record: it shows how far the reader is behind the end of the log."""
    cold: tuple[Cold, ...] = ()
    """What has to be fetched first; there is no status then."""


@lru_cache(maxsize=64)
def _sizes_of(count: int) -> Callable[[Buffer], tuple[int, ...]]:
    """Return a function that unpacks the sizes in entries, in a fifth of `iter_unpack`'s time."""
    return Struct(">" + "8xi8x" * count).unpack


@lru_cache(maxsize=64)
def _offsets_of(count: int) -> Callable[[Buffer], tuple[int, ...]]:
    """Return a function that unpacks the physical offsets in entries."""
    return Struct(">" + "q12x" * count).unpack


class QueueReader:
    """Reads the queues of one store."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, config: StoreConfig) -> None:
        self._log = log
        self._queues = queues
        self._config = config
        self._hot = (config.read_count_max, config.read_size_max)
        self._cold = (config.read_cold_count_max, config.read_cold_size_max)

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        *,
        wanted: Filter | None = None,
        fetched: Fetched | None = None,
    ) -> ReadResult:
        """Read up to `count_max` messages from a queue offset on.

        Each further call must be given everything that was fetched so far. Raise `CorruptionError`
        if an entry does not lead to its record, or is lost with its file.
        """
        queue = self._queues.simple.find(topic, queue_id)
        if queue is None or not queue.end:  # See `ConsumeQueues.find`.
            batch_queue = self._queues.batch.find(topic, queue_id)
            return self._read_batch(batch_queue, queue_offset, count_max, wanted, fetched)
        most = self._hot[0]
        count = count_max if count_max < most else most  # noqa: FURB136  # A third of `min`'s time.
        if wanted is not None:
            count = wanted.entries_max or max(count, self._config.read_scan_size_max // ENTRY_SIZE)
        min_offset = queue.min_cached if fetched is None else queue.min_offset
        max_offset = queue.end
        if min_offset < 0:
            wanted_entries = _cold_entries(queue, queue_offset, count)
            return without_status(queue_offset, queue.cold_front, wanted_entries)
        if not min_offset <= queue_offset < max_offset:
            return outside(queue_offset, min_offset, max_offset)
        entries = self._entries(queue, queue_offset, count, fetched)
        if isinstance(entries, Cold):
            return without_status(queue_offset, entries)
        if not entries:
            queue.check_files()
            status, next_offset = ReadStatus.OFFSET_FOUND_NULL, queue.next_file(queue_offset)
            return ReadResult(status, next_offset, min_offset, max_offset, [])
        if wanted is None:
            try:
                result = self._whole(entries, queue_offset, min_offset, max_offset)
            except CorruptionError:
                result = None  # The careful way returns what comes before the damage.
            if result is not None:
                return result
        ends = range(queue_offset + 1, queue_offset + 1 + len(entries) // ENTRY_SIZE)
        records = list(ENTRY.iter_unpack(entries))
        bounds = (queue_offset, min_offset, max_offset)
        return self._select_sound(queue, records, ends, bounds, count_max, wanted, fetched)

    def _select_sound(
        self,
        queue: ConsumeQueue | BatchConsumeQueue,
        records: Sequence[tuple[int, int, int]],
        ends: Sequence[int],
        bounds: tuple[int, int, int],
        count_max: int,
        wanted: Filter | None,
        fetched: Fetched | None,
    ) -> ReadResult:
        """Pick from these entries, up to the first one that leads to damage."""
        try:
            return self._select(records, ends, bounds, count_max, wanted, fetched)
        except CorruptionError as error:
            front = in_front(error, [each[0] for each in records])
            if front:
                rest = (bounds, count_max, wanted, fetched)
                return self._select(records[:front], ends[:front], *rest)
            raise told(error, self._log, queue, bounds[0], records, ends) from error

    def _select(
        self,
        records: Sequence[tuple[int, int, int]],
        ends: Sequence[int],
        bounds: tuple[int, int, int],
        count_max: int,
        wanted: Filter | None,
        fetched: Fetched | None,
    ) -> ReadResult:
        """Pick from these entries as if everything were in memory; if it is not, pick less."""
        queue_offset, min_offset, max_offset = bounds
        wanted = wanted or Filter()
        if fetched is None:
            selection = Selection(self, count_max, wanted, None, is_cached=True)
            selection.run(records, ends, queue_offset)
            result = _result(selection, min_offset, max_offset)
            if not result.cold:
                return result
        selection = Selection(self, count_max, wanted, fetched, is_cached=False)
        selection.run(records, ends, queue_offset)
        return _result(selection, min_offset, max_offset)

    def _entries(
        self, queue: ConsumeQueue, queue_offset: int, count: int, fetched: Fetched | None
    ) -> bytes | bytearray | Cold:
        if fetched is not None:
            return queue.read(queue_offset, count)
        entries = queue.read_entries_cached(queue_offset, count)
        return _cold_entries(queue, queue_offset, count) if entries is None else entries

    def _whole(
        self, entries: Buffer, queue_offset: int, min_offset: int, max_offset: int
    ) -> ReadResult | None:
        """Return the answer if all named records are in memory and within the limits; else None.

        This is the usual case of a consumer that keeps up, at a fifth of the cost. Consecutive
        records are one slice of the map; others are copied, which costs less than a slice each.
        """
        count = len(entries) // ENTRY_SIZE
        if count > self._hot[0]:
            return None
        sizes = _sizes_of(count)(entries)
        (start,), (last,) = _first(entries), _first(entries, (count - 1) * ENTRY_SIZE)
        size = sum(sizes)
        span = last + sizes[-1] - start
        if size > self._hot[1]:
            return None
        piece = self._span(start, span, size)
        if piece is None:
            return None
        if span == size:
            # A wrong entry other than the last would have made gaps.
            check_head(piece, last, sizes[-1], last - start)
        elif (piece := picked(piece, start, _offsets_of(count)(entries), sizes)) is None:
            return None
        end = queue_offset + count
        return ReadResult(ReadStatus.FOUND, end, min_offset, max_offset, [piece], count, size, last)

    def _span(self, start: int, span: int, size: int) -> Buffer | None:
        """Return a stretch of the log if it is in memory; `size` bytes of it are wanted."""
        log = self._log
        segment_size = log.segments.size
        if not 0 < size <= span <= segment_size - start % segment_size:
            return None
        if start + span > log.end_offset or (
            span > SPAN_MAX * size and start < log.hot_offset  # All of it would be copied.
        ):
            return None
        piece = log.find(start, span)
        return None if isinstance(piece, Cold) else piece

    def _read_batch(
        self,
        queue: BatchConsumeQueue | None,
        queue_offset: int,
        count_max: int,
        wanted: Filter | None,
        fetched: Fetched | None,
    ) -> ReadResult:
        if queue is None:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
        count = min(count_max, self._hot[0])

        def look() -> tuple[int, int, list[BatchEntry]]:
            return queue.min_offset, queue.max_offset, queue.read(queue_offset, count)

        found = queue.without_waiting(look, fetched or ())
        if isinstance(found, Cold):
            return without_status(queue_offset, found if fetched else queue.cold_front or found)
        min_offset, max_offset, entries = found
        if not min_offset <= queue_offset < max_offset:
            return outside(queue_offset, min_offset, max_offset)
        records = [entry[:3] for entry in entries]
        ends = [entry.end_offset for entry in entries]
        bounds = (queue_offset, min_offset, max_offset)
        return self._select_sound(queue, records, ends, bounds, count_max, wanted, fetched)

    @cached_property
    def in_bulk(self) -> BulkReader:
        """A reader for much at once."""
        from cometmq.store.messages.bulk_reading import BulkReader  # It needs numpy.

        return BulkReader(self._log, self._queues, self)

    def limits(self, physical_offset: int, *, is_cached: bool) -> tuple[int, int]:
        """Return how many records and bytes a read that begins there may return."""
        return self._hot if is_cached or physical_offset >= self._log.hot_offset else self._cold

    def has_expired(self, physical_offset: int) -> bool:
        """Whether the log begins after this offset."""
        return physical_offset < self._log.first_offset

    def piece(
        self, physical_offset: int, size: int, fetched: Fetched | None
    ) -> Buffer | Cold | None:
        """Return bytes of the log; None if they have expired."""
        log = self._log
        room = log.segments.size - physical_offset % log.segments.size
        if not 0 < size <= room or physical_offset + size > log.end_offset:
            raise self.misled(physical_offset, size)
        for cold, data in fetched or ():
            place = physical_offset - cold.physical_offset
            if cold.physical_offset >= 0 and place >= 0 and place + size <= cold.size:
                return data[place : place + size] or None
        return log.find(physical_offset, size)

    def misled(self, physical_offset: int, size: int) -> CorruptionError:
        """Return the error for an entry that leads to no record in the log."""
        log = self._log
        return CorruptionError(
            log.segments.directory,
            physical_offset,
            f"a ConsumeQueue names a record of {size} bytes here, outside the log, which goes"
            f" from {log.first_offset} to {log.end_offset}; {REBUILD}",
        )

    def ahead(self, cold: Cold) -> Cold:
        """Extend what is fetched to what the next entries will probably need."""
        log = self._log
        room = log.segments.size - cold.position
        written = log.end_offset - cold.physical_offset
        return cold._replace(size=max(cold.size, min(self._cold[1], room, written)))


def _result(selection: Selection, min_offset: int, max_offset: int) -> ReadResult:
    """Return the bytes of what was picked, or why there are none."""
    slices = selection.slices() if selection.picked else []
    found = ReadResult(
        ReadStatus.FOUND, selection.next_offset, min_offset, max_offset, slices, 0, 0, -1
    )
    if selection.cold:
        return replace(found, slices=[], cold=tuple(selection.cold))
    if slices:
        return replace(
            found,
            record_count=len(selection.picked),
            size=selection.size,
            last_physical_offset=selection.picked[-1][0],
        )
    if selection.has_expired:
        return replace(found, status=ReadStatus.MESSAGE_WAS_REMOVING)
    return replace(found, status=ReadStatus.NO_MATCHED_MESSAGE)


def _cold_entries(queue: ConsumeQueue, queue_offset: int, count: int) -> Cold:
    return Cold(*queue.place_of(queue_offset), count * ENTRY_SIZE)


def without_status(queue_offset: int, *cold: Cold | None) -> ReadResult:
    """Return a result that says what has to be fetched before the read."""
    needed = tuple(each for each in cold if each is not None)
    return ReadResult(ReadStatus.FOUND, queue_offset, 0, 0, [], cold=needed)


def outside(queue_offset: int, min_offset: int, max_offset: int) -> ReadResult:
    """Return the answer for an offset at which the queue has no message."""
    if max_offset == 0:
        status, next_offset = ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    elif queue_offset < min_offset:
        status, next_offset = ReadStatus.OFFSET_TOO_SMALL, min_offset
    elif queue_offset == max_offset:
        status, next_offset = ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset
    else:
        status, next_offset = ReadStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return ReadResult(status, next_offset, min_offset, max_offset, [])
