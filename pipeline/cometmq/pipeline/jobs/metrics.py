"""The metrics page of a running job, for Prometheus: `--metrics-port`.

Nothing is counted specially: a scrape reads the report that the job keeps anyway, and what Spark
said about the last batch.

===============================================  ========================================
`cometmq_pipeline_rows_total`                    rows read or written since the job began
`cometmq_pipeline_bytes_total`                   bytes of bodies, of jobs that count them
`cometmq_pipeline_batches_total`                 batches of a stream
`cometmq_pipeline_last_batch`                    the number of the last one,
`cometmq_pipeline_last_batch_rows`               its rows,
`cometmq_pipeline_last_batch_seconds`            how long it took,
`cometmq_pipeline_last_batch_time_seconds`       and when it was over, as a Unix time
`cometmq_pipeline_lag_messages`                  by topic, broker and queue: what is not read yet
`cometmq_pipeline_late_rows_total`               rows that came after the watermark
`cometmq_pipeline_lost_total`                    messages that expired before they were read
`cometmq_pipeline_state_rows`                    what a stream keeps
===============================================  ========================================

Each has the label `job`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from prometheus_client import Metric

    from cometmq.pipeline.jobs.job import Run

_PREFIX: Final = "cometmq_pipeline_"
_HOST: Final = "127.0.0.1"


class LastBatch(NamedTuple):
    """The last batch of a stream."""

    number: int
    rows: int
    seconds: float
    ended: float
    """As a Unix time."""
    state_rows: int
    lags: dict[tuple[str, str, str], int]
    """Messages that are not read yet, by topic, broker and queue."""

    @classmethod
    def of(cls, progress: Any, lags: dict[tuple[str, str, str], int]) -> LastBatch:
        """Read it from Spark's progress of a query."""
        return cls(
            number=int(progress["batchId"]),
            rows=int(progress["numInputRows"]),
            seconds=int(progress["batchDuration"]) / 1000,
            ended=time.time(),
            state_rows=sum(int(each["numRowsTotal"]) for each in progress["stateOperators"]),
            lags=lags,
        )


class JobMetrics:
    """A collector of the metrics of a job's run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        """Yield all families that have values."""
        report, last = self._run.report, self._run.last_batch
        if report is None:
            return
        job = report.job

        def family(name: str, kind: str, meaning: str, value: float) -> Metric:
            metric = _family(name, kind, meaning)
            metric.add_sample(_PREFIX + name, {"job": job}, value)
            return metric

        yield family("rows_total", "counter", "Rows since the job began.", report.rows)
        if report.size is not None:
            yield family("bytes_total", "counter", "Bytes of their bodies.", report.size)
        if "late_rows" in report.details:
            late = report.details["late_rows"]
            yield family("late_rows_total", "counter", "Rows behind the watermark.", late)
        if "lost" in report.details:
            lost = report.details["lost"]
            yield family("lost_total", "counter", "Messages that expired unread.", lost)
        if last is None:
            return
        yield family("batches_total", "counter", "Batches of the stream.", len(report.batches))
        yield family("last_batch", "gauge", "The number of the last batch.", last.number)
        yield family("last_batch_rows", "gauge", "Its rows.", last.rows)
        yield family("last_batch_seconds", "gauge", "How long it took.", last.seconds)
        yield family("last_batch_time_seconds", "gauge", "When it was over.", last.ended)
        yield family("state_rows", "gauge", "Rows that the stream keeps.", last.state_rows)
        lag = _family("lag_messages", "gauge", "Messages of a queue that are not read yet.")
        for (topic, broker, queue), behind in sorted(last.lags.items()):
            labels = {"job": job, "topic": topic, "broker": broker, "queue": queue}
            lag.add_sample(f"{_PREFIX}lag_messages", labels, behind)
        yield lag


def _family(name: str, kind: str, meaning: str) -> Metric:
    from prometheus_client import Metric

    return Metric((_PREFIX + name).removesuffix("_total"), meaning, kind)


@contextmanager
def served(run: Run, port: int | None) -> Generator[int | None]:
    """Serve the page of a run in the block, only on this host; yield its port. 0 is any free one.

    Without a port, serve nothing.
    """
    if port is None:
        yield None
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise OptionError(
            "metrics-port: needs prometheus-client; pip install prometheus-client"
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobMetrics(run))
    try:
        server, thread = start_http_server(port, addr=_HOST, registry=registry)
    except (OSError, OverflowError) as error:
        raise OptionError(f"metrics-port: {port} cannot be listened on: {error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
