"""Turning ranges of queues into tasks: long ranges are split, short ones are combined.

Each task costs Spark 35 to 65 ms, however little it reads. So one task per queue is wrong for small
batches, and one for all queues is wrong for large ones. `measuring` says how many bytes there are.
"""

from __future__ import annotations

from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.pipeline.cluster import Queue
    from cometmq.pipeline.measuring import Piece
    from cometmq.pipeline.options import ReadOptions

STRETCH = 4_096
"""If possible, queues are cut at multiples of this offset: the sink recognizes a stretch by its
first message, so a stretch should not be divided between tasks."""
WORTH_A_TASK = 8_192
"""So many messages are worth another task: they take about as long as starting it."""
SIZE_WORTH_A_TASK = 8 << 20
"""The same in bytes, for large messages."""


class Range(NamedTuple):
    """A stretch of one queue and the address of its broker: all that a task needs to know."""

    queue: Queue
    address: str
    first: int
    end: int


class _Share(NamedTuple):
    """A piece and its weight, in the units in which `_shares` gives a task's room."""

    piece: Piece
    weight: int

    @property
    def rows(self) -> int:
        return self.piece.end - self.piece.first


def plan(
    pieces: Sequence[Piece], addresses: Mapping[str, str], options: ReadOptions
) -> list[list[Range]]:
    """Return the tasks, each a list of ranges, which together cover what was wanted of each queue.

    No task has more than `max_records_per_partition` messages or, as far as messages of a piece
    have the same size, more than `target_bytes_per_task` bytes, except for a single larger message.
    """
    rows = sum(each.end - each.first for each in pieces)
    if not rows:
        return []
    size = sum(each.size for each in pieces)
    worth = min(options.parallelism, max(-(-rows // WORTH_A_TASK), -(-size // SIZE_WORTH_A_TASK)))
    if options.in_order:
        fitting = -(-size // options.target_bytes_per_task)
        return _whole(pieces, addresses, max(worth, fitting, options.min_partitions))
    shares, room = _shares(pieces, options)
    total = sum(each.weight for each in shares)
    heaviest = max(-(-each.weight // each.rows) for each in shares)
    # With large messages, a cut between two leaves some room unused.
    left = 0 if options.max_records_per_partition or 2 * heaviest > room else heaviest
    count = -(-total // (room - left))
    if count > options.parallelism:  # So that no task is left over when the others are done.
        count += -count % options.parallelism
    count = max(count, worth, options.min_partitions)
    count = min(count, rows)
    is_aligned = (
        not options.max_records_per_partition
        and rows // count >= 2 * STRETCH
        and heaviest * 2 * STRETCH <= room
    )
    tasks = _cut(shares, addresses, count, room, STRETCH if is_aligned else 1)
    return _halved(tasks, min(options.min_partitions, rows))


def _whole(pieces: Sequence[Piece], addresses: Mapping[str, str], count: int) -> list[list[Range]]:
    """Return `count` tasks, or one per queue if fewer: each has whole queues, and about as much."""
    queues: dict[Queue, list[Piece]] = {}
    for each in pieces:
        queues.setdefault(each.queue, []).append(each)
    sizes = {queue: sum(each.size for each in several) for queue, several in queues.items()}
    tasks: list[list[Range]] = [[] for _ in range(min(count, len(queues)))]
    emptiest = [(0, at) for at in range(len(tasks))]
    for queue in sorted(queues, key=lambda each: (-sizes[each], each)):
        filled, at = emptiest[0]
        address = addresses[queue.broker]
        tasks[at] += _joined([Range(queue, address, *each[1:3]) for each in queues[queue]])
        heapreplace(emptiest, (filled + max(sizes[queue], 1), at))
    return tasks


def _halved(tasks: list[list[Range]], least: int) -> list[list[Range]]:
    """Halve the tasks with the most messages until there are enough: cuts by bytes may coincide."""
    if len(tasks) >= least:
        return tasks
    longest = [(-_rows(each), at) for at, each in enumerate(tasks)]
    heapify(longest)
    while len(tasks) < least:
        rows, at = longest[0]
        front, behind = _at(tasks[at], -rows // 2)
        tasks[at] = front
        heapreplace(longest, (-_rows(front), at))
        heappush(longest, (-_rows(behind), len(tasks)))
        tasks.append(behind)
    return tasks


def _at(task: Sequence[Range], rows: int) -> tuple[list[Range], list[Range]]:
    """Split a task after `rows` messages."""
    front: list[Range] = []
    behind: list[Range] = []
    for each in task:
        cut = min(each.first + rows, each.end)
        rows -= cut - each.first
        front += [each._replace(end=cut)] if cut > each.first else []
        behind += [each._replace(first=cut)] if cut < each.end else []
    return front, behind


def _rows(task: Sequence[Range]) -> int:
    return sum(each.end - each.first for each in task)


def _shares(pieces: Sequence[Piece], options: ReadOptions) -> tuple[list[_Share], int]:
    """Return the weights of pieces, by bytes or messages, whichever is more; and a task's room."""
    size_max = options.target_bytes_per_task
    rows_max = options.max_records_per_partition
    shares: list[_Share] = []
    for piece in pieces:
        rows = piece.end - piece.first
        weight = max(piece.size * max(rows_max, 1), rows * size_max if rows_max else rows)
        shares.append(_Share(piece, weight))
    return shares, size_max * max(rows_max, 1)


def _cut(
    shares: Sequence[_Share], addresses: Mapping[str, str], count: int, room: int, step: int
) -> list[list[Range]]:
    """Lay the pieces end to end and cut them into `count` tasks, at multiples of `step`.

    A task without room left ends earlier, so there may be more tasks.
    """
    total = sum(each.weight for each in shares)
    tasks: list[list[Range]] = [[]]
    passed = filled = 0
    cuts = 1
    for share in shares:
        queue, at, end, _ = share.piece
        while at < end:
            behind = cuts * total // count - passed
            wanted = share.piece.first + behind * share.rows // share.weight + step // 2
            fitting = at + (room - filled) * share.rows // share.weight
            until = min(wanted, fitting, end)
            if until < end:
                until -= until % step
            if until <= at and not filled and fitting <= wanted:
                until = at + 1  # A single message that is larger than a task should be.
            if until > at:
                tasks[-1].append(Range(queue, addresses[queue.broker], at, until))
                filled += -(-(until - at) * share.weight // share.rows)
                at = until
            if at < end:
                cuts += wanted <= fitting
                tasks.append([])
                filled = 0
        passed += share.weight
    return [_joined(each) for each in tasks if each]


def _joined(task: Sequence[Range]) -> list[Range]:
    """Join adjacent ranges of the same queue."""
    found: list[Range] = []
    for each in task:
        if found and found[-1].queue == each.queue and found[-1].end == each.first:
            each = found.pop()._replace(end=each.end)
        found.append(each)
    return found
