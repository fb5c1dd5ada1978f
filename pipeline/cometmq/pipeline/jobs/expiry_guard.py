"""Whether a stream is about to lose messages that expire before it comes to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.streams import still_there

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.pipeline.cluster import Bounds, Queue
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.jobs.streams import StreamSettings

_LOOK_SECONDS: Final = 60.0


class ExpiryGuard:
    """Looks now and then how far a stream is from what its brokers delete next, and warns."""

    def __init__(
        self,
        settings: StreamSettings,
        percent: int,
        run: Run,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """It warns of the oldest `percent` of what a broker has of a queue; never, if that is 0."""
        self._settings = settings
        self._percent = percent
        self._run = run
        self._report = report
        self._clock = clock
        self._next_look = clock()

    def look(self, reached: Any) -> None:
        """Look, unless it is not a minute since; `reached`: offsets by topic, broker and queue."""
        if not self._percent or self._clock() < self._next_look:
            return
        self._next_look = self._clock() + _LOOK_SECONDS
        try:
            there = still_there(self._settings)
        except PipelineError:
            return  # The stream itself says so, or goes on when they are there again.
        if not (shares := _shares(there, reached)):
            return
        queue, percent = min(shares.items(), key=lambda item: item[1])
        self._report.details["nearest_to_expiry"] = {
            "queue": str(queue),
            "percent": round(percent, 1),
        }
        if percent < self._percent:
            self._run.tell(
                warning=f"queue {queue}: what comes next is {percent:.1f} % from the oldest message"
                " that its broker still has; archive faster, or have the broker keep more"
            )


def _shares(there: dict[Queue, Bounds], reached: Any) -> dict[Queue, float]:
    """Return how far each queue is from its oldest message to its newest, in percent.

    Of those that are behind, on brokers that have begun to delete.
    """
    shares: dict[Queue, float] = {}
    for queue, (first, end) in there.items():
        offset = reached.get(queue.topic, {}).get(queue.broker, {}).get(str(queue.id))
        if first and offset is not None and offset < end:
            shares[queue] = max(offset - first, 0) * 100 / (end - first)
    return shares
