"""The records that replace damaged bytes in the log, see `repairing`."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.proto.record import MAGIC_BLANK, encode_record, record_size
from cometmq.proto.sysflag import SysFlag, TransactionType
from cometmq.store.errors import CorruptionError
from cometmq.store.log.fillers import FILLER_TOPIC, NOBODY
from cometmq.store.log.turn import BLANK_SIZE
from cometmq.store.messages.dispatch import BATCH_COUNT_MAX

if TYPE_CHECKING:
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage

LOST_PROPERTY: Final = b"COMETMQ_LOST\x01true\x02"
PADDING_MAX: Final = 30_000
"""Less than the 32767 bytes that properties may have."""
_BLANK: Final = struct.Struct(">iI")
_FILLER_SIZE: Final = record_size(len(FILLER_TOPIC), 0, 0)


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages of one queue whose records are damaged."""

    topic: str
    queue_id: int
    queue_offset: int
    count: int


class _Room(NamedTuple):
    """The part of a damaged range that is in one segment."""

    start: int
    end: int
    is_segment_end: bool


def fill(
    store: Inspected, damage: Damage, lost: list[Lost], store_timestamp: int
) -> list[tuple[int, bytes]]:
    """Return what to write into a damaged range, by physical offsets.

    Raise `CorruptionError` if the messages do not fit, which means that they were not there.
    """
    try:
        return _fill(store, damage, lost, store_timestamp, LOST_PROPERTY)
    except CorruptionError:
        return _fill(store, damage, lost, store_timestamp, b"")


def _fill(
    store: Inspected, damage: Damage, lost: list[Lost], store_timestamp: int, mark: bytes
) -> list[tuple[int, bytes]]:
    singles = deque(each for group in lost for each in _split(store, group))
    written: list[tuple[int, bytes]] = []
    for room in _rooms(damage, store.segments.size):
        at = room.start
        reserve = BLANK_SIZE if room.is_segment_end else 0
        while singles and at + _size(singles[0], mark) + reserve <= room.end:
            one = singles.popleft()
            size = _size(one, mark)
            rest = room.end - at - size
            next_size = _size(singles[0], mark) if singles else _FILLER_SIZE
            if not room.is_segment_end and rest < next_size:
                size += rest  # The rest is too little for another record.
            written.append((at, _placeholder(one, at, size, mark, store_timestamp)))
            at += size
        if at < room.end:
            written.append((at, _rest(store, at, room, store_timestamp)))
    if singles:
        raise _no_room(store, damage.start, f"{len(singles)} messages do not fit")
    return written


def _split(store: Inspected, lost: Lost) -> list[Lost]:
    """Return one message each; for a batch topic, as many as one record may have."""
    step = BATCH_COUNT_MAX if store.is_batch_topic(lost.topic) else 1
    ends = range(lost.queue_offset, lost.queue_offset + lost.count, step)
    last = lost.queue_offset + lost.count
    return [Lost(lost.topic, lost.queue_id, at, min(step, last - at)) for at in ends]


def _properties(one: Lost, mark: bytes) -> bytes:
    if one.count > 1:
        return mark + b"INNER_NUM\x01%d\x02INNER_BASE\x01%d\x02" % (one.count, one.queue_offset)
    return mark


def least_size(one: Lost) -> int:
    """Return the size of the record that stands for a message, or a batch, without a mark."""
    return _size(one, b"")


def _size(one: Lost, mark: bytes) -> int:
    return record_size(len(one.topic.encode()), 0, len(_properties(one, mark)))


def _placeholder(one: Lost, at: int, size: int, mark: bytes, store_timestamp: int) -> bytes:
    """Return a message without a body; spaces in the mark's value fill it up to a size."""
    is_batch = one.count > 1
    rest = size - _size(one, mark)
    if mark and rest <= PADDING_MAX:
        mark, rest = mark[:-1] + b" " * rest + mark[-1:], 0
    return encode_record(
        topic=one.topic.encode(),
        body=bytes(rest),
        properties=_properties(one, mark),
        queue_id=one.queue_id,
        queue_offset=one.queue_offset,
        physical_offset=at,
        born_timestamp=store_timestamp,
        born_host=NOBODY,
        store_timestamp=store_timestamp,
        store_host=NOBODY,
        sys_flag=(SysFlag.INNER_BATCH | SysFlag.NEEDS_UNWRAP).value if is_batch else 0,
    )


def _rest(store: Inspected, at: int, room: _Room, store_timestamp: int) -> bytes:
    """Return what fills the rest of a range: a blank record at a segment's end, or a filler."""
    size = room.end - at
    if room.is_segment_end:
        return _BLANK.pack(size, MAGIC_BLANK)
    if size < _FILLER_SIZE - len(FILLER_TOPIC) + 1:
        raise _no_room(store, at, f"no record fits into {size} bytes")
    topic = FILLER_TOPIC[: max(1, len(FILLER_TOPIC) - max(0, _FILLER_SIZE - size))]
    return encode_record(
        topic=topic,
        body=bytes(size - record_size(len(topic), 0, 0)),
        properties=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=at,
        born_timestamp=store_timestamp,
        born_host=NOBODY,
        store_timestamp=store_timestamp,
        store_host=NOBODY,
        sys_flag=TransactionType.ROLLED_BACK.value,
    )


def _rooms(damage: Damage, segment_size: int) -> list[_Room]:
    rooms: list[_Room] = []
    at = damage.start
    while at < damage.end:
        segment_end = at - at % segment_size + segment_size
        rooms.append(_Room(at, min(damage.end, segment_end), segment_end <= damage.end))
        at = segment_end
    return rooms


def _no_room(store: Inspected, offset: int, problem: str) -> CorruptionError:
    return CorruptionError(
        *store.segments.place_of(offset),
        f"cannot be stepped over: {problem}; restore the file from a copy, or end the log here"
        " with `cometmq store repair --cut`",
    )
