"""Spark's progress of the batches of a stream, noted in the report of its job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.jobs.metrics import LastBatch
from cometmq.pipeline.jobs.report import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from pyspark.sql.streaming import StreamingQuery

    from cometmq.pipeline.jobs.job import Run
    from cometmq.pipeline.jobs.report import Report

    _Offsets: TypeAlias = Mapping[str, Any] | str | None
    """As Spark says them: as what they are, or as text where it cannot read them."""

_SHOWN: Final = ("lost", "late_rows", "windows", "windows_open")
"""What else a stream reports: how many messages had expired before they were read; with windows,
also the late rows, and how many windows came out or are kept."""
_IF_ANY: Final = ("empty_bodies", "untimed")
"""Counts that are only reported if they are not 0."""


class Said:
    """Spark's progress of the batches of a stream, each returned once.

    Spark keeps the last hundred. With thousands of queues, each is a megabyte of JSON that takes a
    tenth of a second or more to read, so none is read twice.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._java: Any = query._jsq  # PySpark can only read all of them, or the last one.
        self._last: tuple[str, int] | None = None

    def news(self) -> list[Mapping[str, Any]]:
        """Return the progress since the last call, in order."""
        said = self._java.recentProgress()
        found: list[Mapping[str, Any]] = []
        for index in reversed(range(len(said))):
            if (said[index].timestamp(), said[index].batchId()) == self._last:
                break
            found.append(json.loads(said[index].json()))
        if found:
            self._last = found[0]["timestamp"], found[0]["batchId"]
        return found[::-1]


def note(news: Iterable[Mapping[str, Any]], report: Report, seen: int, run: Run) -> int:
    """Add the batches after `seen` to a report, and report them; return the last one."""
    for progress in news:
        batch_id = int(progress["batchId"])
        rows = int(progress["numInputRows"])
        if progress["stateOperators"]:  # Batches without messages also end windows.
            kept = sum(int(each["numRowsTotal"]) for each in progress["stateOperators"])
            report.details["windows_open"] = kept
        spans = [(each.get("startOffset"), each["endOffset"]) for each in progress["sources"]]
        lost = sum(_lost(end) - _lost(begin) for begin, end in spans)
        # Messages that Spark need not read, as with `WHERE 1 = 0`, are passed all the same.
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
    """Return what a job has Spark count besides rows, with `DataFrame.observe`."""
    rows: Mapping[str, Mapping[str, int]] = progress.get("observedMetrics") or {}
    return {name: int(count) for row in rows.values() for name, count in row.items()}


def _lost(offsets: _Offsets) -> int:
    """Return how many messages had expired unread, by one of the source's offsets."""
    return int(_members(offsets).get("lost", 0))


def _members(offsets: _Offsets) -> Mapping[str, Any]:
    """Return the members of one of the source's offsets; none before the first batch."""
    return (json.loads(offsets) if isinstance(offsets, str) else offsets) or {}


def _lags(progress: Any) -> dict[tuple[str, str, str], int] | None:
    """Return how many messages of each queue follow the end of a batch.

    `None` if unknown: for a batch that is repeated after a stop or a crash, Spark does not ask how
    many there are.
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
    """Yield what a batch read: from where its end says that it begins, or from the previous end.

    Without anything new, both are the same; it still says where the last batch began.
    """
    if start == end:
        return
    before = _by_queue(start)
    begins: Mapping[str, Any] = _members(end).get("from", {})
    for (topic, broker, queue), offset in _by_queue(end).items():
        behind = before.get((topic, broker, queue), offset)
        first = begins.get(topic, {}).get(broker, {}).get(queue, behind)
        yield Span(topic, broker, queue, first, offset)
