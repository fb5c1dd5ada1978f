"""Waiting for your own stream until somebody ends it.

`awaitTermination` waits in Java, where a Ctrl-C ends in tracebacks of py4j and PySpark, whose
handler calls Java in the middle of that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.stopping import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_SECONDS: Final = 0.2
_SOON_SECONDS: Final = 0.01
"""How often to look for the end of a batch. The next batch plans for some hundredths of a second;
ending it later than that prints a thousand lines."""


def until_stopped(query: StreamingQuery) -> None:
    """Wait for a stream, and on Ctrl-C end it after a batch. For the main thread.

    The same applies to a SIGTERM or SIGHUP to this process only; one to its group ends Java at
    once. A second signal, at least a second later, ends the process. If the stream fails, Spark's
    error is raised.
    """
    run = Run()
    asked_at: int | None = None
    with stopped_by_signals(run):
        while not query.awaitTermination(_SOON_SECONDS if run.is_stopping else _LOOK_SECONDS):
            if run.is_stopping:
                asked_at = _last_batch(query) if asked_at is None else asked_at
                if _last_batch(query) > asked_at or not query.status["isTriggerActive"]:
                    query.stop()


def _last_batch(query: StreamingQuery) -> int:
    """Return the number of the last batch that the stream reports; -1 before the first."""
    said: Any = query.lastProgress
    return int(said["batchId"]) if said else -1
