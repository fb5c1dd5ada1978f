"""Searching bytes of a log for records, where none is known to begin."""

from __future__ import annotations

from typing import Final

import numpy as np

from cometmq.pipeline.records.layout import (
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_SIZE_MIN,
    are_numbered,
    at_their_place,
    head_at,
    lay_out,
)

MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_MAGIC_BYTES: Final = tuple(magic.to_bytes(4, "big") for magic in MAGICS)
MAGIC_BEGIN: Final = _MAGIC_BYTES[0][:3]
"""The common beginning of all magics: searching for each would scan all data for a missing one."""
_MAGIC_AT: Final = 4
MAGIC_END: Final = _MAGIC_AT + len(MAGIC_BEGIN) - 1
"""How far past a place the beginning of a magic can reach if its record begins before the place."""
_OFFSET_SIZE: Final = 8


def sound_size(data: bytes, at: int, physical_offset: int) -> int | None:
    """Return the size of the sound record that begins at a place; None if there is none."""
    if len(data) - at < RECORD_SIZE_MIN:
        return None
    size, magic = head_at(data, at)
    if magic not in MAGICS or not RECORD_SIZE_MIN <= size <= len(data) - at:
        return None
    layout, good = lay_out(np.frombuffer(data, np.uint8), np.array([at, at + size]))
    good &= at_their_place(layout, physical_offset - at)
    return size if (good & are_numbered(layout))[0] else None


def next_record(data: bytes, at: int, begin: int) -> int | None:
    """Return where in the data the next record may begin: magic and physical offset agree.

    `begin` is where in the log the data begins.
    """
    place = at + _MAGIC_AT
    while (found := data.find(MAGIC_BEGIN, place)) >= 0:
        start = found - _MAGIC_AT
        noted_at = start + PHYSICAL_OFFSET_AT
        noted = data[noted_at : noted_at + _OFFSET_SIZE]
        is_there = len(noted) < _OFFSET_SIZE or int.from_bytes(noted, "big") == begin + start
        if is_there and data[found : found + _MAGIC_AT] in _MAGIC_BYTES:
            return start
        place = found + 1
    return None


def last_record(data: bytes, end: int, begin: int) -> int | None:
    """Return where in the data the last sound record before a place begins, or None."""
    place = end + MAGIC_END
    while (found := data.rfind(MAGIC_BEGIN, 0, place)) >= _MAGIC_AT:
        start = found - _MAGIC_AT
        if sound_size(data, start, begin + start) is not None:
            return start
        place = found + len(MAGIC_BEGIN) - 1
    return None
