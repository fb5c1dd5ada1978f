"""The job `audit`: what it finds in stores of Apache's and of ours, sound and damaged."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.store.logs import change, write_log
from tests.pipeline.tables import keeps_nothing, names_in
from tests.store.apache_stores import manifest_records, unpack
from tests.store.damaged_stores import write_small_store
from tests.store.records import HOST

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.audit import AuditSettings, audit
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.store.places import first_since
from cometmq.pipeline.store.splits import look
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.pipeline.store.splits import Log

pytestmark = pytest.mark.spark


def judged(spark: SparkSession, root: Path, **settings: Any) -> dict[str, Any]:
    return audit(spark, AuditSettings(store=str(root), **settings)).document()


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("clean", marks=pytest.mark.slow),
        "killed",
        pytest.param("ext", marks=pytest.mark.slow),
    ],
)
def test_apaches_stores_are_sound(spark: SparkSession, tmp_path: Path, store: str) -> None:
    root = unpack(store, tmp_path)
    found = judged(spark, root, split_size="20000")
    assert (found["outcome"], found["kinds"]) == ("done", {})
    assert found["rows"] == len(manifest_records(store))
    # After a clean stop the last file is like the others.
    ends = {"sound", "open"} if (root / "abort").exists() else {"sound"}
    assert set(found["files"].values()) == ends


def test_spark_keeps_nothing_of_what_was_judged(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    spark.catalog.clearCache()
    before = names_in(spark)
    assert judged(spark, root, check="gaps,queues")["kinds"] == {}
    assert keeps_nothing(spark)
    assert names_in(spark) == before


def test_the_last_file_of_a_store_that_a_broker_has_open_is_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = unpack("clean", tmp_path)
    assert set(judged(spark, root, check="log")["files"].values()) == {"sound"}
    (root / "abort").touch()
    verdicts = list(judged(spark, root, check="log")["files"].values())
    assert verdicts.count("open") == 1
    assert set(verdicts) == {"sound", "open"}


def test_an_audit_says_how_far_it_read_of_a_log_that_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    *_, last = write_log(tmp_path / "store", [b"x"] * 4)

    def since(log: Log, since_ms: int) -> int:
        write_log(tmp_path / "store", [b"x"] * 5)
        assert log.end == last + (log.end - log.last)
        return first_since(log, since_ms)

    monkeypatch.setattr("cometmq.pipeline.jobs.audit.first_since", since)
    found = judged(spark, tmp_path / "store", check="log", since="0")
    assert (found["rows"], found["end"]) == (5, look(str(tmp_path / "store")).end)


def test_an_audit_finds_each_kind_of_damage(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    *_, last = sorted((root / "index").iterdir())
    os.truncate(last, 100)
    folder = str(tmp_path / "findings")
    found = judged(spark, root, split_size="20000", findings=folder)
    assert found["outcome"] == "findings"
    assert found["kinds"]["damage"] == 1
    assert found["kinds"]["gap"] == 1
    assert found["kinds"]["wrong entry"] == 1
    assert found["kinds"]["dangling entry"] == 1
    assert found["kinds"]["wrong tags code"] == 1
    assert found["kinds"]["dangling item"] >= 1
    assert found["kinds"]["short index"] == 1
    damaged = [path for path, verdict in found["files"].items() if verdict == "damaged"]
    assert len(damaged) == 1
    assert "are skipped" not in capfd.readouterr().err  # It is reported as a finding.
    assert spark.read.parquet(folder).count() == found["findings"]


def test_an_audit_of_checksums_alone_reads_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    places = write_log(root, [b"x" * 200] * 40)
    change(root, places[4] + 100, b"y")
    folder = tmp_path / "findings"
    found = judged(spark, root, check="log", findings=str(folder))
    assert (found["kinds"], found["rows"]) == ({"damage": 1}, 39)
    (shown,) = found["shown"]
    assert [row.asDict() for row in spark.read.parquet(str(folder)).collect()] == [shown]
    assert shown["start"] == places[4]
    assert shown["detail"] == "the checksum of its body is wrong"


def test_an_audit_finds_only_what_it_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 4, b"\xff")
    found = judged(spark, tmp_path, check="gaps")
    assert (found["kinds"], found["rows"]) == ({"gap": 1}, 39)
    news: list[object] = []
    run = Run(progress=news.append)
    found = audit(spark, AuditSettings(store=str(tmp_path), check="index"), run).document()
    assert (found["outcome"], found["kinds"], found["rows"]) == ("done", {}, 0)
    assert (found["bytes"], news) == (None, [])  # It has counted nothing.


def test_numbers_that_cannot_be_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """No checksum covers the heads of records, so any bit of them may be flipped."""
    places = write_log(tmp_path, [b"x" * 200] * 40)
    change(tmp_path, places[4] + 12, b"\x80")  # The queue id, negative now.
    change(tmp_path, places[7] + 20, b"\x7f" + b"\xff" * 7)  # The highest queue offset there is.
    found = judged(spark, tmp_path, check="log,gaps")
    assert (found["kinds"], found["rows"]) == ({"damage": 1, "gap": 2}, 39)
    starts = [(row["kind"], row["start"]) for row in found["shown"]]
    assert starts == [("damage", places[4]), ("gap", places[5]), ("gap", places[7])]


def test_a_log_without_a_record_has_no_bytes(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = judged(spark, tmp_path, check="log")
    assert (found["outcome"], found["rows"], found["bytes"]) == ("done", 0, 0)


def test_files_with_nothing_of_a_time_are_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 200] * 40)
    for number, place in enumerate(places):  # Each file has 13.
        change(tmp_path, place + 56, (1000 * number).to_bytes(8, "big"))
    change(tmp_path, places[4] + 100, b"y")
    found = judged(spark, tmp_path, check="log,gaps", since="20000")
    assert (found["kinds"], found["rows"], found["first"]) == ({}, 27, 4096)
    assert list(found["files"].values()) == ["passed over", "sound", "sound", "sound"]
    assert judged(spark, tmp_path, check="log", since="5000")["kinds"] == {"damage": 1}


def test_what_is_left_of_a_store_since_a_time_is_sound(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    times = sorted(line["storeTimestamp"] for line in manifest_records("clean"))
    found = judged(spark, root, since=str(times[len(times) * 3 // 4]))
    assert (found["outcome"], found["kinds"]) == ("done", {})
    assert 0 < found["rows"] < len(times)
    assert list(found["files"].values()).count("passed over") > 2


def test_a_sample_of_checksums_is_told_as_one(spark: SparkSession, tmp_path: Path) -> None:
    places = write_log(tmp_path, [b"x" * 8000] * 200, size=1 << 20)
    for place in places[:100]:
        change(tmp_path, place + 100, b"y", size=1 << 20)
    change(tmp_path, places[150] + 4, b"\xff", size=1 << 20)
    found = judged(spark, tmp_path, check="log", sample=0.25)
    again = judged(spark, tmp_path, check="log", sample=0.25, split_size="100k")
    assert found["sample"] == 0.25
    assert 15 < found["checksums_compared"] < 40
    assert 10 < found["findings"] < 40
    assert [each["start"] for each in found["shown"]].count(places[150]) == 1
    same = ("checksums_compared", "kinds", "shown", "files", "rows")
    assert {name: found[name] for name in same} == {name: again[name] for name in same}
    assert judged(spark, tmp_path, check="log")["findings"] == 101


@pytest.mark.slow
def test_records_whose_entries_a_checkpoint_knows_must_have_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """If no checkpoint knows them, entries missing at a log's end may only be undispatched."""
    root = unpack("clean", tmp_path)
    latest = max(line["physicalOffset"] for line in manifest_records("clean"))
    for path in (root / "consumequeue").glob("*/*/*"):
        entries = bytearray(path.read_bytes())
        for at in range(0, len(entries), 20):
            if int.from_bytes(entries[at : at + 8], "big") > latest - 3000:
                entries[at : at + 20] = bytes(20)
        path.write_bytes(bytes(entries))
    found = judged(spark, root, check="queues,checkpoint")
    assert found["checkpoint"] == "apache"
    assert set(found["kinds"]) == {"missing entry"}
    assert judged(spark, root, check="queues")["kinds"] == {}


