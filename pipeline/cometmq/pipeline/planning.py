"""Ranges of queues made tasks: long ones split, short ones put together.

Each task costs Spark 35 to 65 ms however little it reads, so one for each queue is wrong for small
batches, and one for all is wrong for large ones. `measuring` says how many bytes there are.
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
"""Queues are cut where the offset is a multiple of it, where that can be: the sink tells whether it
has seen a stretch by its first message, so no two tasks should have parts of one."""
WORTH_A_TASK = 8_192
"""Messages for which another task pays: they take about as long as starting it."""
SIZE_WORTH_A_TASK = 8 << 20
"""Or bytes, where messages are large."""


class Range(NamedTuple):
    """A stretch of one queue, and where its broker is: all that a task needs to know."""

    queue: Queue
    address: str
    first: int
    end: int


class _Share(NamedTuple):
    """A piece, and how much of a task it fills, in units of which `_shares` says a task's room."""

    piece: Piece
    weight: int

    @property
    def rows(self) -> int:
        return self.piece.end - self.piece.first


def plan(
    pieces: Sequence[Piece], addresses: Mapping[str, str], options: ReadOptions
) -> list[list[Range]]:
    """Return the tasks, each some ranges. All of a queue's ranges together are what was wanted.

    No task has more than `max_records_per_partition` messages, nor, as far as messages of a piece
    are alike, more than `target_bytes_per_task` bytes, but for one message that has more itself.
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
    # Where messages are large, a cut between two leaves some room.
    left = 0 if options.max_records_per_partition or 2 * heaviest > room else heaviest
    count = -(-total // (room - left))
    if count > options.parallelism:  # No task shall be left over when the others are done.
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
    """Return so many tasks, as far as there are queues: each has all of some, as much as others."""
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
    """Cut those with the most messages until they are enough: cuts by bytes may fall together."""
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
    """Return the first so many messages of a task, and the others."""
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
    """Return what pieces weigh, by bytes or by messages, whichever is more; and a task's room."""
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
    """Lay the pieces end to end, and cut that into `count` tasks, where multiples of `step` are.

    A task that has no room left ends earlier, so there may be some more.
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
                until = at + 1  # One message that is larger than a task shall be.
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
    """Put together what pieces of one queue are next to each other."""
    found: list[Range] = []
    for each in task:
        if found and found[-1].queue == each.queue and found[-1].end == each.first:
            each = found.pop()._replace(end=each.end)
        found.append(each)
    return found
