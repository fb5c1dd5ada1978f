"""Finding the parts of records, for many records at once.

=====  =======  ==========================================================================
at     size     field (big-endian; offsets are for two IPv4 hosts)
=====  =======  ==========================================================================
0      4        total size, this field included
4      4        magic: 0xDAA320A7 version 1, 0xDAA320AB version 2
8      4        CRC-31 of the body as it is stored
12     4        queue id
16     4        the user's flag
20     8        queue offset
28     8        physical offset
36     4        sysFlag
40     8        born timestamp, ms
48     8 / 20   born host; 20 bytes with sysFlag 0x10
56     8        store timestamp, ms
64     8 / 20   store host; 20 bytes with sysFlag 0x20
72     4        reconsume times
76     8        prepared transaction offset
84     4, n     body: length, bytes
..     1 / 2,n  topic: length, UTF-8; two bytes of length in version 2
..     2, n     properties: length, name 0x01 value 0x02 repeated
=====  =======  ==========================================================================

`cometmq.proto` reads the same format one record at a time, and has more on it, but executors do not
have what it needs.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from cometmq.pipeline.errors import DamagedRecordError

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes: TypeAlias = "npt.NDArray[np.uint8]"
    Longs: TypeAlias = "npt.NDArray[np.int64]"
    Truths: TypeAlias = "npt.NDArray[np.bool_]"

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
"""The magic of the filler of a log file's end; its size is that of the rest."""

RECORD_SIZE_MIN: Final = 91
REGION_SIZE_MAX: Final = (1 << 31) - 1
"""The most bytes that are handled together: Arrow's offsets have 32 bits."""

_HEAD: Final = Struct(">iI").unpack_from
_SIZE: Final = Struct(">i").unpack_from
FLAG_AT: Final = 16
PHYSICAL_OFFSET_AT: Final = 28
_BODY_CRC_AT: Final = 8
_QUEUE_ID_AT: Final = 12
_QUEUE_OFFSET_AT: Final = 20
_SYS_FLAG_AT: Final = 36
_STORE_TIME_AT: Final = 56
_HEAD_SIZE: Final = 88
_BORN_IPV6: Final = 0x10
STORE_IPV6: Final = 0x20
IPV6_HOSTS: Final = _BORN_IPV6 | STORE_IPV6
_LONGER_BY: Final = 12
"""How many bytes longer an IPv6 host is than an IPv4 host."""
_TOPIC_SIZE_V1_MAX: Final = 127
_ALIKE_MIN: Final = 8
"""After so many records of one size, look for more of that size at once."""
_ALIKE_MAX: Final = 4096
_SIGN: Final = 0x80
"""The bit of a number's first byte that makes it negative."""
SIZE_MAX: Final = 32767
"""The largest size of a topic in version 2, and of properties: signed 16-bit numbers."""


def int32s(raw: Bytes, at: Longs) -> npt.NDArray[np.int32]:
    """Return the 32-bit numbers at these places."""
    return np.ndarray(max(len(raw) - 3, 0), ">i4", raw, strides=(1,))[at].astype(np.int32)


def int64s(raw: Bytes, at: Longs) -> Longs:
    """Return the 64-bit numbers at these places."""
    return np.ndarray(max(len(raw) - 7, 0), ">i8", raw, strides=(1,))[at].astype(np.int64)


def _uint16s(raw: Bytes, at: Longs) -> Longs:
    return np.ndarray(max(len(raw) - 1, 0), ">u2", raw, strides=(1,))[at].astype(np.int64)


def head_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the size and the magic at a place."""
    return _HEAD(data, at)


class Layout(NamedTuple):
    """Where the parts of each record are in `raw`; a row for each record."""

    raw: Bytes
    starts: Longs
    ends: Longs
    sys_flags: npt.NDArray[np.int32]
    body_starts: Longs
    body_ends: Longs
    topic_starts: Longs
    topic_ends: Longs
    sizes: Longs
    """The sizes of the records; for a message from an inner batch, that of the batch's record."""

    @property
    def property_starts(self) -> Longs:
        """Where the properties begin; they end where the record does."""
        return self.topic_ends + 2

    @property
    def born_shift(self) -> Longs:
        """How much longer the born host is than an IPv4 host."""
        return (self.sys_flags & _BORN_IPV6).astype(np.int64) // _BORN_IPV6 * _LONGER_BY

    @property
    def body_crcs(self) -> npt.NDArray[np.int32]:
        """The stored checksum of each body."""
        return int32s(self.raw, self.starts + _BODY_CRC_AT)

    @property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        """The queue of each record."""
        return int32s(self.raw, self.starts + _QUEUE_ID_AT)

    @property
    def queue_offsets(self) -> Longs:
        """Where each record is in its queue."""
        return int64s(self.raw, self.starts + _QUEUE_OFFSET_AT)

    @property
    def physical_offsets(self) -> Longs:
        """Where in the log each record is, by its own field."""
        return int64s(self.raw, self.starts + PHYSICAL_OFFSET_AT)

    @property
    def store_times_ms(self) -> Longs:
        """When each record was stored."""
        return int64s(self.raw, self.starts + _STORE_TIME_AT + self.born_shift)

    def rows(self, chosen: slice | Truths) -> Layout:
        """Return the layout of some of the records."""
        return Layout(
            self.raw,
            self.starts[chosen],
            self.ends[chosen],
            self.sys_flags[chosen],
            self.body_starts[chosen],
            self.body_ends[chosen],
            self.topic_starts[chosen],
            self.topic_ends[chosen],
            self.sizes[chosen],
        )


