"""The checksums in the records of a log: of the body, and of the whole record where it has one.

A broker may end each record with a property `__CRC32#`, a checksum of all bytes before it: ten
digits, the last one first, in the last 20 bytes of the record. `cometmq.proto.record` has more on
it, and judges in the same way.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cometmq.pipeline.records.layout import Layout, Longs

WRONG_BODY: Final = "the checksum of its body is wrong"
WRONG_RECORD: Final = "the checksum of the record is wrong"

_MASK: Final = 0x7FFFFFFF
_NAME: Final = b"__CRC32#"
_HEAD: Final = _NAME + b"\x01"
_DIGITS: Final = 10
_SEPARATOR: Final = b"\x02"
_SIZE: Final = len(_HEAD) + _DIGITS + len(_SEPARATOR)
_SIZE_OF_SIZE: Final = 2
_SIZE_OF_IT_ALONE: Final = _SIZE.to_bytes(_SIZE_OF_SIZE, "big")
"""What is before it in a record without other properties."""


def fastest_crc32() -> Callable[[memoryview], int]:
    """Return the function of `isal`, a tenth of the work, if an executor has it, or `zlib`'s."""
    try:
        found: Callable[[memoryview], int] = import_module("isal.isal_zlib").crc32
    except ImportError:
        return zlib.crc32
    return found


_crc32: Final = fastest_crc32()


def wrong_checksums(layout: Layout) -> dict[int, str]:
    """Return which rows have a wrong checksum, and what is wrong, in their order."""
    bodies = dict.fromkeys(_wrong_bodies(layout).tolist(), WRONG_BODY)
    records = dict.fromkeys(_wrong_records(layout), WRONG_RECORD)
    return dict(sorted((records | bodies).items()))


def _wrong_bodies(layout: Layout) -> Longs:
    view = memoryview(layout.raw.data)
    crc32 = _crc32
    found = [
        crc32(view[start:end])
        for start, end in zip(layout.body_starts.tolist(), layout.body_ends.tolist(), strict=True)
    ]
    return np.flatnonzero((np.array(found, np.uint32) & _MASK) != layout.body_crcs)


def _wrong_records(layout: Layout) -> list[int]:
    """Return the rows whose own checksum is wrong, if another has a right one, or there is none.

    A sender may have copied such a property from elsewhere, and a broker that adds none keeps it.
    """
    raw, ends = layout.raw, layout.ends
    # Nearly all records without one are told by these bytes. If its name is damaged, its digits are
    # there.
    may_have_one = raw[ends - _SIZE] == _NAME[0]
    may_have_one |= _are_digits(raw[ends - 2]) & _are_digits(raw[ends - 1 - _DIGITS])
    rows = np.flatnonzero(may_have_one)
    rows = rows[ends[rows] - layout.topic_ends[rows] >= _SIZE_OF_SIZE + _SIZE]
    view = memoryview(raw.data)
    found = {row: _is_right(view[layout.starts[row] : ends[row]]) for row in rows.tolist()}
    wrong = [row for row, is_right in found.items() if is_right is False]
    return wrong if True in found.values() or len(ends) == 1 else []


def _are_digits(letters: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = letters - np.uint8(ord("0")) < _DIGITS  # Others wrap around.
    return found


def _is_right(record: memoryview) -> bool | None:
    """Whether a record ends with its own checksum; `None` if it does not end with one.

    A sender's text may look like one. But if it is the right one with another name, or behind
    another separator, the name or the separator is damaged.
    """
    covered, end = record[:-_SIZE], bytes(record[-_SIZE:])
    is_right = _fits(end, covered)
    if not end.startswith(_HEAD):
        return False if is_right else None
    before = bytes(covered[-2:])
    is_property = before.endswith(_SEPARATOR) or before == _SIZE_OF_IT_ALONE
    if is_right or is_property:
        return is_right
    return False if _fits(end, bytes(covered[:-1]) + _SEPARATOR) else None


def _fits(end: bytes, covered: memoryview | bytes) -> bool:
    digits = b"%010d" % (_crc32(memoryview(covered)) & _MASK)
    return end[len(_HEAD) :] == digits[::-1] + _SEPARATOR
