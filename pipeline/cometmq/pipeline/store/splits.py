"""From a store to the parts that tasks read; and where its log ends, once and for all of them.

The log ends behind its last sound record, as the driver finds it: what a running broker appends
after that is in no part, so all tasks together read one state of the store. What stands behind that
record is the torn tail of a broker that was killed, or a record that is being written just now.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.store.files import Opened, disk_errors_told, log_files
from cometmq.pipeline.store.scan import Part, followed, last_record, wrong_bodies

if TYPE_CHECKING:
    from cometmq.pipeline.store.files import StoreFile

SPLIT_SIZE: Final = 256 << 20
"""About the bytes of a part of a large log: what a task costs by itself is little beside it."""
_SPLIT_SIZE_MIN: Final = 16 << 20
"""Where a core has less, a task would take no longer than its start."""

_CHUNK_SIZE: Final = 4 << 20
_RECORD_SIZE_MAX: Final = 64 << 20
_ZEROS_MAX: Final = 64 << 10
"""More than a record may end with: the length of no properties, or such as are zeros."""


class Log(NamedTuple):
    """The log of a store, as it was when the driver looked."""

    root: str
    files: list[StoreFile]
    end: int
    """Behind the last sound record."""
    data_end: int
    """Behind the last byte that is not zero: more than `end` where the tail is torn."""
    last: int = 0
    """Where the last sound record begins; `end` when there is none."""

    @property
    def first(self) -> int:
        """Where the log begins: what was in front of it has expired."""
        return self.files[0].start if self.files else 0


def look(root: str) -> Log:
    """Look at a store. `OptionError`, which says what to do, for a folder that is none."""
    with disk_errors_told(root):
        return _log_of(root)


def _log_of(root: str) -> Log:
    files = log_files(root)
    data_end: int | None = None
    for file in reversed(files):
        # Zeros that were read ahead would be data to the next who looks.
        with Opened(root, file.path, ahead=False) as opened:
            filled = _filled(opened, file.size)
            if not filled:
                continue
            if data_end is None:
                data_end = file.start + filled
            limit = min(filled + _ZEROS_MAX, file.size)
            last = _last(Part(root, file.path, file.start, 0, filled, limit, file.size), opened)
        if last is not None:
            start, size = last
            return Log(root, files, start + size, data_end, start)
    first = files[0].start if files else 0
    return Log(root, files, first, first if data_end is None else data_end, first)


def _filled(opened: Opened, size: int) -> int:
    """Return behind the last byte that is not zero."""
    place = size
    while place > 0:
        start = max(place - _CHUNK_SIZE, 0)
        written = opened.written_end(start, place) - start
        data = opened.read(written, start) if written else b""
        found = np.flatnonzero(np.frombuffer(data, np.uint8))
        if len(found):
            return start + int(found[-1]) + 1
        place = start
    return 0


def _last(part: Part, opened: Opened) -> tuple[int, int] | None:
    """Return where in the log the last record of a file whose body is right begins, and its size.

    What looks like one may be in the body of another; so those that lead to it count. Who would
    compare the checksum of each would be there for an hour, where somebody wrote thousands.
    """
    place = part.stop
    while (found := _last_sound(part, opened, place)) is not None:
        place = found
        for layout in reversed(followed(part._replace(start=found + 1), opened).last):
            right = np.flatnonzero(~wrong_bodies(layout))
            if len(right):
                return int(layout.physical_offsets[right[-1]]), int(layout.sizes[right[-1]])
            place = int(layout.physical_offsets[0]) - part.base
    return None


def _last_sound(part: Part, opened: Opened, place: int) -> int | None:
    """Return where in a file the last sound record begins in front of a place; or None.

    Chunk by chunk from the end; each is read as far as the longest record that begins in it goes.
    """
    while place > 0:
        start = max(place - _CHUNK_SIZE, 0)
        more = _CHUNK_SIZE if place == part.stop else _RECORD_SIZE_MAX
        data = opened.read(min(place + more, part.length) - start, start)
        found = last_record(data, place - start, part.base + start)
        if found is not None:
            return start + found
        place = start
    return None


def parts(log: Log, split_size: int = 0, first: int = 0) -> list[Part]:
    """Divide a log into parts of about so many bytes; with 0 by what it has, and by the cores.

    Files that end in front of `first`, a physical offset, are left out.
    """
    split_size = split_size or _split_size(log.end - max(log.first, first))
    found: list[Part] = []
    for file in log.files:
        limit = min(file.size, log.end - file.start)
        if limit <= 0 or file.start + file.size <= first:
            continue
        step = -(-limit // max(round(limit / split_size), 1))  # No part shall be left with little.
        for start in range(0, limit, step):
            stop = min(start + step, limit)
            found.append(Part(log.root, file.path, file.start, start, stop, limit, file.size))
    return found


def _split_size(size: int) -> int:
    """Return what a task reads of a log: each core as much as any, and as often."""
    cores = os.cpu_count() or 1
    count = max(round(size / SPLIT_SIZE), 1)
    count = min(count + -count % cores, max(size // _SPLIT_SIZE_MIN, 1))
    return max(-(-size // count), 1)