def follow(data: bytes | memoryview, at: int, limit: int) -> tuple[Longs, int]:
    """Follow the sizes from record to record, starting at `at`.

    Return where each record begins, followed by the end of the last; and the magic that was found
    there instead of another record, or 0 if `limit` leaves no room for one. A size that leads past
    the limit, or is too small for a record, ends the search as a wrong magic does.
    """
    borders = [at]
    add = borders.append
    alike = last_size = 0
    room = limit - RECORD_SIZE_MIN
    while at <= room:
        (size,) = _SIZE(data, at)
        if size < RECORD_SIZE_MIN:
            break
        at += size
        add(at)
        if size != last_size:
            last_size = size
            alike = 0
            continue
        alike += 1
        if alike == _ALIKE_MIN:
            count = _alike(data, at, size, limit)
            borders.extend(range(at + size, at + size * count + 1, size))
            at += size * count
            alike = 0
    found = np.array(borders if at <= limit else borders[:-1], np.int64)
    # Checked for all together, which is cheaper: the Python loop does as little as possible.
    count = _sound_magics(data, found[:-1])
    end = int(found[count])
    return found[: count + 1], head_at(data, end)[1] if end <= room else 0


def _alike(data: bytes | memoryview, at: int, size: int, limit: int) -> int:
    """Return how many records of this size follow each other from a place on."""
    count = min((limit - at) // size, _ALIKE_MAX)
    if count <= 0:
        return 0
    others = np.ndarray(count, ">i4", data, at, (size,)) != size
    return int(np.argmax(others)) if others.any() else count


def _sound_magics(data: bytes | memoryview, starts: Longs) -> int:
    """Return how many records have a valid magic, up to the first that does not."""
    if not len(starts):
        return 0
    magics = np.ndarray(len(data) - 3, ">u4", data, strides=(1,))[starts + 4]
    others = (magics != MAGIC_V1) & (magics != MAGIC_V2)
    return int(np.argmax(others)) if others.any() else len(starts)


def lay_out(raw: Bytes, borders: Longs) -> tuple[Layout, Truths]:
    """Return the parts of records that `follow` found, and for which the lengths agree."""
    starts, ends = borders[:-1], borders[1:]
    magics = int32s(raw, starts + 4).view(np.uint32)
    flags = int32s(raw, starts + _SYS_FLAG_AT)
    wide = (magics == MAGIC_V2).astype(np.int64)
    ipv6_hosts = ((flags >> 4) & 1) + ((flags >> 5) & 1)
    body_starts = starts + _HEAD_SIZE + _LONGER_BY * ipv6_hosts.astype(np.int64)
    # Never look outside a record: positions that would lead there are replaced by its start.
    good = body_starts + 3 + wide <= ends
    body_starts = np.where(good, body_starts, starts + 4)
    body_sizes = int32s(raw, body_starts - 4).astype(np.int64)
    body_ends = body_starts + body_sizes
    good &= (body_sizes >= 0) & (body_ends + 3 + wide <= ends)
    body_ends = np.where(good, body_ends, starts)
    topic_sizes = raw[body_ends].astype(np.int64)
    topic_sizes_max: Longs | int = _TOPIC_SIZE_V1_MAX
    if wide.any():
        topic_sizes = np.where(wide == 1, _uint16s(raw, body_ends), topic_sizes)
        topic_sizes_max = np.where(wide == 1, SIZE_MAX, _TOPIC_SIZE_V1_MAX)
    topic_starts = body_ends + 1 + wide
    topic_ends = topic_starts + topic_sizes
    good &= (topic_ends + 2 <= ends) & (topic_sizes <= topic_sizes_max)
    topic_ends = np.where(good, topic_ends, starts)
    property_sizes = _uint16s(raw, topic_ends)
    good &= (property_sizes <= SIZE_MAX) & (topic_ends + 2 + property_sizes == ends)
    layout = Layout(
        raw, starts, ends, flags, body_starts, body_ends, topic_starts, topic_ends, ends - starts
    )
    return layout, good


def at_their_place(layout: Layout, physical_offset: int) -> Truths:
    """Whether each record's physical offset is right, if `raw` begins at an offset of a log."""
    found: Truths = layout.physical_offsets == layout.starts + physical_offset
    return found


def are_numbered(layout: Layout) -> Truths:
    """Whether each record's queue id and queue offset are valid, that is, not negative."""
    signs = layout.raw[layout.starts + _QUEUE_ID_AT] | layout.raw[layout.starts + _QUEUE_OFFSET_AT]
    found: Truths = signs < _SIGN
    return found


def answer_layout(data: bytes | memoryview, source: str = "answer") -> Layout:
    """Lay out the records of a pull answer, which consists only of records.

    Otherwise raise `DamagedRecordError`, which names the source.
    """
    if len(data) > REGION_SIZE_MAX:
        raise DamagedRecordError(REGION_SIZE_MAX, f"{len(data)} bytes are too many at once")
    raw = np.frombuffer(data, np.uint8)
    borders, _ = follow(data, 0, len(data))
    end = int(borders[-1])
    layout, good = lay_out(raw, borders)
    if not good.all():
        place = int(layout.starts[np.argmin(good)])
        raise DamagedRecordError(place, "its lengths do not agree", source)
    if end != len(data):
        raise DamagedRecordError(end, what_begins(data, end), source)
    return layout


def what_begins(data: bytes | memoryview, at: int) -> str:
    """Say why no record begins at a place."""
    room = len(data) - at
    if room < RECORD_SIZE_MIN:
        return f"{room} bytes are too few for a record"
    size, magic = head_at(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"size {size} and magic {magic:#010x} do not begin a record"
    return f"it claims {size} bytes, but {room} are left"
