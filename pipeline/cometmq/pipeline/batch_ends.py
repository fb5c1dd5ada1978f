"""Where a batch of a stream ends that may not contain all available messages.

By backlog, each queue gets its share: that is cheap, and no queue is left behind. But queues with a
small backlog are read further ahead in time than those with a large one, so an aggregation by
windows with a watermark drops messages of the latter as late. By time, all queues end at one store
time, which is found by asking brokers for the offsets of a time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.pipeline.cluster import Queue

    Offsets = Mapping[Queue, int]

_FULL_ENOUGH: Final = 0.9
"""A batch with this share of its limit is full enough: closer takes as many requests again."""


def by_backlog(begins: Offsets, ends: Offsets, rows: int) -> dict[Queue, int]:
    """Return where a batch of at most `rows` messages ends, with a share of each queue's backlog.

    Each queue gets at least one message, if there are enough, so that a large queue does not starve
    a small one. Spark records the answer, so it may differ another time.
    """
    backlog = {queue: ends[queue] - first for queue, first in begins.items()}
    total = sum(backlog.values())
    if total <= rows:
        return dict(ends)
    shares = {queue: max(size * rows // total, 1 if size else 0) for queue, size in backlog.items()}
    over = sum(shares.values()) - rows
    largest = sorted(shares, key=lambda each: (-backlog[each], each))
    for queue in largest[: max(-over, 0)]:
        shares[queue] += 1
    for queue in largest:
        if over <= 0:
            break
        given_up = min(over, shares[queue] - 1) if shares[queue] else 0
        shares[queue] -= given_up
        over -= given_up
    if over > 0:  # More queues than messages: choose at random, so that each gets its turn.
        waiting = [each for each in shares if shares[each]]
        shares.update(dict.fromkeys(random.sample(waiting, over), 0))
    return {queue: first + shares[queue] for queue, first in begins.items()}


def by_time(
    begins: Offsets,
    ends: Offsets,
    rows: int,
    offsets_at: Callable[[int], Offsets],
    between: Callable[[], tuple[int, int]],
) -> dict[Queue, int]:
    """Return where a batch of at most `rows` messages ends, if all queues end at one store time.

    `offsets_at` returns the first offset of each queue that was stored at or after a time, in ms;
    `between` returns a time before the first message and one after the last. If more messages than
    that were stored in one millisecond, each queue gets its share of them.
    """
    upto, beyond = dict(begins), dict(ends)
    count, count_beyond = 0, _count(begins, ends)
    if count_beyond <= rows:
        return beyond
    halve, (early, late) = False, between()
    while late - early > 1 and count < rows * _FULL_ENOUGH:
        part = 0.5 if halve else (rows - count) / (count_beyond - count)
        guess = early + min(max(int((late - early) * part), 1), late - early - 1)
        found = _within(begins, ends, offsets_at(guess))
        if (there := _count(begins, found)) <= rows:
            early, upto, count = guess, found, there
        else:
            late, beyond, count_beyond = guess, found, there
        halve = not halve
    return upto if count else by_backlog(begins, beyond, rows)


def _within(begins: Offsets, ends: Offsets, found: Offsets) -> dict[Queue, int]:
    """Limit the offsets of a time to the batch, as clocks may have gone back."""
    return {
        queue: min(max(found.get(queue, ends[queue]), first), ends[queue])
        for queue, first in begins.items()
    }


def _count(begins: Offsets, ends: Offsets) -> int:
    return sum(ends[queue] - first for queue, first in begins.items())
