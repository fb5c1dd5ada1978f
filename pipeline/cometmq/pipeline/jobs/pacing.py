"""At most so many messages a second, for jobs that have Spark write some at a time."""

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
