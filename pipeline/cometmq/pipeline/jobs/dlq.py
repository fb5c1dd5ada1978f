"""`dlq`: dead letters put together by what they have in common, and some of them sent again.

Nothing leaves the topic of dead letters by being read. What `redrive` says is sent again, each
message once. To where it came from, by what `cometmq dlq redrive` does, with the same record: what
one of them has sent the other does not send again. To another topic it is a copy, of which that
record says nothing: it is known by where it is among the dead letters, and since when, so another
run, after a crash or with more of them, copies none of them twice (to brokers of CometMQ; to
Apache's at least once). What is there already is counted as `earlier`.

`receipts` has each message that was sent once, however often the job was killed or run.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.client import (
    ClientError,
    DeadLetterFilter,
    Queue,
    Redriven,
    SyncClient,
)
from cometmq.pipeline.columns import ddl
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.credentials import NOBODY, Credentials
from cometmq.pipeline.jobs.dlq_copies import Copies
from cometmq.pipeline.jobs.groups import require_group
from cometmq.pipeline.jobs.job import Job, Run, running, setting
from cometmq.pipeline.jobs.pacing import Pace
from cometmq.pipeline.jobs.receipts import Receipts
from cometmq.pipeline.jobs.spark_errors import first_line
from cometmq.pipeline.jobs.streams import BAD_BODY, NO_BODY
from cometmq.pipeline.jobs.tables import (
    by_queue,
    has_topics,
    rows_as_dicts,
    span,
    stored_between,
    taking_conditions,
    topic_table,
)
from cometmq.pipeline.jobs.topic_names import check_written
from cometmq.pipeline.jobs.writable import require_file, try_file
from cometmq.pipeline.nameservers import read_nameservers
from cometmq.pipeline.option_reading import listed
from cometmq.pipeline.options import check_bad_body

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.report import Report

PREFIX: Final = "%DLQ%"
ORIGIN: Final = "origin"
_COLUMNS: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "message_id",
    "key",
    "tag",
    "flag",
    "store_time",
    "born_host",
    "reconsume_times",
    "properties",
    "body",
)
_TEXT: Final = "try_validate_utf8(cast(body AS string))"
_BY: Final = {
    "topic": "origin",
    "reason": "coalesce(properties['DEAD_LETTER_REASON'], properties['exception'])",
    "shape": "CASE WHEN body IS NULL THEN 'bad body'"
    f" WHEN {_TEXT} IS NULL THEN 'binary'"
    f" WHEN try_parse_json({_TEXT}) IS NULL THEN 'text'"
    f" ELSE coalesce('json: ' || array_join(json_object_keys({_TEXT}), ', '), 'json') END",
    "key": "regexp_replace(key, '[0-9]+', '#')",
    "tag": "tag",
    "host": "regexp_replace(born_host, ':[0-9]+$', '')",
}
"""By what dead letters can be put together, and how a row says it."""
_COUNTED: Final = {"bad_bodies": "count_if(body IS NULL)", "empty_bodies": NO_BODY}
"""What the report counts besides, and how SQL says it."""
_SQL_STATES: Final = ("22", "P0001")
"""What the states of errors begin with that are about data: of division by 0, of `raise_error`."""
_GROUPS_MAX: Final = 100
_TELL_SECONDS: Final = 1.0
"""How often it says how far it is, where messages go one by one."""
_RATE_WITHOUT: Final = 100_000
"""Messages of a write, where no rate is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DlqSettings:
    """Whose dead letters, and what to do with them."""

    nameserver: str = setting("The cluster.", metavar="HOST:PORT[;...]")
    credentials: Credentials = NOBODY
    group: str = setting("The group that gave them up.", metavar="GROUP")
    since: str = setting("Only what died then or later: ms, or ISO 8601.", "")
    until: str = setting("Only what died before.", "")
    cluster_by: str = setting(f"Of {', '.join(_BY)}: what they have in common.", "topic,shape")
    examples: int = setting("Ids of messages of each cluster, in the report.", 3)
    redrive: str = setting("Send those again for which this SQL holds; `true` is all.", "")
    to: str = setting(
        "Where to: origin, the topic that they came from, or a topic.",
        ORIGIN,
        metavar="origin|TOPIC",
    )
    rate: int = setting("Messages a second, at most; 0 is as fast as it goes.", 0)
    receipts: str = setting("Write what was sent again, a line of JSON each.", "", metavar="FILE")
    on_bad_body: str = setting(BAD_BODY, "fail")

    def __post_init__(self) -> None:
        read_nameservers(self.nameserver)
        check_bad_body(self.on_bad_body, "on-bad-body")
        for each in self.names or [""]:
            if each not in _BY:
                raise OptionError(f"cluster-by: {each!r} is none of {', '.join(_BY)}")
        if self.rate < 0 or self.examples < 0:
            raise OptionError("rate, examples: must not be negative")
        check_written("to", self.to, is_needed=True)
        if self.to == PREFIX + self.group:
            raise OptionError(f"to: {self.to} is what is read; say origin, or another topic")
        stored_between(self)  # Looks at the times.
        require_file("receipts", self.receipts, is_read=True)
        if not self.redrive and (self.to != ORIGIN or self.receipts):
            raise OptionError(
                "redrive: say what is sent again, `true` for all; to and receipts are about that"
            )

    @property
    def where(self) -> dict[str, str]:
        """How the cluster is reached."""
        return self.credentials.at(self.nameserver)

    @property
    def names(self) -> list[str]:
        """By what they are put together."""
        return listed(self.cluster_by)


