"""Choosing the queue of a send: in turn, but avoiding brokers that were slow or failed lately."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from cometmq.proto.java import string_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cometmq.client._core.queues import Queue

_AVOIDED: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
"""From which latency, in ms, a broker is left alone, and for how long: Apache's table."""

_FAILED_MS: Final = 10_000
"""A failure counts as this latency."""


class Selection:
    """Picks queues in turn, starting at a random one; shared by all topics of a client."""

    def __init__(self, *, avoids: bool = True) -> None:
        self._avoids = avoids
        self._next: dict[str, int] = {}
        self._avoided_until_ms: dict[str, int] = {}

    def pick(self, queues: Sequence[Queue], failed: Collection[str], now_ms: int) -> Queue:
        """Return the next queue, if possible of a broker that has not failed in this send."""
        topic = queues[0].topic
        start = self._next.get(topic)
        if start is None:
            start = random.randrange(len(queues))
        self._next[topic] = start + 1
        if not failed and not self._avoided_until_ms:
            return queues[start % len(queues)]
        choice: Queue | None = None
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            if queue.broker in failed:
                continue
            if self._avoided_until_ms.get(queue.broker, 0) <= now_ms:
                return queue
            choice = choice or queue
        return choice or queues[start % len(queues)]

    def note(self, broker: str, latency_ms: int, now_ms: int) -> None:
        """Note how long a broker took for a send."""
        if latency_ms < _AVOIDED[-1][0]:
            if self._avoided_until_ms:
                self._avoided_until_ms.pop(broker, None)
            return
        self._avoid(broker, latency_ms, now_ms)

    def note_failure(self, broker: str, now_ms: int) -> None:
        """Note that a broker failed a send."""
        self._avoid(broker, _FAILED_MS, now_ms)

    def _avoid(self, broker: str, latency_ms: int, now_ms: int) -> None:
        if self._avoids:
            duration = next(ms for least, ms in _AVOIDED if latency_ms >= least)
            self._avoided_until_ms[broker] = now_ms + duration


def queue_of_key(queues: Sequence[Queue], key: str) -> Queue:
    """Return the queue of a sharding key: the same for each send while the queues are the same.

    It uses Java's hash of the text, as Apache's own selector does.
    """
    return queues[abs(string_hash(key)) % len(queues)]
