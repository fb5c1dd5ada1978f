"""The job `archive`: every message in one file, whatever happens in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyarrow.parquet import ParquetFile
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.columns import SELDOM_TWICE
from cometmq.pipeline.errors import DataLossError, HeldError, OptionError, PipelineError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import BatchName, Manifest, batches, read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.folders import STAGING, Folder
from cometmq.pipeline.jobs.holding import BATCHES, STREAM, UPKEEP, held
from cometmq.pipeline.jobs.job import Run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def run(tables: Tables, topic: str, to: Path, **more: Any) -> Report:
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic=topic, to=str(to), **more
    )
    return archive(tables.spark, settings)


def bodies(tables: Tables, path: Path) -> list[str]:
    rows = read_archive(tables.spark, str(path)).selectExpr("cast(body AS string) AS body")
    return sorted((row["body"] for row in rows.collect()), key=int)


def test_a_topic_is_in_files_once_and_the_next_run_goes_on(tables: Tables, tmp_path: Path) -> None:
    tables.fill("archived", 25)
    report = run(tables, "archived", tmp_path, max_rows=10)
    assert (report.rows, len(report.batches)) == (25, 3)
    assert report.offsets["archived"]["broker-a"]["0"] == [0, 13]
    tables.fill("archived", 5, first=25)
    report = run(tables, "archived", tmp_path)
    assert report.rows == 5
    assert report.offsets["archived"]["broker-a"] == {"0": [13, 15], "1": [12, 15]}
    assert bodies(tables, tmp_path) == numbers(0, 30)
    manifest = json.loads((tmp_path / "_manifests" / "000003.json").read_text())
    assert (manifest["rows"], manifest["batch"]) == (5, 3)
    days = {path.name for path in tmp_path.glob("batch=*/topic=archived/*")}
    assert all(day.startswith("date=20") for day in days)


def test_a_manifest_of_seven_digits_is_behind_those_of_six(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "_manifests").mkdir()
    for name in ("1000000.json", "999999.json"):
        (tmp_path / "_manifests" / name).touch()
    found = batches(Folder(spark, str(tmp_path)))
    assert [str(each) for each in found] == ["999999", "1000000"]


def test_parquet_makes_dictionaries_of_what_comes_again_and_of_nothing_else(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("encoded", 100)
    run(tables, "encoded", tmp_path, partition_by="")
    (path,) = tmp_path.glob("batch=*/*.parquet")
    group = ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    with_one = {each.path_in_schema for each in columns if each.has_dictionary_page}
    without = {each.path_in_schema for each in columns} - with_one
    assert {*SELDOM_TWICE} <= without
    assert {"topic", "queue_id", "store_host", "properties.key_value.key"} <= with_one


def test_json_bodies_are_columns_too_and_misfits_are_counted(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("json-archived", 0)
    bodies = (b'{"id": 7, "name": "x"}', b"no json", b"[1]", b'{"id": "seven"}', b'{"name": "y"}')
    for body in bodies:
        tables.cluster.send("json-archived", body)
    report = run(tables, "json-archived", tmp_path, schema="id BIGINT, name STRING")
    assert (report.rows, report.details["misfits"]) == (5, 3)
    rows = read_archive(tables.spark, str(tmp_path)).select("body", "value").collect()
    found = {bytes(row["body"]): row["value"] and tuple(row["value"]) for row in rows}
    assert found == dict(zip(bodies, [(7, "x"), None, None, None, (None, "y")], strict=True))


def test_a_schema_that_is_none_leaves_nothing_behind(tables: Tables, tmp_path: Path) -> None:
    tables.fill("json-archived", 0)
    with pytest.raises(OptionError, match="schema:"):
        run(tables, "json-archived", tmp_path, schema="id NUMBERS")
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_on_the_same_archive_or_checkpoint_is_refused(
    tables: Tables, tmp_path: Path
) -> None:
    """It would remove what the first run is writing, and put its own files there."""
    tables.fill("archived-at-once", 10)
    to, staged = tmp_path / "to", tmp_path / "to" / STAGING / "batch=000000"
    staged.mkdir(parents=True)
    for folder, name in ((to, BATCHES), (to / "_checkpoint", STREAM)):
        with held(Run(), "archive", (Folder(tables.spark, str(folder)), name)):
            with pytest.raises(HeldError, match=r"archive \(process "):
                run(tables, "archived-at-once", to)
            assert staged.is_dir()
            assert not list(to.glob("batch=*"))
    staged.rmdir()
    staged.parent.rmdir()
    assert run(tables, "archived-at-once", to).rows == 10
    with held(Run(), "archive-compact", (Folder(tables.spark, str(to)), UPKEEP)):
        with pytest.raises(HeldError, match=r"archive-compact \(process "):
            archive_compact(tables.spark, CompactSettings(archive=str(to)))
        with pytest.raises(HeldError, match=r"archive-compact \(process "):
            archive_vacuum(tables.spark, VacuumSettings(archive=str(to)))
    assert not list(to.glob("*.lock"))


def test_a_batch_that_is_replayed_is_not_there_twice(tables: Tables, tmp_path: Path) -> None:
    tables.fill("replayed", 10)
    run(tables, "replayed", tmp_path)
    written = set(tmp_path.glob("batch=*/**/*"))
    for path in (tmp_path / "_checkpoint" / "commits").iterdir():
        path.unlink()
    run(tables, "replayed", tmp_path)
    assert bodies(tables, tmp_path) == numbers(0, 10)
    assert set(tmp_path.glob("batch=*/**/*")) == written  # A batch with a manifest is not touched.


def test_trap_13_a_batch_without_its_manifest_is_written_again_and_strays_are_not_read(
    tables: Tables, tmp_path: Path
) -> None:
    """A crash between the files of a batch and its manifest leaves them like this."""
    tables.fill("half-written", 10)
    assert run(tables, "half-written", tmp_path).rows == 10
    (tmp_path / "_manifests" / "000000.json").unlink()
    stray = tmp_path / "_staging" / "000009"
    stray.mkdir(parents=True)
    (stray / "part-0.parquet").write_bytes(b"half of a file")
    for path in (tmp_path / "_checkpoint" / "commits").iterdir():
        path.unlink()
    run(tables, "half-written", tmp_path)
    assert bodies(tables, tmp_path) == numbers(0, 10)
    assert not stray.exists()


def test_what_a_first_batch_left_that_was_killed_refuses_no_new_checkpoint(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("killed-first", 10)
    staged = tmp_path / "archive" / STAGING / "batch=000000"
    staged.mkdir(parents=True)
    (staged / "part-0.parquet").write_bytes(b"half of a file")
    at = str(tmp_path / "another")
    assert run(tables, "killed-first", tmp_path / "archive", checkpoint=at).rows == 10
    assert bodies(tables, tmp_path / "archive") == numbers(0, 10)
    assert not list(staged.parent.iterdir())


def test_a_folder_that_another_checkpoint_began_is_refused(tables: Tables, tmp_path: Path) -> None:
    tables.fill("foreign", 3)
    run(tables, "foreign", tmp_path / "archive")
    with pytest.raises(OptionError, match="begun with another checkpoint"):
        run(tables, "foreign", tmp_path / "archive", checkpoint=str(tmp_path / "other"))


def test_a_dry_run_counts_and_writes_nothing(tables: Tables, tmp_path: Path) -> None:
    tables.fill("dry", 7)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic="dry", to=str(tmp_path / "a")
    )
    report = archive(tables.spark, settings, Run(dry_run=True))
    assert report.details["would_read"] == 7
    assert not (tmp_path / "a").exists()
    behind = archive(tables.spark, replace(settings, start="latest"), Run(dry_run=True))
    assert behind.details["would_read"] == 0


def test_files_of_others_in_a_new_archive_are_told_of(tables: Tables, tmp_path: Path) -> None:
    tables.fill("dry", 0)
    (tmp_path / "notes.txt").touch()
    settings = ArchiveSettings(nameserver=tables.cluster.nameserver, topic="dry", to=str(tmp_path))
    news: list[object] = []
    archive(
        tables.spark, settings, Run(dry_run=True, progress=lambda each: news.append(dict(each)))
    )
    assert "contains notes.txt, which is not part of an archive" in str(news)


def test_a_dry_run_counts_from_where_the_archive_is(tables: Tables, tmp_path: Path) -> None:
    tables.fill("dry-behind", 7)
    run(tables, "dry-behind", tmp_path)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver,
        topic="dry-behind",
        to=str(tmp_path),
        group="dry-group",
    )

    def would_read() -> int:
        count: int = archive(tables.spark, settings, Run(dry_run=True)).details["would_read"]
        return count

    assert would_read() == 0
    tables.fill("dry-behind", 2, first=7)
    assert would_read() == 2
    # A queue that nobody may read waits, in a dry run as in a real one.
    tables.cluster.admin.create_topic("dry-behind", queues=1)
    assert would_read() == 1
    assert "dry-group" not in {each.name for each in tables.cluster.admin.groups()}
    tables.cluster.admin.delete_topic("dry-behind")
    with pytest.raises(DataLossError, match="topic dry-behind no longer exists"):
        would_read()


def test_a_job_that_shall_stop_ends_after_its_batch(tables: Tables, tmp_path: Path) -> None:
    tables.fill("stopped", 30)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic="stopped", to=str(tmp_path), max_rows=2
    )
    stopping = Run(progress=lambda _news: stopping.stop())
    report = archive(tables.spark, settings, stopping)
    assert report.stopped
    assert 0 < report.rows < 30
    assert run(tables, "stopped", tmp_path).rows > 0
    assert bodies(tables, tmp_path) == numbers(0, 30)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"partition_by": "year"}, "partition-by: 'year'"),
        ({"body": "json"}, "body: 'json'"),
        ({"trigger": "often"}, "trigger: 'often'"),
    ],
)
def test_settings_that_cannot_be_are_named(
    tables: Tables, tmp_path: Path, more: dict[str, str], said: str
) -> None:
    tables.fill("settings", 1)
    with pytest.raises(OptionError) as caught:
        run(tables, "settings", tmp_path, **more)
    assert said in str(caught.value)


def test_a_table_of_delta_is_never_read_as_the_files_that_it_has(
    tables: Tables, tmp_path: Path
) -> None:
    """Files of superseded versions are among them."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{}\n")
    tables.spark.range(3).write.parquet(str(tmp_path / "batch=000000"))
    with pytest.raises(PipelineError, match=f"^from: {tmp_path}: "):
        read_archive(tables.spark, str(tmp_path))
    with pytest.raises(OptionError, match=r"format: .* is a Delta table"):
        run(tables, "settings", tmp_path)
    with pytest.raises(OptionError, match="is a Delta table: the engines"):
        archive_compact(tables.spark, CompactSettings(archive=str(tmp_path)))
    with pytest.raises(OptionError, match="is a Delta table: the engines"):
        archive_vacuum(tables.spark, VacuumSettings(archive=str(tmp_path)))