def dlq(spark: SparkSession, settings: DlqSettings, run: Run | None = None) -> Report:
    """Report on dead letters, and send some again."""
    run = run or Run()
    report = run.report_of("dlq")
    letters = _Letters(spark, settings)
    with running(spark, report):
        if settings.redrive:
            letters.wanted()  # Of SQL that is wrong nothing shall be read.
            if not run.dry_run:
                try_file("receipts", settings.receipts)
        clusters = letters.clusters()
        report.rows = sum(each["count"] for each in clusters)
        report.details["clusters"] = clusters[:_GROUPS_MAX]
        letters.count(report)
        run.tell(dead_letters=report.rows, clusters=len(clusters))
        if settings.redrive:
            chosen = letters.chosen()
            report.details["chosen"] = len(chosen)
            if not run.dry_run:
                if settings.to == ORIGIN:
                    _redrive(chosen, settings, run, report)
                else:
                    _copy(letters, chosen, settings, run, report)
    return report


def _has_letters(settings: DlqSettings) -> bool:
    """Whether the group has a topic of dead letters; an `OptionError` if there is no such group."""
    group = settings.group
    if has_topics(settings.where, PREFIX + group):
        return True
    require_group(settings.nameserver, settings.credentials, group, "group")
    return False


class _StoppedError(Exception):
    """The job shall end."""


def _redrive(chosen: list[dict[str, Any]], settings: DlqSettings, run: Run, report: Report) -> None:
    """Send the chosen ones to where they came from, as `cometmq dlq redrive --to topic` does."""
    topic = PREFIX + settings.group
    places = {
        (Queue(topic, each["broker"], each["queue_id"]), each["queue_offset"]): each
        for each in chosen
    }
    redriven = Redriven()
    sent, earlier, told = 0, 0, -_TELL_SECONDS

    receipts = Receipts(settings.receipts)

    def watch(now: Redriven) -> None:
        nonlocal redriven, sent, earlier, told
        redriven = now
        # A run that was killed may have sent one that it wrote nothing of.
        there = [*now.sent_places[sent:], *now.earlier_places[earlier:]]
        receipts.write(places[each] for each in there)
        sent, earlier = len(now.sent_places), len(now.earlier_places)
        is_last = run.is_stopping or now.count == len(chosen)
        if is_last or time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            run.tell(redriven=now.sent, earlier=now.earlier, of=len(chosen))
        if run.is_stopping:
            raise _StoppedError

    try:
        if chosen and not run.is_stopping:
            config = settings.credentials.client_config()
            with suppress(_StoppedError), SyncClient(settings.nameserver, config) as mq:
                mq.admin.dead_letters.redrive(
                    settings.group,
                    DeadLetterFilter(places=frozenset(places)),
                    to="topic",
                    rate=settings.rate or None,
                    watch=watch,
                )
    except ClientError as error:  # Most often a broker that goes away.
        raise PipelineError(str(error)) from error
    finally:
        report.details["redriven"] = redriven.sent
        report.details["earlier"] = redriven.earlier
        report.details["failed"] = [
            {"message_id": one, "reason": why} for one, why in redriven.failed
        ]
    report.stopped = run.is_stopping and redriven.count < len(chosen)
    if redriven.failed:
        one, why = redriven.failed[0]
        raise PipelineError(f"{one}, and {len(redriven.failed)} in all, not redriven: {why}")


def _copy(
    letters: _Letters,
    chosen: list[dict[str, Any]],
    settings: DlqSettings,
    run: Run,
    report: Report,
) -> None:
    """Send the chosen ones to another topic, as many at a time as the rate allows."""
    pace = Pace(settings.rate, run)
    step = settings.rate or _RATE_WITHOUT
    receipts = Receipts(settings.receipts)
    report.details["redriven"] = 0
    copies = Copies(letters.spark, settings.where, letters.topic, settings.to)
    left, there = copies.apart(chosen)
    report.details["earlier"] = len(there)
    receipts.write(there)
    for first in range(0, len(left), step):
        few = left[first : first + step]
        if not pace.wait(len(few)):
            report.stopped = True
            break
        copies.send(letters.table(), few)
        receipts.write(few)
        report.details["redriven"] += len(few)
        run.tell(
            redriven=report.details["redriven"], earlier=report.details["earlier"], of=len(chosen)
        )


