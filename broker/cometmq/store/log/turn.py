"""What one turn of the loop appends to the log: collected by puts, written in one go.

A put knows its record's physical offset at once, because every earlier byte of the turn is known.
If a record no longer fits its segment, with the 8 bytes of a blank record after it, the turn notes
the blank record and continues in the next segment.

A put that is refused leaves the turn as it was. So a put first makes its record, for the offset
that `place` returns, and then adds it. Only `add` moves on to the next segment: a turn that ended
with this move, with no record after it, would be taken for one inside the previous segment.

Blank record, big-endian; the rest of the segment stays as it is:


====  ====  ==========================================
at    size  field
====  ====  ==========================================
0     4     bytes to the end of the segment, from here
4     4     magic 0xCBD43194
====  ====  ==========================================
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.record import MAGIC_BLANK, record_parts, with_crc, with_room_for_crc
from cometmq.store.errors import MessageIllegalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.index.index_keys import Noted
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue

_BLANK = struct.Struct(">iI")
BLANK_SIZE: Final = 8
assert _BLANK.size == BLANK_SIZE


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a put went; valid once its turn is committed."""

    physical_offset: int
    queue_offset: int
    """That of the first message, if one put holds several."""
    size: int
    """Bytes of its record or records."""
    store_timestamp: int


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """Where the messages of a batch went; valid once its turn is committed."""

    physical_offsets: list[int]
    queue_offset: int
    """That of the first message; the others follow."""
    size: int
    """Bytes of its records."""


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The fields that all messages of one request share."""

    now_ms: int
    """When they are stored."""
    born_timestamp: int
    born_host: bytes
    """Packed."""
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


Runs: TypeAlias = "list[tuple[ConsumeQueue | BatchConsumeQueue, int, list[bytes]]]"
"""In the order of their first records: a queue, its next offset before, and its new entries."""


class Turn:
    """The records of one turn, in order, and what follows from them once they are written."""

    __slots__ = (
        "_filled",
        "_piece_start",
        "_record_crc",
        "_segment_end",
        "_segment_size",
        "end",
        "in_batches",
        "pieces",
        "records",
        "room_end",
        "runs",
        "start",
    )

    def __init__(self, start: int, segment_size: int, *, record_crc: bool = False) -> None:
        self._segment_size = segment_size
        self._record_crc = record_crc
        self.begin(start)

    def begin(self, start: int) -> None:
        """Begin an empty turn at the end of the log."""
        self._segment_end = start - start % self._segment_size + self._segment_size
        self.room_end = self._segment_end - BLANK_SIZE
        """Where the segment's last record must end at the latest: a blank one may follow it."""
        self.end = start
        self.runs: Runs = []
        self._filled: list[tuple[int, list[Buffer]]] = []
        self.go_on()

    def go_on(self) -> None:
        """Begin an empty turn after this one, which is written and released by its queues."""
        self.start = self._piece_start = self.end
        self.pieces: list[Buffer] = []
        """The records of the segment that is being filled, in parts."""
        self.records: list[Noted] = []
        """What the index has to know."""
        self.in_batches = 0
        """The number of records beyond the elements of `records`."""
        self.runs = []
        if self._filled:
            self._filled = []

    @property
    def writes(self) -> list[tuple[int, list[Buffer]]]:
        """For each segment, the offset of its first record, and its records."""
        return [*self._filled, (self._piece_start, self.pieces)]

    def begin_run(self, queue: ConsumeQueue | BatchConsumeQueue) -> list[bytes]:
        """Return the list for a queue's entries of this turn, before its next offset moves."""
        run: list[bytes] = []
        queue.run = run
        self.runs.append((queue, queue.next_offset, run))
        return run

    def take_back(self) -> None:
        """Return the queue offsets to the queues, and forget everything."""
        for queue, offset, _ in self.runs:
            queue.next_offset = offset
            queue.run = None
        self.begin(self.start)

    def place(self, size: int) -> int:
        """Return the physical offset for `size` bytes that must be in one segment."""
        return self.end if self.end + size <= self.room_end else self._segment_end

    def record(
        self,
        physical_offset: int,
        topic_part: bytes,
        body: bytes | memoryview,
        properties: bytes,
        queue_id: int,
        flag: int,
        queue_offset: int,
        shared_part: bytes,
    ) -> tuple[int, tuple[Buffer, ...]]:
        """Make the record for a place; return its size and its parts."""
        # Without a checksum, zeros would tell recovery that the disk lost a part.
        has_crc = self._record_crc or 0 in properties
        try:
            if has_crc:
                properties = with_room_for_crc(properties)
            size, head, middle = record_parts(
                topic_part,
                body,
                properties,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                shared_part,
            )
        except LocalProtocolError as error:
            raise MessageIllegalError(str(error)) from error
        if has_crc:
            return size, (with_crc(b"".join((head, body, middle, properties))),)
        # A view may be of a buffer that is reused before the commit.
        raw = body if type(body) is bytes else bytes(body)
        return size, (head, raw, middle, properties)

    def add(self, physical_offset: int, size: int, pieces: Sequence[Buffer]) -> None:
        """Add records that were made for the place that comes next."""
        if physical_offset != self.end:
            self._roll()
        self.pieces += pieces
        self.end += size

    def _roll(self) -> None:
        self.pieces.append(_BLANK.pack(self._segment_end - self.end, MAGIC_BLANK))
        self._filled.append((self._piece_start, self.pieces))
        self.end = self._piece_start = self._segment_end
        self._segment_end += self._segment_size
        self.room_end += self._segment_size
        self.pieces = []
