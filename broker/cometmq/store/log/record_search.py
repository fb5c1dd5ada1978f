"""Searches through a log byte by byte: after damage, no length leads to the next record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.record import MAGIC_V1, MAGIC_V2
from cometmq.store.disk.data_end import data_end_of
from cometmq.store.log.log_scan import LogScan

if TYPE_CHECKING:
    from cometmq.store.log.segments import Segments

_CHUNK_SIZE: Final = 4 << 20
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT: Final = 4
"""Its position in a record, after the size."""
_OVERLAP: Final = 7
"""Bytes after a chunk that size and magic may reach into, if a record begins in the chunk."""


def data_end(segments: Segments, start: int) -> int:
    """Return the end of the last nonzero byte at or after `start`; `start` if there is none."""
    for segment in reversed(list(segments)):
        begin = max(start - segment.start, 0)
        end = data_end_of(segments.file(segment), segment.length, begin)
        if end > begin:
            return segment.start + end
    return start


def next_record(segments: Segments, start: int, end: int) -> int | None:
    """Return the first offset in a range at which a sound record begins, or None."""
    for segment in segments:
        low, high = max(start, segment.start), min(end, segment.start + segments.size)
        for begin in range(low, high, _CHUNK_SIZE):
            data = segments.read(begin, min(_CHUNK_SIZE, high - begin) + _OVERLAP)
            place = _MAGIC_AT - 1
            while (place := _find_magic(data, place + 1)) >= 0:
                if _begins_record(segments, begin + place - _MAGIC_AT):
                    return begin + place - _MAGIC_AT
    return None


def last_record_behind(segments: Segments, start: int, end: int) -> int | None:
    """Return the last offset in a range at which a sound record begins, or None."""
    for segment in reversed(list(segments)):
        low, high = max(start, segment.start), min(end, segment.start + segments.size)
        for begin in reversed(range(low, high, _CHUNK_SIZE)):
            data = segments.read(begin, min(_CHUNK_SIZE, high - begin) + _OVERLAP)
            place = len(data)
            while (place := _find_magic_before(data, place + 3)) >= _MAGIC_AT:
                if _begins_record(segments, begin + place - _MAGIC_AT):
                    return begin + place - _MAGIC_AT
    return None


def _find_magic(data: bytes, start: int) -> int:
    return min((at for magic in _MAGICS if (at := data.find(magic, start)) >= 0), default=-1)


def _find_magic_before(data: bytes, end: int) -> int:
    return max(data.rfind(magic, 0, end) for magic in _MAGICS)


def _begins_record(segments: Segments, offset: int) -> bool:
    return next(iter(LogScan(segments, offset)), None) is not None
