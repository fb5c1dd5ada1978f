"""What Spark does differently from what one would expect: each trap cost somebody messages once.

Tests about offsets call the reader itself, as Spark's process does; the others run queries.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.functions import expr
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.cluster import Bounds, Cluster as Asked, Queue
from cometmq.pipeline.errors import (
    ConnectionLostError,
    DataLossError,
    OptionError,
    PipelineError,
    RefusedError,
)
from cometmq.pipeline.jobs.tables import taking_conditions
from cometmq.pipeline.losses import tell
from cometmq.pipeline.offsets import read_stream_offset
from cometmq.pipeline.options import PUSHDOWN, read_options, write_options
from cometmq.pipeline.planning import Range
from cometmq.pipeline.records.rows import Reading
from cometmq.pipeline.routes import Brokers
from cometmq.pipeline.sink import StreamWriter
from cometmq.pipeline.source import CometMQSource, PushingReader, TopicReader
from cometmq.pipeline.stream_source import TopicStreamReader
from cometmq.pipeline.wire import Settings, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.client import Queue as SendQueue
    from cometmq.pipeline.cluster import Survey
    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

ALL = ReadAllAvailable()
BODY = StructType([StructField("body", BinaryType())])


def reader(tables: Tables, topic: str = "", **options: Any) -> TopicStreamReader:
    given = {"nameserver": tables.cluster.nameserver, "topic": topic, **options}
    given = {name: said for name, said in given.items() if said != ""}
    return TopicStreamReader(read_options({k: str(v) for k, v in given.items()}), BODY)


def bodies(stream: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the bodies that a batch reads, as Spark's executors would."""
    batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
    return sorted((row["body"].decode() for b in batches for row in b.to_pylist()), key=int)


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as it comes back from the checkpoint."""
    said: dict[str, Any] = json.loads(json.dumps(offset))
    return said


def test_trap_1_a_replayed_first_batch_of_latest_skips_nothing(tables: Tables) -> None:
    tables.fill("trap1", 100)
    first = reader(tables, "trap1", startingOffsets="latest")
    start = first.initialOffset()
    tables.fill("trap1", 10, first=100)
    end = through_json(first.latestOffset(start, ALL))
    tables.fill("trap1", 400, first=110)  # The driver dies; it comes back after these.
    again = reader(tables, "trap1", startingOffsets="latest")
    assert bodies(again, again.initialOffset(), end) == numbers(100, 110)
    following = again.latestOffset(end, ALL)
    assert bodies(again, end, following) == numbers(110, 510)


def test_trap_1_the_initial_offset_is_one_however_often_spark_asks(tables: Tables) -> None:
    tables.fill("trap1b", 1)
    stream = reader(tables, "trap1b", startingOffsets="latest")
    before = stream.initialOffset()
    tables.fill("trap1b", 1, first=1)
    assert stream.initialOffset() == before


def test_trap_2_without_news_the_start_itself_comes_back(tables: Tables) -> None:
    tables.fill("trap2", 5)
    stream = reader(tables, "trap2", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    assert json.dumps(stream.latestOffset(end, ALL)) == json.dumps(end)


def test_trap_2_an_idle_stream_runs_no_batches(tables: Tables, tmp_path: Path) -> None:
    tables.fill("trap2b", 5)
    frame = tables.stream("trap2b", startingOffsets="earliest")
    first = tables.copy(frame, tmp_path, "trap2b-out")
    batches = {path.name for path in (tmp_path / "offsets").iterdir()}
    tables.copy(frame, tmp_path, "trap2b-out")
    assert sum(p["numInputRows"] for p in first.recentProgress) == 5
    assert {path.name for path in (tmp_path / "offsets").iterdir()} == batches  # Nor empty ones.


def test_trap_3_a_new_queue_is_read_from_its_beginning_also_when_replayed(tables: Tables) -> None:
    tables.fill("trap3", 4, queues=1)
    stream = reader(tables, "trap3", startingOffsets="earliest")
    before = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.create_topic("trap3", queues=3)
    tables.fill("trap3", 6, first=4, queues=3)
    end = through_json(stream.latestOffset(before, ALL))
    again = reader(tables, "trap3")
    assert bodies(again, before, end) == numbers(4, 10)


def test_trap_4_a_group_is_told_the_progress_of_the_last_batch_too(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("trap4", 7, queues=1)
    frame = tables.stream("trap4", startingOffsets="earliest", group="spark-trap4")
    tables.copy(frame, tmp_path, "trap4-out")
    queue = tables.cluster.client.queues("trap4")[0]
    assert tables.cluster.client.committed(queue, "spark-trap4") == 7


def test_trap_5_a_broker_that_is_away_for_a_moment_ends_no_query(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("trap5", 3)
    stream = reader(tables, "trap5", startingOffsets="earliest", retryIntervalMs=1)
    start = stream.initialOffset()
    failures = iter([True, True, False])
    status = stream._cluster._status  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.

    def failing(*args: str) -> Any:
        if next(failures):
            raise ConnectionLostError("away")
        return status(*args)

    monkeypatch.setattr(stream._cluster, "_status", failing)  # pyright: ignore[reportPrivateUsage]  # As above.
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == numbers(0, 3)


def test_trap_5_a_topic_of_which_a_broker_says_nothing_waits_where_it_is(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("trap5-silent", "trap5-told"):
        tables.fill(topic, 3, queues=1)
    stream = reader(tables, "trap5-silent,trap5-told", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    look = stream._survey  # pyright: ignore[reportPrivateUsage]  # The seam to a cluster.

    def partly(*, whole: bool) -> Survey:
        found = look(whole=whole)
        found.queues = {q: each for q, each in found.queues.items() if q.topic == "trap5-told"}
        found.topics = found.topics - {"trap5-silent"}
        found.missing = {"broker-b": ConnectionLostError("away")}
        return found

    tables.fill("trap5-silent", 1, first=3, queues=1)
    tables.fill("trap5-told", 1, first=4, queues=1)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_survey", partly)
        later = through_json(stream.latestOffset(end, ALL))
    assert bodies(stream, end, later) == ["4"]
    assert bodies(stream, later, stream.latestOffset(later, ALL)) == ["3"]


def test_trap_5_a_broker_that_stays_away_lets_no_stream_begin_and_a_running_one_go_on(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that began without it, or ended before it was back, would leave out its messages."""
    tables.fill("trap5-stays", 3, queues=1)
    names = {"startingOffsets": "earliest", "retryIntervalMs": 1}
    stream = reader(tables, "trap5-stays", **names)
    start = through_json(stream.initialOffset())
    missing = {"broker-b": ConnectionLostError("stays away")}
    looked_first(monkeypatch, lambda found: replace(found, missing=missing), looks=100)
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == numbers(0, 3)
    assert caplog.text.count("broker broker-b: stays away; its queues wait") == 1
    with pytest.raises(ConnectionLostError, match="stays away"):
        reader(tables, "trap5-stays", **names).initialOffset()
    with pytest.raises(ConnectionLostError, match="stays away"):
        stream.prepareForTriggerAvailableNow()


