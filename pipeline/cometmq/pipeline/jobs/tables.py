"""Tables of topics, stores and archives, for jobs that read messages once."""

from __future__ import annotations

from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline import bounds
from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.report import Span
from cometmq.pipeline.options import PUSHDOWN, read_options, read_time_ms

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import ExitStack

    from pyspark.sql import Column, DataFrame, SparkSession

    from cometmq.pipeline.cluster import Survey
    from cometmq.pipeline.options import ReadOptions

SINCE: Final = "Only messages stored at or after this time: ms, or ISO 8601."
UNTIL: Final = "Only messages stored before this time."
_SIGNS: Final = {"since": ">=", "until": "<"}
_NAMING: Final = dict[str, RLock]()
"""By name: held while a table has it, as jobs in other threads may have the same session."""


def topic_table(
    spark: SparkSession, where: Mapping[str, str], topic: str, columns: str, **more: Any
) -> DataFrame:
    """Return some columns of topics; `where` has the options for reaching their cluster."""
    reader = spark.read.format("cometmq").options(**where, topic=topic)
    frame: DataFrame = reader.options(columns=columns, **more).load()
    return frame


def require_topics(where: Mapping[str, str], topic: str, said_by: str = "topic") -> None:
    """Refuse topics that do not exist; for `Job.look`. `said_by` is the setting that names them."""
    options, found = survey(where, topic)
    bounds.require_topics(found, options, said_by)


def has_topics(where: Mapping[str, str], topic: str) -> bool:
    """Whether topics exist; for jobs that can say more about missing ones."""
    options, found = survey(where, topic)
    return found.topics.issuperset(options.topics)


def survey(where: Mapping[str, str], topic: str) -> tuple[ReadOptions, Survey]:
    """Return the options that name topics, and what brokers have of these."""
    options = read_options({**where, "topic": topic})
    return options, bounds.survey(options.cluster(), options, whole=True)


def taking_conditions(spark: SparkSession) -> dict[str, str]:
    """Return the option to plan by conditions, for a frame whose queries all have some."""
    takes = str(spark.conf.get(PUSHDOWN, "")).lower() == "true"
    return {"filterPushdown": "true"} if takes else {}


def store_table(
    spark: SparkSession, path: str, columns: str, topic: str = "", on_damage: str = "fail"
) -> DataFrame:
    """Return some columns of a store, for all topics or for some."""
    reader = spark.read.format("cometmq-store").options(columns=columns, onDamage=on_damage)
    if topic:
        reader = reader.option("topic", topic)
    frame: DataFrame = reader.load(path)
    return frame


def stored_between(settings: Any) -> str:
    """Return the condition on `store_time` for `since` and `until` of the settings.

    Refuse one that no message can fulfil: `reconcile` would report that both sides are equal.
    """
    times = {name: read_time_ms(name, text) for name in _SIGNS if (text := getattr(settings, name))}
    if len(times) > 1 and times["since"] >= times["until"]:
        raise OptionError(f"until: {settings.until!r} is not after since, {settings.since!r}")
    parts = [
        f"store_time {_SIGNS[name]} timestamp_millis({time_ms})" for name, time_ms in times.items()
    ]
    return " AND ".join(parts) or "true"


def by_queue(frame: DataFrame, *more: Column) -> DataFrame:
    """Return the number of messages of each queue, their range of offsets, and what `more` says."""
    from pyspark.sql import functions

    found: DataFrame = frame.groupBy("topic", "broker", "queue_id").agg(
        functions.expr("count(*)").alias("rows"),
        functions.expr("min(queue_offset)").alias("first"),
        functions.expr("max(queue_offset) + 1").alias("end"),
        *more,
    )
    return found


def span(row: Any) -> Span:
    """Convert a row of `by_queue`; a store does not have the name of its broker."""
    return Span(row["topic"], row["broker"] or "", row["queue_id"], row["first"], row["end"])


def kept(frame: DataFrame, until: ExitStack) -> DataFrame:
    """Have Spark cache a table until the end of `until`; otherwise it would keep it longer."""
    found: DataFrame = frame.persist()
    until.callback(found.unpersist)
    return found


@contextmanager
def named(frame: DataFrame, name: str) -> Generator[None]:
    """Give a table a name for SQL in the block; a caller's session would keep it longer.

    A view of the caller with this name is restored afterwards. Spark drops a cached table (`kept`)
    with its last name, so `kept` must end first.
    """
    spark = frame.sparkSession
    with _NAMING.setdefault(name, RLock()):
        is_theirs = spark.catalog.tableExists(name) and spark.catalog.getTable(name).isTemporary
        theirs = spark.table(name) if is_theirs else None
        frame.createOrReplaceTempView(name)
        try:
            yield
        finally:
            if theirs is None:
                spark.catalog.dropTempView(name)
            else:
                theirs.createOrReplaceTempView(name)


def rows_as_dicts(frame: DataFrame) -> list[dict[str, Any]]:
    """Return a small table as dicts, for a report."""
    return [row.asDict(recursive=True) for row in frame.collect()]
