"""Copies of dead letters in another topic: finding existing ones and sending more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.identities import CoordinateIds
from cometmq.pipeline.jobs.tables import has_topics, topic_table
from cometmq.pipeline.stored import CLOCKS_MS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

_BY_TIME: Final = " by time"


class Copies:
    """The copies of one topic's messages in another topic."""

    def __init__(self, spark: SparkSession, where: Mapping[str, str], topic: str, to: str) -> None:
        self._spark = spark
        self._where = where
        self._topic = topic
        self._to = to
        self._sink_id = f"dlq {topic} {to}"
        """The name for copies' ids, followed by `_BY_TIME`; earlier versions did not add that."""

    def apart(
        self, chosen: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the letters that have no copy in the target topic, and those that have one.

        Apache's brokers store copies without the id that would tell.
        """
        from pyspark.sql import functions

        to, where = self._to, self._where
        if not chosen or not has_topics(where, to):
            return chosen, []
        since = min(map(died_ms, chosen)) - CLOCKS_MS
        there = topic_table(
            self._spark, where, to, "unique_key, store_time", startingTimestamp=since
        )
        ids = [
            copy_ids(self._sink_id + _BY_TIME, self._topic, chosen, to, timed=True),
            copy_ids(self._sink_id, self._topic, chosen, to, timed=False),
        ]
        asked = self._spark.createDataFrame(
            [(each,) for each in (*ids[0], *ids[1])], "unique_key string"
        )
        found = {
            row["unique_key"]: row["stored"]
            for row in there.join(functions.broadcast(asked), "unique_key", "left_semi")
            .groupBy("unique_key")
            .agg(functions.expr("max(unix_millis(store_time))").alias("stored"))
            .collect()
        }
        left: list[dict[str, Any]] = []
        sent: list[dict[str, Any]] = []
        for each, own, untimed in zip(chosen, *ids, strict=True):
            # A copy older than this letter is of another letter, before the topic was recreated.
            is_there = own in found or found.get(untimed, 0) >= died_ms(each) - CLOCKS_MS
            (sent if is_there else left).append(each)
        return left, sent

    def send(self, letters: DataFrame, few: list[dict[str, Any]]) -> None:
        """Copy some of the dead letters; raise if some of them are gone."""
        from pyspark.sql import Observation, functions

        places = self._spark.createDataFrame(
            [
                (each["broker"], each["queue_id"], each["queue_offset"], died_ms(each))
                for each in few
            ],
            "broker string, queue_id int, queue_offset bigint, died bigint",
        )
        offsets = [each["queue_offset"] for each in few]
        frame = letters.where(f"queue_offset BETWEEN {min(offsets)} AND {max(offsets)}")
        frame = frame.withColumn("died", functions.expr("unix_millis(store_time)"))
        chosen = frame.join(functions.broadcast(places), places.columns)
        rows = chosen.withColumn("to_topic", functions.lit(self._to)).selectExpr(
            "to_topic",
            "body",
            "key",
            "tag",
            "flag",
            "store_time",
            "map_filter(properties, (name, value) -> value <> '') AS properties",
            "topic AS source_topic",
            "broker AS source_broker",
            "queue_id AS source_queue_id",
            "queue_offset AS source_offset",
        )
        seen = Observation()
        rows = rows.observe(seen, functions.expr("count(*)").alias("sent"))
        rows.write.format("cometmq").mode("append").options(
            **self._where, sinkId=self._sink_id + _BY_TIME, emptyBodies="send"
        ).save()
        refuse_gone(len(few) - int(seen.get["sent"]))


def refuse_gone(count: int) -> None:
    """Raise if some of the chosen letters were not there any more when they were to be sent."""
    if count:
        raise PipelineError(
            f"{count} of the dead letters that were chosen are gone: before they were sent, they"
            " expired or were purged, or their broker went away"
        )


def died_ms(letter: dict[str, Any]) -> int:
    """Return when a dead letter was stored, in the ms that a broker stores."""
    seconds: float = letter["died"].timestamp()
    return round(seconds * 1000)


def copy_ids(
    sink_id: str, topic: str, letters: list[dict[str, Any]], to: str, *, timed: bool
) -> list[str]:
    """Return the ids that the sink gives to copies of a topic's messages.

    They are `timed` if the sink is told when the messages were stored.
    """
    import pyarrow as pa

    places = [
        pa.array([topic] * len(letters), pa.string()),
        pa.array([each["broker"] for each in letters], pa.string()),
        pa.array([each["queue_id"] for each in letters], pa.int32()),
        pa.array([each["queue_offset"] for each in letters], pa.int64()),
    ]
    times = pa.array([died_ms(each) * 1000 for each in letters], pa.int64()) if timed else None
    ids = CoordinateIds(sink_id).of(places, to, times).ids
    return [each.tobytes().decode() for each in ids]
