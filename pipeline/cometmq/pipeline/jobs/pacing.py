"""The pace of jobs that have Spark write some messages at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.job import Run


@dataclass(slots=True)
class Pace:
    """Lets pieces through, each of which has at most the messages of one second.

    Smaller pieces would be smoother but cost more: each is a Spark job of a third of a second.
    """

    rate: int
    """Messages per second; 0 is no limit."""
    run: Run
    _due: float = field(default=0.0, init=False)

    def wait(self, count: int) -> bool:
        """Wait until a piece of `count` messages may go; `False` if the job is to stop first."""
        if self.rate:
            self.run.pause(max(self._due - time.monotonic(), 0))
            self._due = max(time.monotonic(), self._due) + count / self.rate
        return not self.run.is_stopping


@dataclass(slots=True)
class Tempo:
    """Lets pieces through at the intervals at which they were stored, or `speed` times as fast."""

    speed: float
    run: Run
    _began: tuple[float, int] | None = field(default=None, init=False)
    """When the first piece went, and when its first message was stored."""

    @property
    def second_us(self) -> int:
        """How many microseconds of store time pass in one second."""
        return max(int(self.speed * 1_000_000), 1)

    def wait(self, stored_us: int) -> bool:
        """Wait until a piece may go whose first message was stored then; `False` as for `Pace`.

        A piece at 0, whose store time is unknown, does not wait.
        """
        if not stored_us:
            return not self.run.is_stopping
        if self._began is None:
            self._began = (time.monotonic(), stored_us)
        at, first_us = self._began
        due = at + (stored_us - first_us) / self.second_us
        self.run.pause(max(due - time.monotonic(), 0))
        return not self.run.is_stopping
