"""How the process itself is: how late its loop is, and how long the collector stops it."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Final

from cometmq.proto.durations import Durations

if TYPE_CHECKING:
    from collections.abc import Mapping

BEAT_SECONDS: Final = 0.1
GENERATIONS: Final = 3


class Pulse:
    """What is measured by whoever calls `beat`, and between `watch` and `unwatch`."""

    def __init__(self) -> None:
        self.lag = Durations()
        """How much later than wanted the loop came back to a timer, each `BEAT_SECONDS`."""
        self.pauses: list[Durations] = [Durations() for _ in range(GENERATIONS)]
        """Of the garbage collector, by generation."""
        self._begun_ns = 0
        self._wanted_ns = 0

    def beat(self) -> float:
        """Measure how late this call is; it wants to be called again after what it returns."""
        now_ns = time.perf_counter_ns()
        if self._wanted_ns:
            self.lag.add(max(0, now_ns - self._wanted_ns) // 1000)
        self._wanted_ns = now_ns + int(BEAT_SECONDS * 1_000_000_000)
        return BEAT_SECONDS

    def watch(self) -> None:
        """Measure the collector."""
        gc.callbacks.append(self._collected)

    def unwatch(self) -> None:
        """Measure it no more."""
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
        else:
            duration_us = (time.perf_counter_ns() - self._begun_ns) // 1000
            self.pauses[int(info["generation"])].add(duration_us)


def settle_memory() -> None:
    """Have the collector leave alone what lives as long as the process, and look rarely.

    A full collection over the tables of 80,000 queues takes tens of milliseconds; frozen, they are
    not looked at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
