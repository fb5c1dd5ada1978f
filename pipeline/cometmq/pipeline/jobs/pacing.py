"""How fast jobs go that have Spark write some messages at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.job import Run


@dataclass(slots=True)
class Pace:
    """Lets pieces through, each of which is what a second has of messages, or less.

    A smaller piece would be smoother and cost more: each is a job of Spark, of a third of a second.
    """

    rate: int
    """Messages a second; 0 is no limit."""
    run: Run
    _due: float = field(default=0.0, init=False)

    def wait(self, count: int) -> bool:
        """Return when a piece of `count` messages may go; `False` when the job shall end first."""
        if self.rate:
            self.run.pause(max(self._due - time.monotonic(), 0))
            self._due = max(time.monotonic(), self._due) + count / self.rate
        return not self.run.is_stopping


@dataclass(slots=True)
class Tempo:
    """Lets pieces through as far apart as their messages were stored, or so many times as fast."""

    speed: float
    run: Run
    _began: tuple[float, int] | None = field(default=None, init=False)
    """When the first one went, and when its first message was stored."""

    @property
    def second_us(self) -> int:
        """How many microseconds of then are a second of now."""
        return max(int(self.speed * 1_000_000), 1)

    def wait(self, stored_us: int) -> bool:
        """Return when a piece may go whose first message was stored then; `False` as `Pace`.

        One at 0, of which nobody knows when it was stored, does not wait.
        """
        if not stored_us:
            return not self.run.is_stopping
        if self._began is None:
            self._began = (time.monotonic(), stored_us)
        at, first_us = self._began
        due = at + (stored_us - first_us) / self.second_us
        self.run.pause(max(due - time.monotonic(), 0))
        return not self.run.is_stopping
