"""What a job is: settings, a function, a report; and what goes on around it while it runs.

A job's settings are a frozen dataclass; each field that has `setting(...)` is an option of the
command line, too, its name with dashes. The function takes the session, the settings and a `Run`,
and returns a `Report`. It raises an `OptionError` for settings that cannot be, before it changes
anything.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.metrics import LastBatch
from cometmq.pipeline.jobs.report import Report, Span
from cometmq.pipeline.jobs.spark_errors import ours
from cometmq.pipeline.losses import untold

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import TypeAlias

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from cometmq.pipeline.jobs.holding import Places

    _Offsets: TypeAlias = Mapping[str, Any] | str | None
    """As Spark says them: as what they are, or as text where it cannot read them."""

_LOOK_SECONDS: Final = 0.2
_SHOWN: Final = ("lost", "late_rows", "windows", "windows_open")
"""What a stream says in its progress besides: how many messages had expired before they were read;
of one with windows, what came too late for them, how many came out, and are kept."""


_IF_ANY: Final = ("empty_bodies",)
"""What is counted, and told of where there is some."""


class StoppedEarly(BaseException):  # Py4J would take an Exception for its own.
    """The job was asked to end before there was anything that it would have to finish."""


class Run:
    """One run of a job: whether it is a dry one, whom it tells its progress, and when to stop."""

    def __init__(
        self,
        *,
        dry_run: bool = False,
        progress: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.dry_run = dry_run
        """Whether to say what would be done, and to change nothing."""
        self.is_early = False
        """Whether there is nothing yet that must be whole: servers are asked, Spark is started."""
        self.start_seconds: float | None = None
        """How long that took."""
        self.report: Report | None = None
        """What the job has done so far; `None` before it begins."""
        self.last_batch: LastBatch | None = None
        """What is known of the last batch of its stream."""
        self._progress = progress
        self._stop = threading.Event()
        self._has_refused = False

    def report_of(self, job: str, *, counts_bytes: bool = False) -> Report:
        """Begin the report of a job; who runs it has it also when the job fails."""
        self.report = Report(job, dry_run=self.dry_run, start_seconds=self.start_seconds)
        if counts_bytes:
            self.report.count_bytes(0)
        return self.report

    def report_so_far(self, job: str) -> Report:
        """Return the report of a job as it is, or one that says nothing yet."""
        return self.report or self.report_of(job)

    @property
    def is_stopping(self) -> bool:
        """Whether the job shall end as soon as what it is at is whole."""
        return self._stop.is_set()

    @contextmanager
    def early(self) -> Generator[None]:
        """Let the wish to stop end the job at once: there is nothing yet that it has to finish."""
        self.is_early = True
        try:
            yield
        except KeyboardInterrupt:  # Of the handler that Spark sets when it starts.
            raise StoppedEarly from None
        finally:
            self.is_early = False

    @contextmanager
    def starting(self) -> Generator[None]:
        """Tell that Spark is being started, which takes a while, and how long it took."""
        began = time.monotonic()
        self.tell(starting="Spark")
        try:
            with self.early():
                yield
        finally:
            self.start_seconds = time.monotonic() - began
        self.tell(started="Spark", seconds=round(self.start_seconds, 1))

    def stop(self) -> None:
        """Ask the job to end so; from any thread, or a signal's handler."""
        self._stop.set()

    def begin_batch(self) -> None:
        """Refuse to begin a batch once the job shall end, and so end its stream.

        Spark would begin one behind another, and one that is stopped in its middle tells of it in
        a thousand lines.
        """
        if self.is_stopping:
            self._has_refused = True
            raise PipelineError("the job shall end")

    def tell(self, **news: Any) -> None:
        """Tell how far it is."""
        if self._progress is not None:
            self._progress(news)

    def pause(self, seconds: float) -> None:
        """Wait, unless it shall end."""
        self._stop.wait(seconds)

    def watch(
        self,
        query: StreamingQuery,
        report: Report,
        checkpoint: str = "",
        *,
        refuses_batches: bool = False,
    ) -> None:
        """Wait for the end of a stream, and note its batches in the report.

        When the job shall stop, the batch that is running is waited for; where the next one is
        refused (`begin_batch`), Spark is not interrupted on its way to it. A stream that fails is a
        `PipelineError` with what Spark says; started again it goes on. It is no `OptionError`, for
        that says that nothing was changed: a stream has begun its checkpoint, and maybe a batch.
        """
        seen = -1
        said = _Said(query)
        stopping_at: int | None = None
        while True:
            try:
                is_over = self._ended(query, checkpoint)
            except PipelineError:
                if not self._has_refused:
                    raise
                report.stopped = is_over = True
            finally:
                seen = _note_progress(said.news(), report, seen, self)
            if is_over:
                return
            if self.is_stopping:
                stopping_at = seen if stopping_at is None else stopping_at
                is_behind = seen > stopping_at and not refuses_batches
                is_idle = not query.status["isTriggerActive"]
                if is_behind or is_idle:
                    if is_idle and (lost := untold()):  # Else the next batch tells of it.
                        report.count("lost", lost)
                    query.stop()
                    _note_progress(said.news(), report, seen, self)  # It may have ended just now.
                    report.stopped = True
                    return

    def _ended(self, query: StreamingQuery, checkpoint: str) -> bool:
        from pyspark.errors import StreamingQueryException

        try:
            ended: bool = query.awaitTermination(_LOOK_SECONDS)
        except StreamingQueryException as error:
            said = ours(error, checkpoint)
            raise (PipelineError(str(said)) if isinstance(said, OptionError) else said) from error
        return ended


