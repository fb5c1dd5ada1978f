"""Warnings that messages are about to expire before a stream reads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.streams import there_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.pipeline.cluster import Bounds, Queue
    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.report import Report
    from cometmq.pipeline.jobs.streams import StreamSettings

_LOOK_SECONDS: Final = 60.0


class ExpiryGuard:
    """Checks at times how far a stream is from what its brokers delete next, and warns."""

    def __init__(
        self,
        settings: StreamSettings,
        percent: int,
        run: Run,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Warn if the stream is within the oldest `percent` of a queue's messages; never if 0."""
        self._settings = settings
        self._percent = percent
        self._run = run
        self._report = report
        self._clock = clock
        self._next_look = clock()

    def look(self, reached: Any) -> None:
        """Check, at most once a minute; `reached` has offsets by topic, broker and queue."""
        if not self._percent or self._clock() < self._next_look:
            return
        self._next_look = self._clock() + _LOOK_SECONDS
        try:
            _, found = there_now(self._settings)
        except PipelineError:
            return  # The stream itself reports it, or continues when the servers are back.
        if not (shares := _shares(found.queues, reached)):
            return
        queue, percent = min(shares.items(), key=lambda item: item[1])
        self._report.details["nearest_to_expiry"] = {
            "queue": str(queue),
            "percent": round(percent, 1),
        }
        if percent < self._percent:
            self._run.tell(
                warning=f"queue {queue}: the next message is {percent:.1f} % from the oldest one"
                " that its broker still has; archive faster, or have the broker keep more"
            )


def _shares(there: dict[Queue, Bounds], reached: Any) -> dict[Queue, float]:
    """Return the position in each queue between its oldest and newest message, in percent.

    Only for queues with unread messages, on brokers that have begun to delete.
    """
    shares: dict[Queue, float] = {}
    for queue, (first, end) in there.items():
        offset = reached.get(queue.topic, {}).get(queue.broker, {}).get(str(queue.id))
        if first and offset is not None and offset < end:
            shares[queue] = max(offset - first, 0) * 100 / (end - first)
    return shares
