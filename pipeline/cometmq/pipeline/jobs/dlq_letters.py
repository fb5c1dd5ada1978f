"""The dead letters of one group as tables: their groups, and which ones are sent again."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.columns import ddl
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.dlq_settings import CLUSTER_BY, ORIGIN, PREFIX, DlqSettings
from cometmq.pipeline.jobs.groups import require_group
from cometmq.pipeline.jobs.spark_errors import first_line
from cometmq.pipeline.jobs.streams import NO_BODY
from cometmq.pipeline.jobs.tables import (
    by_queue,
    has_topics,
    rows_as_dicts,
    span,
    stored_between,
    taking_conditions,
    topic_table,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.report import Report

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
_COUNTED: Final = {"bad_bodies": "count_if(body IS NULL)", "empty_bodies": NO_BODY}
"""What the report also counts, with its SQL."""
_STANDS: Final = "reconsume_times > 0 OR properties['REDRIVEN_FROM'] IS NULL"
"""Letters that no consumer saw since they were sent again are not counted, and not sent either:
the first letter stands for them."""
_SQL_STATES: Final = ("22", "P0001")
"""Prefixes of SQL states of errors about data, such as division by 0 or `raise_error`."""


def has_letters(settings: DlqSettings) -> bool:
    """Whether the group has a topic of dead letters; `OptionError` if there is no such group."""
    group = settings.group
    if has_topics(settings.where, PREFIX + group):
        return True
    require_group(settings.nameserver, settings.credentials, group, "group")
    return False


class Letters:
    """The dead letters of one group."""

    def __init__(self, spark: SparkSession, settings: DlqSettings) -> None:
        self.spark = spark
        self.settings = settings
        self.topic = PREFIX + settings.group
        self.names = settings.names
        self.are_there = has_letters(settings)
        """Whether there ever were any; if not, even their topic does not exist."""

    def table(self) -> DataFrame:
        """Return them, each with the topic that it was originally sent to."""
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
        letters: DataFrame = (
            frame.where(stored_between(self.settings)).where(_STANDS).selectExpr("*", origin)
        )
        return letters

    def clusters(self) -> list[dict[str, Any]]:
        """Return their groups, the most frequent first."""
        from pyspark.sql import functions

        grouped = self.table().groupBy(
            *(functions.expr(CLUSTER_BY[name]).alias(name) for name in self.names)
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
        """Note in the report where they are, their bytes, and how many have no valid body."""
        from pyspark.sql import functions

        sums = {"bytes": "sum(length(body))", **_COUNTED}
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
        """Return the table of letters to send again; raise `OptionError` for wrong SQL."""
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
        """Return the places of the letters to send again, in order.

        A body that was skipped is null, and cannot be sent.
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
                f"to: the origin of {lost[0]}, and of {len(lost)} in all, is unknown; give a topic,"
                " or leave them out by `redrive`"
            )
        return rows


def _is_of_sql(error: Any) -> bool:
    """Whether an error is about the SQL or its result for a row, and not about reading."""
    from pyspark.errors import AnalysisException

    state: str = error.getSqlState() or ""
    return isinstance(error, AnalysisException) or state.startswith(_SQL_STATES)
