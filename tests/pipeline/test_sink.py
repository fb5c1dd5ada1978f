"""`df.write.format("cometmq")` against a broker; what streams are promised is in test_traps."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.functions import expr
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.cluster import Cluster as Asked
from cometmq.pipeline.errors import ConnectionLostError, OptionError
from cometmq.pipeline.options import write_options
from cometmq.pipeline.routes import Brokers
from cometmq.pipeline.rows import KEPT_RESERVED, RESERVED
from cometmq.pipeline.sink import BatchWriter, StreamWriter
from cometmq.pipeline.targets import Targets
from cometmq.pipeline.wire import Settings
from cometmq.proto import property_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from cometmq.pipeline.routes import Route
    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def test_columns_become_what_they_are_called(tables: Tables) -> None:
    frame = tables.spark.sql(
        "SELECT 'x' AS body, 'o-17 o-18' AS key, 'paid' AS tag, map('a', 'b') AS properties,"
        " 7 AS flag, 's' AS sharding_key"
    )
    tables.write(frame, "columns")
    message = tables.cluster.sent("columns", count=1)[0]
    assert (message.body, message.keys, message.tag) == (b"x", ["o-17", "o-18"], "paid")
    assert message.user_properties["a"] == "b"
    assert message.flag == 7


def test_rows_can_say_their_topic(tables: Tables) -> None:
    tables.write(tables.spark.sql("SELECT concat('to-', id) AS topic, 'x' AS body FROM range(3)"))
    assert [len(tables.cluster.sent(f"to-{n}", count=1)) for n in range(3)] == [1, 1, 1]


def test_a_delayed_row_is_delivered_later(tables: Tables) -> None:
    tables.write(tables.spark.sql("SELECT 'x' AS body, 3 AS delay_level"), "delayed")
    assert tables.cluster.sent("delayed") == []
    tables.cluster.clock.jump(60)
    assert len(tables.cluster.sent("delayed", count=1)) == 1


def test_a_delayed_row_that_is_written_again_is_delivered_once(tables: Tables) -> None:
    frame = tables.spark.sql("SELECT 'x' AS body, 3 AS delay_level, id FROM range(2)")
    for _ in range(2):
        tables.write(frame, "delayed-once", dedupKey="id", sinkId="nightly", delivery="idempotent")
    tables.cluster.clock.jump(60)
    assert len(tables.cluster.sent("delayed-once", count=2)) == 2
    tables.write(tables.spark.sql("SELECT 'y' AS body"), "delayed-once")
    assert len(tables.cluster.sent("delayed-once", count=3)) == 3


def test_a_time_of_delivery_is_refused_with_what_there_is_in_its_place(tables: Tables) -> None:
    frame = tables.spark.sql("SELECT 'x' AS body, now() + INTERVAL 1 HOUR AS deliver_time")
    with pytest.raises(PySparkException, match="write a delay_level instead"):
        tables.write(frame, "due-later")
    assert tables.cluster.sent("due-later") == []


def test_equal_sharding_keys_go_to_one_queue(tables: Tables) -> None:
    tables.write(
        tables.spark.sql(
            "SELECT cast(id AS string) AS body, cast(id % 3 AS string) AS sharding_key"
            " FROM range(600)"
        ),
        "sharded",
        batchBytes="200",  # Other rows of one request go to one queue, whatever they hold.
    )
    rows = tables.read("sharded").selectExpr(
        "cast(cast(body AS string) AS int) % 3 AS shard", "queue_id"
    )
    pairs = {(row["shard"], row["queue_id"]) for row in rows.collect()}
    assert len(pairs) == 3
    assert len({queue for _, queue in pairs}) > 1


def test_what_was_read_can_be_written_as_it_is(tables: Tables) -> None:
    tables.cluster.send("original", b"x", key="k", tag="t", properties={"a": "b"})
    tables.write(tables.read("original"), "copied_whole")
    copy = tables.cluster.sent("copied_whole", count=1)[0]
    original = tables.cluster.sent("original", count=1)[0]
    assert (copy.body, copy.keys, copy.tag) == (b"x", ["k"], "t")
    assert copy.user_properties == {"a": "b"}
    assert copy.id != original.id


@pytest.mark.parametrize("way", ["read", "stream", "store"])
def test_bodies_as_they_are_stored_are_not_sent_as_if_they_were_the_message(
    tables: Tables, tmp_path: Path, way: str
) -> None:
    tables.cluster.send("compressed", b"x" * 9000)
    if way == "store":
        folder = tmp_path / "commitlog"
        folder.mkdir()
        (folder / "0".zfill(20)).write_bytes(b"")
        reader = tables.spark.read.format("cometmq-store").options(decompress="false")
        frame = reader.load(str(tmp_path)).select("topic", "body")
        own = reader.schema("body BINARY").load(str(tmp_path))
    else:
        given = {"decompress": "false", "startingOffsets": "earliest"}
        frame = getattr(tables, way)("compressed", **given).selectExpr("topic AS to_topic", "body")
        own = getattr(tables, way)("compressed", "body BINARY", **given)
    write = partial(tables.copy, checkpoint=tmp_path) if way == "stream" else tables.write
    with pytest.raises(PySparkException, match="column body: was read with decompress=false"):
        write(frame, topic="compressed-copy")
    with pytest.raises(PySparkException, match="decompress: a schema of your own cannot say"):
        write(own, topic="compressed-copy")
    plain = tables.read("compressed").selectExpr("'plain' AS to_topic", "body")
    tables.write(plain)
    assert tables.cluster.sent("plain", count=1)[0].body == b"x" * 9000


def test_rows_that_are_written_again_with_the_same_key_are_stored_once(tables: Tables) -> None:
    frame = tables.spark.sql("SELECT cast(id AS string) AS body, id FROM range(50)")
    for _ in range(2):
        tables.write(frame, "once", dedupKey="id", sinkId="nightly", delivery="idempotent")
    assert tables.bodies("once") == numbers(0, 50)
    tables.write(frame, "once", dedupKey="id", sinkId="other")
    assert len(tables.bodies("once")) == 100


@pytest.mark.slow
def test_a_write_in_foreach_batch_knows_a_repeated_batch_by_its_sink_id(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("each-batch", 20)
    named = {"sinkId": "of-the-test"}

    def run(**options: str) -> None:
        def put(batch: DataFrame, _batch_id: int) -> None:
            tables.write(batch, "each-copy", **options)

        stream = tables.stream("each-batch", startingOffsets="earliest").writeStream
        writing = stream.foreachBatch(put)
        writing.option("checkpointLocation", str(tmp_path))
        writing.trigger(availableNow=True).start().awaitTermination()
        for note in (tmp_path / "commits").iterdir():  # As if the driver died before it.
            note.unlink()

    with pytest.raises(StreamingQueryException, match="sinkId: is required with delivery=idem"):
        run(delivery="idempotent")
    for _ in range(2):
        run(delivery="idempotent", **named)
        run(**named)
    assert tables.bodies("each-copy") == numbers(0, 20)
    run()  # A write of its own.
    assert len(tables.bodies("each-copy")) == 40


def test_a_message_that_goes_to_two_topics_is_stored_in_both(tables: Tables) -> None:
    tables.fill("forked", 10)
    read = tables.read("forked").selectExpr(
        "topic", "broker", "queue_id", "queue_offset", "body",
        "explode(array('forked-a', 'forked-b')) AS to_topic",
    )  # fmt: skip
    tables.write(read)
    assert tables.bodies("forked-a") == tables.bodies("forked-b") == numbers(0, 10)


def test_two_rows_of_a_message_need_a_key_that_tells_them_apart(tables: Tables) -> None:
    """Without one, only the first would be stored: the other looks like the first sent again."""
    tables.fill("burst", 4)
    rows = tables.read("burst").selectExpr(
        "topic", "broker", "queue_id", "queue_offset", "explode(array('1', '2')) AS body"
    )
    with pytest.raises(
        PySparkException, match="two rows for topic burst-out come from one message"
    ):
        tables.write(rows, "burst-out")
    tables.write(rows.withColumn("id", expr("concat_ws('/', queue_id, queue_offset, body)")),
                 "burst-keys", dedupKey="id")  # fmt: skip
    assert tables.bodies("burst-keys") == ["1"] * 4 + ["2"] * 4


@pytest.mark.parametrize("how", ["sorted", "union", "stream"])
def test_two_rows_of_a_message_are_found_however_far_apart_they_are(
    tables: Tables, tmp_path: Path, how: str
) -> None:
    """Sorted, one task has both, in several record batches; in a union, two tasks have one each."""
    topic = f"apart-{how}"
    tables.fill(topic, 40)
    if how == "stream":
        frame = tables.stream(topic, startingOffsets="earliest")
        written = partial(tables.copy, frame.union(frame), tmp_path)
    else:
        frame = tables.read(topic)
        twice = frame.union(frame)
        if how == "sorted":
            twice = frame.withColumn("n", expr("explode(array(1, 2))")).orderBy("n").drop("n")
        written = partial(tables.write, twice)
    with pytest.raises(
        PySparkException, match=r"rows .*(of|from) one message.*two topics.*rows apart by ded"
    ):
        written(f"{topic}-out")
    if how != "stream":
        written(f"{topic}-out", delivery="at-least-once")
        assert len(tables.bodies(f"{topic}-out")) >= 80


def test_many_rows_arrive_in_batches(tables: Tables) -> None:
    tables.write(
        tables.spark.sql("SELECT cast(id AS string) AS body FROM range(20000)"),
        "bulk",
        batchBytes="64k",
    )
    assert tables.bodies("bulk") == numbers(0, 20_000)


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("'x' AS body, 1 AS amount", {}, "column amount: not known to the sink"),
        ("'x' AS bdy, 'x' AS key", {}, "column bdy: not known"),
        ("'x' AS BODY, 'x' AS key", {}, "the columns of the source; write body"),
        ("'k' AS key", {}, "column body: is required"),
        ("'x' AS body, 'k' AS key, 'y' AS body", {}, "column body: is there twice"),
        ("1 AS body", {}, "column body: is int, must be string or binary"),
        ("'x' AS body", {"topic": ""}, "topic: name where to write"),
        ("'x' AS body", {"delivery": "idempotent"}, "delivery: idempotent needs rows"),
        ("'x' AS body", {"dedupKey": "id"}, "dedupKey: 'id' must be a column"),
        ("cast(null AS string) AS body", {}, "column body: is null or empty"),
        ("'x' AS body, map('a', '\\u0002') AS properties", {}, "column properties: 'a'"),
    ],
)
def test_what_cannot_be_written_is_said(
    tables: Tables, select: str, options: dict[str, str], said: str
) -> None:
    frame = tables.spark.sql(f"SELECT {select}")
    with pytest.raises(PySparkException) as caught:
        tables.write(frame, **{"topic": "refused", **options})
    assert said in str(caught.value)


def test_a_topic_is_not_overwritten(tables: Tables) -> None:
    frame = tables.spark.sql("SELECT 'x' AS body")
    writer = frame.write.format("cometmq").option("nameserver", tables.cluster.nameserver)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.option("topic", "T").mode("overwrite").save()


def test_the_sink_knows_every_name_that_brokers_and_clients_set() -> None:
    known = property_names.RESERVED - {property_names.TRANSIENT_PREFIX}
    assert known ^ RESERVED == set()
    assert set(KEPT_RESERVED) <= RESERVED


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("failures", [2, 9])
def test_a_name_server_that_is_away_for_a_moment_is_waited_for(
    rocketmq_session: Cluster, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """As with reads: it may be restarting together with its broker."""
    rocketmq_session.admin.create_topic("waited-for", queues=1)
    route, tries = Asked.route, count(1)

    def failing(asked: Asked, topic: str) -> Route | None:
        if next(tries) <= failures:
            raise ConnectionLostError("away")
        return route(asked, topic)

    monkeypatch.setattr(Asked, "route", failing)
    given = {"nameserver": rocketmq_session.nameserver, "topic": "waited-for"}
    options = write_options({**given, "retries": "3", "retryintervalms": "1"})
    schema = StructType([StructField("body", BinaryType())])
    if failures > 3:
        with pytest.raises(ConnectionLostError):
            BatchWriter(options, schema)
        # Spark makes one also to end a batch that failed like this; an error would hide why.
        monkeypatch.setattr(Asked, "route", raising(ConnectionLostError("away")))
        StreamWriter(options, schema)
        monkeypatch.setattr(Asked, "route", raising(OptionError("wrong")))
        with pytest.raises(OptionError):
            StreamWriter(options, schema)
        return
    assert len(BatchWriter(options, schema).targets().of("waited-for")) == 1


@pytest.mark.parametrize("topic", ["there-behind-a-start", "made-behind-a-start"])
def test_a_name_server_that_knows_no_broker_yet_is_asked_again(
    rocketmq_session: Cluster, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Such as one that was just restarted: the topic may exist."""
    rocketmq_session.admin.create_topic("there-behind-a-start", queues=1)
    route, brokers, looks = Asked.route, Asked.brokers, count(1)
    until = {"looks": 2}

    def unknown(asked: Asked, topic: str) -> Route | None:
        return None if next(looks) <= until["looks"] else route(asked, topic)

    def nobody(asked: Asked) -> Brokers:
        is_there = next(looks) > until["looks"]
        return brokers(asked) if is_there else Brokers(frozenset(), frozenset())

    monkeypatch.setattr(Asked, "route", unknown)
    monkeypatch.setattr(Asked, "brokers", nobody)
    targets = Targets(Asked([rocketmq_session.nameserver], Settings()), 3, 1)
    assert targets.of(topic)
    until["looks"] = 1 << 30
    with pytest.raises(ConnectionLostError, match=r"no broker has registered with .* yet"):
        targets.of("never-there")


