"""`format("cometmq-store")`, in Spark."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, IsNotNull, LessThanOrEqual
from pyspark.sql.types import StructType
from tests.pipeline.store.logs import SEGMENT, change, write_log, write_sealed_log
from tests.store.apache_stores import manifest_records, unpack

from cometmq.pipeline.columns import ALL_COLUMNS, DEFAULT_COLUMNS
from cometmq.pipeline.errors import DataLossError, OptionError
from cometmq.pipeline.store.options import store_options
from cometmq.pipeline.store_source import PushingStoreReader, StoreReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    frame: DataFrame = spark.read.format("cometmq-store").options(**options).load(str(path))
    return frame


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.mark.parametrize("store", ["clean", "killed"])
def test_every_message_that_apaches_client_got_is_a_row(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    root = unpack(store, tmp_path)
    assert read(spark, root).columns == list(DEFAULT_COLUMNS)
    frame = read(spark, root, splitBytes="20000", columns="*")
    assert frame.columns == list(ALL_COLUMNS)
    rows = frame.collect()
    assert {row["physical_offset"] for row in rows} == {
        line["physicalOffset"] for line in manifest_records(store)
    }
    found = {
        (row["topic"], row["queue_id"], row["queue_offset"], row["body_crc"]): row for row in rows
    }
    clients = 0
    for line in manifest_records(store):
        for client in line.get("client", ()):
            place = (line["topic"], client["queueId"], client["queueOffset"], line["bodyCRC"])
            row = found[place]
            assert hashlib.sha256(row["body"]).hexdigest() == client["bodySha256"]
            if len(line["client"]) == 1:
                assert row["properties"] == line["properties"]
            assert row["born_time"].timestamp() * 1000 == line["bornTimestamp"]
            clients += 1
    assert clients > 1000


def test_columns_are_chosen_by_a_schema_or_an_option(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, [b"x"] * 5)
    reading = spark.read.format("cometmq-store")
    by_schema = reading.schema("body binary, queue_offset bigint").load(str(tmp_path))
    by_option = read(spark, tmp_path, columns="body, queue_offset")
    assert by_schema.collect() == by_option.collect()
    assert by_schema.columns == ["body", "queue_offset"]
    with pytest.raises(Exception, match="column body is binary, not string"):
        spark.read.format("cometmq-store").schema("body string").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="there is no column 'x'"):
        read(spark, tmp_path, columns="x").collect()


def test_only_some_topics_are_read(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    counts = {r["topic"]: r["count"] for r in read(spark, root).groupBy("topic").count().collect()}
    some = sorted(counts)[2:4]
    found = read(spark, root, topic=",".join(some)).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in found} == {name: counts[name] for name in some}


def test_what_conditions_leave_is_what_spark_would_leave(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = unpack("clean", tmp_path)
    every = read(spark, root).localCheckpoint()
    middle = every.orderBy("physical_offset").collect()[every.count() // 2]
    for condition in (
        f"topic = '{middle['topic']}'",
        f"topic in ('{middle['topic']}', 'no such topic') and queue_id in (0, 1)",
        "queue_id > 0 and queue_id <= 2",
        f"store_time >= timestamp '{middle['store_time']} UTC'",
        f"store_time < timestamp '{middle['store_time']} UTC' and queue_offset = 0",
        f"physical_offset = {middle['physical_offset']}",
        f"physical_offset > {middle['physical_offset']} or queue_id = 1",
        "topic is not null and queue_id != 0",
    ):
        wanted = every.where(condition).select("physical_offset", "queue_offset")
        found = read(spark, root, filterPushdown="true").where(condition)
        rows = sorted(found.select("physical_offset", "queue_offset").collect())
        assert rows == sorted(wanted.collect()), condition
        assert rows, condition


def test_a_store_that_is_asked_by_several_conditions_has_all_rows_of_each(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark keeps the planned read with the frame, for queries whose conditions it cannot offer."""
    frame = read(spark, unpack("clean", tmp_path))
    every = frame.count()
    assert 0 < frame.where("physical_offset < 1000").count() < every
    assert frame.count() == every


