"""Ranges of queues made tasks: long ones split, short ones put together.

Each task costs Spark 35 to 65 ms however little it reads, so one for each queue is wrong for small
batches, and one for all is wrong for large ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.pipeline.cluster import Bounds, Queue
    from cometmq.pipeline.options import ReadOptions

STRETCH = 4_096
"""Queues are cut where the offset is a multiple of it, where that can be: the sink tells whether it
has seen a stretch by its first message, so no two tasks should have parts of one."""
WORTH_A_TASK = 8_192
"""Messages for which another task pays: they take about as long as starting it."""
ROW_SIZE = 1_024
"""Bytes of a message, while nobody has told."""


class Range(NamedTuple):
    """A stretch of one queue, and where its broker is: all that a task needs to know."""

    queue: Queue
    address: str
    first: int
    end: int


def plan(
    wanted: Mapping[Queue, Bounds],
    addresses: Mapping[str, str],
    options: ReadOptions,
    row_size: int = ROW_SIZE,
) -> list[list[Range]]:
    """Return the tasks, each some ranges. All of a queue's ranges together are what was wanted."""
    sizes = {queue: bounds.end - bounds.first for queue, bounds in wanted.items()}
    total = sum(sizes.values())
    if not total:
        return []
    rows_max = max(options.target_bytes_per_task // max(row_size, 1), 1)
    if options.max_records_per_partition:
        rows_max = min(rows_max, options.max_records_per_partition)
    count = -(-total // rows_max)
    if count > options.parallelism > 0:  # No task shall be left over when the others are done.
        count += -count % options.parallelism
    worth = -(-total // WORTH_A_TASK)
    count = max(count, min(options.parallelism, worth), min(options.min_partitions, total))
    is_aligned = not options.max_records_per_partition and total // count >= 2 * STRETCH
    return _cut(wanted, addresses, count, STRETCH if is_aligned else 1)


def _cut(
    wanted: Mapping[Queue, Bounds], addresses: Mapping[str, str], count: int, step: int
) -> list[list[Range]]:
    """Lay the queues end to end, and cut that into `count` pieces, at multiples of `step`."""
    total = sum(end - first for first, end in wanted.values())
    tasks: list[list[Range]] = [[] for _ in range(count)]
    task = passed = 0
    for queue in sorted(wanted):
        first, end = wanted[queue]
        at = first
        while at < end:
            share_end = first + (task + 1) * total // count - passed
            until = end if share_end >= end else max(share_end - share_end % step, at)
            if until > at:
                tasks[task].append(Range(queue, addresses[queue.broker], at, until))
            at = until
            if share_end <= end and task < count - 1:
                task += 1
        passed += end - first
    return [each for each in tasks if each]
