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
"""The path in errors about a place in the log as a whole, whose position is a physical offset."""


def _signed(code: int) -> int:
    """Return the hash in a tags code: its lower 32 bits, with their sign."""
    return (code + _I32_SIGN & 0xFFFFFFFF) - _I32_SIGN


def _code_of(message: StoredMessage) -> int:
    tags = find_property(message.properties_raw, b"TAGS")
    return tags_code(tags) if tags else 0


class Selection:
    """One pass over entries that picks wanted records until a limit is reached."""

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
        """The physical offset and size of each record."""
        self.size = 0
        """The size of all picked records."""
        self.next_offset = 0
        """The queue offset at which to continue."""
        self.has_expired = False
        """Whether the log begins after a record that an entry names."""
        self.cold: list[Cold] = []
        """What must be fetched before the pass can go further."""

    def run(
        self, entries: Sequence[tuple[int, int, int]], ends: Sequence[int], queue_offset: int
    ) -> None:
        """Pick from the entries; `ends` has the queue offset after each."""
        self.next_offset = queue_offset
        for (physical_offset, size, code), end in zip(entries, ends, strict=True):
            if size <= 0 or self._reader.has_expired(physical_offset):
                # The queue begins after what has expired, so the entry is damaged: it must count
                # neither as expired nor as unwanted. What comes before it is returned first.
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
        # In Apache's store the code may be elsewhere; the record has the same.
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
        """Return the bytes of what was picked; none if some are missing, see the attributes."""
        self.cold.clear()  # The next read asks for what stopped the pass.
        slices: list[Buffer] = []
        for physical_offset, size in merged(self.picked):
            piece = self._reader.piece(physical_offset, size, self._fetched)
            if isinstance(piece, Cold):
                self.cold.append(piece)
            elif piece is None:
                self.has_expired = True  # It expired while it was fetched: nothing is returned.
                return []
            else:
                self._check(piece, physical_offset, size)
                slices.append(piece)
        return slices

    def _check(self, piece: Buffer, start: int, size: int) -> None:
        """Check that each record of a run has the place and the size that its entry says."""
        for physical_offset, record_size in self.picked:
            if start <= physical_offset < start + size:
                check_head(piece, physical_offset, record_size, physical_offset - start)


def check_head(piece: Buffer, physical_offset: int, size: int, at: int = 0) -> None:
    """Raise `CorruptionError` unless a record of this size and place begins at these bytes."""
    named, found_offset = _unpack_head(piece, at) if len(piece) - at >= _HEAD.size else (0, 0)
    if found_offset == physical_offset and named in (size << 32 | MAGIC_V1, size << 32 | MAGIC_V2):
        return
    found_size, magic = named >> 32, named & 0xFFFFFFFF
    problem = f"one of {found_size} bytes that says it is at {found_offset}"
    if found_size == size and found_offset == physical_offset:
        problem = f"the magic {magic:#010x}, which no record begins with"
    raise CorruptionError(
        LOG,
        physical_offset,
        f"a ConsumeQueue names a record of {size} bytes here, but there is {problem}; run"
        " `cometmq store verify`",
    )


def _read(piece: Buffer, physical_offset: int) -> StoredMessage:
    """Read the record at a physical offset; raise `CorruptionError` if there is none."""
    try:
        return read_message(bytes(piece))
    except MessageError as error:
        problem = str(error).partition(": ")[2]  # Without the place, which is within these bytes.
        raise CorruptionError(
            LOG, physical_offset, f"{problem}; run `cometmq store verify`"
        ) from None


def merged(records: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join records that are neighbours in the log; return the offset and size of each run."""
    runs: list[tuple[int, int]] = []
    for physical_offset, size in records:
        if runs and sum(runs[-1]) == physical_offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + size)
        else:
            runs.append((physical_offset, size))
    return runs


@lru_cache(maxsize=64)
def _heads_of(count: int, size: int) -> Callable[[Buffer], tuple[int, ...]]:
    """Return a function that unpacks the heads of `count` consecutive records of one size."""
    return Struct(f">{f'q20xq{size - _HEAD.size}x' * count}").unpack


def picked(piece: Buffer, start: int, offsets: Sequence[int], sizes: Sequence[int]) -> bytes | None:
    """Join the records at these offsets in a piece of the log that begins at `start`.

    Return None if one is outside the piece, and raise `CorruptionError` if one is not there.
    Records of one size are first joined and then looked at together, in half the time.
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
        return _picked_singly(piece, start, offsets, sizes)  # That raises the error.
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
