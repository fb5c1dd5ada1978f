"""Helpers for tests of the source and the sink: topics as tables, and what a session keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.pipeline.jobs.job import Run
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


class Tables:
    """Topics of one cluster as tables of one session."""

    def __init__(self, spark: SparkSession, cluster: Cluster) -> None:
        self.spark = spark
        self.cluster = cluster

    def fill(self, topic: str, count: int, *, queues: int = 2, first: int = 0) -> None:
        """Send bodies `first`, `first + 1`, …, spread over the queues in turn."""
        admin = self.cluster.admin
        if topic not in {each.name for each in admin.topics()}:
            admin.create_topic(topic, queues=queues)
        chosen = sorted(self.cluster.client.queues(topic), key=lambda queue: queue.id)
        for index in range(first, first + count):
            self.cluster.send(topic, str(index).encode(), queue=chosen[index % len(chosen)])

    def read(self, topic: str = "", schema: str = "", **options: Any) -> DataFrame:
        """Read a topic as a table."""
        reader = self._with(self.spark.read.format("cometmq"), topic, options)
        frame: DataFrame = (reader.schema(schema) if schema else reader).load()
        return frame

    def stream(self, topic: str = "", schema: str = "", **options: Any) -> DataFrame:
        """Read a topic as a stream."""
        reader = self._with(self.spark.readStream.format("cometmq"), topic, options)
        frame: DataFrame = (reader.schema(schema) if schema else reader).load()
        return frame

    def write(self, frame: DataFrame, topic: str = "", **options: Any) -> None:
        """Write rows as messages."""
        self._with(frame.write.format("cometmq").mode("append"), topic, options).save()

    def bodies(self, topic: str, **options: Any) -> list[str]:
        """Return the bodies of a topic, sorted as the numbers that they are."""
        frame = self.read(topic, **options).selectExpr("cast(body AS string) AS body")
        return sorted((row["body"] for row in frame.collect()), key=int)

    def copy(self, frame: DataFrame, checkpoint: Path, topic: str, **options: Any) -> Any:
        """Run a stream into a topic until it has read what there is; return the query."""
        writer = self._with(frame.writeStream.format("cometmq"), topic, options)
        query = (
            writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return query

    def _with(self, reading: Any, topic: str, options: dict[str, Any]) -> Any:
        given = {"nameserver": self.cluster.nameserver, **options}
        if topic:
            given["topic"] = topic
        return reading.options(**given)


def keeping_warnings(told: list[str]) -> Run:
    """Return a run that adds its warnings to `told`."""
    return Run(progress=lambda news: told.extend([news["warning"]] if "warning" in news else []))


def keeps_nothing(spark: SparkSession) -> bool:
    """Return whether a session has no cached table left."""
    kept: Any = spark._jsparkSession.sharedState().cacheManager()  # PySpark does not show it.
    return bool(kept.isEmpty())


def names_in(spark: SparkSession) -> set[str]:
    """Return the names of the session's own views and functions in SQL."""
    tables = {row["tableName"] for row in spark.sql("SHOW TABLES").collect()}
    return tables | {row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()}


def numbers(first: int, end: int) -> list[str]:
    """Return the bodies that `Tables.fill` sends."""
    return [str(index) for index in range(first, end)]
