"""The records of a part of a log, and what is damaged between them.

A part is a range of bytes of one file; a record belongs to the part in which it begins. Where a
part begins in the middle of a file a record is looked for: a magic that stands where a record would
have it, whose lengths agree and that says it is where it is. Whoever knows where a message will lie
can write such a record into its body, so the look begins in front of the part by more than a body
has, and follows what it finds. Where that leads over what looks like a record, too, one of the two
is in the body of the other, and the file is followed from its beginning. Behind damage the log is
entered again in the same way.

Each part looks at one record more than it has: at the first of the next part. So damage there,
which the next part would pass over on its search, is found by this one, and each by one only.
"""

from __future__ import annotations

import zlib
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from cometmq.pipeline.records.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_SIZE_MIN,
    Layout,
    are_numbered,
    at_their_place,
    follow,
    head_at,
    lay_out,
)
from cometmq.pipeline.store.files import Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.pipeline.records.layout import Longs, Truths

CHUNK_SIZE: Final = 6 << 20
"""Bytes that are read and looked at together. To Python alone 2 MiB are dearer by nothing; but what
each record batch costs it, and Spark, is not little."""

_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_BYTES: Final = tuple(magic.to_bytes(4, "big") for magic in _MAGICS)
_MAGIC_BEGIN: Final = _MAGIC_BYTES[0][:3]
"""Of all of them: to look for each would go through all the data for one that is not there."""
_MAGIC_AT: Final = 4
_HEAD_SIZE: Final = 8
_MAGIC_END: Final = _MAGIC_AT + len(_MAGIC_BEGIN) - 1
"""Behind a place, how far the begin of a magic goes at most whose record begins in front of it."""
_CRC_MASK: Final = 0x7FFFFFFF
_OFFSET_SIZE: Final = 8
_BODY_MAX: Final = (4 << 20) + (64 << 10)
"""What brokers take, unless they are told otherwise, with all else that a record has."""
_WRONG_BODY: Final = "the checksum of its body is wrong"
_SAMPLED_SIZE: Final = 64 << 10
_GOLDEN_RATIO: Final = np.uint64(0x9E3779B97F4A7C15)
"""What is behind the point of it, in 64 bits."""


class Part(NamedTuple):
    """A range of a log file that one task reads."""

    root: str
    path: str
    base: int
    """Where in the log the file begins."""
    start: int
    """In the file, as the next three."""
    stop: int
    """Records that begin here or behind belong to the next part."""
    limit: int
    """Where the data of the file ends: its length, but in the last one."""
    length: int
    """Of the file."""


class Damage(NamedTuple):
    """A place of a log that holds no sound record, where one should be."""

    start: int
    """In the log, as the next."""
    end: int
    """Where the next sound record is, or the part of the log ends that was looked at."""
    reason: str


def scan(part: Part, *, checksums: bool = False, sample: float = 1.0) -> Iterator[Layout | Damage]:
    """Yield the records of a part, many together, and the damage between them.

    With `checksums` a record whose body has not the checksum that was stored with it is damage;
    with a `sample` below 1, only one that is `sampled`.
    """
    with Opened(part.root, part.path) as file:
        yield from _Scan(part, file, sample=sample if checksums else 0).run()


