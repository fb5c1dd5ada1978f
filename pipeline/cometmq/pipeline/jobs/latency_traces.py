"""What clients' traces say about sends, deliveries and consumptions, for `latency`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.jobs.latency_figures import summed
from cometmq.pipeline.jobs.tables import named
from cometmq.pipeline.users_topics import is_users

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRACED: Final = ("sends", "deliveries", "acknowledgements", "consumptions")
"""The tables of traces alone."""
LAG_HISTORY: Final = "lag_history"
"""The table of traces together with the messages that they are about."""

_SENDS: Final = """
SELECT f[3] AS producer, f[4] AS topic, f[5] AS id, try_cast(f[1] AS bigint) AS time,
  try_cast(f[10] AS bigint) AS ms, coalesce(try_element_at(f, 14), 'true') <> 'false' AS success
FROM cometmq_traces WHERE f[0] = 'Pub' AND size(f) > 11
"""
_CONSUMED: Final = """
SELECT b.consumer, b.id, b.time, b.retries, a.ms, coalesce(a.success, false) AS success FROM
  (SELECT f[3] AS consumer, f[4] AS request, f[5] AS id, try_cast(f[1] AS bigint) AS time,
    coalesce(try_cast(try_element_at(f, 7) AS int), 0) AS retries
    FROM cometmq_traces WHERE f[0] = 'SubBefore') b
  LEFT JOIN (SELECT f[1] AS request, f[2] AS id, try_cast(f[3] AS bigint) AS ms,
    f[4] = 'true' AS success FROM cometmq_traces WHERE f[0] = 'SubAfter') a
  ON a.request = b.request AND a.id = b.id
"""
_DELIVERED: Final = """
SELECT s.topic, c.consumer, c.time - s.time AS ms, c.retries
FROM cometmq_trace_consumed c JOIN cometmq_trace_sends s ON s.id = c.id WHERE c.retries = 0
"""
_ACKNOWLEDGED: Final = """
SELECT s.topic, c.consumer, c.time + c.ms - s.time AS ms, c.retries
FROM cometmq_trace_consumed c JOIN cometmq_trace_sends s ON s.id = c.id WHERE c.success
"""
_LAG_HISTORY: Final = """
WITH ended AS (
  SELECT consumer, id, if(try_add(time, ms) BETWEEN 0 AND {latest_ms}, time + ms, NULL) AS ms
  FROM cometmq_trace_consumed WHERE retries = 0
), stored AS (
  SELECT topic, broker, queue_id, window(store_time, '{bucket}').start AS bucket,
    max(queue_offset) + 1 AS end
  FROM cometmq_trace_messages GROUP BY ALL
), taken AS (
  SELECT c.consumer AS group, m.topic, m.broker, m.queue_id,
    window(timestamp_millis(c.ms), '{bucket}').start AS bucket,
    max(m.queue_offset) + 1 AS at, min(m.queue_offset) AS first
  FROM ended c JOIN cometmq_trace_messages m ON m.message_id = c.id
  WHERE c.ms IS NOT NULL GROUP BY ALL
), first_taken AS (
  SELECT group, topic, broker, queue_id, min(first) AS first FROM taken GROUP BY ALL
), known AS (
  SELECT f.group, s.*, f.first AS at FROM stored s JOIN first_taken f
    ON s.topic = f.topic AND s.broker <=> f.broker AND s.queue_id = f.queue_id
  UNION ALL SELECT group, topic, broker, queue_id, bucket, at AS end, at FROM taken
), reached AS (
  SELECT group, topic, broker, queue_id, bucket,
    max(max(at)) OVER queue AS at, max(max(end)) OVER queue AS end
  FROM known GROUP BY group, topic, broker, queue_id, bucket
  WINDOW queue AS (PARTITION BY group, topic, broker, queue_id ORDER BY bucket)
)
SELECT *, greatest(end - at, 0) AS messages FROM reached
ORDER BY messages DESC, group, topic, broker, queue_id, bucket
"""
"""A group is where its last first delivery was; before the first one, at that message."""
_LATEST_MS: Final = 99_999_999_999_999
"""In the year 5138: what traces say may be anything, and Spark's times end."""


class Traces(NamedTuple):
    """What traces say: one row for each send, and for each consumption."""

    sends: DataFrame
    consumed: DataFrame


def read_traces(messages: DataFrame) -> Traces:
    """Read the messages that contain traces."""
    spark = messages.sparkSession
    records = messages.selectExpr("explode(split(cast(body AS string), '\\u0002')) AS record")
    fields = records.selectExpr("split(record, '\\u0001') AS f").where("size(f) > 5")
    with named(fields, "cometmq_traces"):
        return Traces(spark.sql(_SENDS), spark.sql(_CONSUMED))


def traced(traces: Traces) -> dict[str, DataFrame]:
    """Return the tables of traces."""
    sends, consumed = traces
    spark = sends.sparkSession
    with named(sends, "cometmq_trace_sends"), named(consumed, "cometmq_trace_consumed"):
        delivered, acknowledged = spark.sql(_DELIVERED), spark.sql(_ACKNOWLEDGED)
    by_consumer, retries = ("topic", "consumer"), "max(retries) AS retries"
    failed = "count_if(NOT success) AS failed"
    ended = consumed.where("ms IS NOT NULL")
    return {
        "sends": summed(sends, ("topic", "producer"), failed),
        "deliveries": summed(delivered, by_consumer, retries),
        "acknowledgements": summed(acknowledged, by_consumer, retries),
        "consumptions": summed(ended, ("consumer",), failed, retries),
    }


def lag_history(measured: DataFrame, traces: Traces, bucket: str) -> DataFrame:
    """Return how far groups were behind in each queue, at the end of each `bucket` of time.

    Only in users' topics: copies for retries or delays have the same ids, which traces say alone.
    """
    spark = measured.sparkSession
    topics = [row["topic"] for row in measured.select("topic").distinct().collect()]
    messages = measured.where(measured["topic"].isin([each for each in topics if is_users(each)]))
    with (
        named(messages, "cometmq_trace_messages"),
        named(traces.consumed, "cometmq_trace_consumed"),
    ):
        found: DataFrame = spark.sql(_LAG_HISTORY.format(bucket=bucket, latest_ms=_LATEST_MS))
    return found
