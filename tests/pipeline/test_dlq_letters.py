"""Which dead letters count, how they are put together, and which are sent again, row by row."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException

from cometmq.client import DeadLetterFilter
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import dlq, dlq_letters
from cometmq.pipeline.jobs.dlq_letters import Letters
from cometmq.pipeline.jobs.dlq_settings import DlqSettings
from cometmq.pipeline.jobs.job import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

ROWS = """
SELECT '%DLQ%g' AS topic, broker, queue_id, queue_offset, message_id, 'k-1' AS key, 'tag' AS tag,
  0 AS flag, timestamp_millis(stored) AS store_time, '127.0.0.1:5' AS born_host, reconsume_times,
  str_to_map(properties) AS properties, cast(body AS binary) AS body
FROM VALUES
  ('b', 1, 3L, 'm3', 1000L, 3, 'DLQ_ORIGIN_TOPIC:orders,RETRY_TOPIC:other', 'abc'),
  ('b', 0, 9L, 'm1', 3000L, 1, 'RETRY_TOPIC:orders', ''),
  ('a', 2, 7L, 'm2', 2000L, 0, 'DLQ_ORIGIN_TOPIC:orders', ''),
  ('a', 2, 8L, 'seen by nobody', 2500L, 0, 'DLQ_ORIGIN_TOPIC:orders,REDRIVEN_FROM:a', 'abc'),
  ('a', 2, 6L, 'seen again', 2500L, 1, 'DLQ_ORIGIN_TOPIC:bills,REDRIVEN_FROM:a', 'ab'),
  ('a', 0, 1L, 'skipped', 2500L, 2, 'DLQ_ORIGIN_TOPIC:apples', NULL)
  AS rows(broker, queue_id, queue_offset, message_id, stored, reconsume_times, properties, body)
"""


@pytest.fixture
def letters_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the letters that settings choose of rows."""
    shown: list[str] = []

    def read(_spark: SparkSession, *_: object, **options: str) -> DataFrame:
        rows, on_bad_body = shown
        assert options["onBadBody"] == on_bad_body
        table: DataFrame = spark.sql(rows)
        return table

    def are_there(_: DlqSettings) -> bool:
        return True

    def letters(rows: str = ROWS, **more: Any) -> Letters:
        given: dict[str, Any] = {
            "nameserver": "127.0.0.1:1",
            "group": "g",
            "on_bad_body": "skip",
            **more,
        }
        shown[:] = rows, given["on_bad_body"]
        return Letters(spark, DlqSettings(**given))

    monkeypatch.setattr(dlq_letters, "topic_table", read)
    monkeypatch.setattr(dlq_letters, "has_letters", are_there)
    return letters


def at(stored_ms: int) -> datetime:
    return datetime.fromtimestamp(stored_ms / 1000)


def test_groups_say_how_many_when_and_how_often_they_were_tried(letters_of: Any) -> None:
    clusters = letters_of(cluster_by="topic", examples=2).clusters()
    orders = {"first": at(1000), "last": at(3000), "attempts": 3, "examples": ["m1", "m2"]}
    one = {"first": at(2500), "last": at(2500)}
    assert clusters == [
        {"topic": "orders", "count": 3, **orders},
        {"topic": "apples", "count": 1, **one, "attempts": 2, "examples": ["skipped"]},
        {"topic": "bills", "count": 1, **one, "attempts": 1, "examples": ["seen again"]},
    ]
    of_time = letters_of(cluster_by="topic", examples=0, since="2000", until="3000").clusters()
    assert [(each["topic"], each["examples"]) for each in of_time] == [
        ("apples", []),
        ("bills", []),
        ("orders", []),
    ]


