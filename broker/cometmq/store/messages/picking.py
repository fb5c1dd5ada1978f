"""Which records of a queue one read returns, and their bytes."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.proto.java import tags_code
from cometmq.proto.message import read_message
from cometmq.proto.properties import find_property
from cometmq.proto.record import MAGIC_V1, MAGIC_V2
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import CorruptionError
from cometmq.store.queues.consume_queue_ext import ADDRESS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.message import StoredMessage
    from cometmq.store.messages.reading import Fetched, Filter, QueueReader

_HEAD: Final = Struct(">q20xq")
"""Total size and magic, as one number, and the physical offset, see `proto.record`."""
_unpack_head: Final = _HEAD.unpack_from
_I32_SIGN: Final = 1 << 31

LOG: Final = "commitlog"
"""In errors about a place in the log: the log as a whole, and the physical offset."""


def _signed(code: int) -> int:
    """The hash in a tags code: its lower 32 bits, with their sign."""
    return (code + _I32_SIGN & 0xFFFFFFFF) - _I32_SIGN


def _code_of(message: StoredMessage) -> int:
    tags = find_property(message.properties_raw, b"TAGS")
    return tags_code(tags) if tags else 0


class Selection:
    """One pass over entries that picks what is wanted until a limit is met."""

    def __init__(
        self,
        reader: QueueReader,
        count_max: int,
        wanted: Filter,
        fetched: Fetched | None,
        *,
        is_cached: bool,
    ) -> None:
        self._reader = reader
        self._is_cached = is_cached
        self._count_max = count_max
        self._wanted = wanted
        self._fetched = fetched
        self.picked: list[tuple[int, int]] = []
        """Where each record stands, and how long it is."""
        self.size = 0
        """Of all that are picked."""
        self.next_offset = 0
        """The queue offset to go on at."""
        self.has_expired = False
        """Whether the log begins only behind what an entry names."""
        self.cold: list[Cold] = []
        """What must be fetched before more can be said."""

    def run(
        self, entries: Sequence[tuple[int, int, int]], ends: Sequence[int], queue_offset: int
    ) -> None:
        """Pick from the entries; `ends` has the queue offset behind each."""
        self.next_offset = queue_offset
        for (physical_offset, size, code), end in zip(entries, ends, strict=True):
            if size <= 0 or self._reader.has_expired(physical_offset):
                # The queue begins behind what has expired: it must not pass for that, nor for
                # unwanted. What is in front of it is returned first.
                if self.next_offset == queue_offset:
                    raise self._reader.misled(physical_offset, size)
                return
            try:
                is_wanted = self._is_wanted(physical_offset, size, code)
            except CorruptionError:
                if self.next_offset == queue_offset:
                    raise
                return
            if is_wanted:
                if self._is_full(size):
                    return
                self.picked.append((physical_offset, size))
                self.size += size
            elif self.cold:
                return
            self.next_offset = end

    def _is_wanted(self, physical_offset: int, size: int, code: int) -> bool:
        codes, matches = self._wanted.codes, self._wanted.matches
        # In a store of Apache the code may be elsewhere; the record says the same.
        asks_record = codes is not None and code <= ADDRESS_MAX
        if codes is not None and not asks_record and _signed(code) not in codes:
            return False
        if matches is None and not asks_record:
            return True
        piece = self._reader.piece(physical_offset, size, self._fetched)
        if isinstance(piece, Cold):
            self.cold.append(self._reader.ahead(piece))
            return False
        if piece is None:
            self.has_expired = True
            return False
        check_head(piece, physical_offset, size)
        message = _read(piece, physical_offset)
        if codes is not None and asks_record and _code_of(message) not in codes:
            return False
        return matches is None or matches(message)

    def _is_full(self, size: int) -> bool:
        if not self.picked:
            return False  # The first record is returned whatever its size.
        count, size_max = self._reader.limits(self.picked[0][0], is_cached=self._is_cached)
        return len(self.picked) >= min(count, self._count_max) or self.size + size > size_max

    def slices(self) -> list[Buffer]:
        """Return the bytes of what was picked; none when some are missing, see the attributes."""
        self.cold.clear()  # What stopped the pass is asked for by the next read.
        slices: list[Buffer] = []
        for physical_offset, size in merged(self.picked):
            piece = self._reader.piece(physical_offset, size, self._fetched)
            if isinstance(piece, Cold):
                self.cold.append(piece)
            elif piece is None:
                self.has_expired = True  # While it was fetched. None of the answer is left.
                return []
            else:
                self._check(piece, physical_offset, size)
                slices.append(piece)
        return slices

    def _check(self, piece: Buffer, start: int, size: int) -> None:
        """Check that each record of a run is where, and as long as, its entry says."""
        for physical_offset, record_size in self.picked:
            if start <= physical_offset < start + size:
                check_head(piece, physical_offset, record_size, physical_offset - start)


def check_head(piece: Buffer, physical_offset: int, size: int, at: int = 0) -> None:
    """Raise `CorruptionError` unless a record of that size and place begins at these bytes."""
    named, found_offset = _unpack_head(piece, at) if len(piece) - at >= _HEAD.size else (0, 0)
    if found_offset == physical_offset and named in (size << 32 | MAGIC_V1, size << 32 | MAGIC_V2):
        return
    found_size, magic = named >> 32, named & 0xFFFFFFFF
    problem = f"one of {found_size} bytes that says it is at {found_offset}"
    if found_size == size and found_offset == physical_offset:
        problem = f"the magic {magic:#010x}, which begins none"
    raise CorruptionError(
        LOG,
        physical_offset,
        f"a ConsumeQueue names a record of {size} bytes here, but there is {problem}; verify the"
        " store",
    )


def _read(piece: Buffer, physical_offset: int) -> StoredMessage:
    """Read the record at a physical offset; `CorruptionError` when it is none."""
    try:
        return read_message(bytes(piece))
    except MessageError as error:
        problem = str(error).partition(": ")[2]  # Without the place, which is one in these bytes.
        raise CorruptionError(LOG, physical_offset, f"{problem}; verify the store") from None


def merged(records: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join records that are neighbours in the log: the offset and size of each run."""
    runs: list[tuple[int, int]] = []
    for physical_offset, size in records:
        if runs and sum(runs[-1]) == physical_offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + size)
        else:
            runs.append((physical_offset, size))
    return runs


