"""How long things took: counts in fixed buckets, cheap enough for what happens each turn.

Bucket `k` counts durations below `2**k` microseconds that are no less than `2**(k-1)`, so that
finding it is one `bit_length`; the last bucket takes all that is longer.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 25
"""The longest that has a bucket of its own is below 2**23 microseconds, 8.4 s."""


class Durations:
    """Durations of one kind. One thread adds, any may read; `counts` and `total_us` only grow."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total_us = 0

    def add(self, duration_us: int, count: int = 1) -> None:
        """Count something that took so long; `count` things that took the same time at once."""
        bucket = duration_us.bit_length()
        self.counts[bucket if bucket < BUCKETS else -1] += count
        self.total_us += duration_us * count

    @property
    def count(self) -> int:
        """How many were added."""
        return sum(self.counts)

    def quantile_us(self, share: float) -> int:
        """Return an upper bound of what this share of the durations took; 0 when there is none."""
        wanted = share * self.count
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return 1 << bucket
        return 0
