"""`replay --preserve-order key`: messages of a key go to one queue, in the order of times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.tables import Tables

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.replay_rows import to_send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

KEYS = ("a", "b", "c")


def settings(**more: Any) -> ReplaySettings:
    given: dict[str, Any] = {"nameserver": "h:1", "from_dir": "/archive", "to_topic": "again"}
    return ReplaySettings(**given | more)


def rows_of(tables: Tables, rows: list[tuple[int, int, str, str | None]]) -> DataFrame:
    """Return messages of a part, in the order of the log: (queue, second, key, sharding key)."""
    begin = datetime(2026, 11, 24, tzinfo=UTC)
    made = [
        (
            *("orders", "broker-a", queue, offset, offset * 99, second),
            begin + timedelta(seconds=second),
            *(b"%d" % offset, key, "", 0, {} if shard is None else {"__SHARDINGKEY": shard}),
        )
        for offset, (queue, second, key, shard) in enumerate(rows)
    ]
    frame: DataFrame = tables.spark.createDataFrame(
        made,
        "topic string, broker string, queue_id int, queue_offset bigint, physical_offset bigint,"
        " at bigint, store_time timestamp, body binary, key string, tag string, flag int,"
        " properties map<string, string>",
    )
    return frame


def test_an_order_is_that_of_queues_or_of_keys() -> None:
    assert settings().preserve_order == "queue"
    assert settings(preserve_order="key").preserve_order == "key"
    with pytest.raises(OptionError, match=r"^preserve-order: 'time' is neither queue nor key"):
        settings(preserve_order="time")
    assert settings(mark="__SHARDINGKEY=a").mark
    with pytest.raises(OptionError, match=r"^mark: __SHARDINGKEY is set by --preserve-order key"):
        settings(mark="__SHARDINGKEY=a", preserve_order="key")


def test_rows_of_a_key_are_in_one_task_in_the_order_of_their_times(tables: Tables) -> None:
    """Their key is the sharding key, if a message has one."""
    rows: list[tuple[int, int, str, str | None]] = [
        (0, 3, "a", None),
        (1, 1, "a", ""),
        (2, 2, "b", "a"),
        (3, 0, "", None),
        (3, 4, "", ""),
        (1, 3, "a", None),
        (0, 3, "a", None),
    ]
    by_key = settings(preserve_order="key")
    sent = to_send(rows_of(tables, rows), by_key, "queue_offset", by_host=False)
    tasks = [
        [(row["sharding_key"], row["body"]) for row in task] for task in sent.rdd.glom().collect()
    ]
    (of_a,) = ([body for key, body in task if key == "a"] for task in tasks if ("a", b"0") in task)
    assert [bytes(body) for body in of_a] == [b"1", b"2", b"0", b"5", b"6"]
    (without,) = (
        [body for key, body in task if key is None] for task in tasks if (None, b"3") in task
    )
    assert [bytes(body) for body in without] == [b"3", b"4"]


@pytest.mark.slow
def test_messages_of_a_key_come_to_one_queue_in_order_and_once(
    tables: Tables, tmp_path: Path
) -> None:
    cluster = tables.cluster
    cluster.admin.create_topic("unordered", queues=4)
    queues = cluster.client.queues("unordered")
    for number in range(24):  # Each key is in all queues.
        cluster.send("unordered", b"%d" % number, key=KEYS[number % 3], queue=queues[number % 4])
    to = str(tmp_path / "archive")
    given: dict[str, Any] = {"nameserver": cluster.nameserver}
    archive(tables.spark, ArchiveSettings(**given, topic="unordered", to=to))
    given |= {"from_dir": to, "to_topic": "by-key"}
    by_key = ReplaySettings(**given, preserve_order="key")
    assert replay(tables.spark, replace(by_key, rate=9)).rows == 24
    notes = Path(to) / "_replays" / "to-by-key.json"
    with pytest.raises(
        OptionError, match=r"^preserve-order: the replay to-by-key was begun with key"
    ):
        replay(tables.spark, ReplaySettings(**given))
    notes.unlink()  # As if it had been killed before it noted anything.
    assert replay(tables.spark, by_key).details["there_before"] == 24
    sent = cluster.sent("by-key", count=24)
    for key in KEYS:
        of_key = [message for message in sent if message.key == key]
        assert len({message.queue for message in of_key}) == 1, key
        numbers = [int(message.body) for message in sorted(of_key, key=lambda each: each.offset)]
        assert numbers == sorted(numbers), key
        assert len(numbers) == 8, key
