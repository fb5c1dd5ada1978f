"""How far a batch of a stream goes that may not have all there is.

By backlog, each queue gets its share of it: that is cheap, and nobody is left behind. But it reads
a young queue as far ahead, in time, as an old one has messages more; and what sums up by windows
with a watermark drops what comes from the queues behind as late. By time, all queues end at one
store time, which is looked for by asking brokers which offsets a time has.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.pipeline.cluster import Queue

    Offsets = Mapping[Queue, int]

_FULL_ENOUGH: Final = 0.9
"""Of the messages that a batch may have: to find the last ones takes as many questions again."""


def by_backlog(begins: Offsets, ends: Offsets, rows: int) -> dict[Queue, int]:
    """Return how far a batch of so many messages goes: each queue gets its share of the backlog.

    And every one at least a message, as far as they suffice, so that a small queue is not left
    behind a large one. Spark notes the answer, so it need not be the same another time.
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
    if over > 0:  # More queues than messages: by chance, so that each gets its turn.
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
    """Return how far a batch of so many messages goes, if all queues end at one store time.

    `offsets_at` gives the first offset of each queue that was stored at a time, in ms, or later;
    `between` gives times in front of the first message and behind the last. Of messages that were
    all stored in one millisecond, and are more, each queue gets its share.
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
    """Return the offsets of a time, as far as they are in a batch: clocks may have gone back."""
    return {
        queue: min(max(found.get(queue, ends[queue]), first), ends[queue])
        for queue, first in begins.items()
    }


def _count(begins: Offsets, ends: Offsets) -> int:
    return sum(ends[queue] - first for queue, first in begins.items())
