"""What one turn of the loop appends to the log: collected by puts, written in one go.

A put knows its record's physical offset at once, because every byte in front of it in the turn is
known. Where a record does not fit its segment any more, with the 8 bytes of a blank record behind
it, the turn notes the blank record and goes on in the next segment.

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
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from cometmq.proto.record import MAGIC_BLANK

if TYPE_CHECKING:
    from cometmq.store.filesystem import Buffer

_BLANK = struct.Struct(">iI")
BLANK_SIZE: Final = 8
assert _BLANK.size == BLANK_SIZE


class Appended(NamedTuple):
    """Where a put went; true once its turn is committed."""

    physical_offset: int
    queue_offset: int
    """Of the first message, where one put holds several."""
    size: int
    """Bytes of its record or records."""
    store_timestamp: int


class Origin(NamedTuple):
    """What the messages of one request share."""

    now_ms: int
    """When they are stored."""
    born_timestamp: int
    born_host: bytes
    """Packed."""
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class Destination(Protocol):
    """Where the entry of a record goes once consumers may read it: a ConsumeQueue."""

    def append(self, physical_offset: int, size: int, tags_code: int, /) -> None:
        """Make the record readable."""
        ...


class Numbered(Protocol):
    """What counts the messages of a queue."""

    next_offset: int


# A plain tuple, made for each message: a dataclass costs 0.3 µs more. In order: where its entry
# goes (None: no consumer gets it), physical offset, size, tags code, topic, properties, store time.
Entry: TypeAlias = "tuple[Destination | None, int, int, int, bytes, bytes, int]"


class Turn:
    """The records of one turn, in order, and what follows from them once they are written."""

    __slots__ = (
        "_segment_end",
        "_segment_size",
        "end",
        "entries",
        "pieces",
        "queue_offsets",
        "start",
        "writes",
    )

    def __init__(self, start: int, segment_size: int) -> None:
        self._segment_size = segment_size
        self.begin(start)

    def begin(self, start: int) -> None:
        """Begin an empty turn at the end of the log."""
        self.start = start
        self.end = start
        self._segment_end = start - start % self._segment_size + self._segment_size
        self.pieces: list[Buffer] = []
        """The records of the segment that is being filled."""
        self.writes: list[tuple[int, list[Buffer]]] = [(start, self.pieces)]
        """Per segment, where its first record goes, and its records."""
        self.entries: list[Entry] = []
        self.queue_offsets: dict[Numbered, int] = {}
        """What the next offset of each queue was in front of this turn."""

    def take_back(self) -> None:
        """Give the queue offsets back, and forget everything."""
        for queue, offset in self.queue_offsets.items():
            queue.next_offset = offset
        self.begin(self.start)

    def place(self, size: int) -> int:
        """Return the physical offset for `size` bytes that must not be split over segments."""
        if self.end + size + BLANK_SIZE > self._segment_end:
            self._roll()
        return self.end

    def _roll(self) -> None:
        if self.end < self._segment_end:
            self.pieces.append(_BLANK.pack(self._segment_end - self.end, MAGIC_BLANK))
        self.end = self._segment_end
        self._segment_end += self._segment_size
        self.pieces = []
        self.writes.append((self.end, self.pieces))
