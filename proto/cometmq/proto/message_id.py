"""The two ids of a message, both as hexadecimal text.

The offset id says where a record is; a broker that gets such an id reads the record from there:

=======  =================================================
4 or 16  address of the broker
4        its port, i32
8        physical offset of the record
=======  =================================================

The unique id is made by the producer before its first attempt, and stays the same in further
attempts. Brokers index it as text, so its case matters:

=======  =================================================
4 or 16  address of the producer
2        its process id, low bits
4        instance: distinguishes producers otherwise alike
4        ms since the 1st of the month, 00:00 local time
2        counter
=======  =================================================

A month has more milliseconds than an i32: writers let the number wrap, readers read it as unsigned.
"""

from __future__ import annotations

import struct
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.proto.errors import LocalProtocolError, MessageError
from cometmq.proto.host import PACKED_IPV4_SIZE, PACKED_IPV6_SIZE, Host, unpack_host

if TYPE_CHECKING:
    from collections.abc import Sequence

_I64 = struct.Struct(">q")
_TAIL = struct.Struct(">HIIH")
assert _TAIL.size == 12

_CLOCK_STEP_MS: Final = 1_000_000
"""If a clock steps back across a month's start by less than this, ids get the time of the start."""


class OffsetId(NamedTuple):
    """Where a record is."""

    host: bytes
    """The packed host: see `host`."""
    physical_offset: int

    @property
    def address(self) -> Host:
        """The broker's address and port."""
        return unpack_host(self.host)


class UniqueId(NamedTuple):
    """The parts of a message's unique id."""

    address: bytes
    process_id: int
    instance: int
    time_in_month_ms: int
    counter: int


def encode_offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the offset id of the record at a place; the host is packed."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def encode_offset_ids(store_host: bytes, physical_offsets: Sequence[int]) -> str:
    """Return the offset ids of records, joined by commas, as in the answer to a batch."""
    host = store_host.hex().upper()
    offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
    return host + offsets.hex(",", 8).upper().replace(",", "," + host)


def decode_offset_id(text: str) -> OffsetId:
    """Return the parts of an offset id."""
    raw = _from_hex(text, "offset id", PACKED_IPV4_SIZE + 8, PACKED_IPV6_SIZE + 8)
    return OffsetId(raw[:-8], _I64.unpack_from(raw, len(raw) - 8)[0])


def decode_unique_id(text: str) -> UniqueId:
    """Return the parts of a unique id, in any case: Go's clients write the tail in lower case."""
    raw = _from_hex(text, "unique id", 4 + _TAIL.size, 16 + _TAIL.size)
    return UniqueId(raw[: -_TAIL.size], *_TAIL.unpack_from(raw, len(raw) - _TAIL.size))


def unique_id_time_ms(text: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Return when a unique id was made: in this month, or in the last if that is in the future.

    Raises a `MessageError` if it is not a unique id, and a `ValueError` if `now_ms` is outside the
    calendar.
    """
    time_in_month_ms = decode_unique_id(text).time_in_month_ms
    this_month_ms = month_start_ms(now_ms, 0, zone)
    if this_month_ms + time_in_month_ms < now_ms:
        return this_month_ms + time_in_month_ms
    return month_start_ms(now_ms, -1, zone) + time_in_month_ms


def month_start_ms(now_ms: int, months: int = 0, zone: tzinfo | None = None) -> int:
    """Return when this month began, or the one `months` later; without a zone, in local time."""
    try:
        now = datetime.fromtimestamp(now_ms / 1000, zone)
        month = now.year * 12 + now.month - 1 + months
        return int(datetime(month // 12, month % 12 + 1, 1, tzinfo=zone).timestamp() * 1000)
    except (OverflowError, OSError, ValueError) as error:
        raise ValueError(f"{now_ms} ms is not a time of the calendar: {error}") from None


def _from_hex(text: str, what: str, *sizes: int) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise MessageError(f"{what}: {text[:64]!r} is not hexadecimal") from None
    if len(text) != 2 * len(raw) or len(raw) not in sizes:
        raise MessageError(f"{what}: {len(text)} characters, not {sizes[0] * 2} or {sizes[1] * 2}")
    return raw


_INSTANCE_STEP: Final = 0x9E3779B1
"""Odd, so that a producer has 2 ** 32 names before one repeats."""


class UniqueIds:
    """Makes the unique ids of one producer.

    It has no clock: each id is made for the time passed in. Two producers in one process with the
    same address need different `instance` numbers. The last 12 characters increase from id to id as
    long as the first 20 stay the same, which is until the month ends.
    """

    def __init__(
        self,
        address: bytes,
        process_id: int,
        instance: int,
        *,
        counter: int = 0,
        zone: tzinfo | None = None,
    ) -> None:
        if len(address) not in (4, 16):
            raise LocalProtocolError(f"unique id: an address of {len(address)} bytes, not 4 or 16")
        self._address = address
        self._process_id = process_id & 0xFFFF
        self._instance = instance
        self._prefix = ""
        self._last = -1
        self._counter = counter
        self._zone = zone
        self._month_start_ms = 0
        self._month_end_ms = 0

    def make(self, now_ms: int) -> str:
        """Return the next id."""
        if now_ms >= self._month_end_ms:
            self._begin_month()
            self._month_start_ms = month_start_ms(now_ms, 0, self._zone)
            self._month_end_ms = month_start_ms(now_ms, 1, self._zone)
        time_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_MS < time_ms < 0:
            time_ms = 0
        number = (time_ms & 0xFFFFFFFF) << 16 | self._counter & 0xFFFF
        self._counter += 1
        if number <= self._last:  # The counter has wrapped, or the clock was set back.
            number = self._last + 1
        self._last = number
        return f"{self._prefix}{number:012X}"

    def make_several(self, now_ms: int, count: int) -> list[str]:
        """Return the next ids, as `make` would for this time; they are consecutive."""
        if count < 1:
            return []
        made = [self.make(now_ms)]
        prefix, first = self._prefix, self._last + 1
        self._last += count - 1
        self._counter += count - 1
        made += [f"{prefix}{number:012X}" for number in range(first, first + count - 1)]
        return made

    def _begin_month(self) -> None:
        """Use another producer name, because the time in the ids begins again each month."""
        tail = _TAIL.pack(self._process_id, self._instance & 0xFFFFFFFF, 0, 0)
        self._prefix = (self._address + tail[:6]).hex().upper()
        self._instance += _INSTANCE_STEP
        self._last = -1
