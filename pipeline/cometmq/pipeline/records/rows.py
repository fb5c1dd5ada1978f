"""Turning records into rows: unwrap batches stored as one record, and decompress bodies."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.errors import DamagedRecordError
from cometmq.pipeline.records.bodies import (
    COMPRESSED,
    INNER_BATCH,
    BodyError,
    decompressed,
    split_batch,
)
from cometmq.pipeline.records.layout import FLAG_AT, PHYSICAL_OFFSET_AT, follow, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.pipeline.records.layout import Layout, Truths

log = logging.getLogger(__name__)

_I32: Final = Struct(">i")
_FLAG_AND_QUEUE_OFFSET: Final = Struct(">iq")
_BODY_SIZE_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """How records become rows."""

    decompress: bool = True
    """Whether bodies are as sent rather than as stored."""
    unwrap: bool = True
    """Whether a batch that is stored as one record becomes a row for each of its messages."""
    strict: bool = True
    """Whether a body that is not what its flags say is an error; otherwise it is null."""
    skips_bodies: bool = False
    """Whether such a body is null even if `strict`, and is reported in the log.

    So is the body of an incomplete batch, which stays one row, as its messages are unknown.
    """
    rows_max: int = 8192
    """The most rows of a record batch; each batch costs Spark and Python some 500 rows' work."""
    size_max: int = 8 << 20
    """The most bytes of records, and of bodies, in a record batch of more than one row."""
    body_size_max: int = _BODY_SIZE_MAX
    """The most bytes of a decompressed body."""
    tags: frozenset[str] = frozenset()
    """Only messages with one of these tags; all if empty."""
    source: str = field(default="", compare=False)
    """What is read, for errors: a file or a queue."""


class Rows(NamedTuple):
    """Rows that become one record batch."""

    layout: Layout
    bodies: dict[int, bytes | None]
    """By row number, the bodies that differ from the stored ones."""


def rows_of(layout: Layout, how: Reading, *, wants_body: bool) -> Iterator[Rows]:
    """Yield the rows of these records, grouped by record batch."""
    for chosen in _cuts(layout, how):
        some = layout.rows(chosen)
        if how.unwrap and ((some.sys_flags & INNER_BATCH) == INNER_BATCH).any():
            some, broken = _unwrapped(some, how)
            for again in _cuts(some, how):
                yield from _decompressed(
                    some.rows(again), broken[again], how, wants_body=wants_body
                )
        else:
            yield from _decompressed(some, None, how, wants_body=wants_body)


def _cuts(layout: Layout, how: Reading) -> Iterator[slice]:
    """Divide the rows by number and by the size of their records."""
    sizes = np.cumsum(layout.ends - layout.starts)
    count, first, done = len(sizes), 0, 0
    while first < count:
        behind = int(np.searchsorted(sizes, done + how.size_max, "right"))
        last = min(max(behind, first + 1), first + how.rows_max)
        yield slice(first, last)
        first, done = last, int(sizes[last - 1])


def _decompressed(
    layout: Layout, broken: Truths | None, how: Reading, *, wants_body: bool
) -> Iterator[Rows]:
    """Yield the rows with their bodies, in smaller groups if bodies turn out to be large.

    Bodies of `broken` batches are skipped.
    """
    is_other = layout.sys_flags & COMPRESSED != 0
    if broken is not None:
        is_other |= broken
    others = np.flatnonzero(is_other)
    if not wants_body or not how.decompress or not len(others):
        yield Rows(layout, {})
        return
    first = size = 0
    bodies: dict[int, bytes | None] = {}
    for row in map(int, others):
        is_broken = broken is not None and broken[row]
        body = None if is_broken else _plain_body(layout, row, how)
        if body is not None:
            size += len(body)
        if size > how.size_max and row > first:
            yield Rows(layout.rows(slice(first, row)), bodies)
            first, size, bodies = row, len(body or b""), {}
        bodies[row - first] = body
    yield Rows(layout.rows(slice(first, None)), bodies)


