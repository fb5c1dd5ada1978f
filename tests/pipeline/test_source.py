"""`spark.read.format("cometmq")` against a broker."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException
from tests.pipeline.tables import Tables, numbers

from cometmq.client import NewMessage
from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.columns import COLUMNS, DEFAULT_COLUMNS
from cometmq.pipeline.errors import DamagedRecordError
from cometmq.pipeline.fetching import Chunk
from cometmq.pipeline.options import read_options
from cometmq.pipeline.source import Executing

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def test_a_topic_is_read_as_it_was_sent(tables: Tables) -> None:
    tables.cluster.send(
        "read-all", b"\x00\xff", key="o-17", tag="paid", properties={"amount": "150"}
    )
    frame = tables.read("read-all")
    assert frame.columns == list(DEFAULT_COLUMNS)
    assert tables.read("read-all", columns="*").columns == list(COLUMNS)
    row = frame.collect()[0].asDict()
    assert (row["topic"], row["key"], row["tag"], row["body"]) == (
        "read-all",
        "o-17",
        "paid",
        b"\x00\xff",
    )
    assert row["properties"]["amount"] == "150"
    sent = tables.cluster.sent("read-all", count=1)[0]
    assert (row["message_id"], row["queue_offset"]) == (sent.id, sent.offset)


def test_large_messages_are_more_tasks_and_read_whole(tables: Tables, tmp_path: Path) -> None:
    """Tasks are planned by bytes, in streams as well."""
    tables.cluster.admin.create_topic("huge", queues=2)
    queues = sorted(tables.cluster.client.queues("huge"), key=lambda each: each.id)
    for index in range(24):  # Nothing that could be compressed.
        tables.cluster.send("huge", os.urandom(1_000_000), queue=queues[index % 2])
    options = {"columns": "queue_id, queue_offset, body", "targetBytesPerTask": "5m"}
    frame = tables.read("huge", **options)
    assert frame.rdd.getNumPartitions() == 6
    rows = frame.selectExpr("queue_id", "queue_offset", "length(body)").collect()
    assert sorted(rows) == [
        (number, offset, 1_000_000) for number in range(2) for offset in range(12)
    ]
    stream = tables.stream("huge", startingOffsets="earliest", **options)
    seen: list[int] = []

    def see(batch: DataFrame, _batch_id: int) -> None:
        seen.append(batch.rdd.getNumPartitions())

    writer = stream.writeStream.foreachBatch(see).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert seen == [6]


def test_arrow_does_not_check_each_value_again(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert not jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not jvm.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_only_the_columns_of_a_users_schema_are_made(tables: Tables) -> None:
    tables.fill("few-columns", 3)
    frame = tables.read("few-columns", schema="queue_offset BIGINT, topic STRING")
    assert tuple(frame.sort("queue_offset").collect()[0]) == (0, "few-columns")
    named = tables.read("few-columns", columns="topic, queue_id")
    assert named.columns == ["topic", "queue_id"]


def test_a_schema_with_not_null_is_refused_in_words(tables: Tables) -> None:
    """Spark would only say at the first row that schemas differ."""
    tables.fill("not-null", 1)
    with pytest.raises(PySparkException, match="schema: column topic is NOT NULL, which a source"):
        tables.read("not-null", schema="topic STRING NOT NULL").collect()


def test_a_table_of_the_catalogue_is_refused_with_what_to_do(tables: Tables) -> None:
    sql = f"CREATE TABLE in_sql USING cometmq OPTIONS (nameserver '{tables.cluster.nameserver}'"
    with pytest.raises(PySparkException, match="CREATE TABLE: Spark forgets the options of a tab"):
        tables.spark.sql(f"{sql}, topic 'in-sql')")


def test_rows_without_columns_are_counted(tables: Tables) -> None:
    tables.fill("counted", 5)
    assert tables.read("counted").count() == 5


def test_a_topic_without_messages_has_no_rows(tables: Tables) -> None:
    tables.fill("empty", 0)
    assert tables.read("empty").collect() == []


def test_a_batch_can_begin_and_end_at_offsets(tables: Tables) -> None:
    tables.fill("ranges", 20)
    start = json.dumps({"ranges": {"broker-a": {"0": 3, "1": -1}}})
    assert tables.bodies("ranges", startingOffsets=start) == numbers(6, 20)[::2]
    end = json.dumps({"ranges": {"0": 2, "1": 1}})
    assert tables.bodies("ranges", endingOffsets=end) == ["0", "1", "2"]


def test_a_batch_can_begin_and_end_at_times(tables: Tables) -> None:
    tables.fill("times", 4)
    rows = tables.read("times").select("body", "store_time").collect()
    times = {int(row["body"]): int(row["store_time"].timestamp() * 1000) for row in rows}
    later = [n for n, time in times.items() if time >= times[2]]
    assert tables.bodies("times", startingTimestamp=times[2]) == [str(n) for n in sorted(later)]
    assert tables.bodies("times", endingTimestamp=times[0]) == []
    assert tables.bodies("times", startingTimestamp="2999-01-01") == []


def test_each_message_of_a_topic_of_batch_queues_is_a_row(tables: Tables) -> None:
    """Their records are batches, and a read may begin and end inside one."""
    admin, client = tables.cluster.admin, tables.cluster.client
    admin.create_topic("whole-batches", queues=1, attributes={"queue.type": "BatchCQ"})
    for first in (0, 4, 8):
        sent = [NewMessage(body=str(n).encode(), tag=f"t{n}") for n in range(first, first + 4)]
        client.send_batch("whole-batches", sent)
    rows = tables.read("whole-batches").orderBy("queue_offset").collect()
    assert [(row["queue_offset"], row["body"], row["tag"]) for row in rows] == [
        (n, str(n).encode(), f"t{n}") for n in range(12)
    ]
    where = {"startingOffsets": json.dumps({"whole-batches": {"0": 2}})}
    where["endingOffsets"] = json.dumps({"whole-batches": {"0": 9}})
    assert tables.bodies("whole-batches", **where) == numbers(2, 9)
    assert tables.bodies("whole-batches", maxRecordsPerPartition=3) == numbers(0, 12)


def test_a_batch_can_go_on_where_a_group_is(tables: Tables) -> None:
    tables.fill("of-a-group", 6, queues=1)
    queue = tables.cluster.client.queues("of-a-group")[0]
    tables.cluster.admin.create_group("billing")
    tables.cluster.client.commit(queue, "billing", 4)
    assert tables.bodies("of-a-group", startingOffsets="group:billing") == ["4", "5"]


def test_the_broker_filters_by_tags_and_by_sql(tables: Tables) -> None:
    for index in range(6):
        tables.cluster.send(
            "filtered", str(index).encode(), tag="abc"[index % 3], properties={"n": str(index)}
        )
    assert tables.bodies("filtered", filter="a || b") == ["0", "1", "3", "4"]
    assert tables.bodies("filtered", filter="n > 3 AND TAGS <> 'c'") == ["4"]


def test_tags_are_compared_and_not_only_their_hashes(tables: Tables) -> None:
    """`Aa` and `BB` have the same hash, by which brokers choose."""
    for index, tag in enumerate(("Aa", "BB", "AaAa", "BBBB", "Aa", "C#")):
        tables.cluster.send("alike", str(index).encode(), tag=tag)
    assert tables.bodies("alike", filter="Aa") == ["0", "4"]
    assert tables.bodies("alike", tags="BB || AaAa") == ["1", "2"]
    assert tables.read("alike", filter="BBBB").select("key").count() == 1


def test_what_is_for_streams_is_refused_of_what_is_read_once(tables: Tables) -> None:
    tables.fill("read-once", 1)
    with pytest.raises(PySparkException, match="group: is for streams"):
        tables.read("read-once", group="G").count()
    with pytest.raises(PySparkException, match="maxOffsetsPerTrigger: is for streams"):
        tables.read("read-once", maxOffsetsPerTrigger=5).count()


def test_conditions_on_queues_and_offsets_plan_the_read(tables: Tables) -> None:
    tables.fill("pushed", 10)
    frame = tables.read("pushed", filterPushdown=True)
    frame = frame.where("queue_id = 1 AND queue_offset >= 3 AND topic = 'pushed'")
    assert sorted(int(row["body"]) for row in frame.collect()) == [7, 9]
    assert tables.read("pushed", filterPushdown=True).where("queue_id = 7").count() == 0


def test_several_topics_and_patterns_are_read_together(tables: Tables) -> None:
    tables.fill("many-a", 2)
    tables.fill("many-b", 3)
    assert tables.read("many-a,many-b").count() == 5
    assert tables.read(topicPattern="many-.*").count() == 5


def test_a_huge_body_and_a_small_one_are_read(tables: Tables) -> None:
    huge = bytes(range(256)) * 8_000
    tables.cluster.send("huge-and-small", huge)
    tables.cluster.send("huge-and-small", b"-")
    bodies = [bytes(row["body"]) for row in tables.read("huge-and-small").select("body").collect()]
    assert sorted(bodies, key=len) == [b"-", huge]


def test_a_format_can_be_used_from_sql(tables: Tables) -> None:
    tables.fill("in-sql", 4)
    tables.spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW in_sql USING cometmq OPTIONS"
        f" (nameserver '{tables.cluster.nameserver}', topic 'in-sql', columns 'body')"
    )
    assert tables.spark.sql("SELECT count(*) AS n FROM in_sql").collect()[0]["n"] == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "no-such-topic"}, "no-such-topic: no such topic"),
        ({"topic": "ranges", "startingOffsets": '{"ranges": {"0": -7}}'}, "is not an offset"),
        ({"topic": "ranges", "startingOffsets": '{"ranges": {"0": 999}}'}, "failOnDataLoss=false"),
        ({"topic": "ranges", "startingOffsets": "group:biling"}, "group 'biling' has no offset"),
        ({"topic": "ranges", "nonsense": "1"}, "nonsense: no such option"),
        ({"topic": "ranges", "filter": "a >"}, "filter: 'a >' was refused by broker broker-a"),
        ({"topic": "ranges", "filter": "||"}, "filter: '||' names no tag"),
        ({"topic": "ranges", "nameserver": "127.0.0.1:1", "retries": "0"}, "no name server"),
    ],
)
def test_what_cannot_be_read_is_said(tables: Tables, options: dict[str, str], said: str) -> None:
    tables.fill("ranges", 0)
    with pytest.raises(PySparkException) as caught:
        tables.read(**options).collect()
    assert said in str(caught.value)


def test_an_answer_that_is_no_records_is_told_with_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as records that the disk has damaged: Apache's broker hands them out."""

    def torn(*_: object) -> list[Chunk]:
        return [Chunk(b"x" * 200, Queue("T", "broker-a", 3), 0, 9)]

    monkeypatch.setattr("cometmq.pipeline.source.chunks", torn)
    reading = Executing(read_options({"nameserver": "127.0.0.1:1", "topic": "T"}), ("body",))
    with pytest.raises(DamagedRecordError, match=r"^answer of T/broker-a/3: no sound"):
        list(reading.read(()))


def test_an_end_in_front_of_the_beginning_is_refused(tables: Tables) -> None:
    tables.fill("backwards", 4, queues=1)
    given = {"topic": "backwards", "startingOffsets": "latest"}
    with pytest.raises(PySparkException, match="queue backwards/broker-a/0 would end at 1, before"):
        tables.read(**given, endingOffsets='{"backwards": {"0": 1}}').collect()
    assert tables.read(**given, endingOffsets="latest").collect() == []


def test_a_column_of_another_type_is_refused(tables: Tables) -> None:
    with pytest.raises(PySparkException, match="column body is binary, not string"):
        tables.read("ranges", schema="body STRING").collect()
