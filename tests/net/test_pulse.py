"""Measurements of the loop's lag and of the garbage collector's pauses."""

from __future__ import annotations

import gc

from cometmq.net.pulse import BEAT_SECONDS, GENERATIONS, Pulse


def test_a_beat_measures_from_the_last_one() -> None:
    pulse = Pulse()
    assert pulse.beat() == BEAT_SECONDS
    assert pulse.lag.count == 0
    pulse.beat()  # Much too early: it is not late.
    assert (pulse.lag.count, pulse.lag.total_us) == (1, 0)


def test_each_collection_is_measured_by_generation() -> None:
    pulse = Pulse()
    pulse.watch()
    try:
        for generation in range(GENERATIONS):
            gc.collect(generation)
    finally:
        pulse.unwatch()
    assert all(pauses.count >= 1 for pauses in pulse.pauses)
    counted = [pauses.count for pauses in pulse.pauses]
    gc.collect()
    assert [pauses.count for pauses in pulse.pauses] == counted
