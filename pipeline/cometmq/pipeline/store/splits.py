"""Dividing a store into the parts that tasks read, up to one end of the log for all of them.

The log ends after its last sound record, as the driver finds it. What a running broker appends
later is in no part, so all tasks together read one state of the store. Anything after that record
is the torn tail of a killed broker, or a record that is just being written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cometmq.pipeline.store.checksums import wrong_checksums
from cometmq.pipeline.store.files import Opened, disk_errors_told, log_files
from cometmq.pipeline.store.scan import Part, followed
from cometmq.pipeline.store.searching import last_record

if TYPE_CHECKING:
    from cometmq.pipeline.store.files import StoreFile

SPLIT_SIZE: Final = 256 << 20
"""The approximate size of a part of a large log, beside which a task's own cost is small."""
_SPLIT_SIZE_MIN: Final = 16 << 20
"""With less per core, a task would take no longer than starting it."""

_CHUNK_SIZE: Final = 4 << 20
_RECORD_SIZE_MAX: Final = 64 << 20
_ZEROS_MAX: Final = 64 << 10
"""More zeros than a record may end with: an empty length of properties, or zeros in them."""


class Log(NamedTuple):
    """The log of a store, as it was when the driver looked."""

    root: str
    files: list[StoreFile]
    end: int
    """The end of the last sound record."""
    data_end: int
    """The end of the last nonzero byte: more than `end` if the tail is torn."""
    last: int = 0
    """Where the last sound record begins; `end` if there is none."""

    @property
    def first(self) -> int:
        """Where the log begins: everything before has expired."""
        return self.files[0].start if self.files else 0


def look(root: str) -> Log:
    """Look at a store; an `OptionError` says what to do if the folder is none."""
    with disk_errors_told(root):
        return _log_of(root)


def _log_of(root: str) -> Log:
    files = log_files(root)
    data_end: int | None = None
    for file in reversed(files):
        # Zeros that were read ahead would count as written for the next look.
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
    """Return the end of the last byte that is not zero."""
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
    """Return the position in the log and the size of a file's last record with right checksums.

    An apparent record may be in the body of another, so the records that lead to it count.
    Comparing the checksum of each would take an hour if somebody wrote thousands of such records.
    """
    place = part.stop
    while (found := _last_sound(part, opened, place)) is not None:
        place = found
        for layout in reversed(followed(part._replace(start=found + 1), opened).last):
            wrong = wrong_checksums(layout)
            if right := [row for row in range(len(layout.starts)) if row not in wrong]:
                return int(layout.physical_offsets[right[-1]]), int(layout.sizes[right[-1]])
            place = int(layout.physical_offsets[0]) - part.base
    return None


def _last_sound(part: Part, opened: Opened, place: int) -> int | None:
    """Return where in a file the last sound record before a place begins, or None.

    Go back chunk by chunk; each is read to the end of the longest record that can begin in it.
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
    """Divide a log into parts of about `split_size` bytes; with 0, by its size and the cores.

    Files that end before `first`, a physical offset, are left out.
    """
    split_size = split_size or _split_size(log.end - max(log.first, first))
    found: list[Part] = []
    for file in log.files:
        limit = min(file.size, log.end - file.start)
        if limit <= 0 or file.start + file.size <= first:
            continue
        step = -(-limit // max(round(limit / split_size), 1))  # No part is to be left with little.
        for start in range(0, limit, step):
            stop = min(start + step, limit)
            found.append(Part(log.root, file.path, file.start, start, stop, limit, file.size))
    return found


def _split_size(size: int) -> int:
    """Return the size for a task, so that all cores get equal work and the same number of tasks."""
    cores = os.cpu_count() or 1
    count = max(round(size / SPLIT_SIZE), 1)
    count = min(count + -count % cores, max(size // _SPLIT_SIZE_MIN, 1))
    return max(-(-size // count), 1)