def test_trap_6_and_8_a_task_that_fails_and_runs_again_stores_its_rows_once(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("trap8", 40)
    flag = tmp_path / "failed"
    frame = tables.stream("trap8", startingOffsets="earliest").mapInArrow(
        failing_once(str(flag), after=25), tables.read("trap8").schema
    )
    # Few rows are handed over at a time, each too large to wait in buffers on its way, and each in
    # a request of its own: so some are stored when the task fails.
    frame = frame.withColumn("properties", expr("map('padding', repeat('x', 20000))"))
    handed_over = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = tables.spark.conf.get(handed_over)
    tables.spark.conf.set(handed_over, 2)
    try:
        tables.copy(frame, tmp_path / "checkpoint", "trap8-out", batchBytes=1)
    finally:
        tables.spark.conf.set(handed_over, before)
    assert flag.exists()
    assert tables.bodies("trap8-out") == numbers(0, 40)


def failing_once(flag: str, after: int) -> Callable[[Any], Any]:
    """Pass rows one by one, and fail once after some: the sink has sent what it was given."""

    def passed(batches: Any) -> Any:
        from pathlib import Path

        seen = 0
        for batch in batches:
            for index in range(batch.num_rows):
                if seen >= after and not Path(flag).exists():
                    Path(flag).touch()
                    raise RuntimeError("as if the executor had failed")
                seen += 1
                yield batch.slice(index, 1)

    return passed


def test_trap_7_spark_tells_the_sink_which_query_it_writes_for(
    tables: Tables, tmp_path: Path
) -> None:
    """By an undocumented property: without it there would be no identity over restarts."""
    tables.fill("trap7", 3)
    frame = tables.stream("trap7", startingOffsets="earliest")
    tables.copy(frame, tmp_path / "one", "trap7-out", delivery="idempotent")
    tables.copy(frame, tmp_path / "two", "trap7-out", delivery="idempotent")
    assert tables.bodies("trap7-out") == sorted(numbers(0, 3) * 2)
    for name in ("three", "four"):  # Unless it is told another name for it.
        tables.copy(frame, tmp_path / name, "trap7-out", sinkId="nightly")
    assert tables.bodies("trap7-out") == sorted(numbers(0, 3) * 3)


def test_trap_7_where_spark_does_not_tell_the_query_it_is_said_what_to_do(tables: Tables) -> None:
    tables.fill("trap7b", 0)
    options = {"nameserver": tables.cluster.nameserver, "topic": "trap7b"}
    with pytest.raises(PipelineError, match="name it by the option sinkId"):
        StreamWriter(write_options(options), BODY).write(iter([]))


def test_trap_8_a_batch_that_is_replayed_is_stored_once(tables: Tables, tmp_path: Path) -> None:
    tables.fill("trap8b", 30)
    frame = tables.stream("trap8b", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    tables.copy(frame, tmp_path, "trap8b-out")
    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # As if the driver died between the sends and their commit.
    (tmp_path / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    again = tables.copy(frame, tmp_path, "trap8b-out")
    assert [p["numInputRows"] for p in again.recentProgress if p["numInputRows"]] == [10]
    assert tables.bodies("trap8b-out") == numbers(0, 30)


def test_trap_8_at_least_once_is_no_more_than_that(tables: Tables, tmp_path: Path) -> None:
    tables.fill("trap8c", 10)
    frame = tables.stream("trap8c", startingOffsets="earliest")
    tables.copy(frame, tmp_path, "trap8c-out", delivery="at-least-once")
    for path in (tmp_path / "commits").iterdir():
        path.unlink()
    tables.copy(frame, tmp_path, "trap8c-out", delivery="at-least-once")
    assert tables.bodies("trap8c-out") == sorted(numbers(0, 10) * 2, key=int)


def test_trap_9_a_session_without_pushdown_reads_all_the_same(tables: Tables) -> None:
    options = {"nameserver": tables.cluster.nameserver, "topic": "trap9"}
    plain = CometMQSource(options).reader(schema=BODY)
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    pushing = CometMQSource({**options, "filterpushdown": "true"}).reader(schema=BODY)
    assert type(pushing).pushFilters is not DataSourceReader.pushFilters
    tables.fill("trap9", 4)
    assert taking_conditions(tables.spark) == {"filterPushdown": "true"}
    tables.spark.conf.set(PUSHDOWN, False)
    try:
        assert tables.read("trap9").where("queue_offset = 1").count() == 2
        # Nor do jobs ask for pushdown if the caller's session has it off.
        options = taking_conditions(tables.spark)
        assert tables.read("trap9", **options).where("queue_offset = 1").count() == 2
    finally:
        tables.spark.conf.set(PUSHDOWN, True)


def test_a_frame_that_is_asked_by_several_conditions_has_all_rows_of_each(tables: Tables) -> None:
    """Spark keeps the planned read with the frame, for queries whose conditions it cannot offer."""
    tables.fill("asked-again", 20)
    frame = tables.read("asked-again")
    assert frame.where("queue_offset = 1").count() == 2
    assert frame.count() == 20
    assert frame.where("queue_offset = 1 OR queue_id >= 0").count() == 20
    some, others = (frame.where(f"queue_offset = {each}") for each in (1, 2))
    assert some.select("queue_offset").union(others.select("queue_offset")).count() == 4
    tables.fill("asked-again", 2, first=20)
    assert (frame.count(), tables.read("asked-again").count()) == (20, 22)


def test_trap_10_a_batch_of_nothing_is_a_list_and_its_empty_task_has_no_rows(
    tables: Tables,
) -> None:
    tables.fill("trap10", 0)
    options = {"nameserver": tables.cluster.nameserver, "topic": "trap10"}
    batch = TopicReader(read_options(options), BODY)
    assert batch.partitions() == []
    assert type(batch.partitions()) is list
    assert list(batch.read(InputPartition(None))) == []


def test_trap_11_many_queues_with_little_in_them_are_one_task(tables: Tables) -> None:
    tables.fill("trap11", 64, queues=16)
    assert tables.read("trap11").rdd.getNumPartitions() == 1


def test_trap_14_the_reader_that_goes_to_executors_carries_no_connection(tables: Tables) -> None:
    import pickle

    tables.fill("trap14", 2)
    stream = reader(tables, "trap14", startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    parts = stream.partitions(start, end)
    copy = pickle.loads(pickle.dumps(stream))
    assert sum(batch.num_rows for part in parts for batch in copy.read(part)) == 2


@pytest.mark.usefixtures("no_connection_is_kept")
def test_trap_14_a_connection_is_of_the_process_that_made_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are forks of a daemon: sharing one, they would read each other's answers."""
    settings = Settings()
    Asked([tables.cluster.nameserver], settings).brokers()
    with monkeypatch.context() as patch:
        patch.setattr("cometmq.pipeline.wire.os.getpid", lambda: 1)
        child = connect(tables.cluster.nameserver, settings)
    mine = connect(tables.cluster.nameserver, settings)
    assert (child.is_known, mine.is_known) == (False, True)
    child.close()
    mine.close()


def test_trap_16_record_batches_are_of_so_many_rows_and_no_more(tables: Tables) -> None:
    """The trap says 2,048. With 14 and more columns, up to four times as many are quicker."""
    rows = tables.spark.range(20_000).selectExpr(
        "cast(id AS string) AS body", "'a' AS sharding_key"
    )
    tables.write(rows, "trap16")
    stream = reader(tables, "trap16", startingOffsets="earliest")
    start = stream.initialOffset()
    parts = stream.partitions(start, stream.latestOffset(start, ALL))
    sizes = [batch.num_rows for part in parts for batch in stream.read(part)]
    assert sum(sizes) == 20_000
    assert 2048 < max(sizes) <= Reading().rows_max == 8192


def test_available_now_reads_no_further_than_what_there_was(tables: Tables) -> None:
    tables.fill("now", 5)
    stream = reader(tables, "now", startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    tables.fill("now", 5, first=5)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert bodies(stream, start, end) == numbers(0, 5)
    assert stream.latestOffset(end, ALL) == end
    assert stream.reportLatestOffset() != end


def test_a_batch_has_no_more_messages_than_the_limit(tables: Tables) -> None:
    tables.fill("limited", 20)
    stream = reader(tables, "limited", startingOffsets="earliest", maxOffsetsPerTrigger=6)
    limit = stream.getDefaultReadLimit()
    start = stream.initialOffset()
    read: list[str] = []
    while (end := stream.latestOffset(start, limit)) != start:
        batch = bodies(stream, start, end)
        assert len(batch) <= 6
        read += batch
        start = end
    assert sorted(read, key=int) == numbers(0, 20)
    assert limit == ReadMaxRows(6)


def test_a_queue_that_is_read_ahead_makes_no_message_of_others_late(
    spark: SparkSession, rocketmq: Cluster
) -> None:
    """A watermark follows the youngest message of a batch; shared by backlog, a young queue's."""
    tables = Tables(spark, rocketmq)
    tables.fill("grown", 20, queues=1)
    for first in (20, 30):
        rocketmq.clock.jump(3600)
        tables.fill("grown", 10, queues=1, first=first)
    rocketmq.admin.create_topic("grown", queues=2)
    young = max(rocketmq.client.queues("grown"), key=lambda queue: queue.id)
    for number in range(40, 60):
        rocketmq.send("grown", str(number).encode(), queue=young)

    def batches(**options: Any) -> list[list[int]]:
        stream = reader(tables, "grown", startingOffsets="earliest", **options)
        start = stream.initialOffset()
        found: list[list[int]] = []
        while (end := stream.latestOffset(start, ReadMaxRows(20))) != start:
            found.append(sorted(map(int, bodies(stream, start, end))))
            start = end
        return found

    assert max(batches()[0]) >= 40  # Among the last stored; most of the others are still to come.
    aligned = batches(alignByTime=True)
    assert [number for batch in aligned for number in batch] == list(range(60))
    assert max(map(len, aligned)) <= 20


def test_expired_messages_are_data_loss_unless_told_otherwise(tables: Tables) -> None:
    tables.fill("expired", 4, queues=1)
    gone = {"queues": {"expired": {"broker-a": {"0": 9}}}}  # Its topic was recreated since.
    with pytest.raises(DataLossError, match="expired/broker-a/0: was read up to 9, but ends at 4"):
        reader(tables, "expired").latestOffset(gone, ALL)
    going_on = reader(tables, "expired", failOnDataLoss=False)
    end = through_json(going_on.latestOffset(gone, ALL))
    assert bodies(going_on, gone, end) == numbers(0, 4)
    assert read_stream_offset(end).queues == {Queue("expired", "broker-a", 0): 4}


def test_what_was_told_as_lost_and_comes_back_with_fewer_messages_is_read_from_its_beginning(
    tables: Tables,
) -> None:
    """An earlier version noted no first messages, by which it is known for another topic."""
    tables.fill("fewer-again", 4, queues=1)
    told = {"gone": ["fewer-again"], "queues": {"fewer-again": {"broker-a": {"0": 9}}}}
    stream = reader(tables, "fewer-again")
    assert bodies(stream, told, stream.latestOffset(told, ALL)) == numbers(0, 4)


def test_queues_that_a_topic_no_longer_has_are_told_of_where_it_is_read_once(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.fill("fewer-once", 6, queues=3)
    tables.cluster.admin.create_topic("fewer-once", queues=1)
    given = {"nameserver": tables.cluster.nameserver, "topic": "fewer-once"}
    once = PushingReader(read_options({**given, "filterPushdown": "true"}), BODY)
    assert sum(part.value[0].end for part in once.partitions()) == 2
    (warning,) = caplog.messages
    assert warning.startswith("4 messages are left out, because their queues, such as fewer-once/")
    caplog.clear()
    list(once.pushFilters([EqualTo(("queue_id",), 0)]))
    assert len(once.partitions()) == 1
    tables.cluster.admin.create_topic("fewer-once", queues=3)
    once.pushFilters([])
    assert sum(each.end for part in once.partitions() for each in part.value) == 6
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("begin", "first", "behind"),
    [
        ("latest", [], ["6", "7"]),
        ("earliest", ["0", "2", "4"], ["1", "3", "5", "6", "7"]),
        ("group", ["2", "4"], ["3", "5", "6", "7"]),
        ("JSON", ["2", "4"], ["3", "5", "6", "7"]),
    ],
)
def test_a_stream_begins_where_it_should_in_queues_that_cannot_be_read_yet(
    tables: Tables,
    caplog: pytest.LogCaptureFixture,
    begin: str,
    first: list[str],
    behind: list[str],
) -> None:
    """Once they can be read, they are not new ones, which are read from their beginning."""
    topic = f"hidden-from-{begin}"
    tables.fill(topic, 6, queues=2)
    queues = [Queue(topic, "broker-a", each) for each in range(2)]
    asked = Asked([tables.cluster.nameserver], Settings())
    asked.commit("g-hidden-from", dict.fromkeys(queues, 1), asked.bounds([topic]).addresses)
    tables.cluster.admin.create_topic(topic, queues=1)
    named = {
        "group": "group:g-hidden-from",
        "JSON": json.dumps({topic: {"broker-a": {"0": 1, "1": 1}}}),
    }
    stream = reader(tables, topic, startingOffsets=named.get(begin, begin))
    start = through_json(stream.initialOffset())
    end = through_json(stream.latestOffset(start, ALL))
    assert bodies(stream, start, end) == first
    assert f"not read: queue {topic}/broker-a/1: its broker does not allow it" in caplog.messages
    tables.cluster.admin.create_topic(topic, queues=2)
    tables.fill(topic, 2, first=6)
    later = through_json(stream.latestOffset(end, ALL))
    assert bodies(stream, end, later) == behind


def test_where_an_archive_is_in_a_queue_counts_also_if_it_can_be_read_again(
    tables: Tables,
) -> None:
    tables.fill("absent-back", 6, queues=2)
    reached = json.dumps({"absent-back": {"broker-a": {"1": 2}}})
    stream = reader(tables, "absent-back", startingOffsets="earliest", absentQueues=reached)
    start = stream.initialOffset()
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == ["0", "2", "4", "5"]


def test_a_topic_that_is_deleted_ends_the_stream_with_its_name(tables: Tables) -> None:
    tables.fill("deleted", 2)
    stream = reader(tables, "deleted", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.delete_topic("deleted")
    with pytest.raises(DataLossError, match="topic deleted no longer exists"):
        stream.latestOffset(end, ALL)


def test_a_topic_of_a_broker_that_has_not_registered_yet_waits(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """A name server that has just started learns of brokers one by one, for half a minute."""
    tables.fill("half", 2)
    stream = reader(tables, "half")
    read = {
        "queues": {
            "half": {"broker-a": {"0": 0}, "broker-b": {"0": 7}},
            "of-b": {"broker-b": {"0": 3}},
        }
    }
    both = replace(stream.options, topic="half,of-b")
    stream = TopicStreamReader(both, BODY)
    end = through_json(stream.latestOffset(read, ALL))
    assert end["queues"]["of-b"] == {"broker-b": {"0": 3}}
    assert end["queues"]["half"]["broker-b"] == {"0": 7}
    assert "broker broker-b: has not registered; its queues wait" in caplog.text
    assert "its broker does not allow it" not in caplog.text


def test_a_broker_that_registers_while_a_stream_looks_has_not_lost_its_topics(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed with its name server, which knew nobody when asked about the first topic."""
    tables.fill("asked-early", 2)
    tables.fill("asked-late", 2)
    stream = reader(tables, "asked-early,asked-late", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    bounds, looks = Asked.bounds, count(1)

    def unknown(asked: Asked, topics: Sequence[str]) -> Survey:
        return bounds(asked, topics[1:] if next(looks) == 1 else topics)

    monkeypatch.setattr(Asked, "bounds", unknown)
    assert stream.latestOffset(end, ALL) == end


def looked_first(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Survey], Survey], looks: int = 1
) -> None:
    """Pretend that the first looks at the cluster found something else."""
    bounds, number = Asked.bounds, count(1)

    def changed(asked: Asked, topics: Sequence[str]) -> Survey:
        found = bounds(asked, topics)
        return change(found) if next(number) <= looks else found

    monkeypatch.setattr(Asked, "bounds", changed)


def without_topic(found: Survey, topic: str) -> Survey:
    queues = {queue: each for queue, each in found.queues.items() if queue.topic != topic}
    return replace(found, queues=queues, topics=found.topics - {topic})


def planned(tables: Tables, *topics: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return start and end of a first batch, of which each topic has two messages."""
    for topic in topics:
        tables.fill(topic, 2)
    stream = reader(tables, ",".join(topics), startingOffsets="earliest")
    start = through_json(stream.initialOffset())
    return start, through_json(stream.latestOffset(start, ALL))


@pytest.mark.parametrize("strict", [True, False])
def test_a_broker_that_registers_while_a_batch_is_looked_for_again_has_not_lost_its_topics(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Of a topic that was asked about too early, the batch's messages would be read never."""
    topics = (f"again-early-{strict}", f"again-late-{strict}")
    start, end = planned(tables, *topics)
    looked_first(monkeypatch, lambda found: without_topic(found, topics[0]))
    again = reader(tables, ",".join(topics), failOnDataLoss=strict)
    assert sorted(bodies(again, start, end)) == sorted(numbers(0, 2) * 2)


def test_a_broker_that_registers_behind_the_others_of_its_topic_has_not_lost_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = planned(tables, "again-behind")
    looked_first(monkeypatch, lambda found: replace(found, queues={}, addresses={}))
    assert bodies(reader(tables, "again-behind"), start, end) == numbers(0, 2)


def test_a_batch_that_is_read_again_waits_for_the_only_broker_of_a_topic(tables: Tables) -> None:
    start, end = planned(tables, "again-here")
    end["queues"]["again-away"] = {"broker-b": {"0": 7}}
    end["from"]["again-away"] = {"broker-b": {"0": 3}}
    for strict in (True, False):
        again = reader(tables, "again-here,again-away", failOnDataLoss=strict)
        with pytest.raises(ConnectionLostError, match="broker broker-b: no name server knows it"):
            again.partitions(start, end)


def test_a_batch_that_is_read_again_lacks_no_topic_while_a_broker_does_not_answer(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ("again-known", "again-unknown")
    start, end = planned(tables, *topics)

    def half(found: Survey) -> Survey:
        missing = {"broker-b": ConnectionLostError("away")}
        return replace(without_topic(found, topics[1]), missing=missing)

    looked_first(monkeypatch, half, looks=2)
    again = reader(tables, ",".join(topics), failOnDataLoss=False)
    assert sorted(bodies(again, start, end)) == sorted(numbers(0, 2) * 2)


def test_a_queue_that_stands_at_its_beginning_again_is_read_from_there(tables: Tables) -> None:
    """Nothing was noted of the topic before; until messages come, there is nothing to read."""
    tables.cluster.admin.create_topic("at-its-beginning", queues=1)
    before = {"queues": {"at-its-beginning": {"broker-a": {"0": 9}}}}
    stream = reader(tables, "at-its-beginning", failOnDataLoss=False)
    end = through_json(stream.latestOffset(before, ALL))
    tables.fill("at-its-beginning", 20, queues=1)
    assert bodies(stream, end, stream.latestOffset(end, ALL)) == numbers(0, 20)


def first_at(stream: TopicStreamReader, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that everything before an offset has expired, in each queue."""
    status = stream._cluster._status  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.

    def expired(*args: Any) -> dict[Queue, Bounds]:
        return {queue: Bounds(first, each.end) for queue, each in status(*args).items()}

    monkeypatch.setattr(stream._cluster, "_status", expired)  # pyright: ignore[reportPrivateUsage]  # As above.


def test_messages_that_expired_before_they_were_read_are_told(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables.fill("aged", 9, queues=1)
    read = {"queues": {"aged": {"broker-a": {"0": 2}}}}
    strict = reader(tables, "aged")
    first_at(strict, 5, monkeypatch)
    with pytest.raises(DataLossError, match="queue aged/broker-a/0: 2 to 5 have expired"):
        strict.latestOffset(read, ALL)
    going_on = reader(tables, "aged", failOnDataLoss=False)
    first_at(going_on, 5, monkeypatch)
    end = through_json(going_on.latestOffset(read, ALL))
    assert "data loss: queue aged/broker-a/0: 2 to 5 have expired" in caplog.text
    assert bodies(reader(tables, "aged"), read, end) == numbers(5, 9)  # Also when it is replayed.
    assert end["lost"] == 3
    tables.fill("aged", 2, queues=1)
    assert through_json(reader(tables, "aged").latestOffset(end, ALL))["lost"] == 3


def test_what_expired_while_it_was_read_is_told_also_where_nothing_new_comes(
    tables: Tables,
) -> None:
    tables.fill("aged-since", 3, queues=1)
    stream = reader(tables, "aged-since", startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    listener = stream._losses.listener([tables.cluster.broker])  # pyright: ignore[reportPrivateUsage]  # As a task has it.
    assert listener is not None
    queue = Queue("aged-since", "broker-a", 0)
    tell(listener, Range(queue, tables.cluster.broker, 0, 3), 2)
    told = through_json(stream.latestOffset(end, ALL))
    assert (told["lost"], told["queues"]) == (2, end["queues"])
    assert stream.latestOffset(told, ALL) == told


@pytest.mark.parametrize(
    ("given", "option"),
    [({"topic": "kept"}, "topic"), ({"topicPattern": "kep."}, "topicPattern")],
)
def test_a_topic_that_is_read_no_more_is_not_told_as_deleted(
    tables: Tables, given: dict[str, str], option: str
) -> None:
    for name in ("kept", "left-out"):
        if not tables.cluster.sent(name):
            tables.fill(name, 2, queues=1)
    read = {"queues": {name: {"broker-a": {"0": 1}} for name in ("kept", "left-out")}}
    options = {"nameserver": tables.cluster.nameserver, **given}
    with pytest.raises(DataLossError, match=f"left-out was read .* {option} no longer names it"):
        TopicStreamReader(read_options(options), BODY).latestOffset(read, ALL)
    going_on = TopicStreamReader(read_options({**options, "failOnDataLoss": "false"}), BODY)
    end = through_json(going_on.latestOffset(read, ALL))
    assert end["queues"] == {"kept": {"broker-a": {"0": 2}}, "left-out": {"broker-a": {"0": 1}}}


def test_a_topic_that_is_named_later_and_is_not_there_is_told(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be created later, or be misspelt."""
    tables.fill("there", 2)
    first = reader(tables, "there", startingOffsets="earliest")
    end = through_json(first.latestOffset(first.initialOffset(), ALL))
    assert reader(tables, "there,ther").latestOffset(end, ALL) == end
    assert caplog.messages == ["not read: topic ther: does not exist yet"]


def test_what_goes_on_is_told_once(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    """Not each time that a stream looks, several times a second; but again if it happens again."""
    told = "data loss: topic told-once no longer exists"
    tables.fill("told-once", 2)
    stream = reader(tables, "told-once", startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.delete_topic("told-once")
    for _ in range(3):
        end = through_json(stream.latestOffset(end, ALL))
    assert caplog.text.count(told) == 1
    tables.fill("told-once", 4)
    end = through_json(stream.latestOffset(end, ALL))
    tables.cluster.admin.delete_topic("told-once")
    stream.latestOffset(end, ALL)
    assert caplog.text.count(told) == 2


def test_a_deleted_topic_that_comes_back_is_read_from_its_beginning(tables: Tables) -> None:
    tables.fill("back", 6, queues=1)
    stream = reader(tables, "back", startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.delete_topic("back")
    end = through_json(stream.latestOffset(end, ALL))
    assert stream.latestOffset(end, ALL) == end
    tables.fill("back", 2, queues=1)
    assert bodies(stream, end, stream.latestOffset(end, ALL)) == numbers(0, 2)


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_what_was_told_once_as_lost_fails_no_later_run(tables: Tables, is_made_anew: bool) -> None:
    """After one run with `failOnDataLoss=false` has told it, users can go back to failing."""
    topic = f"told-as-lost-{is_made_anew}"
    tables.fill(topic, 6, queues=1)
    tables.fill(f"{topic}-kept", 2, queues=1)
    named = {"topicPattern": f"{topic}.*"}
    stream = reader(tables, startingOffsets="earliest", **named)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.delete_topic(topic)
    if is_made_anew:
        tables.cluster.admin.create_topic(topic, queues=1)
    with pytest.raises(DataLossError, match=topic):
        reader(tables, **named).latestOffset(end, ALL)
    told = through_json(reader(tables, failOnDataLoss=False, **named).latestOffset(end, ALL))
    again = reader(tables, **named)
    assert again.latestOffset(told, ALL) == told
    tables.fill(f"{topic}-kept", 1, queues=1, first=2)
    following = through_json(again.latestOffset(told, ALL))
    assert bodies(again, told, following) == numbers(2, 3)
    tables.fill(topic, 8, queues=1, first=100)
    again = reader(tables, **named)
    last = through_json(again.latestOffset(following, ALL))
    assert bodies(again, following, last) == numbers(100, 108)
    tables.cluster.admin.delete_topic(topic)
    with pytest.raises(DataLossError, match=topic):
        again.latestOffset(last, ALL)


def test_a_topic_that_was_made_anew_without_messages_is_noticed_by_a_start(tables: Tables) -> None:
    """None of its messages had been read, so all its queues are where they were: at 0."""
    tables.fill("anew-unread", 4, queues=1)
    stream = reader(tables, "anew-unread", startingOffsets="earliest")
    start = through_json(stream.initialOffset())
    tables.cluster.admin.delete_topic("anew-unread")
    tables.cluster.admin.create_topic("anew-unread", queues=1)
    with pytest.raises(DataLossError, match="topic anew-unread of broker broker-a was deleted"):
        reader(tables, "anew-unread").latestOffset(start, ALL)
    told = reader(tables, "anew-unread", failOnDataLoss=False).latestOffset(start, ALL)
    again = reader(tables, "anew-unread")
    assert again.latestOffset(told, ALL) == through_json(told)
    tables.fill("anew-unread", 2, queues=1, first=100)
    following = through_json(again.latestOffset(told, ALL))
    assert bodies(again, told, following) == numbers(100, 102)


def test_a_topic_of_which_all_had_expired_is_known_for_another_one(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the topic could be noted except where its queues stood."""
    tables.fill("all-expired", 9, queues=2)
    where = {"queues": {"all-expired": {"broker-a": {"0": 5, "1": 5}}}}
    stream = reader(tables, "all-expired", startingOffsets="earliest")
    status = stream._cluster._status  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.

    def expired(*args: Any) -> dict[Queue, Bounds]:
        return {queue: Bounds(5, max(5, each.end)) for queue, each in status(*args).items()}

    monkeypatch.setattr(stream._cluster, "_status", expired)  # pyright: ignore[reportPrivateUsage]  # As above.
    start = through_json(stream.initialOffset())
    assert start["queues"] == where["queues"]
    assert stream.latestOffset(start, ALL) == start
    tables.fill("all-expired", 4, queues=2, first=9)  # In the same life.
    end = through_json(stream.latestOffset(start, ALL))
    assert end["queues"] != start["queues"]
    made_anew(tables, "all-expired", 30, queues=2)
    for noted in (start, end):
        with pytest.raises(DataLossError, match="topic all-expired of broker broker-a was deleted"):
            reader(tables, "all-expired").latestOffset(noted, ALL)
    going_on = reader(tables, "all-expired", failOnDataLoss=False)
    following = through_json(going_on.latestOffset(start, ALL))
    assert sorted(bodies(going_on, start, following)) == numbers(100, 130)


def test_a_topic_of_which_all_had_expired_may_be_made_anew_without_messages(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "all-expired-too"
    tables.fill(topic, 9, queues=1)
    stream = reader(tables, topic, startingOffsets="earliest")
    first_at(stream, 9, monkeypatch)
    start = through_json(stream.initialOffset())
    assert stream.latestOffset(start, ALL) == start
    made_anew(tables, topic, 0)
    with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
        reader(tables, topic).latestOffset(start, ALL)


def made_anew(tables: Tables, topic: str, count: int, *, queues: int = 1) -> None:
    """Delete a topic, and create one of the same name with `count` messages."""
    tables.cluster.admin.delete_topic(topic)
    tables.fill(topic, count, queues=queues, first=100)


@pytest.mark.parametrize("queues", [1, 2])
def test_a_topic_that_was_made_anew_and_has_more_messages_is_noticed(
    tables: Tables, caplog: pytest.LogCaptureFixture, queues: int
) -> None:
    topic = f"anew-{queues}"
    tables.fill(topic, 4, queues=queues)
    stream = reader(tables, topic, startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    made_anew(tables, topic, 20, queues=queues)
    for again in (stream, reader(tables, topic)):  # The running stream, and a restarted one.
        with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
            again.latestOffset(end, ALL)
    going_on = reader(tables, topic, failOnDataLoss=False)
    following = through_json(going_on.latestOffset(end, ALL))
    assert bodies(reader(tables, topic), end, following) == numbers(100, 120)
    assert caplog.text.count(f"data loss: topic {topic} of broker broker-a was deleted") == 1
    tables.fill(topic, 2, queues=queues, first=120)
    last = through_json(going_on.latestOffset(following, ALL))
    assert bodies(reader(tables, topic), following, last) == numbers(120, 122)


@pytest.mark.parametrize("queues", [1, 2])
def test_a_topic_that_was_made_anew_and_has_fewer_messages_is_read_once(
    tables: Tables, queues: int
) -> None:
    """The checkpoint then has the new topic's first message, and no longer the old one's."""
    topic = f"anew-fewer-{queues}"
    tables.fill(topic, 8, queues=queues)
    stream = reader(tables, topic, startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    made_anew(tables, topic, 4, queues=queues)
    following = through_json(stream.latestOffset(end, ALL))
    assert bodies(reader(tables, topic), end, following) == numbers(100, 104)
    tables.fill(topic, 2, queues=queues, first=104)
    for again in (stream, reader(tables, topic)):
        last = through_json(again.latestOffset(following, ALL))
        assert bodies(reader(tables, topic), following, last) == numbers(104, 106)
    with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
        reader(tables, topic).latestOffset(end, ALL)


def test_a_topic_that_was_made_anew_is_noticed_where_its_noted_queue_stays_empty(
    tables: Tables,
) -> None:
    """The other queue has more than was read of the old topic's, which would look like news."""
    topic = "anew-elsewhere"
    tables.fill(topic, 8, queues=2)
    stream = reader(tables, topic, startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    assert list(end["firsts"][topic]["broker-a"]) == ["0"]
    tables.cluster.admin.delete_topic(topic)
    tables.cluster.admin.create_topic(topic, queues=2)
    sent = [str(each).encode() for each in range(100, 110)]
    other = next(each for each in tables.cluster.client.queues(topic) if each.id == 1)
    tables.cluster.client.send_batch(topic, sent, queue=other)
    for again in (stream, reader(tables, topic, failOnDataLoss=False)):
        following = through_json(again.latestOffset(end, ALL))
        assert bodies(reader(tables, topic), end, following) == numbers(100, 110)
    with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
        reader(tables, topic).latestOffset(end, ALL)


def test_a_topic_that_was_made_anew_without_the_queue_that_was_noted_is_noticed(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "anew-narrower"
    tables.cluster.admin.create_topic(topic, queues=2)
    stream = reader(tables, topic, startingOffsets="earliest")
    low, high = sorted(tables.cluster.client.queues(topic), key=lambda each: each.id)
    end = stream.initialOffset()
    for queue in (high, low):
        tables.cluster.client.send_batch(topic, [b"1", b"2"], queue=queue)
        end = through_json(stream.latestOffset(end, ALL))
        assert list(end["firsts"][topic]["broker-a"]) == [str(queue.id)]
    made_anew(tables, topic, 5)
    for again in (stream, reader(tables, topic)):
        with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
            again.latestOffset(end, ALL)
    reader(tables, topic, failOnDataLoss=False).latestOffset(end, ALL)
    assert "was deleted and recreated" in caplog.text
    assert "not read: " not in caplog.text  # Its broker does not forbid it.


def read_from_the_second_queue(
    tables: Tables, topic: str
) -> tuple[SendQueue, SendQueue, TopicStreamReader, dict[str, Any]]:
    """Send two messages to the second of two queues; return the queues, a stream and its place."""
    tables.cluster.admin.create_topic(topic, queues=2)
    low, high = sorted(tables.cluster.client.queues(topic), key=lambda each: each.id)
    tables.cluster.client.send_batch(topic, [b"1", b"2"], queue=high)
    stream = reader(tables, topic, startingOffsets="earliest")
    return low, high, stream, through_json(stream.latestOffset(stream.initialOffset(), ALL))


def test_a_topic_that_was_made_anew_and_hides_the_queue_that_was_noted_is_noticed(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """With fewer queues, of which none had a message before, and later with those it had."""
    topic = "anew-hidden"
    _, high, stream, end = read_from_the_second_queue(tables, topic)
    made_anew(tables, topic, 5)
    for again in (stream, reader(tables, topic)):
        with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
            again.latestOffset(end, ALL)
    going_on = reader(tables, topic, failOnDataLoss=False)
    following = through_json(going_on.latestOffset(end, ALL))
    assert bodies(reader(tables, topic), end, following) == numbers(100, 105)
    tables.cluster.admin.create_topic(topic, queues=2)
    tables.cluster.client.send_batch(topic, [b"105", b"106", b"107"], queue=high)
    last = through_json(going_on.latestOffset(following, ALL))
    assert bodies(reader(tables, topic), following, last) == numbers(105, 108)
    assert "not read: " not in caplog.text  # That its broker does not allow it is not so.


def test_a_topic_of_fewer_queues_that_hides_the_one_that_was_noted_is_the_same(
    tables: Tables,
) -> None:
    topic = "same-hidden"
    low, _, stream, end = read_from_the_second_queue(tables, topic)
    tables.cluster.admin.create_topic(topic, queues=1)
    tables.cluster.client.send_batch(topic, [b"3"], queue=low)
    for again in (stream, reader(tables, topic)):
        following = through_json(again.latestOffset(end, ALL))
        assert bodies(again, end, following) == ["3"]
        assert list(following["firsts"][topic]["broker-a"]) == ["0"]


def test_a_topic_that_was_made_anew_and_gets_back_its_queues_is_read_whole(tables: Tables) -> None:
    """The place up to which such a queue was read is one in the old topic's queue."""
    topic = "anew-widened"
    tables.fill(topic, 8, queues=2)
    stream = reader(tables, topic, startingOffsets="earliest", failOnDataLoss=False)
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    made_anew(tables, topic, 2, queues=1)
    following = through_json(stream.latestOffset(end, ALL))
    assert bodies(reader(tables, topic), end, following) == numbers(100, 102)
    tables.cluster.admin.create_topic(topic, queues=2)
    tables.fill(topic, 12, queues=2, first=102)
    last = through_json(stream.latestOffset(following, ALL))
    assert bodies(reader(tables, topic), following, last) == numbers(102, 114)


def test_a_topic_that_was_made_anew_and_has_as_many_messages_is_noticed_by_a_start(
    tables: Tables,
) -> None:
    """A daily job would read them a day late, or never if the topic is recreated once more."""
    topic = "anew-as-many"
    tables.fill(topic, 8, queues=2)
    stream = reader(tables, topic, startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    assert reader(tables, topic).latestOffset(end, ALL) == end
    made_anew(tables, topic, 8, queues=2)
    with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
        reader(tables, topic).latestOffset(end, ALL)
    going_on = reader(tables, topic, failOnDataLoss=False)
    following = through_json(going_on.latestOffset(end, ALL))
    assert bodies(going_on, end, following) == numbers(100, 108)
    assert reader(tables, topic).latestOffset(following, ALL) == following


def test_a_topic_that_was_made_anew_before_the_first_batch_is_noticed(tables: Tables) -> None:
    tables.fill("anew-at-once", 4)
    stream = reader(tables, "anew-at-once", startingOffsets="latest")
    start = stream.initialOffset()
    made_anew(tables, "anew-at-once", 20, queues=2)
    with pytest.raises(DataLossError, match="topic anew-at-once of broker broker-a was deleted"):
        stream.latestOffset(start, ALL)


def begun(tables: Tables, topic: str, *, queues: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the start and end of a batch that was planned, and perhaps written."""
    tables.fill(topic, 8, queues=queues)
    stream = reader(tables, topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    start = through_json(stream.latestOffset(stream.initialOffset(), ReadMaxRows(4)))
    return start, through_json(stream.latestOffset(start, ReadMaxRows(4)))


def test_a_batch_that_is_read_again_when_its_topic_is_gone_is_passed_over_if_told_so(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no restart would get past it."""
    start, end = begun(tables, "gone-since")
    tables.cluster.admin.delete_topic("gone-since")
    with pytest.raises(DataLossError, match="topic gone-since no longer exists"):
        reader(tables, "gone-since").partitions(start, end)
    going_on = reader(tables, "gone-since", failOnDataLoss=False)
    assert bodies(going_on, start, end) == []
    assert "data loss: topic gone-since no longer exists" in caplog.text
    end = through_json(going_on.latestOffset(end, ALL))
    assert going_on.latestOffset(end, ALL) == end
    tables.fill("gone-since", 3, first=100)
    assert bodies(going_on, end, going_on.latestOffset(end, ALL)) == numbers(100, 103)


def test_a_first_batch_is_read_again_without_a_topic_that_is_gone_if_told_so(
    tables: Tables,
) -> None:
    """Spark then asks again where the stream begins, which is nowhere in a topic that is gone."""
    named = "first-kept,first-gone"
    for topic in named.split(","):
        tables.fill(topic, 3)
    stream = reader(tables, named, startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.delete_topic("first-gone")
    again = reader(tables, named)
    with pytest.raises(DataLossError, match="topic first-gone no longer exists"):
        again.partitions(again.initialOffset(), end)
    going_on = reader(tables, named, failOnDataLoss=False)
    assert bodies(going_on, going_on.initialOffset(), end) == numbers(0, 3)
    assert read_stream_offset(going_on.latestOffset(end, ALL)).gone == {"first-gone"}
    anew = reader(tables, named, failOnDataLoss=False)
    with pytest.raises(OptionError, match="first-gone: no such topic"):
        anew.latestOffset(anew.initialOffset(), ALL)


def test_a_stream_that_began_and_read_nothing_goes_on_without_its_topic_if_told_so(
    tables: Tables,
) -> None:
    """One of two in a query whose first batch had rows of the other only, and is repeated."""
    tables.fill("began-and-gone", 3)
    start = through_json(reader(tables, "began-and-gone").initialOffset())
    tables.cluster.admin.delete_topic("began-and-gone")
    again = reader(tables, "began-and-gone", failOnDataLoss=False)
    assert bodies(again, again.initialOffset(), start) == []
    assert read_stream_offset(again.latestOffset(start, ALL)).gone == {"began-and-gone"}


def test_a_batch_that_is_read_again_goes_on_without_a_broker_that_lost_its_topic_if_told_so(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store was emptied, or another took its name; the topic's other brokers still have it."""
    tables.fill("lacking", 4, queues=1)
    start = {"queues": {"lacking": {"broker-a": {"0": 1}, "broker-b": {"0": 3}}}}
    end = {"queues": {"lacking": {"broker-a": {"0": 2}, "broker-b": {"0": 7}}}}
    with pytest.raises(ConnectionLostError, match="broker broker-b: no name server knows it"):
        reader(tables, "lacking").partitions(start, end)

    names = frozenset(["broker-a", "broker-b"])

    def both(_: Asked) -> Brokers:
        return Brokers(names, frozenset())

    def known(_: Asked) -> frozenset[str]:
        return names

    monkeypatch.setattr(Asked, "brokers", both)
    monkeypatch.setattr(Asked, "known", known)
    with pytest.raises(DataLossError, match="lacking/broker-b/0: messages from 3 to 7 were to be"):
        reader(tables, "lacking").partitions(start, end)
    going_on = reader(tables, "lacking", failOnDataLoss=False)
    assert bodies(going_on, start, end) == numbers(1, 2)


@pytest.mark.parametrize("queues", [1, 2])
def test_a_batch_that_is_read_again_has_no_messages_of_a_topic_that_was_made_anew_since(
    tables: Tables, queues: int
) -> None:
    """They would be read twice: in this batch, and again from the new topic's beginning."""
    topic = f"anew-since-{queues}"
    start, end = begun(tables, topic)
    made_anew(tables, topic, 20, queues=queues)
    with pytest.raises(DataLossError, match=f"topic {topic} of broker broker-a was deleted"):
        reader(tables, topic).partitions(start, end)
    going_on = reader(tables, topic, failOnDataLoss=False)
    assert bodies(going_on, start, end) == []
    following = through_json(going_on.latestOffset(end, ALL))
    assert bodies(going_on, end, following) == numbers(100, 120)


def test_a_topic_that_is_deleted_while_a_batch_is_read_is_data_loss(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.fill("gone-now", 6)
    readers = [reader(tables, "gone-now", failOnDataLoss=strict) for strict in (True, False)]
    start = reader(tables, "gone-now", startingOffsets="earliest").initialOffset()
    end = readers[0].latestOffset(start, ALL)
    strict, lenient = ((each, each.partitions(start, end)) for each in readers)
    tables.cluster.admin.delete_topic("gone-now")
    with pytest.raises(DataLossError, match="its topic no longer exists"):
        list(strict[0].read(strict[1][0]))
    assert [batch for part in lenient[1] for batch in lenient[0].read(part)] == []
    assert "gone-now/broker-a/1: messages from 0 on were to be read, and its topic" in caplog.text


def test_a_queue_that_its_topic_has_lost_since_a_batch_was_planned_is_data_loss(
    tables: Tables,
) -> None:
    start, end = begun(tables, "narrowed-since")
    tables.cluster.admin.create_topic("narrowed-since", queues=1)
    with pytest.raises(DataLossError, match=r"narrowed-since/broker-a/1: .* has fewer queues now"):
        bodies(reader(tables, "narrowed-since"), start, end)
    going_on = reader(tables, "narrowed-since", failOnDataLoss=False)
    assert bodies(going_on, start, end) == ["4", "6"]


def test_a_checkpoint_without_first_messages_is_read_and_gets_them(tables: Tables) -> None:
    tables.fill("older", 4, queues=1)
    older = {"queues": {"older": {"broker-a": {"0": 2}}}}
    stream = reader(tables, "older")
    end = through_json(stream.latestOffset(older, ALL))
    assert bodies(stream, older, end) == numbers(2, 4)
    assert json.dumps(end).startswith('{"firsts": {"older": {"broker-a": {"0": [0, ')
    assert stream.latestOffset(end, ALL) == end
    made_anew(tables, "older", 9)
    with pytest.raises(DataLossError, match="topic older of broker broker-a was deleted"):
        stream.latestOffset(end, ALL)


def test_first_messages_that_expired_are_no_other_topic(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they expire between a broker's answers about offsets and about times."""
    tables.fill("expiring", 6, queues=1)
    stream = reader(tables, "expiring", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.fill("expiring", 3, first=6, queues=1)
    cluster = stream._cluster  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.
    stored_first = cluster.stored_first

    def expired_meanwhile(queues: list[Queue], addresses: dict[str, str]) -> dict[Queue, int]:
        first_at(stream, 5, monkeypatch)
        return {queue: at + 60_000 for queue, at in stored_first(queues, addresses).items()}

    monkeypatch.setattr(cluster, "stored_first", expired_meanwhile)
    following = through_json(stream.latestOffset(end, ALL))
    assert bodies(reader(tables, "expiring"), end, following) == numbers(6, 9)
    assert following["firsts"] == end["firsts"]
    tables.fill("expiring", 1, first=9, queues=1)
    last = stream.latestOffset(following, ALL)
    assert last["firsts"]["expiring"]["broker-a"]["0"][0] == 5


def test_a_broker_that_does_not_say_when_its_first_message_was_stored_ends_no_stream(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("untimed", 4, queues=1)
    stream = reader(tables, "untimed", startingOffsets="earliest")

    def refuses(*_: object) -> dict[Queue, int]:
        raise RefusedError("127.0.0.1:1", 1, "not now")

    monkeypatch.setattr(stream._cluster, "stored_first", refuses)  # pyright: ignore[reportPrivateUsage]  # The seam to a broker.
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert list(end) == ["from", "queues"]


def test_a_queue_that_is_not_read_for_a_while_goes_on_where_it_was(tables: Tables) -> None:
    """A topic that is given fewer queues keeps the messages of the others."""
    tables.fill("shrunk", 6, queues=3)
    stream = reader(tables, "shrunk", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    start = stream.initialOffset()
    end = through_json(stream.latestOffset(start, stream.getDefaultReadLimit()))
    read = bodies(stream, start, end)
    tables.cluster.admin.create_topic("shrunk", queues=1)
    fewer = through_json(stream.latestOffset(end, ALL))
    read += bodies(stream, end, fewer)
    assert len(read) == 4
    tables.cluster.admin.create_topic("shrunk", queues=3)
    read += bodies(stream, fewer, stream.latestOffset(fewer, ALL))
    assert sorted(read) == numbers(0, 6)


def test_a_queue_that_nobody_may_read_is_told(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.fill("hidden", 4, queues=2)
    stream = reader(tables, "hidden", startingOffsets="earliest")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    tables.cluster.admin.create_topic("hidden", queues=1)
    for _ in range(2):
        assert stream.latestOffset(end, ALL) == end
    assert caplog.text.count("not read: queue hidden/broker-a/1: its broker does not allow it") == 1


def test_a_slave_that_is_behind_is_waited_for(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is not taken for a new one, whose messages would be read again."""
    tables.fill("lagging", 6, queues=1)
    read = {"queues": {"lagging": {"broker-a": {"0": 5}}}}
    stream = reader(tables, "lagging", startingOffsets="earliest")
    with monkeypatch.context() as patch:
        bounds = stream._cluster.bounds  # pyright: ignore[reportPrivateUsage]  # The seam to a cluster.

        def behind(topics: Sequence[str]) -> Survey:
            found = bounds(topics)
            queues = {queue: Bounds(0, 3) for queue in found.queues}
            return replace(found, queues=queues, slaves={"broker-a"})

        patch.setattr(stream._cluster, "bounds", behind)  # pyright: ignore[reportPrivateUsage]  # As above.
        assert stream.latestOffset(read, ALL) == read
    assert bodies(stream, read, stream.latestOffset(read, ALL)) == ["5"]


def test_a_group_that_cannot_be_told_ends_no_stream(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables.fill("untold", 3, queues=1)
    stream = reader(tables, "untold", startingOffsets="earliest", group="refused")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))

    def refuse(*_: object) -> None:
        raise RefusedError("broker", 1, "no permission")

    with monkeypatch.context() as patch:
        patch.setattr(stream._cluster, "commit", refuse)  # pyright: ignore[reportPrivateUsage]  # As above.
        for _ in range(2):
            assert stream.latestOffset(end, ALL) == end
    assert (
        caplog.text.count(
            "group refused: its progress cannot be committed: broker refused with code 1"
        )
        == 1
    )
    stream.latestOffset(end, ALL)
    queue = tables.cluster.client.queues("untold")[0]
    assert tables.cluster.client.committed(queue, "refused") == 3


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_group_is_told_of_a_broker_that_was_away(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, is_missing: bool
) -> None:
    """What the broker could not be told meanwhile does not count as told."""
    topics = [f"{name}-{is_missing}" for name in ("away-untold", "here")]
    for topic in topics:
        tables.fill(topic, 3, queues=1)
    stream = reader(tables, ",".join(topics), startingOffsets="earliest", group="later")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    look = stream._survey  # pyright: ignore[reportPrivateUsage]  # The seam to a cluster.

    def partly(*, whole: bool) -> Survey:
        found = look(whole=whole)
        found.queues = {q: each for q, each in found.queues.items() if q.topic == topics[1]}
        if is_missing:
            found.missing = {"broker-a": ConnectionLostError("away")}
        return found

    def told() -> list[int | None]:
        client = tables.cluster.client
        return [client.committed(client.queues(each)[0], "later") for each in topics]

    with monkeypatch.context() as patch:
        patch.setattr(stream, "_survey", partly)
        stream.latestOffset(end, ALL)
    assert told() == [0, 0 if is_missing else 3]
    stream.latestOffset(end, ALL)
    assert told() == [3, 3]


def test_a_group_is_told_again_what_a_killed_broker_forgot(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers save offsets every few seconds; without a new message, the lag used to stay wrong."""
    tables.fill("forgotten", 3, queues=1)
    stream = reader(tables, "forgotten", startingOffsets="earliest", group="told-again")
    end = through_json(stream.latestOffset(stream.initialOffset(), ALL))
    stream.latestOffset(end, ALL)
    queue = tables.cluster.client.queues("forgotten")[0]
    tables.cluster.client.commit(queue, "told-again", 1)
    assert stream.latestOffset(end, ALL) == end
    assert tables.cluster.client.committed(queue, "told-again") == 1  # Not with each look.
    monkeypatch.setattr("cometmq.pipeline.stream_source._TOLD_AGAIN_SECONDS", 0.0)
    assert stream.latestOffset(end, ALL) == end
    assert tables.cluster.client.committed(queue, "told-again") == 3


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(tables: Tables, option: str) -> None:
    value = '{"T": {"0": 1}}' if option == "endingOffsets" else "2026-01-01"
    with pytest.raises(OptionError, match=f"{option}: a stream has no end"):
        reader(tables, "T", **{option: value})


def test_a_stream_takes_no_conditions(tables: Tables) -> None:
    with pytest.raises(OptionError, match="filterPushdown: is for batch reads"):
        reader(tables, "T", filterPushdown="true")


def test_a_stream_can_begin_behind_all_that_there_is(tables: Tables) -> None:
    tables.fill("future", 3)
    stream = reader(tables, "future", startingTimestamp="2999-01-01")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    tables.fill("future", 2, first=3)
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == numbers(3, 5)


def test_a_pattern_may_match_nothing_at_first(tables: Tables) -> None:
    given = {"nameserver": tables.cluster.nameserver, "topicpattern": "later-.*"}
    stream = TopicStreamReader(read_options(given), BODY)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    tables.fill("later-a", 3)
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == numbers(0, 3)


def test_a_filter_that_cannot_be_read_is_refused_once_there_is_who_can_tell(tables: Tables) -> None:
    """Apache's brokers refuse no pull with such a filter: they give all messages."""
    given = {"nameserver": tables.cluster.nameserver, "topicpattern": "unread-.*", "filter": "n >"}
    stream = TopicStreamReader(read_options(given), BODY)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    tables.fill("unread-a", 3)
    for _ in range(2):
        with pytest.raises(OptionError, match="filter: 'n >' was refused by broker broker-a"):
            stream.latestOffset(start, ALL)


def test_a_filter_that_cannot_be_read_is_refused_before_a_batch_is_repeated(tables: Tables) -> None:
    """The stream was given the filter for its restart."""
    tables.fill("refiltered", 3)
    stream = reader(tables, "refiltered", startingOffsets="earliest")
    start = stream.initialOffset()
    end = through_json(stream.latestOffset(start, ALL))
    with pytest.raises(OptionError, match="filter: 'n >' was refused by broker broker-a"):
        reader(tables, "refiltered", filter="n >").partitions(start, end)


def test_a_stream_tells_its_lag(tables: Tables, tmp_path: Path) -> None:
    tables.fill("lag", 10)
    frame = tables.stream("lag", startingOffsets="earliest", maxOffsetsPerTrigger=5)
    query = tables.copy(frame, tmp_path, "lag-out")
    source = query.recentProgress[0]["sources"][0]
    there, read = json.loads(source["latestOffset"]), json.loads(source["endOffset"])
    assert sum(there["queues"]["lag"]["broker-a"].values()) == 10
    assert sum(read["queues"]["lag"]["broker-a"].values()) == 5


def test_a_new_topic_that_matches_is_found_while_a_stream_runs(tables: Tables) -> None:
    tables.fill("pattern-a", 2)
    given = {"nameserver": tables.cluster.nameserver, "topicpattern": "pattern-.*"}
    stream = TopicStreamReader(read_options({**given, "startingoffsets": "latest"}), BODY)
    start = stream.initialOffset()
    tables.fill("pattern-b", 3)
    assert bodies(stream, start, stream.latestOffset(start, ALL)) == numbers(0, 3)


def test_a_query_without_a_nameserver_says_so_where_it_is_made(tables: Tables) -> None:
    with pytest.raises(PySparkException, match="nameserver: is required"):
        tables.spark.readStream.format("cometmq").option("topic", "T").load()


def test_a_stream_that_cannot_be_says_why_and_not_what_spark_makes_of_it(tables: Tables) -> None:
    tables.fill("without-end", 1)
    reading = tables.spark.readStream.format("cometmq").option("topic", "without-end")
    reading = reading.option("nameserver", tables.cluster.nameserver)
    frame = reading.option("endingTimestamp", "2026-01-01").load()
    query = frame.writeStream.format("noop").start()
    with pytest.raises(PySparkException) as told:
        query.awaitTermination(60)
    assert "endingTimestamp: a stream has no end" in str(told.value)
    assert "UnboundLocalError" not in str(told.value)
