"""Entries that lead to damage: a read returns what comes before it, and the next read fails.

If a reader asks for thirty messages and the tenth is damaged, it gets nine; reading on from there
raises an error that says which message it is, and where the damage is.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cometmq.store.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue


def in_front(error: CorruptionError, places: Sequence[int]) -> int:
    """Return how many of the records at these places come before the one that an error is about."""
    return places.index(error.position) if error.position in places else 0


def told(
    error: CorruptionError,
    log: CommitLog,
    queue: ConsumeQueue | BatchConsumeQueue,
    queue_offset: int,
    entries: Iterable[tuple[int, int, int]],
    ends: Iterable[int] = itertools.repeat(0),
) -> CorruptionError:
    """Return an error of reading some entries, with the message that it is about.

    The entries begin at a queue offset; `ends` has the offset after each, if that is not the next.
    If the entry itself cannot be right, the error names its place, and not one in the log.
    """
    number = queue_offset
    is_of_entry = error.path == log.segments.directory
    for (physical_offset, size, _), end in zip(entries, ends, strict=False):
        what = f"message {number} of {queue.topic}/{queue.queue_id}"
        if is_of_entry and not _holds(log, physical_offset, size):
            if not (physical_offset or size):
                problem = f"zeros in place of the entry of {what}"
            else:
                problem = (
                    f"the entry of {what} names a record of {size} bytes at {physical_offset},"
                    f" outside the log, which goes from {log.first_offset} to {log.end_offset}"
                )
            return queue.damaged(queue.index_of(number), problem)
        if not is_of_entry and physical_offset == error.position:
            return CorruptionError(error.path, error.position, f"{what}: {error.problem}")
        number = end or number + 1
    return error


def _holds(log: CommitLog, physical_offset: int, size: int) -> bool:
    """Whether the log has all these bytes, in one file."""
    room = log.segments.size - physical_offset % log.segments.size
    is_behind = physical_offset + size > log.end_offset
    return log.first_offset <= physical_offset and 0 < size <= room and not is_behind
