"""`format("cometmq-store")` and `audit`, in Spark."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.sql.datasource import EqualTo, IsNotNull, LessThanOrEqual
from pyspark.sql.types import StructType
from tests.pipeline.store.logs import change, write_log
from tests.store.apache_stores import manifest_records, unpack

from cometmq.pipeline.columns import ALL_COLUMNS, DEFAULT_COLUMNS
from cometmq.pipeline.jobs.job import Run
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
        found = read(spark, root).where(condition)
        rows = sorted(found.select("physical_offset", "queue_offset").collect())
        assert rows == sorted(wanted.collect()), condition
        assert rows, condition


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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"view": "rows"}, "view: 'rows' is none of"),
        ({"splitByte": "1"}, "did you mean splitBytes"),
    ],
)
def test_a_wrong_option_is_told(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        read(spark, tmp_path, **options).collect()


def test_what_is_no_store_is_told_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no commitlog/"):
        read(spark, tmp_path).collect()
    with pytest.raises(Exception, match="path: is required"):
        spark.read.format("cometmq-store").load().collect()


def judged(
    spark: SparkSession, root: Path, run: Run | None = None, **settings: Any
) -> dict[str, Any]:
    from cometmq.pipeline.jobs.audit import AuditSettings, audit

    return audit(spark, AuditSettings(store=str(root), **settings), run).document()


@pytest.mark.parametrize("store", ["clean", "killed", "ext"])
def test_apaches_stores_are_sound(spark: SparkSession, tmp_path: Path, store: str) -> None:
    found = judged(spark, unpack(store, tmp_path), split_bytes=20_000)
    assert (found["outcome"], found["kinds"]) == ("done", {})
    assert found["rows"] == len(manifest_records(store))
    assert set(found["files"].values()) == {"sound", "open"}


def test_an_audit_finds_each_kind_of_damage(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    lines = [line for line in manifest_records("clean") if line["topic"] == "S_big"]
    lines = lines or [line for line in manifest_records("clean") if line.get("client")]
    record = next(line for line in lines if line["tagsHash"] and line["queueOffset"] > 2)
    change(root, record["physicalOffset"] + 4, b"\xff", size=65536)
    queue = root / "consumequeue" / record["topic"] / str(record["queueId"])
    path, *_ = sorted(queue.iterdir())
    entries = bytearray(path.read_bytes())
    entries[12:20] = b"\0\0\0\0\0\0\0\x07"
    entries[28:32] = b"\0\0\0\x64"
    path.write_bytes(bytes(entries))
    folder = str(tmp_path / "findings")
    found = judged(spark, root, split_bytes=20_000, findings=folder)
    assert found["outcome"] == "findings"
    assert found["kinds"]["damage"] == 1
    assert found["kinds"]["gap"] == 1
    assert found["kinds"]["wrong entry"] == 1
    assert found["kinds"]["dangling entry"] == 1
    assert found["kinds"]["wrong tags code"] == 1
    assert found["kinds"]["dangling item"] >= 1
    damaged = [path for path, verdict in found["files"].items() if verdict == "damaged"]
    assert len(damaged) == 1
    assert spark.read.parquet(folder).count() == found["findings"]


def test_an_audit_of_checksums_alone_reads_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 100, b"y")
    folder = tmp_path / "findings"
    found = judged(spark, tmp_path, check="log", findings=str(folder))
    assert (found["kinds"], found["rows"]) == ({"damage": 1}, 39)
    (shown,) = found["shown"]
    assert [row.asDict() for row in spark.read.parquet(str(folder)).collect()] == [shown]
    assert shown["start"] == places[4]
    assert shown["detail"] == "the checksum of its body is wrong"


def test_all_findings_of_an_audit_of_the_log_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 60)
    for number, inside, data in (
        (4, 100, b"y"),  # Its body.
        (8, 4, b"\xff"),  # Two that begin as no record does are one stretch.
        (9, 4, b"\xff"),
        (13, 0, b"\0\0\0\0"),  # The first of a file.
        (20, 0, b"\0\0\0\1"),
        (30, 28, b"\7\7"),  # Where it says that it is.
    ):
        change(tmp_path, places[number] + inside, data)
    folder = str(tmp_path / "findings")
    found = judged(spark, tmp_path, check="log", findings=folder, split_bytes=4096, shown=2)
    assert (found["outcome"], found["kinds"], found["rows"]) == ("findings", {"damage": 5}, 54)
    written = [row.asDict() for row in spark.read.parquet(folder).orderBy("start").collect()]
    stretches = [(4, 5), (8, 10), (13, 14), (20, 21), (30, 31)]
    assert [(each["start"], each["end"]) for each in written] == [
        (places[first], places[end]) for first, end in stretches
    ]
    assert found["shown"] == written[:2]
    damaged = {path for path, verdict in found["files"].items() if verdict == "damaged"}
    assert damaged == {each["file"] for each in written}
    assert len(damaged) == 3


def test_what_is_written_of_findings_is_what_was_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The log is read once: meanwhile a broker may have removed what was damaged."""
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 100, b"y")
    mending = Run(progress=lambda _news: change(tmp_path, places[4] + 100, b"x"))
    folder = str(tmp_path / "findings")
    found = judged(spark, tmp_path, mending, check="log", findings=folder)
    assert (found["findings"], len(found["shown"])) == (1, 1)
    assert spark.read.parquet(folder).count() == 1


def test_an_audit_finds_only_what_it_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 4, b"\xff")
    found = judged(spark, tmp_path, check="gaps")
    assert (found["kinds"], found["rows"]) == ({"gap": 1}, 39)
    found = judged(spark, tmp_path, check="index")
    assert (found["outcome"], found["kinds"], found["rows"]) == ("done", {}, 0)
