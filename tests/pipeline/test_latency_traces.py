"""What `latency` makes of clients' traces, and of durations: the figures themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.client._core.trace_format import record
from cometmq.pipeline.jobs.latency_figures import summed
from cometmq.pipeline.jobs.latency_traces import read_traces, traced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def sent(at: int, producer: str, message_id: str, took: int, *end: object) -> str:
    return record(
        "Pub", at, "region", producer, "orders", message_id, "tag", "key", "host", 3, took, 0, *end
    )


def began(at: int, request: str, message_id: str, *end: object) -> str:
    return record("SubBefore", at, "region", "billing", request, message_id, *end)


def ended(request: str, message_id: str, took: int, *, success: bool) -> str:
    return record("SubAfter", request, message_id, took, success, "key")


PUB = ("Pub", 1, "region", "shop", "orders", "A", "tag", "key", "host", 3)
BEGAN = ("SubBefore", 1, "region", "billing", "request")
ENDED = ("SubAfter", "request", "A", 1)
MESSAGES = (
    sent(1000, "shop", "A", 5, "offset", True) + sent(1010, "shop", "B", 9, "offset", False),
    sent(1020, "bank", "C", 7),  # Of an older client, as is the end of each consumption.
    began(1100, "first", "A", 0, "key") + ended("first", "A", 30, success=True),
    began(1150, "first", "B", 0, "key") + ended("first", "B", 200, success=False),
    began(1400, "again", "B", 2, "key") + ended("again", "B", 20, success=True),
    began(1500, "hangs", "C")
    + began(1600, "killed", "A", 1)
    + ended("unseen", "A", 1, success=True),
    # What was cut off, or is no record.
    "none\x02" + "".join(record(*PUB[:size]) for size in range(1, 11)),
    "".join(record(*BEGAN[:size]) + record(*ENDED[:size]) for size in range(1, 6)),
)


def test_the_tables_of_traces_have_what_each_record_says(spark: SparkSession) -> None:
    messages = spark.createDataFrame([(each.encode(),) for each in MESSAGES], "body binary")
    tables = {name: frame.collect() for name, frame in traced(read_traces(messages)).items()}
    names = ("producer", "count", "min_ms", "max_ms", "failed")
    found = [tuple(each[name] for name in names) for each in tables.pop("sends")]
    assert found == [("shop", 2, 5, 9, 1), ("bank", 1, 7, 7, 0)]
    columns = ("consumer", "count", "min_ms", "p50_ms", "max_ms", "retries")
    assert {
        name: [tuple(each[column] for column in columns) for each in rows]
        for name, rows in tables.items()
    } == {
        "deliveries": [("billing", 3, 100, 140, 480, 0)],
        "acknowledgements": [("billing", 2, 130, 130, 410, 2)],
        "consumptions": [("billing", 3, 20, 30, 200, 2)],
    }
    assert [row["failed"] for row in tables["consumptions"]] == [1]
    assert {
        row["topic"] for name in ("deliveries", "acknowledgements") for row in tables[name]
    } == {"orders"}


def test_durations_have_a_shortest_a_longest_percentiles_and_a_share_below_0(
    spark: SparkSession,
) -> None:
    frame = spark.range(-1, 999).selectExpr("id AS ms", "IF(id < 500, 'b', 'a') AS half")
    (one,) = summed(frame, ("upper('all') AS name",), "count(DISTINCT half) AS halves").collect()
    assert one.asDict() == {
        "name": "ALL",
        "count": 1000,
        "min_ms": -1,
        "p50_ms": 498,
        "p90_ms": 898,
        "p99_ms": 988,
        "p99_9_ms": 997,
        "max_ms": 998,
        "negative": 0.001,
        "halves": 2,
    }
    for each in (frame, frame.selectExpr("half", "1 AS ms")):  # The slowest first; then by name.
        assert [row["half"] for row in summed(each, ("half",)).collect()] == ["a", "b"]
