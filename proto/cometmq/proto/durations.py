"""Histograms of durations, in fixed buckets, cheap enough for use in each turn.

Bucket `k` counts durations from `2**(k-1)` to less than `2**k` microseconds, so one `bit_length`
finds it; the last bucket counts all longer ones.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 25
"""The last of them counts all durations from 2**23 microseconds (8.4 s) on."""


class Durations:
    """Durations of one kind. One thread adds, any may read; `counts` and `total_us` only grow."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total_us = 0

    def add(self, duration_us: int, count: int = 1) -> None:
        """Count a duration, or `count` equal ones at once."""
        bucket = duration_us.bit_length()
        self.counts[bucket if bucket < BUCKETS else -1] += count
        self.total_us += duration_us * count

    @property
    def count(self) -> int:
        """The number of durations added."""
        return sum(self.counts)

    def quantile_us(self, share: float) -> int:
        """Return an upper bound for this share of the durations; 0 if there are none."""
        wanted = share * self.count
        seen = 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return 1 << bucket
        return 0