def test_a_store_reader_makes_no_rows_of_what_conditions_leave_out(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    options = store_options({"path": str(root), "splitbytes": "20000"})
    schema = StructType().add("topic", "string").add("physical_offset", "long")
    whole = StoreReader(options, schema)
    every = [
        row for part in whole.partitions() for batch in whole.read(part) for row in rows(batch)
    ]
    middle = every[len(every) // 2]
    pushing = PushingStoreReader(options, schema)
    conditions = [
        EqualTo(("topic",), middle["topic"]),
        LessThanOrEqual(("physical_offset",), middle["physical_offset"]),
        IsNotNull(("topic",)),
    ]
    assert list(pushing.pushFilters(conditions)) == conditions
    parts = pushing.partitions()
    assert 0 < len(parts) < len(whole.partitions())
    sent = pickle.loads(pickle.dumps(pushing))
    found = [row for part in parts for batch in sent.read(part) for row in rows(batch)]
    assert found == [
        row
        for row in every
        if row["topic"] == middle["topic"] and row["physical_offset"] <= middle["physical_offset"]
    ]
    assert found


@pytest.mark.parametrize(
    ("view", "column"),
    [
        ("records", ("topic", "string")),
        ("queues", ("topic", "string")),
        ("index", ("physical_offset", "long")),
        ("survey", ("kind", "string")),
    ],
)
def test_a_file_that_its_broker_removes_while_the_store_is_read_is_told(
    tmp_path: Path, view: str, column: tuple[str, str]
) -> None:
    root = unpack("clean", tmp_path)
    options = store_options({"path": str(root), "view": view})
    reader = StoreReader(options, StructType().add(*column))
    parts = reader.partitions()
    for file in root.rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(DataLossError, match=r"is gone, because a .*read it again: .*/(00|20)"):
        list(reader.read(parts[0]))


@pytest.mark.parametrize("away", [".", "commitlog"])
def test_a_machine_that_does_not_see_the_store_is_named(tmp_path: Path, away: str) -> None:
    """Such as an executor's, where nothing is mounted; no broker has removed anything."""
    root = unpack("clean", tmp_path)
    options = store_options({"path": str(root)})
    reader = StoreReader(options, StructType().add("topic", "string"))
    part, *_ = reader.partitions()
    (root / away).rename(tmp_path / "elsewhere")
    with pytest.raises(OptionError, match=f"^path: {root}: no store there on {gethostname()}; "):
        list(reader.read(part))


def test_the_views_of_queues_and_index_have_rows(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    entries = read(spark, root, view="queues")
    records = read(spark, root, columns="physical_offset")
    assert entries.join(records, "physical_offset", "left_anti").count() == 0
    assert read(spark, root, view="index").count() > 1000


def test_a_store_without_messages_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for view in ("records", "queues", "index", "survey"):
        assert read(spark, tmp_path, view=view).collect() == []


def test_damage_fails_the_job_with_its_place_or_is_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 100, b"y")
    with pytest.raises(Exception, match=f"no sound record at {places[4]}: the checksum"):
        read(spark, tmp_path).count()
    left = read(spark, tmp_path, onDamage="skip", columns="queue_offset").collect()
    assert [row[0] for row in left] == [number for number in range(40) if number != 4]
    assert read(spark, tmp_path, checksums="false").count() == 40


def test_a_wrong_byte_of_a_sealed_block_fails_the_job(spark: SparkSession, tmp_path: Path) -> None:
    write_sealed_log(tmp_path, 20)
    change(tmp_path, 17, b"\x01", size=SEGMENT)  # A flag, which no record has a checksum of.
    with pytest.raises(Exception, match="no sound record at 0: it is in a sealed block that does"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, onDamage="skip").count() == 13  # Seven begin in 64 KiB.
    assert read(spark, tmp_path, checksums="false").count() == 20


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"view": "rows"}, "view: 'rows' is not one of"),
        ({"splitByte": "1"}, "did you mean splitBytes"),
    ],
)
def test_a_wrong_option_is_told(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        read(spark, tmp_path, **options).collect()


def test_what_is_no_store_is_told_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="contains no commitlog/"):
        read(spark, tmp_path).collect()
    with pytest.raises(Exception, match="path: is required"):
        spark.read.format("cometmq-store").load().collect()


def test_a_store_that_is_to_be_written_or_streamed_is_refused_with_what_to_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "store", [b"x"])
    path = str(tmp_path / "store")
    to_topic = r'read-only; write to a topic of its broker, by format\("cometmq"\)'
    for mode in ("append", "overwrite"):
        with pytest.raises(PySparkException, match=to_topic):
            spark.range(1).write.format("cometmq-store").mode(mode).save(path)
    stream = spark.readStream.format("rate").load().writeStream.format("cometmq-store")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=to_topic):
        stream.start(path).awaitTermination(60)
    reading = spark.readStream.format("cometmq-store").load(path)
    query = reading.writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"a store is read once, by spark\.read") as told:
        query.awaitTermination(60)
    assert "UnboundLocalError" not in str(told.value)