@pytest.mark.parametrize(
    ("topic", "more", "said"),
    [
        ("nowhere", {}, "nowhere: no such topic"),
        ("settings", {"start": "group:biling"}, "group 'biling' has no offset"),
        ("settings", {"start": '{"settings": {"0": -7}}'}, "is not an offset"),
    ],
)
def test_what_cannot_be_read_leaves_nothing_behind(
    tables: Tables, tmp_path: Path, topic: str, more: dict[str, str], said: str
) -> None:
    tables.fill("settings", 0)
    with pytest.raises(OptionError) as caught:
        run(tables, topic, tmp_path, **more)
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_was_made_anew_since_is_told_as_loss_or_read_from_its_beginning(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("anew-since", 4)
    run(tables, "anew-since", tmp_path)
    tables.cluster.admin.delete_topic("anew-since")
    tables.fill("anew-since", 20, first=100)
    with pytest.raises(PipelineError, match="topic anew-since of broker broker-a was deleted and"):
        run(tables, "anew-since", tmp_path)
    assert run(tables, "anew-since", tmp_path, fail_on_data_loss=False).rows == 20
    assert bodies(tables, tmp_path) == [*numbers(0, 4), *numbers(100, 120)]


@pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_a_new_checkpoint_does_not_begin_in_the_middle_of_a_topic_that_was_made_anew(
    tables: Tables, tmp_path: Path, count: int
) -> None:
    """Not even if the new topic has as many messages as the archive has of the old one."""
    topic = f"anew-adopted-{count}"
    tables.fill(topic, 8)
    run(tables, topic, tmp_path / "to")
    tables.cluster.admin.delete_topic(topic)
    tables.fill(topic, count, first=100)
    given = {"checkpoint": str(tmp_path / "new"), "adopt": True}
    with pytest.raises(
        OptionError, match="the archive has it up to 4, but now it has other messages"
    ):
        run(tables, topic, tmp_path / "to", **given)
    found = run(tables, topic, tmp_path / "to", **given, fail_on_data_loss=False)
    assert found.rows == count
    assert bodies(tables, tmp_path / "to") == [*numbers(0, 8), *numbers(100, 100 + count)]


@pytest.mark.slow
def test_a_new_checkpoint_goes_on_in_each_queue_of_a_topic_that_was_made_anew_before(
    tables: Tables, tmp_path: Path
) -> None:
    """It was recreated with fewer queues; those added since are not the ones archived at first."""
    tables.fill("anew-grown", 8, queues=4)
    run(tables, "anew-grown", tmp_path / "to")
    tables.cluster.admin.delete_topic("anew-grown")
    tables.fill("anew-grown", 6, first=100)
    run(tables, "anew-grown", tmp_path / "to", fail_on_data_loss=False)
    tables.cluster.admin.create_topic("anew-grown", queues=4)
    tables.fill("anew-grown", 12, first=106)
    given = {"checkpoint": str(tmp_path / "new"), "adopt": True, "fail_on_data_loss": False}
    assert run(tables, "anew-grown", tmp_path / "to", **given).rows == 12
    assert bodies(tables, tmp_path / "to") == [*numbers(0, 8), *numbers(100, 118)]


@pytest.mark.slow
def test_a_checkpoint_that_comes_back_does_not_read_again_what_another_read_of_a_topic_made_anew(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("anew-in-turns", 8)
    first, second = (
        {"checkpoint": str(tmp_path / name), "adopt": True, "fail_on_data_loss": False}
        for name in ("first", "second")
    )
    run(tables, "anew-in-turns", tmp_path / "to", **first)
    tables.cluster.admin.delete_topic("anew-in-turns")
    tables.fill("anew-in-turns", 4, first=100)
    run(tables, "anew-in-turns", tmp_path / "to", **second)
    with pytest.raises(OptionError, match=r"and .* has messages of the new one, which would be"):
        run(tables, "anew-in-turns", tmp_path / "to", **first)
    assert bodies(tables, tmp_path / "to") == [*numbers(0, 8), *numbers(100, 104)]


@pytest.mark.slow
def test_a_checkpoint_that_comes_back_does_not_read_what_another_read_of_queues_that_are_new_to_it(
    tables: Tables, tmp_path: Path
) -> None:
    """Not of a queue that its topic got since, and not of a topic that its pattern matches, too."""
    tables.fill("turns-1", 4, queues=1)
    first, second = (
        {"checkpoint": str(tmp_path / name), "adopt": True} for name in ("first", "second")
    )
    pattern = {"topic_pattern": "turns-.*"}
    run(tables, "", tmp_path / "to", **first, **pattern)
    tables.fill("turns-2", 4, queues=1, first=4)
    run(tables, "turns-2", tmp_path / "to", **second)
    with pytest.raises(OptionError, match="has queue turns-2/broker-a/0 up to 4, but the check"):
        run(tables, "", tmp_path / "to", **first, **pattern)
    assert bodies(tables, tmp_path / "to") == numbers(0, 8)
    tables.cluster.admin.delete_topic("turns-2")
    tables.fill("turns-2", 2, queues=1, first=100)
    run(tables, "", tmp_path / "to", **first, **pattern)
    assert bodies(tables, tmp_path / "to") == [*numbers(0, 8), *numbers(100, 102)]


@pytest.mark.slow
def test_a_new_checkpoint_knows_what_the_archive_has_of_a_queue_that_is_hidden_at_the_moment(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("hidden-adopted", 8, queues=2)
    run(tables, "hidden-adopted", tmp_path / "to")
    tables.cluster.admin.create_topic("hidden-adopted", queues=1)
    tables.fill("hidden-adopted", 2, first=8)
    given = {"checkpoint": str(tmp_path / "new"), "adopt": True}
    assert run(tables, "hidden-adopted", tmp_path / "to", **given).rows == 2
    tables.cluster.admin.create_topic("hidden-adopted", queues=2)
    tables.fill("hidden-adopted", 4, first=10)
    assert run(tables, "hidden-adopted", tmp_path / "to", **given).rows == 4
    assert bodies(tables, tmp_path / "to") == numbers(0, 14)


def test_a_new_checkpoint_waits_for_a_broker_that_is_away_unless_it_is_gone_for_good(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the archive has of that broker would be read again when it comes back."""
    tables.fill("away", 4)
    run(tables, "away", tmp_path / "to")
    ends_of = Manifest.read

    def read(folder: Folder, name: BatchName) -> Manifest:
        found = ends_of(folder, name)
        return replace(found, ends={"away": {**found.ends["away"], "broker-z": {"1": 7}}})

    monkeypatch.setattr(Manifest, "read", read)
    given = {"checkpoint": str(tmp_path / "new"), "adopt": True}
    with pytest.raises(PipelineError, match="queue away/broker-z/1: the archive has messages of"):
        run(tables, "away", tmp_path / "to", **given)
    assert run(tables, "away", tmp_path / "to", **given, fail_on_data_loss=False).rows == 0


def test_a_topic_that_was_deleted_since_is_told_as_loss_or_passed_over(
    tables: Tables, tmp_path: Path
) -> None:
    """It is not reported as a mistyped name."""
    tables.fill("deleted-since", 4)
    run(tables, "deleted-since", tmp_path)
    tables.cluster.admin.delete_topic("deleted-since")
    with pytest.raises(PipelineError, match="deleted-since no longer exists"):
        run(tables, "deleted-since", tmp_path)
    nothing = run(tables, "deleted-since", tmp_path, fail_on_data_loss=False)
    assert (nothing.rows, nothing.document()["bytes"]) == (0, 0)


def test_a_report_of_a_failure_says_what_was_done(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("failing", 30)
    rename = Folder.rename

    def failing(folder: Folder, old: str, new: str) -> None:
        if new.endswith("2"):
            raise OSError("the disk is full")
        rename(folder, old, new)

    monkeypatch.setattr(Folder, "rename", failing)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic="failing", to=str(tmp_path), max_rows=10
    )
    failed = Run()
    with pytest.raises(PipelineError, match="the disk is full"):
        archive(tables.spark, settings, failed)
    report = failed.report
    assert report is not None
    assert (report.rows, report.batches) == (20, [0, 1])
    assert report.size == 10 + 20  # The digits of 0 to 9, and of 10 to 19.
    assert report.offsets["failing"]["broker-a"] == {"0": [0, 10], "1": [0, 10]}
