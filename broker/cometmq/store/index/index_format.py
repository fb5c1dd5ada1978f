"""The index file: a hash table on disk, from a key to the records that have it, newest first.

A file has a header, `slots` slots and room for `items` items; it is made at full length, sparse.

Header:

==  ====  ============================================================================
at  size  field (big-endian)
==  ====  ============================================================================
0   8     begin: store time of the first record, ms
8   8     end: store time of the last record, ms
16  8     begin: physical offset of the first record
24  8     end: physical offset of the last record
32  4     how many slots are used
36  4     the number of the next item; item 0 is never used, so it starts at 1
==  ====  ============================================================================

A slot has 4 bytes: the number of the newest item whose key falls in it, or 0. An item:

==  ====  ============================================================================
0   4     hash of the key, made positive; its slot is the hash modulo `slots`
4   8     physical offset of the record
12  4     seconds between the file's begin and the record's store time
16  4     the number of the slot's previous item, 0 for none
==  ====  ============================================================================

A file that follows a full one starts with the end of that file as its begin and its end, until its
first item sets the begin; that item's seconds still count from the old begin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER: Final = Struct(">qqqqii")
HEADER_SIZE: Final = 40
SLOT: Final = Struct(">i")
SLOT_SIZE: Final = 4
ITEM: Final = Struct(">iqii")
ITEM_SIZE: Final = 20
assert (HEADER.size, SLOT.size, ITEM.size) == (HEADER_SIZE, SLOT_SIZE, ITEM_SIZE)

SECONDS_MAX: Final = 0x7FFFFFFF
COUNT_MAX: Final = 0x7FFFFFFF
"""Limit of the slots, or items, of a file: their numbers have 4 bytes."""


class IndexShape(NamedTuple):
    """How many slots and items each file of a store has."""

    slots: int
    items: int

    @property
    def items_at(self) -> int:
        """Where item 0 would be."""
        return HEADER_SIZE + self.slots * SLOT_SIZE

    @property
    def file_size(self) -> int:
        """The length of each file."""
        return self.items_at + self.items * ITEM_SIZE


@dataclass(slots=True)
class IndexHeader:
    """The first bytes of an index file."""

    begin_time: int = 0
    end_time: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    next_item: int = 1

    @classmethod
    def unpack(cls, data: bytes) -> IndexHeader:
        """Read a header; one that was never written reads as that of an empty file."""
        header = cls(*HEADER.unpack(data.ljust(HEADER_SIZE, b"\0")[:HEADER_SIZE]))
        header.next_item = max(1, header.next_item)
        return header

    def pack(self) -> bytes:
        """Return the stored form."""
        return HEADER.pack(
            self.begin_time,
            self.end_time,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_item,
        )

    @property
    def is_begun(self) -> bool:
        """Whether the file has items; without a time it has none, whatever a power cut left."""
        return self.next_item > 1 and self.begin_time > 0

    def successor(self) -> IndexHeader:
        """Return the header with which the next file starts."""
        return IndexHeader(self.end_time, self.end_time, self.end_offset, self.end_offset)


def begun_before(headers: Sequence[IndexHeader], physical_offset: int) -> list[int]:
    """Return the numbers of the files that begin before an offset.

    A torn header after them may contain anything except that its file follows the previous one.
    """
    found, end = list[int](), 0
    for number, header in enumerate(headers):
        if header.is_begun and end <= header.begin_offset < physical_offset:
            found.append(number)
            end = header.end_offset
    return found


class _Headed(Protocol):
    """An index file, with its header."""

    header: IndexHeader


_File = TypeVar("_File", bound=_Headed)


def in_log_order(files: list[_File]) -> list[_File]:
    """Return files, given by name, in the order of their records, if the headers show one.

    Names are the local times at which files were made: in Apache's stores that is another order if
    the clock, or the time zone, went back between two files.
    """
    begun = [file for file in files if file.header.is_begun]
    ordered = sorted(begun, key=lambda file: file.header.begin_offset)
    if ordered == begun or any(
        one.header.end_offset > following.header.begin_offset
        for one, following in pairwise(ordered)
    ):
        return files
    return ordered + [file for file in files if not file.header.is_begun]


def positive_hash(java_hash: int) -> int:
    """Return a string's hash for the index: Java's absolute value, or 0 if it has none."""
    return 0 if java_hash == -0x80000000 else abs(java_hash)


def index_name(now_ms: int) -> str:
    """Return a file's name: the local time, to the millisecond."""
    local = time.localtime(now_ms // 1000)
    return f"{time.strftime('%Y%m%d%H%M%S', local)}{now_ms % 1000:03d}"
