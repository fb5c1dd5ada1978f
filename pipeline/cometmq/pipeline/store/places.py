"""Reading single places of a log, in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.pipeline.records.layout import MAGIC_BLANK, RECORD_SIZE_MIN, head_at, lay_out
from cometmq.pipeline.store.files import Opened, disk_errors_told
from cometmq.pipeline.store.searching import sound_size

if TYPE_CHECKING:
    from cometmq.pipeline.records.layout import Layout
    from cometmq.pipeline.store.files import StoreFile
    from cometmq.pipeline.store.splits import Log

_HEAD_SIZE: Final = 8


def record_at(log: Log, place: int) -> Layout | None:
    """Return the record that begins at a physical offset; None if no sound one does."""
    if (file := _file_of(log, place)) is None or file.start + file.size - place < RECORD_SIZE_MIN:
        return None
    position = place - file.start
    with disk_errors_told(log.root), Opened(log.root, file.path, ahead=False) as opened:
        size, _ = head_at(opened.read(_HEAD_SIZE, position), 0)
        if not RECORD_SIZE_MIN <= size <= file.size - position:
            return None
        data = opened.read(size, position)
    if sound_size(data, 0, place) is None:
        return None
    found, _ = lay_out(np.frombuffer(data, np.uint8), np.array([0, size]))
    return found


def store_time_ms(record: Layout) -> int:
    """Return when a record was stored."""
    return int(record.store_times_ms[0])


def behind_filler(log: Log, place: int) -> int:
    """Return where the next file begins if a file's filler is here; otherwise `place`."""
    if (file := _file_of(log, place)) is None or file.start + file.size - place < _HEAD_SIZE:
        return place
    end = file.start + file.size
    with disk_errors_told(log.root), Opened(log.root, file.path, ahead=False) as opened:
        head = head_at(opened.read(_HEAD_SIZE, place - file.start), 0)
    return end if head == (end - place, MAGIC_BLANK) else place


def first_since(log: Log, since_ms: int) -> int:
    """Return the start of a file before which no record was stored since a time.

    It reads the first record of each later file: a log is in the order of store times, unless the
    broker's clock went back. A file without such a record is not conclusive.
    """
    for file in reversed(log.files[1:]):
        record = record_at(log, file.start) if file.start < log.end else None
        if record is not None and store_time_ms(record) < since_ms:
            return file.start
    return log.first


def _file_of(log: Log, place: int) -> StoreFile | None:
    return next((file for file in log.files if 0 <= place - file.start < file.size), None)
