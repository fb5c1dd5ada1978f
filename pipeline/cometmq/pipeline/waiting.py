"""Waiting for a stream of one's own until somebody ends it.

`awaitTermination` waits in Java, and a Ctrl-C there ends in tracebacks of py4j and PySpark, whose
handler asks Java something else in the middle of that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.stopping import stopped_by_signals

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_SECONDS: Final = 0.2
_SOON_SECONDS: Final = 0.01
"""How often to look for the end of a batch: the next one plans for some hundredths of a second, and
is ended in a thousand lines where it is further than that."""


def until_stopped(query: StreamingQuery) -> None:
    """Wait for a stream, and end it behind a batch at a Ctrl-C. For the main thread.

    So it does at a SIGTERM or SIGHUP to this process alone; of one to its group Java ends at once.
    A second signal, a second or more later, ends the process. A stream that fails raises what Spark
    says.
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
    """Return the number of the last batch of which the stream tells; -1 before the first."""
    said: Any = query.lastProgress
    return int(said["batchId"]) if said else -1
