"""What clients' traces say about sends, deliveries and consumptions, for `latency`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.jobs.latency_figures import summed
from cometmq.pipeline.jobs.tables import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRACED: Final = ("sends", "deliveries", "acknowledgements", "consumptions")
"""The tables of traces."""

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


def traced(messages: DataFrame) -> dict[str, DataFrame]:
    """Return the tables of traces, from the messages that contain the traces."""
    spark = messages.sparkSession
    records = messages.selectExpr("explode(split(cast(body AS string), '\\u0002')) AS record")
    fields = records.selectExpr("split(record, '\\u0001') AS f").where("size(f) > 5")
    with ExitStack() as names:
        names.enter_context(named(fields, "cometmq_traces"))
        sends, consumed = spark.sql(_SENDS), spark.sql(_CONSUMED)
        names.enter_context(named(sends, "cometmq_trace_sends"))
        names.enter_context(named(consumed, "cometmq_trace_consumed"))
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
