"""Rates of messages and pulls over ten seconds, a minute and ten minutes, and the totals at the
last two midnights, as Apache's tools show them for a broker."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cometmq.broker.traffic import Traffic

STEP_MS: Final = 10_000
SPANS: Final = (1, 6, 60)
"""The spans of the rates in steps: ten seconds, a minute, ten minutes."""


class Totals(NamedTuple):
    """The traffic since the start."""

    put: int
    """Messages sent."""
    got: int
    """Messages pulled."""
    found: int
    """Pulls answered with messages."""
    missed: int
    """Pulls answered without."""


class RecentRates:
    """Totals noted every ten seconds, and those at the last two midnights."""

    def __init__(self, traffic: Traffic, *, now_ms: int, elapsed_ms: int) -> None:
        self.yesterday = Totals(0, 0, 0, 0)
        """The totals at the midnight before the last one."""
        self.today = Totals(0, 0, 0, 0)
        """The totals at the last midnight; zero if the broker had not started yet."""
        self._traffic = traffic
        self._day = _day_of(now_ms)
        self._noted: deque[tuple[int, Totals]] = deque(maxlen=SPANS[-1] + 1)
        self._noted.append((elapsed_ms, Totals(0, 0, 0, 0)))

    def tick(self, now_ms: int, elapsed_ms: int) -> None:
        """Note the totals, if it is time to."""
        if elapsed_ms - self._noted[-1][0] >= STEP_MS:
            self._noted.append((elapsed_ms, self.totals()))
        day = _day_of(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday, self.today = self.today, self.totals()

    def totals(self) -> Totals:
        """Return the totals until now."""
        traffic = self._traffic
        traffic.sum_up()
        got = traffic.all_got
        return Totals(traffic.all_put.messages, got.messages, got.calls, traffic.missed)

    def per_second(self) -> tuple[tuple[float, ...], ...]:
        """Return the rates of put, got, found and missed, each over the spans known so far."""
        newest_ms, newest = self._noted[-1]
        rates: list[tuple[float, ...]] = []
        for span in SPANS:
            if len(self._noted) > span:
                then_ms, then = self._noted[-1 - span]
                seconds = (newest_ms - then_ms) / 1000
                rates.append(
                    tuple((new - old) / seconds for new, old in zip(newest, then, strict=True))
                )
        return tuple(zip(*rates, strict=True)) or ((), (), (), ())


def _day_of(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms // 1000)
    return local.tm_year, local.tm_yday