class _Said:
    """What Spark says of the batches of a stream, each once.

    It keeps the last hundred. With thousands of queues one of them is a megabyte of JSON, and takes
    a tenth of a second and more, so what was there at the last look is not read again.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._java: Any = query._jsq  # PySpark reads all of them, or the last one.
        self._last: tuple[str, int] | None = None

    def news(self) -> list[Mapping[str, Any]]:
        """Return what it has said since the last look, in order."""
        said = self._java.recentProgress()
        found: list[Mapping[str, Any]] = []
        for index in reversed(range(len(said))):
            if (said[index].timestamp(), said[index].batchId()) == self._last:
                break
            found.append(json.loads(said[index].json()))
        if found:
            self._last = found[0]["timestamp"], found[0]["batchId"]
        return found[::-1]


def _note_progress(news: Iterable[Mapping[str, Any]], report: Report, seen: int, run: Run) -> int:
    for progress in news:
        batch_id = int(progress["batchId"])
        rows = int(progress["numInputRows"])
        if progress["stateOperators"]:  # Batches without a message end windows, too.
            kept = sum(int(each["numRowsTotal"]) for each in progress["stateOperators"])
            report.details["windows_open"] = kept
        spans = [(each.get("startOffset"), each["endOffset"]) for each in progress["sources"]]
        lost = sum(_lost(end) - _lost(begin) for begin, end in spans)
        # What Spark need not read, as of `WHERE 1 = 0`, is passed all the same.
        passed = [each for begin, end in spans for each in _passed(begin, end)]
        if batch_id <= seen or not (rows or lost or any(each.first < each.end for each in passed)):
            continue
        seen = batch_id
        report.batches.append(batch_id)
        report.rows += rows
        report.cover(passed)
        if lost:
            report.count("lost", lost)
        for state in progress["stateOperators"]:
            report.count("late_rows", int(state["numRowsDroppedByWatermark"]))
        observed = _observed(progress)
        if "bytes" in observed:
            report.count_bytes(observed.pop("bytes"))
        for name in _IF_ANY:
            if not observed.get(name):
                observed.pop(name, None)
        for name, count in observed.items():
            report.count(name, count)
        lags = _lags(progress)
        run.last_batch = LastBatch.of(progress, lags or {})
        run.tell(
            batch=batch_id,
            rows=rows,
            rows_per_second=round(progress.get("processedRowsPerSecond") or 0),
            total=report.rows,
            **({} if lags is None else {"behind": sum(lags.values())}),
            **observed,
            **{name: report.details[name] for name in _SHOWN if name in report.details},
        )
    return seen


def _observed(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return what a job has Spark count beside its rows, by `DataFrame.observe`."""
    rows: Mapping[str, Mapping[str, int]] = progress.get("observedMetrics") or {}
    return {name: int(count) for row in rows.values() for name, count in row.items()}


def _lost(offsets: _Offsets) -> int:
    """Return how many messages had expired unread up to one of the source's offsets."""
    return int(_members(offsets).get("lost", 0))


def _members(offsets: _Offsets) -> Mapping[str, Any]:
    """Return what one of the source's offsets has; before the first batch there is none."""
    return (json.loads(offsets) if isinstance(offsets, str) else offsets) or {}


def _lags(progress: Any) -> dict[tuple[str, str, str], int] | None:
    """Return how many messages of each queue are behind where a batch ends.

    `None` where nobody knows: for a batch that is repeated behind a stop or a crash Spark does not
    ask how many there are.
    """
    found: dict[tuple[str, str, str], int] = {}
    for source in progress["sources"]:
        ends = _by_queue(source["endOffset"])
        for queue, latest in _by_queue(source.get("latestOffset")).items():
            found[queue] = max(latest - ends.get(queue, latest), 0)
    return found or None


def _by_queue(offsets: _Offsets) -> dict[tuple[str, str, str], int]:
    """Return the source's offsets by topic, broker and queue."""
    return {
        (topic, broker, queue): offset
        for topic, brokers in _members(offsets).get("queues", {}).items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def _passed(start: _Offsets, end: _Offsets) -> Iterator[Span]:
    """Yield what a batch read: from where its end says that it begins, or from the end before.

    With no news both are the same, which says where the last batch began.
    """
    if start == end:
        return
    before = _by_queue(start)
    begins: Mapping[str, Any] = _members(end).get("from", {})
    for (topic, broker, queue), offset in _by_queue(end).items():
        behind = before.get((topic, broker, queue), offset)
        first = begins.get(topic, {}).get(broker, {}).get(queue, behind)
        yield Span(topic, broker, queue, first, offset)


def _nothing(_settings: Any) -> Places:
    return ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the command line knows it."""

    name: str
    settings: type[Any]
    function: Callable[[SparkSession, Any, Run], Report]
    summary: str
    """What `--help` says of it."""
    goes_on: bool = True
    """Whether one that failed and is started again goes on where it was; else it begins anew."""
    examples: tuple[str, ...] = ()
    """Command lines that `--help` shows, from the job's name on."""
    holds: Callable[[Any], Places] = _nothing
    """Which folders are its own while it runs, by its settings."""
    look: Callable[[Any], object] | None = None
    """Looks whether what the settings name is there, before Spark is started for it."""


def setting(
    meaning: str,
    default: Any = MISSING,
    *,
    metavar: str = "",
    in_environment: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a job's settings; without a default it must be given.

    The environment may say it, too, where that is said of it. A secret is not shown, and the
    command line names no more than a file with it.
    """
    metadata = {
        "meaning": meaning,
        "metavar": metavar,
        "in_environment": in_environment,
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata=metadata)


@contextmanager
def timed(report: Report) -> Generator[None]:
    """Note how long a job takes."""
    began = time.monotonic()
    try:
        yield
    finally:
        report.seconds = time.monotonic() - began