@pytest.mark.parametrize("is_open", [True, False])
def test_entries_that_a_broker_may_write_later_are_missing_only_once_it_has_stopped(
    spark: SparkSession, tmp_path: Path, is_open: bool
) -> None:
    """The audit reads one queue before entries are written to it, and others after that."""
    root = unpack("clean", tmp_path)
    (root / "checkpoint").unlink()
    lines = [each for each in manifest_records("clean") if each["queueOffset"] > 2]
    record = next(each for each in lines if (root / "consumequeue" / each["topic"]).is_dir())
    path, *_ = sorted((root / "consumequeue" / record["topic"] / str(record["queueId"])).iterdir())
    path.write_bytes(path.read_bytes()[:40])
    (root / "abort").unlink(missing_ok=True)
    if is_open:
        (root / "abort").touch()
    found = judged(spark, root, check="queues,checkpoint")
    assert found["outcome"] == ("done" if is_open else "findings")
    assert set(found["kinds"]) == (set() if is_open else {"missing entry"})


@pytest.mark.slow
def test_an_open_store_lacks_entries_that_its_checkpoint_knows(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = unpack("clean", tmp_path)
    (root / "abort").touch()
    assert judged(spark, root, check="queues")["kinds"] == {}
    lines = [each for each in manifest_records("clean") if each["queueOffset"] > 2]
    record = next(each for each in lines if (root / "consumequeue" / each["topic"]).is_dir())
    path, *_ = sorted((root / "consumequeue" / record["topic"] / str(record["queueId"])).iterdir())
    path.write_bytes(path.read_bytes()[:40])
    assert set(judged(spark, root, check="queues")["kinds"]) == {"missing entry"}


@pytest.mark.slow
def test_a_topic_that_was_deleted_and_made_anew_lacks_no_entries(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_topic_made_anew(tmp_path)
    assert judged(spark, tmp_path)["kinds"] == {}
    (tmp_path / "deleted_topics.json").unlink()
    assert judged(spark, tmp_path)["kinds"].keys() == {"missing entry"}


@pytest.mark.slow
def test_a_topic_that_was_made_anew_is_known_where_nobody_notes_deletions(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_topic_made_anew(tmp_path)
    (tmp_path / "deleted_topics.json").unlink()
    leave_to_apache(tmp_path)
    assert judged(spark, tmp_path)["kinds"] == {}
    queue, *_ = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    whole = queue.read_bytes()
    for number in range(2):
        entries = bytearray(whole)
        entries[20 * number : 20 * (number + 1)] = bytes(20)
        queue.write_bytes(entries)
        found = judged(spark, tmp_path, check="queues")["shown"]
        assert [each["detail"] for each in found] == [
            f"the record of queue 0 of T at offset {number} has none"
        ]


def test_entries_that_were_lost_are_none_of_a_topic_that_was_made_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    leave_to_apache(tmp_path)
    queue, *_ = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    queue.write_bytes(bytes(60) + queue.read_bytes()[60:])
    assert judged(spark, tmp_path, check="queues")["kinds"] == {"missing entry": 3}


@pytest.mark.slow
def test_a_topic_that_has_lost_all_its_queues_lacks_entries_unless_its_deletion_is_noted(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    (tmp_path / "consumequeue" / "T").rename(tmp_path / "lost")
    found = judged(spark, tmp_path, check="queues")
    assert set(found["kinds"]) == {"missing entry"}
    assert all(" of T at offset " in each["detail"] for each in found["shown"])
    leave_to_apache(tmp_path)  # Apache may have deleted the topic.
    assert judged(spark, tmp_path, check="queues")["kinds"] == {}
    (tmp_path / "config").mkdir()
    topics = {"topicConfigTable": {"T": {"topicName": "T"}}}
    (tmp_path / "config" / "topics.json").write_text(json.dumps(topics))
    assert judged(spark, tmp_path, check="queues")["kinds"] == found["kinds"]


def test_an_entry_that_leads_behind_the_log_is_none_of_its_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    leave_to_apache(tmp_path)
    queue, *_ = sorted((tmp_path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2").iterdir())
    whole = queue.read_bytes()
    queue.write_bytes(b"\0\x01" + whole[2:])
    kinds = judged(spark, tmp_path, check="queues")["kinds"]
    assert kinds == {"dangling entry": 1, "missing entry": 1}


def test_an_empty_first_file_of_the_log_is_no_expired_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"")
    with pytest.raises(OptionError, match=r"00000 is empty, while those after it are there"):
        judged(spark, tmp_path)


@pytest.mark.slow
def test_a_byte_that_only_a_sealed_block_covers_is_a_finding_unless_others_may_have_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_small_store(RealFileSystem(), str(tmp_path))
    whole = judged(spark, tmp_path)
    assert (whole["kinds"], whole["blocks_compared"]) == ({}, 2)
    path = tmp_path / "commitlog" / f"{0:020d}"
    at = path.read_bytes().index(b"KEYS\x01k3 all")
    change(tmp_path, at + 5, b"K", size=4096)
    found = judged(spark, tmp_path, check="log,blocks,checkpoint")
    assert (found["outcome"], found["kinds"]) == ("findings", {"block": 1})
    (shown,) = found["shown"]
    assert (shown["file"], shown["start"], shown["end"]) == (str(path), 0, 4096)
    assert found["files"][str(path)] == "damaged"
    leave_to_apache(tmp_path)
    found = judged(spark, tmp_path, check="blocks")
    assert (found["outcome"], found["blocks_compared"]) == ("done", 0)


def write_topic_made_anew(root: Path) -> None:
    """Write a store whose topic, deleted with two queues, has new messages in one of them."""
    store = write_small_store(RealFileSystem(), str(root), close=False)
    store.delete_topics(["T"])
    for number in range(3):
        now_ms = 1_700_000_100_000 + number
        store.put("T", 0, b"anew", b"TAGS\x01t\x02", Origin(now_ms, now_ms, HOST))
    store.commit()
    store.run_jobs()
    store.advance()
    assert store.close(1_700_000_200_000)


def leave_to_apache(root: Path) -> None:
    """Make the checkpoint one that Apache wrote: its own fields, and none of ours after them."""
    checkpoint = root / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:48].ljust(4096, b"\0"))


def test_a_log_that_ends_in_front_of_what_the_checkpoint_knows_is_a_finding(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = unpack("clean", tmp_path)
    assert judged(spark, root, check="checkpoint")["kinds"] == {}
    last = max(line["physicalOffset"] for line in manifest_records("clean"))
    change(root, last, bytes(100), size=65536)
    found = judged(spark, root, check="log,checkpoint")
    assert found["kinds"] == {"wrong checkpoint": 1}
    assert found["shown"][0]["file"] == "checkpoint"
    assert "later than any in the log" in found["shown"][0]["detail"]
    assert set(found["files"].values()) == {"sound", "open"}


def test_all_findings_of_an_audit_of_the_log_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    places = write_log(root, [b"x" * 200] * 60)
    for number, inside, data in (
        (4, 100, b"y"),  # Its body.
        (8, 4, b"\xff"),  # Two with a damaged magic are one stretch.
        (9, 4, b"\xff"),
        (13, 0, b"\0\0\0\0"),  # The first of a file.
        (20, 0, b"\0\0\0\1"),
        (30, 28, b"\7\7"),  # The physical offset that it claims.
    ):
        change(root, places[number] + inside, data)
    folder = str(tmp_path / "findings")
    found = judged(spark, root, check="log", findings=folder, split_size="4k", shown=2)
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