def test_the_report_counts_what_has_no_body_only_where_there_is_some(letters_of: Any) -> None:
    report = Run().report_of("dlq")
    letters_of().count(report)
    assert report.size == 5
    assert report.details == {"bad_bodies": 1, "empty_bodies": 2}
    assert report.offsets == {
        "%DLQ%g": {"a": {"0": [1, 2], "2": [6, 8]}, "b": {"0": [9, 10], "1": [3, 4]}}
    }
    report = Run().report_of("dlq")
    letters_of(since="2500", until="2501").count(report)
    assert (report.size, report.details) == (2, {"bad_bodies": 1})
    report = Run().report_of("dlq")
    letters_of(since="3001").count(report)
    assert (report.size, report.offsets, report.details) == (0, {}, {"bad_bodies": 0})
    report = Run().report_of("dlq")
    letters_of(on_bad_body="fail").count(report)
    assert report.details == {"empty_bodies": 2}


def test_letters_are_sent_in_order_to_where_they_came_from_or_to_a_topic(letters_of: Any) -> None:
    chosen = letters_of(redrive="true").chosen()
    assert [(each["message_id"], each["to_topic"]) for each in chosen] == [
        ("seen again", "bills"),
        ("m2", "orders"),
        ("m1", "orders"),
        ("m3", "orders"),
    ]
    chosen = letters_of(redrive="key = 'k-1' AND queue_offset = 7", to="again").chosen()
    place = {"broker": "a", "queue_id": 2, "queue_offset": 7}
    assert chosen == [
        {"group": "g", "message_id": "m2", **place, "to_topic": "again", "died": at(2000)}
    ]
    chosen = letters_of(redrive="message_id = 'm1' OR message_id = 'm3'", since="2000").chosen()
    assert [each["message_id"] for each in chosen] == ["m1"]


def test_letters_of_unknown_origin_are_told_before_any_is_sent(letters_of: Any) -> None:
    rows = ROWS.replace("DLQ_ORIGIN_TOPIC:orders", "key:value")
    with pytest.raises(OptionError, match="the origin of m2, and of 1 in all, is unknown"):
        letters_of(rows, redrive="true").chosen()
    assert len(letters_of(rows, redrive="message_id <> 'm2'").chosen()) == 3
    assert len(letters_of(rows, redrive="true", to="again").chosen()) == 4


def test_what_is_wrong_with_the_sql_is_wrong_usage_and_what_cannot_be_read_is_not(
    spark: SparkSession, letters_of: Any
) -> None:
    for sql in ("nope = 1", "1 / (queue_offset - 7) > 0"):
        with pytest.raises(OptionError, match=r"^redrive: "):
            letters_of(redrive=sql).chosen()
    spark.udf.register("cannot_be_read", lambda: 1 // 0)
    try:
        with pytest.raises(PySparkException, match="ZeroDivisionError"):
            letters_of(ROWS.replace("'k-1'", "cannot_be_read()"), redrive="key = 'k-1'").chosen()
    finally:
        spark.sql("DROP TEMPORARY FUNCTION cannot_be_read")


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_letters_that_died_in_an_hour_that_a_clock_has_twice_are_all_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark gives local times without a zone, of which the later one may look like the earlier."""
    summer = datetime(2026, 10, 25, 0, 50, tzinfo=UTC)
    died = [
        datetime.fromtimestamp(at.timestamp()) for at in (summer, summer + timedelta(hours=0.5))
    ]
    assert died[0].time() > died[1].time()
    asked: list[DeadLetterFilter] = []

    def redrive(_group: str, wanted: DeadLetterFilter, **_: object) -> None:
        asked.append(wanted)

    class Client:
        def __init__(self, *_: object) -> None:
            letters = SimpleNamespace(redrive=redrive)
            self.admin = SimpleNamespace(dead_letters=letters)

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            """Do nothing."""

    monkeypatch.setattr(dlq, "SyncClient", Client)
    place: dict[str, Any] = {"broker": "a", "queue_id": 0}
    chosen = [{**place, "queue_offset": at, "died": each} for at, each in enumerate(died)]
    settings, run = DlqSettings(nameserver="h:1", group="g", redrive="true"), Run()
    with pytest.raises(PipelineError, match="2 of the dead letters that were chosen are gone"):
        dlq._redrive(chosen, settings, run, run.report_of("dlq"))  # pyright: ignore[reportPrivateUsage]  # Without Spark.
    assert [each.until for each in asked] == [summer + timedelta(hours=0.5, milliseconds=1)]
