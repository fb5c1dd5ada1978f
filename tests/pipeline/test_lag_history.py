"""The table `lag_history` of `latency`: how far groups were behind, by the traces of clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.client import ClientConfig, SyncClient
from cometmq.pipeline.jobs.latency import LatencySettings, latency
from cometmq.pipeline.jobs.latency_traces import Traces, lag_history

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from tests.pipeline.tables import Tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

BEGIN = datetime(2026, 11, 24, 8, tzinfo=UTC)
MESSAGES = (
    "topic string, broker string, queue_id int, queue_offset bigint, store_time timestamp,"
    " message_id string"
)
CONSUMED = "consumer string, id string, time bigint, retries int, ms bigint, success boolean"


def minute(number: float) -> datetime:
    return BEGIN + timedelta(minutes=number)


def message(offset: int, at: float, queue: int = 0, topic: str = "orders") -> tuple[Any, ...]:
    return (topic, None, queue, offset, minute(at), f"{queue}-{offset}")


def taken(
    message_id: str, at: float, group: str = "billing", retries: int = 0, ms: int | None = 5
) -> tuple[Any, ...]:
    return (group, message_id, round(minute(at).timestamp() * 1000), retries, ms, True)


def history(of: Tables, messages: list[Any], consumed: list[Any]) -> list[tuple[Any, ...]]:
    """Return the rows about `orders`: group, queue, minute, where it was, the end, messages."""
    spark = of.spark
    sends: DataFrame = spark.createDataFrame([], "id string")
    traces = Traces(sends, spark.createDataFrame(consumed, CONSUMED))
    found = lag_history(spark.createDataFrame(messages, MESSAGES), traces, "1 minute")
    minutes = f"cast((unix_seconds(bucket) - {BEGIN.timestamp()}) / 60 AS int) AS minute"
    rows = found.selectExpr("group", "queue_id", minutes, "at", "end", "messages").collect()
    return sorted(tuple(row) for row in rows)


def test_a_group_is_behind_by_what_is_stored_after_its_last_delivery(tables: Tables) -> None:
    messages = [message(n, at) for n, at in enumerate((0, 0.9, 1, 1.5, 2))]
    consumed = [taken("0-0", 1.2), taken("0-1", 3), taken("0-3", 3.5), taken("0-2", 3.9)]
    assert history(tables, messages, consumed) == [
        ("billing", 0, 0, 0, 2, 2),  # Where it began is known from its first delivery.
        ("billing", 0, 1, 1, 4, 3),
        ("billing", 0, 2, 1, 5, 4),
        ("billing", 0, 3, 4, 5, 1),  # The last by offset, and not by time.
    ]


def test_each_group_and_queue_has_a_history_of_its_own(tables: Tables) -> None:
    messages = [message(7, 0), message(8, 0), message(0, 0, queue=1), message(0, 0, queue=2)]
    consumed = [taken("0-7", 0), taken("0-8", 0, "audit"), taken("1-0", 1), taken("9-9", 1)]
    assert history(tables, messages, consumed) == [
        ("audit", 0, 0, 9, 9, 0),
        ("billing", 0, 0, 8, 9, 1),
        ("billing", 1, 0, 0, 1, 1),
        ("billing", 1, 1, 1, 1, 0),  # And nothing of queue 2, which nobody was seen to read.
    ]


def test_attempts_that_are_repeated_or_did_not_end_move_no_group(tables: Tables) -> None:
    messages = [message(n, 0) for n in range(3)]
    consumed = [taken("0-0", 0), taken("0-1", 0, ms=None), taken("0-2", 0, retries=1)]
    assert history(tables, messages, consumed) == [("billing", 0, 0, 1, 3, 2)]


def test_a_delivery_counts_when_it_ended(tables: Tables) -> None:
    found = history(tables, [message(0, 0)], [taken("0-0", 0.9, ms=60_000)])
    assert found == [("billing", 0, 0, 0, 1, 1), ("billing", 0, 1, 1, 1, 0)]


def test_a_copy_for_a_retry_is_no_message_that_a_group_got(tables: Tables) -> None:
    messages = [message(0, 0), message(0, 1, topic="%RETRY%billing")]
    assert history(tables, messages, [taken("0-0", 0)]) == [("billing", 0, 0, 1, 1, 0)]


def test_a_time_that_cannot_be_is_left_out(tables: Tables) -> None:
    found = [taken("0-1", 0, ms=ms) for ms in (1 << 62, (1 << 63) - 1, -(1 << 62))]
    messages = [message(0, 0), message(1, 0)]
    assert history(tables, messages, [taken("0-0", 0), *found]) == [("billing", 0, 0, 1, 2, 1)]


@pytest.mark.slow
def test_the_traces_of_clients_say_how_far_a_group_was_behind(
    tables: Tables, tmp_path: Path
) -> None:
    cluster = tables.cluster
    cluster.admin.create_topic("lagging", queues=1)
    cluster.admin.create_group("lags")
    with SyncClient(cluster.nameserver, ClientConfig(trace=True)) as mq:
        for number in range(4):
            mq.send("lagging", b"%d" % number)
        with mq.consume("lagging", group="lags", start="first") as consumer:
            for _ in range(3):
                with next(consumer):
                    pass
    page = tmp_path / "latency.html"
    settings = LatencySettings(
        nameserver=cluster.nameserver,
        topic="lagging",
        trace_topic="RMQ_SYS_TRACE_TOPIC",
        bucket="1 day",
        html=str(page),
    )
    *_, last = sorted(latency(tables.spark, settings).details["lag_history"], key=str)
    assert (last["group"], last["at"], last["end"], last["messages"]) == ("lags", 3, 4, 1)
    assert "Consumer groups over time" in page.read_text()
