"""`latency`: how long messages take, and how far consumer groups lag.

* From born to stored, for a topic or a store: by time, producing host and queue. Hosts whose clocks
  are wrong show by the share of messages that were stored before they were born.
* The lag of consumer groups, in messages and in seconds.
* From the traces of clients (`trace_topic`): the time of sends, from sent to delivered and to
  consumed, the time of consuming, failures, and the number of attempts. Together with the topic or
  the store, also how the lag of groups was over time.

`html` makes a page of it for a browser (see `latency_page`).

Bodies are only read for traces. Percentiles are approximate.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.durable import write_whole
from cometmq.pipeline.jobs.groups import require_group
from cometmq.pipeline.jobs.job import Job, Run, check_settings, running, setting
from cometmq.pipeline.jobs.latency_figures import summed
from cometmq.pipeline.jobs.latency_page import COLUMNS_MAX, Heat, now, page
from cometmq.pipeline.jobs.latency_traces import (
    LAG_HISTORY,
    TRACED,
    lag_history,
    read_traces,
    traced,
)
from cometmq.pipeline.jobs.results import Results
from cometmq.pipeline.jobs.tables import (
    SINCE,
    UNTIL,
    by_queue,
    kept,
    require_topics,
    rows_as_dicts,
    span,
    store_table,
    stored_between,
    survey,
    topic_table,
)
from cometmq.pipeline.jobs.writable import require_file, told_of_file, try_file
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.offsets import document_of
from cometmq.pipeline.option_reading import listed
from cometmq.pipeline.spark_settings import read_interval
from cometmq.pipeline.store.files import check_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.latency_traces import Traces
    from cometmq.pipeline.jobs.report import Report

_HEAD: Final = "topic, broker, queue_id, queue_offset, born_time, store_time, born_host"
_BY: Final = {
    "buckets": ("topic", "window(store_time, '{bucket}').start AS bucket"),
    "hosts": ("topic", "regexp_replace(born_host, ':[0-9]+$', '') AS host"),
    "queues": ("topic", "broker", "queue_id"),
}
"""The tables of a report, and the keys of their rows."""
_TABLES: Final = ("total", *_BY, "heat", "lag", *TRACED, LAG_HISTORY)
_MEASURED: Final = (
    *("topic", "broker", "queue_id", "queue_offset", "store_time", "born_host"),
    "unix_millis(store_time) - unix_millis(born_time) AS ms",
)
"""What is cached of each message, so that all tables use the same messages, read once."""
_CLASS: Final = (
    "CASE WHEN ms < 0 THEN -1 WHEN ms < 1 THEN 0"
    " ELSE cast(pow(2, floor(log2(ms))) AS bigint) END AS from_ms"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """What to measure, and in what detail."""

    nameserver: str = setting(
        "The name servers of the cluster; not needed with --store.", "", metavar="HOST:PORT[;...]"
    )
    credentials: Credentials = NOBODY
    topic: str = setting("The topics to read, separated by commas.", "", metavar="TOPIC[,...]")
    store: str = setting("Read a store's folder instead of a cluster.", "", metavar="DIR")
    trace_topic: str = setting("The topic of the clients' traces, usually RMQ_SYS_TRACE_TOPIC.", "")
    groups: str = setting("Report the lag of these consumer groups, separated by commas.", "")
    since: str = setting(SINCE, "")
    until: str = setting(UNTIL, "")
    bucket: str = setting(
        "The time span of a row of the tables `buckets` and `lag_history`.", "1 minute"
    )
    shown: int = setting(
        "Rows of each table in the report: the slowest, of `lag` and `lag_history` those with the"
        " most messages, of `heat` the earliest.",
        50,
    )
    tables: str = setting(
        "Write the complete tables to this folder, as Parquet.", "", metavar="DIR"
    )
    html: str = setting(
        "Write the report to this file as an HTML page with a heat map.", "", metavar="FILE"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if bool(self.topic) == bool(self.store) and not self.trace_topic:
            raise OptionError("topic, store: give one of them, or a trace-topic")
        if self.nameserver or self.topic or self.trace_topic:
            read_nameservers(self.nameserver)
        if self.groups and not self.topic:
            raise OptionError("groups: their lag is that in a topic: give the topic")
        if self.shown < 0:
            raise OptionError("shown: must not be negative")
        _ = stored_between(self), self.bucket_us  # Checks the times.
        require_file("html", self.html)

    def facts(self) -> list[str]:
        """Return what was measured, for readers of the report."""
        named = {
            "topics": self.topic,
            "store": self.store,
            "traces": self.trace_topic,
            "since": self.since,
            "until": self.until,
        }
        return [f"{name} {text}" for name, text in named.items() if text]

    @property
    def bucket_us(self) -> int:
        """The length of a bucket."""
        seconds = read_interval("bucket", self.bucket)
        if seconds < 0.001:
            raise OptionError(f"bucket: {self.bucket} is less than a millisecond")
        return round(seconds * 1_000_000)

    @property
    def group_names(self) -> list[str]:
        """The groups, without duplicates."""
        return list(dict.fromkeys(listed(self.groups)))

    @property
    def results(self) -> Results:
        """Where tables are written."""
        read = (self.store,) if self.store else ()
        return Results("tables", self.tables, "latency", read, _TABLES)

    @property
    def where(self) -> dict[str, str]:
        """The options for reaching the cluster."""
        return self.credentials.at(self.nameserver)


def latency(spark: SparkSession, settings: LatencySettings, run: Run | None = None) -> Report:
    """Report how long messages took."""
    run = run or Run()
    report = run.report_of("latency")
    measuring = _Measuring(spark, settings)
    with running(spark, report), closing(measuring), settings.results.held(spark, run):
        _require_groups(settings)
        if run.dry_run:
            measuring.count(report)
            return report
        try_file("html", settings.html)
        for name, frame in measuring.tables().items():
            with ExitStack() as until:
                measuring.note(name, kept(frame, until), report, run)
        if settings.groups:
            report.details["not_read"] = measuring.not_read
        if settings.html:
            counted = f"{report.rows:,} messages"
            limit = f"at most {settings.shown} rows a table"
            facts = [*settings.facts(), counted, limit, f"made {now()}"]
            text = page("Latency", facts, report.details, measuring.heat)
            with told_of_file("html", settings.html):
                write_whole(Path(settings.html), text)
            report.details["html"] = settings.html
    return report


def _look(settings: LatencySettings) -> None:
    settings.results.look()
    if settings.store:
        check_store(settings.store)
    for option, topics in (("topic", settings.topic), ("trace-topic", settings.trace_topic)):
        if topics:
            require_topics(settings.where, topics, option)
    _require_groups(settings)


def _require_groups(settings: LatencySettings) -> None:
    for group in settings.group_names:
        require_group(settings.nameserver, settings.credentials, group, "groups")


class _Measuring:
    """One measurement."""

    def __init__(self, spark: SparkSession, settings: LatencySettings) -> None:
        self.spark = spark
        self.settings = settings
        self.not_read: list[dict[str, str]] = []
        """Groups, each with a topic that it has never read."""
        self.kept: DataFrame | None = None
        """The cached measurements of each message."""
        self.heat: Heat | None = None
        """The heat maps."""

    def close(self) -> None:
        """Drop the cached table."""
        if self.kept is not None:
            self.kept.unpersist()

    def count(self, report: Report) -> None:
        """Note in the report how much there is to read, of a topic or a store."""
        if self.settings.topic or self.settings.store:
            queues = by_queue(self._head()).collect()
            report.cover(map(span, queues))
            report.rows = sum(each["rows"] for each in queues)

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables of a report."""
        settings = self.settings
        found: dict[str, DataFrame] = {}
        if settings.topic or settings.store:
            bucket = self._bucket
            head = self._head()
            measured = self.kept = head.selectExpr(*_MEASURED, *self._ids).persist()
            found["total"] = summed(measured, ("topic",))
            for name, by in _BY.items():
                texts = tuple(each.format(bucket=bucket) for each in by)
                found[name] = summed(measured, texts)
            counted = measured.selectExpr("topic", _BY["buckets"][1].format(bucket=bucket), _CLASS)
            heat = counted.groupBy("topic", "bucket", "from_ms").count()
            found["heat"] = heat.orderBy("topic", "bucket", "from_ms")
            if settings.groups:
                found["lag"] = self._lag(measured)
        if settings.trace_topic:
            traces = self._traces()
            found |= traced(traces)
            if self.kept is not None:
                found[LAG_HISTORY] = lag_history(self.kept, traces, self._bucket)
        return found

    def note(self, name: str, frame: DataFrame, report: Report, run: Run) -> None:
        """Note a table in the report, and write it to its folder, if any."""
        settings = self.settings
        if name == "total":
            rows = rows_as_dicts(frame)
            report.rows = sum(each["count"] for each in rows)
            if self.kept is not None:
                report.cover(map(span, by_queue(self.kept).collect()))
        if settings.tables:
            settings.results.write(frame, name)
        if name == "hosts":  # Not among the slowest: messages of such hosts seem to be fast.
            wrong = frame.where("min_ms < 0").orderBy("min_ms").limit(settings.shown)
            report.details["clocks"] = rows_as_dicts(
                wrong.select("topic", "host", "count", "negative", "min_ms")
            )
        if name == "heat" and settings.html:
            self.heat = self.drawn(frame)
        report.details[name] = rows_as_dicts(frame.limit(settings.shown))
        run.tell(table=name, rows=frame.count())

    def drawn(self, heat: DataFrame) -> Heat | None:
        """Return the cells of the heat maps, with as many columns as can be shown."""
        from pyspark.sql import functions

        when = "unix_millis(bucket)"
        (ends,) = heat.selectExpr(f"min({when}) AS first", f"max({when}) AS last").collect()
        if ends["first"] is None:
            return None
        bucket_ms = self.settings.bucket_us // 1000
        count = (ends["last"] - ends["first"]) // bucket_ms + 1
        step_ms = bucket_ms * -(-count // COLUMNS_MAX)
        column = f"cast(({when} - {ends['first']}) div {step_ms} AS int) AS column"
        cells = heat.groupBy("topic", functions.expr(column), "from_ms").agg(
            functions.expr("sum(count) AS count")
        )
        return Heat(
            datetime.fromtimestamp(ends["first"] / 1000, UTC),
            timedelta(milliseconds=step_ms),
            [tuple(cell) for cell in cells.collect()],
        )

    @property
    def _bucket(self) -> str:
        return f"{self.settings.bucket_us} microseconds"

    @property
    def _ids(self) -> tuple[str, ...]:
        """The column by which traces name messages, if there are traces."""
        return ("message_id",) if self.settings.trace_topic else ()

    def _head(self) -> DataFrame:
        settings = self.settings
        columns = ", ".join((_HEAD, *self._ids))
        frame = (
            self._topics(columns)
            if settings.topic
            else store_table(self.spark, settings.store, columns)
        )
        between: DataFrame = frame.where(stored_between(settings))
        return between

    def _topics(self, columns: str, **more: str) -> DataFrame:
        return topic_table(self.spark, self.settings.where, self.settings.topic, columns, **more)

    def _lag(self, measured: DataFrame) -> DataFrame:
        """Return the lag of groups, and how long the first message has waited."""
        from pyspark.sql import functions

        options, found = survey(self.settings.where, self.settings.topic)
        cluster = options.cluster()
        rows: list[tuple[Any, ...]] = []
        waits_from = {queue: each.end for queue, each in found.queues.items()}
        self.not_read = []
        for group in self.settings.group_names:
            committed = cluster.committed(group, found.queues, found.addresses)
            read = {queue.topic for queue in committed}
            unread = sorted(found.topics - read)
            self.not_read += [{"group": group, "topic": topic} for topic in unread]
            for queue, each in found.queues.items():
                if queue.topic not in read:
                    continue  # It may never read it, and would lag by everything there is.
                at = max(committed.get(queue, each.first), each.first)
                rows.append((group, *queue, at, each.end, queue in committed))
                waits_from[queue] = min(waits_from[queue], at)
        schema = "group string, topic string, broker string, queue_id int, at bigint, end bigint,"
        there = self.spark.createDataFrame(rows, f"{schema} has_begun boolean")
        # A time range excludes messages that have waited longer, or came later.
        if self.settings.since or self.settings.until:
            begin = json.dumps(document_of(waits_from))
            # The first message may expire meanwhile; then the next one has waited longest.
            measured = self._topics(_HEAD, startingOffsets=begin, failOnDataLoss="false")
        waiting = measured.join(functions.broadcast(there), ["topic", "broker", "queue_id"]).where(
            "queue_offset >= at AND queue_offset < end"
        )
        key = ["group", "topic", "broker", "queue_id"]
        oldest = waiting.groupBy(*key).agg(functions.expr("min(store_time)").alias("waits_since"))
        joined: DataFrame = there.join(oldest, key, "left").selectExpr(
            *key,
            "has_begun",
            "greatest(end - at, 0) AS messages",
            "greatest(at - end, 0) AS ahead",
            "waits_since",
            "round((unix_millis(now()) - unix_millis(waits_since)) / 1000, 3) AS seconds",
        )
        ordered: DataFrame = joined.orderBy(functions.desc("messages"), *key)
        return ordered

    def _traces(self) -> Traces:
        settings = self.settings
        frame = topic_table(self.spark, settings.where, settings.trace_topic, "store_time, body")
        return read_traces(frame.where(stored_between(settings)))


JOB: Final = Job(
    "latency",
    LatencySettings,
    latency,
    "Measure how long messages took, and who lags behind.",
    about=(
        "From a topic, or from a store's files: the time from born to stored, by time,"
        " producing host and queue. With --groups also how far groups are behind, and with"
        " --trace-topic how long sends and deliveries took, and how far groups were behind."
    ),
    examples=(
        "latency --topic orders",
        "latency --topic orders --since 2026-11-25T00:00:00Z --html latency.html",
    ),
    goes_on=False,
    holds=lambda settings: settings.results.places,
    look=_look,
)
