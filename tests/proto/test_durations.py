"""Durations, counted in buckets."""

from __future__ import annotations

import pytest

from cometmq.proto.durations import BUCKETS, Durations


def test_a_bucket_takes_what_is_below_its_power_of_two() -> None:
    for bucket in range(1, BUCKETS - 1):
        durations = Durations()
        durations.add(1 << (bucket - 1))
        durations.add((1 << bucket) - 1)
        assert durations.counts[bucket] == 2
        assert durations.count == 2


@pytest.mark.parametrize("duration_us", [1 << 23, 1 << 24, 1 << 60])
def test_what_is_very_long_is_in_the_last_bucket(duration_us: int) -> None:
    durations = Durations()
    durations.add(duration_us, 3)
    assert durations.counts[-1] == 3
    assert durations.total_us == 3 * duration_us


def test_a_quantile_is_bounded_by_its_bucket() -> None:
    durations = Durations()
    assert durations.quantile_us(0.99) == 0
    durations.add(100, 99)
    durations.add(5000)
    assert durations.quantile_us(0.5) == 128
    assert durations.quantile_us(0.99) == 128
    assert durations.quantile_us(1) == 8192
