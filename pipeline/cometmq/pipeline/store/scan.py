"""The records of a part of a log, and the damage between them.

A part is a range of bytes of one file; a record belongs to the part in which it begins. If a part
begins in the middle of a file, a record is searched for: a magic at a record's place, with lengths
that agree and the right physical offset. Somebody who knows where a message will be stored can put
such a record into its body. So the search begins before the part, by more than the length of a
body, and follows the records that it finds. If another apparent record begins within one of these,
one of the two is in the body of the other, and the file is followed from its start. After damage,
the log is entered again in the same way.

Each part also looks at the first record of the next part. So damage there, which the next part's
search would skip, is found by this part, and all damage is found exactly once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import numpy as np

from cometmq.pipeline.records.layout import (
    MAGIC_BLANK,
    RECORD_SIZE_MIN,
    Layout,
    are_numbered,
    at_their_place,
    follow,
    head_at,
    lay_out,
)
from cometmq.pipeline.store.checksums import wrong_checksums
from cometmq.pipeline.store.files import Opened
from cometmq.pipeline.store.searching import (
    MAGIC_BEGIN,
    MAGIC_END,
    MAGICS,
    next_record,
    sound_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.pipeline.records.layout import Longs, Truths

CHUNK_SIZE: Final = 6 << 20
"""How many bytes are read and handled together. For Python alone, 2 MiB would cost no more; but
each record batch costs Python and Spark quite a bit."""

_HEAD_SIZE: Final = 8
_BODY_MAX: Final = (4 << 20) + (64 << 10)
"""The size that brokers accept by default, plus everything else in a record."""
BLOCK_SIZE: Final = 64 << 10
"""The size of what has a checksum in `integrity/`, and of what is in a sample or not."""
_WRONG_BLOCK: Final = "it is in a sealed block that does not match its checksum in integrity/"
_GOLDEN_RATIO: Final = np.uint64(0x9E3779B97F4A7C15)
"""Its fractional part, as a 64-bit number."""


class Part(NamedTuple):
    """A range of a log file that one task reads."""

    root: str
    path: str
    base: int
    """Where in the log the file begins."""
    start: int
    """The start of the range; it and the next three are positions in the file."""
    stop: int
    """Records that begin here or later belong to the next part."""
    limit: int
    """Where the file's data ends: at its length, except in the last file."""
    length: int
    """The length of the file."""


class Damage(NamedTuple):
    """A place of a log where a sound record should be and is not."""

    start: int
    """Where it begins in the log."""
    end: int
    """Where the next sound record begins, or the scanned part of the log ends."""
    reason: str


WrongBlocks: TypeAlias = "Callable[[bytes, int], list[tuple[int, int]]]"
"""Returns which blocks in some data of a file are wrong; all places are positions in the file."""


def scan(
    part: Part,
    *,
    checksums: bool = False,
    sample: float = 1.0,
    wrong_blocks: WrongBlocks | None = None,
) -> Iterator[Layout | Damage]:
    """Yield the records of a part, many together, and the damage between them.

    With `checksums`, a record that does not have its stored checksums is damage; with a `sample`
    below 1, only records that are `sampled` are checked. With `wrong_blocks`, all records of such a
    block are damage, unless a damaged record in it is the reason.
    """
    with Opened(part.root, part.path) as file:
        how_many = sample if checksums else 0
        yield from _Scan(part, file, sample=how_many, wrong_blocks=wrong_blocks).run()


