"""`aggregate`: aggregate a topic in time windows, into another topic or into files.

Each row of the result is a JSON body with the window, the key and the aggregates. In mode `append`,
a window is sent once, when its watermark has passed; in mode `update`, whenever it has changed. A
row is identified by its batch, window and key, so a repeated batch sends nothing twice, but a value
that occurs again later is sent again. Updates of one window and key go to one queue, where the last
one is the latest.

As files (`--to`), the same values are columns of Parquet. Each batch that ended a window has a
folder, which is put in place as a whole, so a repeated batch replaces its earlier version.

With a schema, bodies that do not fit it (see `json_bodies.py`) are in no window: they could only
add nulls, and a `count` of meaningless messages. They are counted as `misfits`, in the progress of
each batch and in the report. A message whose time is null belongs to no window, and is counted as
`untimed`.

A window ends when a message comes that is later than its end by the watermark. Until then it is
kept, and in mode `append` it is not visible: the report counts windows that were sent or written as
`windows`, and those that are kept as `windows_open`. Messages that come after the watermark are in
no window. Spark counts them after a task has summed up what it read of a window and key, so each of
the `late_rows` is at least one message.

The aggregates are in Spark's checkpoint. Another window, key or aggregation needs another
checkpoint; the job says so before it starts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs import aggregations
from cometmq.pipeline.jobs.aggregate_settings import TIME, AggregateSettings
from cometmq.pipeline.jobs.checkpoint_owners import refuse_others, was_started
from cometmq.pipeline.jobs.folders import Folder, last_batch, refuse_batches
from cometmq.pipeline.jobs.hidden_queues import tell_of_unread
from cometmq.pipeline.jobs.holding import BATCHES, STREAM, Places, held, in_folders
from cometmq.pipeline.jobs.job import Job, Run, running
from cometmq.pipeline.jobs.json_bodies import with_text, with_value
from cometmq.pipeline.jobs.local_paths import path_within
from cometmq.pipeline.jobs.repeatable import require_same
from cometmq.pipeline.jobs.spark_errors import told_as
from cometmq.pipeline.jobs.streams import (
    ONCE,
    check_checkpoint,
    counted,
    last_begun,
    look_for_topics,
    query_id,
    read_stream,
    run_batches,
    would_read,
)
from cometmq.pipeline.jobs.torn_checkpoints import next_batch
from cometmq.pipeline.spark_settings import interval_seconds, spelled_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.report import Report

__all__ = ("JOB", "AggregateSettings", "aggregate")

_PLAN: Final = "cometmq-aggregate.json"
_STATE: Final = "state"
"""The folder in a checkpoint where Spark keeps the aggregates."""
_OWNER: Final = ("_owner", "aggregate.json")
"""The file in the results folder that says whose it is; Spark ignores names that begin with _."""


def aggregate(spark: SparkSession, settings: AggregateSettings, run: Run | None = None) -> Report:
    """Aggregate once or continuously, as `trigger` says."""
    run = run or Run()
    report = run.report_of("aggregate", counts_bytes=True)
    checkpoint = Folder(spark, settings.checkpoint)
    with running(spark, report), held(run, report.job, *in_folders(spark, _holds(settings))):
        frame = _results(counted(read_stream(spark, settings), settings), settings)
        refuse_others(checkpoint, report)
        into = _Files(spark, settings) if settings.to else _Topic(spark, settings)
        check_checkpoint(checkpoint, run, report)
        _check_plan(checkpoint, settings, dry_run=run.dry_run)
        if run.dry_run:
            report.details["would_read"] = would_read(spark, settings)
            return report
        if was_started(checkpoint) and not next_batch(checkpoint):
            checkpoint.remove(_STATE)  # A power cut may have torn it, and nothing is reckoned yet.
        report.details["late_rows"] = report.details["windows"] = 0
        if settings.schema:
            report.details["misfits"] = 0

        def put(results: DataFrame, batch_id: int) -> None:
            results = results.persist()  # Using it twice would compute it twice.
            try:
                count = results.count()
                into.put(results, count, batch_id)
                report.details["windows"] += count
            finally:
                results.unpersist()

        run_batches(frame, put, settings, run, report, settings.mode)
        tell_of_unread(settings, checkpoint, run)
        _tell_windows(settings, run, report)
    return report


def _holds(settings: AggregateSettings) -> Places:
    files: Places = ((settings.to, BATCHES),) if settings.to else ()
    return (settings.checkpoint, STREAM), *files


def _tell_windows(settings: AggregateSettings, run: Run, report: Report) -> None:
    """Explain why there are not more windows, or not more messages in them."""
    if count := report.details["late_rows"]:
        report.details["late"] = (
            f"at least {count} messages came later than the watermark, {settings.watermark}, and"
            " are in no window; a longer one includes them, and needs another checkpoint"
        )
        run.tell(late_rows=count, late=report.details["late"])
    written, kept = report.details["windows"], report.details.get("windows_open", 0)
    if settings.mode == "append" and settings.trigger == ONCE and kept:
        report.details["waiting"] = (
            f"{written or 'no'} windows ended; {kept} stay open until a message comes that is later"
            f" than their end by the watermark, {settings.watermark}; --mode update shows windows"
            " before they end"
        )
        run.tell(windows=written, windows_open=kept, waiting=report.details["waiting"])


class _Topic:
    """The results as messages."""

    def __init__(self, spark: SparkSession, settings: AggregateSettings) -> None:
        self._settings = settings
        self._checkpoint = Folder(spark, settings.checkpoint)

    def put(self, results: DataFrame, _count: int, batch_id: int) -> None:
        """Send the results of a batch."""
        in_order = self._settings.mode == "update"
        messages = results.select(*_message(results, batch_id, in_order=in_order))
        # Not by the stream sink: Spark allows no Python sink in mode update.
        messages.write.format("cometmq").mode("append").options(
            **self._settings.credentials.at(self._settings.nameserver),
            topic=self._settings.to_topic,
            dedupKey="source_key",
            sinkId=f"aggregate {query_id(self._checkpoint)}",
        ).save()


class _Files:
    """The results as files, in a folder that only this stream writes to."""

    def __init__(self, spark: SparkSession, settings: AggregateSettings) -> None:
        self._checkpoint = Folder(spark, settings.checkpoint)
        self._folder = Folder(spark, settings.to)
        self._folder.require_writable()
        self._begun = self._folder.exists(*_OWNER)
        if not self._begun:
            refuse_batches(self._folder)
            below = path_within(settings.checkpoint, settings.to)
            if below is not None and not "".join(below[:1]).startswith(("_", ".")):
                raise OptionError(
                    f"checkpoint: {settings.checkpoint} is in the folder of the results,"
                    f" {settings.to}, so whoever reads that as a table would read its files, too;"
                    " choose another folder"
                )
            if done := next_batch(self._checkpoint):
                raise OptionError(
                    f"to: {settings.to} has no results of a stream, but by the checkpoint"
                    f" {settings.checkpoint} {done} batches are done, whose results would be"
                    " missing: put the folder back, or choose a new --checkpoint, too"
                )
        else:
            owner = self._folder.read_json(
                *_OWNER, if_damaged="put it back from a copy, or choose another folder"
            )
            if owner.get("query_id") != query_id(self._checkpoint):
                raise OptionError(
                    f"to: {settings.to} was begun with another checkpoint than"
                    f" {settings.checkpoint}, whose batches would replace what is there; choose"
                    " another folder"
                )
            self._refuse_older()

    def _refuse_older(self) -> None:
        """Refuse a checkpoint that is older than the folder, such as one restored from a copy.

        It would put the same windows into batches with other numbers beside the existing ones.
        """
        done, last = next_batch(self._checkpoint), last_batch(self._folder)
        if last > done:  # A run was killed before it noted that batch as done.
            raise OptionError(
                f"to: {self._folder.path} has results up to batch {last}, but by the checkpoint"
                f" {self._checkpoint.path}, perhaps an old copy, only {done} batches are done: new"
                " results would be there twice; put back a later one, or choose a new folder and a"
                " new --checkpoint"
            )

    def put(self, results: DataFrame, count: int, batch_id: int) -> None:
        """Write the results of a batch; nothing if no window ended."""
        if not self._begun:
            document = {"query_id": query_id(self._checkpoint)}
            self._folder.write(json.dumps(document) + "\n", *_OWNER)
            self._begun = True
        if count:
            self._folder.write_table(results, f"batch={batch_id:06d}")


def _results(stream: DataFrame, settings: AggregateSettings) -> DataFrame:
    from pyspark.sql import functions

    if settings.schema:
        stream = _fitting(stream, settings)
    length = spelled_out(settings.window)
    slide = spelled_out(settings.slide) or length
    at = _free_name("at", stream)
    with told_as("time"):
        time = functions.expr(settings.time)
        require_same(stream.select(time), "time")
        timed = stream.withColumn(at, time)
        seen = timed.observe("times", functions.expr(f"count_if({at} IS NULL)").alias("untimed"))
        timed_rows = seen.withWatermark(at, spelled_out(settings.watermark))
        window = functions.window(at, length, slide).alias("window")
        timed_rows.select(window)
    groups: list[Any] = [window]
    if settings.key:
        with told_as("key"):
            key = functions.expr(settings.key).alias("key")
            require_same(timed.select(key), "key")
            groups.append(key)
            timed_rows.groupBy(*groups).count()
    with told_as("aggregations"):
        columns = aggregations.columns(settings.aggregations)
        found = timed_rows.groupBy(*groups).agg(*columns)
    named = {"window.start": "from", "window.end": "to"}
    results: DataFrame = found.select(
        *(functions.col(name).alias(alias) for name, alias in named.items()),
        *(name for name in found.columns if name != "window"),
    )
    return results


def _fitting(stream: DataFrame, settings: AggregateSettings) -> DataFrame:
    """Return the messages whose bodies fit, with the bodies' fields; count the others.

    A field replaces a message column of the same name.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    read = with_value(with_text(stream), settings.schema).drop("text")
    kind = read.schema["value"].dataType
    if not isinstance(kind, StructType):
        raise OptionError(
            f"schema: {settings.schema!r} names no fields; write such as 'id BIGINT, amount DOUBLE'"
        )
    fields = {name.lower() for name in kind.names}
    if len(fields) < len(kind.names):
        raise OptionError(f"schema: {settings.schema!r} has a name twice; Spark ignores case")
    if settings.time == TIME and TIME in fields:
        raise OptionError(
            f"time: {TIME} is also a field of --schema; write cast({TIME} AS timestamp), or"
            f" timestamp_millis({TIME}), if that is the time of a message, and leave it out of"
            " --schema if it is not"
        )
    counted = read.observe("bodies", functions.expr("count_if(value IS NULL)").alias("misfits"))
    others = [name for name in read.columns if name not in fields]
    fitting: DataFrame = counted.where("value IS NOT NULL").select(*others, "value.*")
    return fitting