class _Letters:
    """The dead letters of one group."""

    def __init__(self, spark: SparkSession, settings: DlqSettings) -> None:
        self.spark = spark
        self.settings = settings
        self.topic = PREFIX + settings.group
        self.names = settings.names
        self.are_there = _has_letters(settings)
        """Whether there ever were any; else not even their topic is there."""

    def table(self) -> DataFrame:
        """Return them with the topic that each was sent to at first."""
        frame = (
            topic_table(
                self.spark,
                self.settings.where,
                self.topic,
                ", ".join(_COLUMNS),
                onBadBody=self.settings.on_bad_body,
                **taking_conditions(self.spark),
            )
            if self.are_there
            else self.spark.createDataFrame([], ddl(_COLUMNS))
        )
        origin = "coalesce(properties['DLQ_ORIGIN_TOPIC'], properties['RETRY_TOPIC']) AS origin"
        letters: DataFrame = frame.where(stored_between(self.settings)).selectExpr("*", origin)
        return letters

    def clusters(self) -> list[dict[str, Any]]:
        """Return what they have in common, the most frequent first."""
        from pyspark.sql import functions

        grouped = self.table().groupBy(
            *(functions.expr(_BY[name]).alias(name) for name in self.names)
        )
        examples = f"slice(array_sort(collect_list(message_id)), 1, {self.settings.examples})"
        frame = grouped.agg(
            functions.expr("count(*)").alias("count"),
            functions.expr("min(store_time)").alias("first"),
            functions.expr("max(store_time)").alias("last"),
            functions.expr("max(reconsume_times)").alias("attempts"),
            functions.expr(examples if self.settings.examples else "array()").alias("examples"),
        )
        return rows_as_dicts(frame.orderBy(functions.desc("count"), *self.names))

    def count(self, report: Report) -> None:
        """Note in the report where they are, how many bytes, and how many have no body to send."""
        from pyspark.sql import functions

        sums = {"bytes": "coalesce(sum(length(body)), 0)", **_COUNTED}
        columns = [functions.expr(sql).alias(name) for name, sql in sums.items()]
        report.size = 0
        found = dict.fromkeys(_COUNTED, 0)
        for row in by_queue(self.table(), *columns).collect():
            report.cover([span(row)])
            report.count_bytes(row["bytes"])
            for name in found:
                found[name] += row[name]
        if self.settings.on_bad_body == "fail":
            del found["bad_bodies"]
        if not found["empty_bodies"]:
            del found["empty_bodies"]
        report.details |= found

    def wanted(self) -> DataFrame:
        """Return the table of those that are to be sent again; `OptionError` for wrong SQL."""
        with self._told_sql():
            return self.table().where("body IS NOT NULL").where(f"({self.settings.redrive})")

    @contextmanager
    def _told_sql(self) -> Generator[None]:
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            if not _is_of_sql(error):
                raise
            raise OptionError(f"redrive: {first_line(error)}") from None

    def chosen(self) -> list[dict[str, Any]]:
        """Return the places of those that are to be sent again, in their order.

        A body that was skipped is null, and nobody can send it.
        """
        from pyspark.sql import functions

        to = self.settings.to
        target = functions.col("origin") if to == ORIGIN else functions.lit(to)
        with self._told_sql():
            places = self.wanted().select(
                functions.lit(self.settings.group).alias("group"),
                *("message_id", "broker", "queue_id", "queue_offset"),
                target.alias("to_topic"),
                functions.col("store_time").alias("died"),
            )
            rows = rows_as_dicts(places.orderBy("broker", "queue_id", "queue_offset"))
        if lost := [each["message_id"] for each in rows if not each["to_topic"]]:
            raise OptionError(
                f"to: nobody knows where {lost[0]} came from, and {len(lost)} in all; say a topic,"
                " or leave them out by `redrive`"
            )
        return rows


def _is_of_sql(error: Any) -> bool:
    """Whether it is about SQL or what this makes of some row, and not about reading the topic."""
    from pyspark.errors import AnalysisException

    state: str = error.getSqlState() or ""
    return isinstance(error, AnalysisException) or state.startswith(_SQL_STATES)


JOB: Final = Job(
    "dlq",
    DlqSettings,
    dlq,
    "Dead letters by what they share; some sent again.",
    examples=(
        "dlq --group billing --cluster-by topic,shape",
        "dlq --group billing --redrive \"key LIKE 'o-1%'\" --dry-run",
    ),
    look=_has_letters,
)