@lru_cache(maxsize=64)
def _heads_of(count: int, size: int) -> Callable[[Buffer], tuple[int, ...]]:
    """Return what takes the heads out of so many records of one size, one behind the other."""
    return Struct(f">{f'q20xq{size - _HEAD.size}x' * count}").unpack


def picked(piece: Buffer, start: int, offsets: Sequence[int], sizes: Sequence[int]) -> bytes | None:
    """Join the records that stand at these offsets in a piece of the log that begins at `start`.

    None when one lies outside of the piece, `CorruptionError` when one is not there. Records of one
    size are joined first and looked at together then, in half the time.
    """
    size = sizes[0]
    if size < _HEAD.size or sizes.count(size) != len(sizes):
        return _picked_singly(piece, start, offsets, sizes)
    behind = size - start
    if min(offsets) < start or max(offsets) + behind > len(piece):
        return None
    joined = b"".join([piece[at - start : at + behind] for at in offsets])
    heads = _heads_of(len(offsets), size)(joined)
    named = heads[0]
    is_head = named in (size << 32 | MAGIC_V1, size << 32 | MAGIC_V2)
    if not is_head or heads[1::2] != offsets or heads[::2].count(named) != len(sizes):
        return _picked_singly(piece, start, offsets, sizes)  # Which says what is wrong.
    return joined


def _picked_singly(
    piece: Buffer, start: int, offsets: Sequence[int], sizes: Sequence[int]
) -> bytes | None:
    parts: list[Buffer] = []
    room = len(piece)
    for physical_offset, size in zip(offsets, sizes, strict=True):
        at = physical_offset - start
        if not 0 <= at <= room - size or size < _HEAD.size:
            return None
        if _unpack_head(piece, at) != (size << 32 | MAGIC_V1, physical_offset):
            check_head(piece, physical_offset, size, at)
        parts.append(piece[at : at + size])
    return b"".join(parts)