def sampled(places: Longs, sample: float) -> Truths:
    """Which records, by where in the log they begin, are in a sample of such a share.

    The log is taken in pieces of 64 KiB, and those are chosen by nothing but where they are: the
    multiples of the golden ratio, without what is in front of their points, are spread evenly, so
    each stretch of the log has its share, and a larger sample has all of a smaller one.
    """
    if sample >= 1:
        return np.ones(len(places), np.bool_)
    pieces = (places // _SAMPLED_SIZE).astype(np.uint64)
    chosen: Truths = pieces * _GOLDEN_RATIO < np.uint64(sample * 2**64)
    return chosen


class _Scan:
    """One pass over a part."""

    def __init__(self, part: Part, file: Opened, *, sample: float) -> None:
        self._part = part
        self._file = file
        self._sample = sample
        self._data = b""
        self._begin = 0  # Where in the file the data begins.
        self.is_over = False  # Whether the filler of the file's end was met.

    def run(self) -> Iterator[Layout | Damage]:
        yield from self._from(self._first())

    def _first(self) -> int:
        """Return where the first record of the part begins; the end of the data if none does."""
        part = self._part
        if not part.start:
            return 0
        position = followed(part, self._file).end
        if position < part.start:  # A record that is longer than what was looked at, or none.
            return self._next_sound(part.start, part.stop)
        return position if position < part.stop else part.limit

    def follow(self) -> Iterator[Layout | Damage]:
        """Yield what is in the part from the first place on that looks like a record."""
        part = self._part
        yield from self._from(self._next_sound(part.start, part.stop) if part.start else 0)

    def holds_another(self, layout: Layout) -> bool:
        """Whether in one of the records that were yielded last another one seems to begin."""
        first, end = int(layout.starts[0]), int(layout.ends[-1])
        if self._data.count(_MAGIC_BEGIN, first, end + _MAGIC_END) == len(layout.starts):
            return False
        starts = set(layout.starts.tolist())
        at: int | None = first
        while at is not None and at in starts:
            at = next_record(self._data, at + 1, self._part.base + self._begin)
        return at is not None and at < end

    def _from(self, position: int) -> Iterator[Layout | Damage]:
        part = self._part
        while position < part.limit:
            at = self._reach(position, _HEAD_SIZE)
            borders, _ = follow(self._data, at, min(len(self._data), part.limit - self._begin))
            if len(borders) == 1 and self._reads_on(position):
                continue
            layout, good = lay_out(np.frombuffer(self._data, np.uint8), borders)
            good &= at_their_place(layout, part.base + self._begin) & are_numbered(layout)
            count = len(good) if good.all() else int(np.argmin(good))
            own = int(np.searchsorted(layout.starts[:count], part.stop - self._begin))
            yield from self._checked(layout.rows(slice(0, own)))
            if own < count:  # The first of the next part, which is sound.
                return
            position = self._begin + int(borders[count])
            if count == len(good) and self._reads_on(position):
                continue
            self.is_over = position < part.limit and self._is_blank(position)
            if position >= part.limit or self.is_over:
                return
            damage = self._damage(position)
            yield damage
            position = damage.end - part.base
            if position >= part.stop:
                return

    def _reach(self, position: int, size: int) -> int:
        """See to it that bytes of the file are there; returns where they are in the data."""
        have = self._begin + len(self._data)
        if position < self._begin or position + size > have:
            self._begin = position
            room = self._part.limit - position
            self._data = self._file.read(min(max(CHUNK_SIZE, size), max(room, 0)), position)
        return position - self._begin

    def _reads_on(self, position: int) -> bool:
        """Read on when what begins here goes beyond the data, and can be a record by its head."""
        have = self._begin + len(self._data)
        at = position - self._begin
        if position >= self._part.limit:
            return False
        if have - position < RECORD_SIZE_MIN:
            size, is_record = RECORD_SIZE_MIN, True
        else:
            size, magic = head_at(self._data, at)
            is_record = magic in _MAGICS and size >= RECORD_SIZE_MIN
        end = position + size
        if not is_record or end <= have or end > self._part.limit:
            return False
        self._begin = -1  # Whatever is there is read anew, from the record on.
        self._data = b""
        self._reach(position, size)
        return self._begin + len(self._data) >= end

    def _is_blank(self, position: int) -> bool:
        """Whether the filler of a file's end is here: its size is that of the rest."""
        at = self._reach(position, _HEAD_SIZE)
        if len(self._data) - at < _HEAD_SIZE:
            return False
        return head_at(self._data, at) == (self._part.length - position, MAGIC_BLANK)

    def _damage(self, position: int) -> Damage:
        """Say what is wrong here, and where the log goes on."""
        part = self._part
        reason = self._reason(position)
        end = self._next_sound(position + 1, part.limit)
        return Damage(part.base + position, part.base + end, reason)

    def _reason(self, position: int) -> str:
        rest = self._part.limit - position
        if rest < _HEAD_SIZE:
            return f"{rest} bytes are too few for a record"
        at = self._reach(position, _HEAD_SIZE)
        size, magic = head_at(self._data, at)
        if not size and not magic:
            return "zeros stand where a record should begin"
        if magic not in _MAGICS:
            return f"size {size} and magic {magic:#010x} begin no record"
        if not RECORD_SIZE_MIN <= size <= rest:
            return f"it says that it has {size} bytes, where {rest} are"
        at = self._reach(position, size)
        layout, good = lay_out(np.frombuffer(self._data, np.uint8), np.array([at, at + size]))
        if not good[0]:
            return "its lengths do not agree"
        if not at_their_place(layout, self._part.base + self._begin)[0]:
            return f"it says that it is at {int(layout.physical_offsets[0])}"
        return "its queue offset or queue id is negative"

    def _next_sound(self, position: int, stop: int) -> int:
        """Return where the first sound record begins from one place on, in front of another.

        The end of the data where there is none.
        """
        part = self._part
        while position < stop:
            at = self._reach(position, min(_HEAD_SIZE, part.limit - position))
            found = next_record(self._data, at, part.base + self._begin)
            if found is not None:
                place = self._begin + found
                if self._is_sound(place):
                    return place if place < stop else part.limit
                position = place + 1
                continue
            have = self._begin + len(self._data)
            if have >= part.limit:
                break
            position = max(have - _HEAD_SIZE, position + 1)
        return part.limit

    def _is_sound(self, position: int) -> bool:
        at = self._reach(position, RECORD_SIZE_MIN)
        size, _ = head_at(self._data, at)
        if size > self._part.limit - position:
            return False
        at = self._reach(position, size)
        return sound_size(self._data, at, self._part.base + position) is not None

    def _checked(self, layout: Layout) -> Iterator[Layout | Damage]:
        """Yield the records; those whose bodies are damaged as such, if checksums count."""
        if not len(layout.starts):
            return
        wrong = self._wrong(layout) if self._sample else None
        if wrong is None or not wrong.any():
            yield layout
            return
        base = self._part.base + self._begin
        first = 0
        for row in np.flatnonzero(wrong).tolist():
            if row > first:
                yield layout.rows(slice(first, row))
            start, end = int(layout.starts[row]), int(layout.ends[row])
            yield Damage(base + start, base + end, _WRONG_BODY)
            first = row + 1
        if first < len(wrong):
            yield layout.rows(slice(first, None))

    def _wrong(self, layout: Layout) -> Truths:
        if self._sample >= 1:
            return wrong_bodies(layout)
        wrong = sampled(layout.physical_offsets, self._sample)
        wrong[wrong] = wrong_bodies(layout.rows(wrong))
        return wrong


class Followed(NamedTuple):
    """The records in front of a place of a file, each of which begins where another ends."""

    end: int
    """Behind them or behind damage, 0 without either; that of the data behind the file's filler."""
    last: Sequence[Layout]
    """Those of them that a body in which the place is could begin with."""


def found_end(found: Layout | Damage) -> int:
    """Return where in the log records end, or damage does."""
    if isinstance(found, Damage):
        return found.end
    return int(found.physical_offsets[-1] + found.sizes[-1])


def followed(part: Part, file: Opened) -> Followed:
    """Follow the records in front of a part, from as far away as a body can be long."""
    start = max(part.start - _BODY_MAX, 0)
    return _followed(part, file, start) or cast("Followed", _followed(part, file, 0))


def _followed(part: Part, file: Opened, start: int) -> Followed | None:
    """Follow records from a place on; `None` if they may be in the bodies of others."""
    end, last = part.base, deque[Layout]()
    scanning = _Scan(part._replace(start=start, stop=part.start), file, sample=0)
    for found in scanning.follow():
        end = found_end(found)
        if isinstance(found, Damage):
            continue
        if start and scanning.holds_another(found):
            return None
        last.append(found)
        while last and found_end(last[0]) < part.base + part.start - _BODY_MAX:
            last.popleft()
    return Followed(part.limit if scanning.is_over else end - part.base, last)


def fastest_crc32() -> Callable[[memoryview], int]:
    """Return that of `isal`, a tenth of the work of `zlib`'s, where an executor has it."""
    try:
        found: Callable[[memoryview], int] = import_module("isal.isal_zlib").crc32
    except ImportError:
        return zlib.crc32
    return found


_crc32: Final = fastest_crc32()


def wrong_bodies(layout: Layout) -> Truths:
    """Which bodies have another checksum than was stored with them."""
    view = memoryview(layout.raw.data)
    crc32 = _crc32
    found = [
        crc32(view[start:end])
        for start, end in zip(layout.body_starts.tolist(), layout.body_ends.tolist(), strict=True)
    ]
    wrong: Truths = (np.array(found, np.uint32) & _CRC_MASK) != layout.body_crcs
    return wrong


def sound_size(data: bytes, at: int, physical_offset: int) -> int | None:
    """Return the size of the record that begins there; None when none does, or it is cut off."""
    if len(data) - at < RECORD_SIZE_MIN:
        return None
    size, magic = head_at(data, at)
    if magic not in _MAGICS or not RECORD_SIZE_MIN <= size <= len(data) - at:
        return None
    layout, good = lay_out(np.frombuffer(data, np.uint8), np.array([at, at + size]))
    good &= at_their_place(layout, physical_offset - at)
    return size if (good & are_numbered(layout))[0] else None


def next_record(data: bytes, at: int, begin: int) -> int | None:
    """Return where in the data the next record may begin: magic and physical offset agree.

    `begin` is where in the log the data begins.
    """
    place = at + _MAGIC_AT
    while (found := data.find(_MAGIC_BEGIN, place)) >= 0:
        start = found - _MAGIC_AT
        noted_at = start + PHYSICAL_OFFSET_AT
        noted = data[noted_at : noted_at + _OFFSET_SIZE]
        is_there = len(noted) < _OFFSET_SIZE or int.from_bytes(noted, "big") == begin + start
        if is_there and data[found : found + _MAGIC_AT] in _MAGIC_BYTES:
            return start
        place = found + 1
    return None


def last_record(data: bytes, end: int, begin: int) -> int | None:
    """Return where in the data the last sound record begins in front of a place; or None."""
    place = end + _MAGIC_END
    while (found := data.rfind(_MAGIC_BEGIN, 0, place)) >= _MAGIC_AT:
        start = found - _MAGIC_AT
        if sound_size(data, start, begin + start) is not None:
            return start
        place = found + len(_MAGIC_BEGIN) - 1
    return None