def sampled(places: Longs, sample: float) -> Truths:
    """Return which records, by their positions in the log, are in a sample of this share.

    The log is divided into pieces of 64 KiB, which are chosen only by position: the fractional
    parts of the multiples of the golden ratio are spread evenly. So each stretch of the log has its
    share, and a larger sample contains a smaller one.
    """
    if sample >= 1:
        return np.ones(len(places), np.bool_)
    pieces = (places // BLOCK_SIZE).astype(np.uint64)
    chosen: Truths = pieces * _GOLDEN_RATIO < np.uint64(sample * 2**64)
    return chosen


class _Scan:
    """One pass over a part."""

    def __init__(
        self, part: Part, file: Opened, *, sample: float, wrong_blocks: WrongBlocks | None = None
    ) -> None:
        self._part = part
        self._file = file
        self._sample = sample
        self._wrong_blocks = wrong_blocks
        self._data = b""
        self._begin = 0  # Where in the file the data begins.
        self._doubtful: list[tuple[int, int]] = []  # Wrong blocks in it, without a reason.
        self.is_over = False  # Whether the filler of the file's end was reached.

    def run(self) -> Iterator[Layout | Damage]:
        yield from self._from(self._first())

    def _first(self) -> int:
        """Return where the first record of the part begins, or the end of the data if none does."""
        part = self._part
        if not part.start:
            return 0
        position = followed(part, self._file).end
        if position < part.start:  # A record longer than what was followed, or none.
            return self._next_sound(part.start, part.stop)
        return position if position < part.stop else part.limit

    def follow(self) -> Iterator[Layout | Damage]:
        """Yield the contents of the part, starting at the first place that looks like a record."""
        part = self._part
        yield from self._from(self._next_sound(part.start, part.stop) if part.start else 0)

    def holds_another(self, layout: Layout) -> bool:
        """Whether another record seems to begin within one of those that were yielded last."""
        first, end = int(layout.starts[0]), int(layout.ends[-1])
        if self._data.count(MAGIC_BEGIN, first, end + MAGIC_END) == len(layout.starts):
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
            if own < count:  # The first record of the next part is sound.
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
        """Make sure that bytes of the file are read; return where they are in the data."""
        have = self._begin + len(self._data)
        if position < self._begin or position + size > have:
            whole = BLOCK_SIZE if self._wrong_blocks else 1
            end = position + max(CHUNK_SIZE, size)
            end = min(end + -end % whole, self._part.limit)
            self._begin = position - position % whole
            self._data = self._file.read(max(end - self._begin, 0), self._begin)
            if self._wrong_blocks:
                self._doubtful = self._without_reason(self._wrong_blocks(self._data, self._begin))
        return position - self._begin

    def _without_reason(self, blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the wrong blocks that no damaged record touches."""
        if not blocks:
            return []
        start, stop, base = blocks[0][0], blocks[-1][1], self._part.base
        near = self._part._replace(start=max(start - _BODY_MAX, 0), stop=stop)
        damages = [found for found in scan(near, checksums=True) if isinstance(found, Damage)]
        return [
            (start, end)
            for start, end in blocks
            if not any(each.start < base + end and base + start < each.end for each in damages)
        ]

    def _reads_on(self, position: int) -> bool:
        """Read on if what begins here exceeds the data and, by its head, can be a record."""
        have = self._begin + len(self._data)
        at = position - self._begin
        if position >= self._part.limit:
            return False
        if have - position < RECORD_SIZE_MIN:
            size, is_record = RECORD_SIZE_MIN, True
        else:
            size, magic = head_at(self._data, at)
            is_record = magic in MAGICS and size >= RECORD_SIZE_MIN
        end = position + size
        if not is_record or end <= have or end > self._part.limit:
            return False
        self._reach(position, size)  # The data is read again, starting at the record.
        return self._begin + len(self._data) >= end

    def _is_blank(self, position: int) -> bool:
        """Whether the filler of a file's end is here; its size is that of the rest."""
        at = self._reach(position, _HEAD_SIZE)
        if len(self._data) - at < _HEAD_SIZE:
            return False
        return head_at(self._data, at) == (self._part.length - position, MAGIC_BLANK)

    def _damage(self, position: int) -> Damage:
        """Return what is wrong here, and where the log continues."""
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
            return "there are zeros where a record should begin"
        if magic not in MAGICS:
            return f"size {size} and magic {magic:#010x} are not the start of a record"
        if not RECORD_SIZE_MIN <= size <= rest:
            return f"it claims {size} bytes, but {rest} are left"
        at = self._reach(position, size)
        layout, good = lay_out(np.frombuffer(self._data, np.uint8), np.array([at, at + size]))
        if not good[0]:
            return "its lengths do not agree"
        if not at_their_place(layout, self._part.base + self._begin)[0]:
            return f"it claims to be at {int(layout.physical_offsets[0])}"
        return "its queue offset or queue id is negative"

    def _next_sound(self, position: int, stop: int) -> int:
        """Return where the first sound record between two places begins.

        If there is none, return the end of the data.
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
        """Yield the records; if checksums count, yield those with a wrong one as damage."""
        if not len(layout.starts):
            return
        base = self._part.base + self._begin
        first = 0
        for row, behind, reason in self._wrong_rows(layout):
            if row > first:
                yield layout.rows(slice(first, row))
            start, end = int(layout.starts[row]), int(layout.ends[behind - 1])
            yield Damage(base + start, base + end, reason)
            first = behind
        if first < len(layout.starts):
            yield layout.rows(slice(first, None))

    def _wrong_rows(self, layout: Layout) -> list[tuple[int, int, str]]:
        """Return rows that are damage, from one to before another, and why."""
        wrong = [(row, row + 1, reason) for row, reason in self._wrong(layout).items()]
        if not self._doubtful:
            return wrong
        doubtful = np.zeros(len(layout.starts) + 2, np.bool_)
        for start, end in self._doubtful:
            first = np.searchsorted(layout.ends, start - self._begin, "right")
            behind = np.searchsorted(layout.starts, end - self._begin)
            doubtful[first + 1 : behind + 1] = True
        changes = np.flatnonzero(doubtful[1:] != doubtful[:-1]).tolist()
        runs = zip(changes[::2], changes[1::2], strict=True)
        return sorted([*wrong, *((row, behind, _WRONG_BLOCK) for row, behind in runs)])

    def _wrong(self, layout: Layout) -> dict[int, str]:
        if not self._sample:
            return {}
        if self._sample >= 1:
            return wrong_checksums(layout)
        chosen = sampled(layout.physical_offsets, self._sample)
        rows = np.flatnonzero(chosen).tolist()
        found = wrong_checksums(layout.rows(chosen))
        return {rows[row]: reason for row, reason in found.items()}


class Followed(NamedTuple):
    """The consecutive records before a place of a file."""

    end: int
    """The end of the records or damage, or 0 without any; after the filler, the end of the data."""
    last: Sequence[Layout]
    """The last ones, as far back as a body that contains the place could begin."""


def found_end(found: Layout | Damage) -> int:
    """Return where in the log records or damage end."""
    if isinstance(found, Damage):
        return found.end
    return int(found.physical_offsets[-1] + found.sizes[-1])


def followed(part: Part, file: Opened) -> Followed:
    """Follow the records before a part, starting as far back as a body can be long."""
    start = max(part.start - _BODY_MAX, 0)
    return _followed(part, file, start) or cast("Followed", _followed(part, file, 0))


def _followed(part: Part, file: Opened, start: int) -> Followed | None:
    """Follow records, starting at a place; `None` if they may be in the bodies of others."""
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