def test_a_topic_whose_broker_registers_between_two_questions_is_not_made_anew(
    rocketmq_session: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have another number of queues, and messages beyond them would be out of reach."""
    rocketmq_session.admin.create_topic("registered-late", queues=7)
    route, looks = Asked.route, count(1)

    def unknown(asked: Asked, topic: str) -> Route | None:
        return None if next(looks) == 1 else route(asked, topic)

    monkeypatch.setattr(Asked, "route", unknown)
    targets = Targets(Asked([rocketmq_session.nameserver], Settings()), 3, 1)
    assert len(targets.of("registered-late")) == 7


def test_a_broker_that_was_told_to_make_no_topics_makes_none_for_the_sink(
    rocketmq_session: Cluster,
) -> None:
    """It still has the template topic from before."""
    targets = Targets(Asked([rocketmq_session.nameserver], Settings()))
    assert targets.of("made-by-itself")
    admin = rocketmq_session.admin
    admin.change_settings({"autoCreateTopicEnable": "false"})
    try:
        with pytest.raises(
            OptionError, match="no such topic, and the brokers do not create topics by them"
        ):
            targets.of("not-made")
        assert "not-made" not in {each.name for each in admin.topics()}
    finally:
        admin.change_settings({"autoCreateTopicEnable": "true"})


def test_batches_that_are_larger_than_the_broker_takes_are_refused_before_a_row_is_sent(
    tables: Tables,
) -> None:
    frame = tables.spark.createDataFrame([("x",)], "body string")
    with pytest.raises(PySparkException, match="batchBytes: 67108864 bytes are more than broker"):
        tables.write(frame, "too-large", batchBytes="64m")