def _plain_body(layout: Layout, row: int, how: Reading) -> bytes | None:
    stored = layout.raw[layout.body_starts[row] : layout.body_ends[row]].tobytes()
    try:
        return decompressed(stored, int(layout.sys_flags[row]), how.body_size_max)
    except BodyError as error:
        _tell(_damaged(layout, row, f"its body: {error}", how), how)
        return None


def _tell(damage: DamagedRecordError, how: Reading) -> None:
    if how.skips_bodies:
        log.warning("skipped: %s", damage)
    elif how.strict:
        raise damage from None


def _damaged(layout: Layout, row: int, reason: str, how: Reading) -> DamagedRecordError:
    at = layout.physical_offsets[row]
    topic = layout.raw[layout.topic_starts[row] : layout.topic_ends[row]].tobytes()
    queue, offset = layout.queue_ids[row], layout.queue_offsets[row]
    place = f"{topic.decode(errors='replace')}, queue {queue}, offset {offset}"
    return DamagedRecordError(int(at), f"{reason} ({place})", how.source)


def _unwrapped(layout: Layout, how: Reading) -> tuple[Layout, Truths]:
    """Return the records, with each inner batch replaced by a record for each of its messages.

    Also return which of them are incomplete batches, whose bodies are to be skipped.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    flags: list[int] = []
    broken: list[bool] = []
    for row in range(len(layout.starts)):
        start, end = int(layout.starts[row]), int(layout.ends[row])
        flag = int(layout.sys_flags[row])
        records, is_broken = None, False
        if flag & INNER_BATCH == INNER_BATCH:
            records = _inner_records(layout, row, how)
            # Their bodies are not compressed; the flags that are shown stay those of the batch.
            flag &= ~COMPRESSED if records else ~0
            is_broken = how.skips_bodies and not records
        records = records or [layout.raw[start:end].tobytes()]
        parts += records
        sizes += [int(layout.sizes[row])] * len(records)
        flags += [flag] * len(records)
        broken += [is_broken] * len(records)
    joined = b"".join(parts)
    borders, _ = follow(joined, 0, len(joined))
    made, good = lay_out(np.frombuffer(joined, np.uint8), borders)
    assert good.all()
    assert len(good) == len(sizes)
    made = made._replace(sizes=np.array(sizes, np.int64), sys_flags=np.array(flags, np.int32))
    return made, np.array(broken, np.bool_)


def _inner_records(layout: Layout, row: int, how: Reading) -> list[bytes] | None:
    """Return the messages of a batch, each in a record like the batch's."""
    raw = layout.raw
    start, body_start = int(layout.starts[row]), int(layout.body_starts[row])
    head = raw[start : body_start - _I32.size].tobytes()
    topic = raw[layout.body_ends[row] : layout.topic_ends[row]].tobytes()
    properties = raw[layout.topic_ends[row] + 2 : layout.ends[row]].tobytes()
    queue_offset = int(layout.queue_offsets[row])
    try:
        body = raw[body_start : layout.body_ends[row]].tobytes()
        if layout.sys_flags[row] & COMPRESSED:
            body = decompressed(body, int(layout.sys_flags[row]), how.body_size_max)
        items = split_batch(body, properties)
    except BodyError as error:
        _tell(_damaged(layout, row, f"its batch: {error}", how), how)
        return None
    records: list[bytes] = []
    for number, (flag, one, of_one) in enumerate(items):
        size = len(head) + _I32.size + len(one) + len(topic) + 2 + len(of_one)
        records.append(
            b"".join(
                (
                    _I32.pack(size),
                    head[_I32.size : FLAG_AT],
                    _FLAG_AND_QUEUE_OFFSET.pack(flag, queue_offset + number),
                    head[PHYSICAL_OFFSET_AT:],
                    _I32.pack(len(one)),
                    one,
                    topic,
                    len(of_one).to_bytes(2, "big"),
                    of_one,
                )
            )
        )
    return records
