"""Batches whose messages are all of one size: their records are made as one matrix, a row for each.

Senders of readings, ticks or rows of a table have such batches. Made one by one, their records cost
1.3 µs a message; numpy makes them column by column, at a cost per column. The items must fulfil the
same conditions as in `QuickPuts`, and the result is the same, byte for byte. Unless they surely do,
the result is None, and the items have to be looked at one by one.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.proto.batch import ITEM_HEAD_SIZE, unpack_item_head
from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.record import (
    BODY_CRC_AT,
    HEAD_SIZE,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    RECORD_HEAD_SHARED,
)
from cometmq.store.messages.dispatch import UNIQUE_ID
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

COUNT_MIN: Final = 16
"""With fewer messages, looking at each costs less."""
COUNT_MAX: Final = 4096
"""A cached `Struct` that cuts this many takes 150 KB."""

_PROPERTIES_SIZE: Final = struct.Struct(">h")
_PROPERTIES_SIZE_SIZE: Final = _PROPERTIES_SIZE.size
_CRC_MASK: Final = np.uint32(CRC_MASK)
_U32: Final = np.dtype(">u4")
_I64: Final = np.dtype(">i8")


class EvenRecords(NamedTuple):
    """The records and entries of a batch's messages."""

    record_count: int
    record_size: int
    records: bytearray
    entries: tuple[bytes, ...]
    properties: bytes
    """Those of all messages, as they came, one after another."""


def even_records(
    raw: bytes,
    topic_part: bytes,
    more: bytes,
    codes: Mapping[bytes, int],
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    shared: bytes,
    limit: int,
) -> EvenRecords | None:
    """Make the records of a batch's body; None if its items are not all alike and known.

    `more` is added to the properties of each, and no record may end after `limit`. What follows the
    unique id of the first message, with `more`, must be among `codes`.
    """
    item_size, flag, body_size = unpack_item_head(raw, 0)
    body_end = ITEM_HEAD_SIZE + body_size
    properties_at = body_end + _PROPERTIES_SIZE_SIZE
    properties_size = item_size - properties_at
    if properties_size <= len(UNIQUE_ID) or len(raw) % item_size:
        return None
    count = len(raw) // item_size
    pair, _, tail = raw[properties_at:item_size].partition(b"\x02")
    code = codes.get(tail + more)
    id_at, id_end = properties_at + len(UNIQUE_ID), properties_at + len(pair)
    size = HEAD_SIZE + body_size + len(topic_part) + _PROPERTIES_SIZE_SIZE
    size += properties_size + len(more)
    if (
        not COUNT_MIN <= count <= COUNT_MAX
        or code is None
        or raw[item_size - 1] != raw[id_end]
        or physical_offset + count * size > limit
    ):
        return None
    rows = np.frombuffer(raw, np.uint8).reshape(count, item_size)
    ids = rows[:, id_at:id_end].tobytes()
    head, middle = raw[:ITEM_HEAD_SIZE], _PROPERTIES_SIZE.pack(properties_size) + UNIQUE_ID
    # A separator would end an id, and a NUL in properties needs a checksum of its record.
    if (
        rows[:, :ITEM_HEAD_SIZE].tobytes() != head * count
        or rows[:, body_end:id_at].tobytes() != middle * count
        or rows[:, id_end:].tobytes() != (b"\x02" + tail) * count
        or ids.find(b"\x02") >= 0
        or ids.find(b"\0") >= 0
    ):
        return None
    head = RECORD_HEAD_SHARED.pack(
        size, MAGIC_V1, 0, queue_id, flag, queue_offset, physical_offset, shared, body_size
    )
    middle = topic_part + _PROPERTIES_SIZE.pack(properties_size + len(more))
    # Repeat the first record for all records, and then set what differs.
    first = head + raw[ITEM_HEAD_SIZE:body_end] + middle + raw[properties_at:item_size] + more
    records = bytearray(first) * count
    places = np.arange(physical_offset, physical_offset + count * size, size)
    checksums = map(crc32, _bodies_of(count, body_size, item_size).unpack(raw))
    _u32s(records, BODY_CRC_AT, size)[:] = np.fromiter(checksums, np.uint32, count) & _CRC_MASK
    _i64s(records, QUEUE_OFFSET_AT, size)[:] = np.arange(queue_offset, queue_offset + count)
    _i64s(records, PHYSICAL_OFFSET_AT, size)[:] = places
    written = np.frombuffer(records, np.uint8).reshape(count, size)
    at = HEAD_SIZE + body_size
    written[:, HEAD_SIZE:at] = rows[:, ITEM_HEAD_SIZE:body_end]
    at += len(middle)
    written[:, at : at + properties_size] = rows[:, properties_at:]
    entries = bytearray(ENTRY.pack(0, size, code)) * count
    _i64s(entries, 0, ENTRY_SIZE)[:] = places
    properties = rows[:, properties_at:].tobytes()
    return EvenRecords(count, size, records, _entries_of(count).unpack(entries), properties)


def _u32s(rows: bytearray, at: int, row_size: int) -> npt.NDArray[np.uint32]:
    """Return four bytes of each row as a number."""
    return np.ndarray((len(rows) // row_size,), _U32, rows, at, (row_size,))


def _i64s(rows: bytearray, at: int, row_size: int) -> npt.NDArray[np.int64]:
    """Return eight bytes of each row as a number."""
    return np.ndarray((len(rows) // row_size,), _I64, rows, at, (row_size,))


@lru_cache(maxsize=16)
def _bodies_of(count: int, body_size: int, item_size: int) -> struct.Struct:
    """Return a struct that cuts the bodies out of a batch."""
    behind = item_size - ITEM_HEAD_SIZE - body_size
    return struct.Struct(f"{ITEM_HEAD_SIZE}x{body_size}s{behind}x" * count)


@lru_cache(maxsize=64)
def _entries_of(count: int) -> struct.Struct:
    """Return a struct that cuts `count` entries."""
    return struct.Struct(f"{ENTRY_SIZE}s" * count)
