"""The health of the process itself: the lag of its loop, and the pauses of its collector."""

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
    """Measures the loop while `beat` is called, and the collector from `watch` to `unwatch`."""

    def __init__(self) -> None:
        self.lag = Durations()
        """How late the loop came back to a timer, measured every `BEAT_SECONDS`."""
        self.pauses: list[Durations] = [Durations() for _ in range(GENERATIONS)]
        """The pauses of the garbage collector, by generation."""
        self._begun_ns = 0
        self._wanted_ns = 0

    def beat(self) -> float:
        """Measure how late this call is; return the seconds until the next one."""
        now_ns = time.perf_counter_ns()
        if self._wanted_ns:
            self.lag.add(max(0, now_ns - self._wanted_ns) // 1000)
        self._wanted_ns = now_ns + int(BEAT_SECONDS * 1_000_000_000)
        return BEAT_SECONDS

    def watch(self) -> None:
        """Begin to measure the collector."""
        gc.callbacks.append(self._collected)

    def unwatch(self) -> None:
        """Stop measuring the collector."""
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
        else:
            duration_us = (time.perf_counter_ns() - self._begun_ns) // 1000
            self.pauses[int(info["generation"])].add(duration_us)


def settle_memory() -> None:
    """Make the collector ignore the objects that live as long as the process, and run rarely.

    A full collection over the tables of 80,000 queues takes tens of milliseconds; frozen tables are
    not looked at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