def _free_name(name: str, frame: DataFrame) -> str:
    """Return a name that no column has; Spark ignores case."""
    taken = {each.lower() for each in frame.columns}
    while name in taken:
        name += "_"
    return name


def _message(results: DataFrame, batch_id: int, *, in_order: bool) -> list[Any]:
    from pyspark.sql import functions

    body = functions.to_json(functions.struct(*results.columns))
    own = "key" if "key" in results.columns else "from"
    # All digits of what Spark groups by: by default a time would be cut to milliseconds and written
    # in the session's zone, which may be another when the batch is repeated.
    micros = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    place = functions.to_json(
        functions.struct(*dict.fromkeys(("from", "to", own))),
        {"timestampFormat": f"{micros}XXX", "timestampNTZFormat": micros, "timeZone": "UTC"},
    )
    of_window = functions.sha2(place, 256)
    columns = [
        body.alias("body"),
        functions.col(own).cast("string").alias("key"),
        functions.concat(functions.lit(f"{batch_id} "), of_window).alias("source_key"),
    ]
    return [*columns, of_window.alias("sharding_key")] if in_order else columns


def _check_plan(checkpoint: Folder, settings: AggregateSettings, *, dry_run: bool) -> None:
    names = ("schema", "key", "window", "slide", "time", "aggregations", "mode", "watermark")
    plan = {name: getattr(settings, name) for name in names}
    # An aggregation that Spark refused to begin has computed nothing, and may be changed.
    has_begun = last_begun(checkpoint) >= 0 or checkpoint.exists(_STATE)
    if has_begun and checkpoint.exists(_PLAN):
        before = checkpoint.read_json(
            _PLAN, if_damaged="put it back from a copy, or use a new --checkpoint"
        )
        if changed := [name for name in names if not _is_same(before.get(name), plan[name])]:
            name = changed[0]
            raise OptionError(
                f"{name}: was {before.get(name)!r} when {checkpoint.path} was begun, whose state"
                " cannot be changed; use a new --checkpoint"
            )
    elif not dry_run:
        checkpoint.write(json.dumps(plan) + "\n", _PLAN)


def _is_same(before: str | None, now: str) -> bool:
    """Whether a setting is the same: durations may be spelled otherwise."""
    seconds = interval_seconds(now)
    return before == now or (seconds is not None and interval_seconds(before or "") == seconds)


JOB: Final = Job(
    "aggregate",
    AggregateSettings,
    aggregate,
    "Count, sum and average messages over windows of time.",
    about=(
        "Results go to a topic (--to-topic) or to Parquet files (--to). A window is complete"
        " when a message arrives that is later than its end by --watermark; messages later than"
        " that are counted as late and left out. After a kill, start it again with the same"
        " --checkpoint: each window is stored once."
    ),
    examples=(
        "aggregate --topic orders --to-topic sums --checkpoint /data/sums --window '1 minute'",
        "aggregate --topic orders --to-topic sums --checkpoint /data/sums \\\n"
        "    --schema 'amount DOUBLE' --aggregations 'count,sum(amount),p95(amount)'",
    ),
    holds=_holds,
    look=look_for_topics,
)
