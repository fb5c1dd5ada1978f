"""`archive --format delta`: each message is in the table once, whatever is killed, and when.

Delta's JARs are built for one version of Spark, which is not the one locked here. `make
spark-delta` uses that version, and names the JARs in the environment.
"""

from __future__ import annotations

import json
import os
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.sql.functions import expr
from tests.pipeline.archived import Archived
from tests.pipeline.killed_archives import archive_and_kill
from tests.pipeline.tables import Tables, numbers

from cometmq.client import NewMessage
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import archive_delta, delta_tables
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.replay_sources import Part, TableSource
from cometmq.pipeline.jobs.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.testing import Cluster

PACKAGES = os.environ.get("COMETMQ_TEST_PACKAGES", "")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif("delta-spark" not in PACKAGES, reason="run by `make spark-delta`"),
]


class InDelta(Archived):
    """A topic and its table of Delta."""

    format = "delta"

    def insert_own_row(self) -> None:
        self.spark.sql(f"INSERT INTO delta.`{self.path}` (body) VALUES (X'78')")


@pytest.fixture
def archived(spark: SparkSession, rocketmq_session: Cluster, tmp_path: Path) -> InDelta:
    return InDelta(Tables(spark, rocketmq_session), tmp_path)


def test_a_topic_is_in_a_table_once_and_the_next_run_goes_on(archived: InDelta) -> None:
    archived.send(25)
    report = archived.run()
    assert (report.rows, report.size, len(report.batches)) == (25, 40, 3)
    archived.send(5)
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 30)
    table = archived.spark.read.format("delta").load(str(archived.path))
    assert (table.columns[0], table.count()) == ("batch", 30)
    detail = archived.spark.sql(f"DESCRIBE DETAIL delta.`{archived.path}`").collect()[0]
    assert detail["partitionColumns"] == ["topic", "date"]
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    assert [types[name] for name in ("batch", "date", "body")] == ["int", "date", "binary"]


def test_files_are_not_larger_once_a_batch_has_told_how_large_rows_are(archived: InDelta) -> None:
    cluster = archived.tables.cluster
    cluster.admin.create_topic(archived.topic, queues=1)
    for rows in (5000, 2500):  # The second run goes by what the first has written.
        for _ in range(rows // 100):
            of_batch = [NewMessage(body=os.urandom(1024)) for _ in range(100)]
            cluster.client.send_batch(archived.topic, of_batch)
        assert archived.run(max_rows=2500, file_size="1m").rows == rows
    table = archived.spark.read.format("delta").load(str(archived.path))
    files = table.groupBy("batch").agg(expr("count(DISTINCT _metadata.file_path) AS files"))
    assert {row["batch"]: row["files"] for row in files.collect()} == {0: 1, 1: 3, 2: 3}


def test_schema_hours_and_text_are_columns_of_the_table(archived: InDelta) -> None:
    archived.send(0)
    for body in (b'{"id": 7}', b"no json"):
        archived.tables.cluster.send(archived.topic, body)
    report = archived.run(schema="id BIGINT", body="text", partition_by="date,hour")
    assert (report.details["misfits"], report.size) == (1, 16)
    rows = read_archive(archived.spark, str(archived.path)).select("body", "value", "hour")
    found = {row["body"]: row["value"] and row["value"]["id"] for row in rows.collect()}
    assert found == {'{"id": 7}': 7, "no json": None}
    assert rows.schema["hour"].dataType.simpleString() == "int"
    with pytest.raises(OptionError, match=r"partition-by: .* was begun with"):
        archived.run(schema="id BIGINT", body="text")


@pytest.mark.parametrize("looks", [True, False])
def test_a_batch_that_is_repeated_is_there_once(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """The job sees it in the table; where the job does not look, Delta's own log knows it."""
    archived.send(20)
    archived.run()
    archived.forget_the_last_commit()
    if not looks:

        def nothing(*_: object) -> int:
            return -1

        monkeypatch.setattr(archive_delta, "last_batch", nothing)
        notes = archived.path / "_cometmq" / "archive.json"
        notes.write_text(json.dumps({**json.loads(notes.read_text()), "done": None}))
    archived.send(5)
    archived.run()
    assert archived.bodies == numbers(0, 25)


def crash_at(monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool], *, behind: bool) -> None:
    """Let a batch fail before its data is written, or after it (`behind`), as a kill does."""
    append = delta_tables.append_batch

    def crashing(*given: Any, **more: Any) -> None:
        if behind or not when(given[3]):
            append(*given, **more)
        if when(given[3]):
            raise OSError("killed")

    monkeypatch.setattr(archive_delta, "append_batch", crashing)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_kill_around_the_data_and_a_lost_checkpoint(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, number: int, behind: bool
) -> None:
    archived.send(25)
    with monkeypatch.context() as patched:
        crash_at(patched, lambda each: each == number, behind=behind)
        with pytest.raises(PipelineError, match="killed"):
            archived.run()
    there = 10 * (number + behind)
    if not there:  # Nothing is there yet that could be doubled.
        assert archived.run().rows == 25
        assert archived.bodies == numbers(0, 25)
        return
    assert len(archived.bodies) == len({*archived.bodies}) == there
    other = str(archived.path.parent / "other")
    with pytest.raises(OptionError, match="begun with another checkpoint"):
        archived.run(checkpoint=other)
    if number:  # The checkpoint is lost for good.
        rmtree(archived.path / "_checkpoint")
        with pytest.raises(OptionError, match="begun with another checkpoint"):
            archived.run()
        assert archived.run(checkpoint=other, adopt=True).rows == 25 - there
    else:
        archived.run()
    assert archived.bodies == numbers(0, 25)
    table = read_archive(archived.spark, str(archived.path))
    assert table.select("batch").distinct().count() == 3


def test_a_kill_in_front_of_the_first_commit_leaves_no_table(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta makes the folder of its log before it writes the first file in it."""
    archived.send(5)

    def crash(*_: object, **__: object) -> None:
        (archived.path / "_delta_log").mkdir()
        (archived.path / "_delta_log" / ".0.json.1.tmp").touch()
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(archive_delta, "append_batch", crash)
        with pytest.raises(PipelineError, match="killed"):
            archived.run()
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 5)


def test_an_old_copy_of_a_checkpoint_is_refused(archived: InDelta) -> None:
    """The batch that it repeats ends elsewhere, so the table would miss the messages in between."""
    archived.send(20)
    archived.run()
    checkpoint = archived.path / "_checkpoint"
    old = copytree(checkpoint, archived.path.parent / "old")
    archived.send(10)
    archived.run()
    archived.send(10)
    rmtree(checkpoint)
    copytree(old, checkpoint)
    with pytest.raises(PipelineError, match=r"batch 2 exists, but does not end"):
        archived.run(max_rows=100)
    other = str(archived.path.parent / "other")
    assert archived.run(checkpoint=other, adopt=True).rows == 10
    assert archived.bodies == numbers(0, 40)


def test_a_table_that_lacks_what_its_checkpoint_says_is_done_is_refused(archived: InDelta) -> None:
    checkpoint = str(archived.path.parent / "checkpoint")
    archived.send(10)
    archived.run(checkpoint=checkpoint)
    old = copytree(archived.path, archived.path.parent / "old")
    archived.send(20)
    archived.run(checkpoint=checkpoint)
    for lost in (archived.path / "_delta_log", archived.path):
        rmtree(lost)
        with pytest.raises(OptionError, match="does not have batches 0 to 2, which by the"):
            archived.run(checkpoint=checkpoint)
    copytree(old, archived.path)
    with pytest.raises(OptionError, match="does not have batches 1 to 2, which by the"):
        archived.run(checkpoint=checkpoint)
    other = str(archived.path.parent / "other")
    assert archived.run(checkpoint=other, adopt=True).rows == 20
    assert archived.bodies == numbers(0, 30)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_table_that_was_restored_to_before_its_last_batches_is_refused(
    archived: InDelta, is_repeated: bool
) -> None:
    """Their messages would be in no batch, as Delta takes a repeated batch for written already."""
    archived.send(20)
    archived.run()
    restore = f"RESTORE TABLE delta.`{archived.path}` TO VERSION AS OF"
    archived.spark.sql(f"{restore} 0")
    if is_repeated:
        archived.forget_the_last_commit()
    archived.send(10)
    with pytest.raises(OptionError, match="restored to a version without batches 1 to 1"):
        archived.run(adopt=True)
    if is_repeated:
        archived.spark.sql(f"{restore} 1")
        archived.run()
    else:
        other = str(archived.path.parent / "other")
        assert archived.run(checkpoint=other, adopt=True).rows == 20
    assert archived.bodies == numbers(0, 30)
    table = read_archive(archived.spark, str(archived.path))
    numbered = {row["batch"] for row in table.select("batch").distinct().collect()}
    assert numbered == ({0, 1, 2} if is_repeated else {0, 2, 3})


def test_a_table_that_is_restored_while_its_stream_runs_is_refused(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived.send(30)
    restore = f"RESTORE TABLE delta.`{archived.path}` TO VERSION AS OF"
    written = archive_delta.ToDelta.written

    def restoring(self: archive_delta.ToDelta, number: int, batch_id: int) -> Any:
        if number == 2:
            archived.spark.sql(f"{restore} 0")
        return written(self, number, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(archive_delta.ToDelta, "written", restoring)
        with pytest.raises(PipelineError, match="restored to a version without batches 1 to 1"):
            archived.run()
    assert archived.bodies == numbers(0, 10)
    archived.spark.sql(f"{restore} 1")
    assert archived.run().rows == 10
    assert archived.bodies == numbers(0, 30)


def test_a_column_that_was_renamed_in_the_table_is_named(archived: InDelta) -> None:
    archived.send(5)
    archived.run()
    alter = f"ALTER TABLE delta.`{archived.path}`"
    by_name = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2'"
    archived.spark.sql(f"{alter} SET TBLPROPERTIES ({by_name}, 'delta.minWriterVersion' = '5')")
    archived.spark.sql(f"{alter} RENAME COLUMN body TO payload")
    archived.send(5)
    with pytest.raises(PipelineError, match="is a table without body, which each batch has: it"):
        archived.run()
    archived.spark.sql(f"{alter} RENAME COLUMN payload TO body")
    archived.spark.sql(f"{alter} ADD COLUMN note STRING")
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 10)


def test_checkpoints_that_take_turns_in_a_table_put_no_message_there_twice(
    archived: InDelta,
) -> None:
    """The table's notes describe only its last stream."""
    archived.send(15)
    archived.run(checkpoint=str(archived.path.parent / "a"))
    other = archived.topic
    archived.topic, archived.sent = f"{other}-b", 0
    archived.send(5)
    archived.run(checkpoint=str(archived.path.parent / "b"), adopt=True)
    archived.topic, archived.sent = other, 15
    archived.send(5)
    archived.insert_own_row()
    report = archived.run(checkpoint=str(archived.path.parent / "new"), adopt=True)
    assert report.rows == 5
    archived.send(5)
    with pytest.raises(OptionError, match=r"but the checkpoint .*/a is at .*: messages between"):
        archived.run(checkpoint=str(archived.path.parent / "a"), adopt=True)
    rows = read_archive(archived.spark, str(archived.path)).groupBy("topic").count().collect()
    assert {row["topic"]: row["count"] for row in rows} == {other: 20, f"{other}-b": 5, None: 1}


def test_a_batch_without_rows_is_no_batch_of_the_table(archived: InDelta) -> None:
    archived.send(4)
    assert archived.run(filter="NOSUCH").rows == 0
    archived.forget_the_last_commit()
    archived.send(4)
    assert archived.run().rows == 4
    assert archived.bodies == numbers(4, 8)


def test_what_is_in_a_table_is_replayed_once_and_is_what_the_topic_holds(
    archived: InDelta,
) -> None:
    """Also after Delta has rewritten its files, and still has the old ones."""
    archived.send(25)
    archived.run()
    nameserver = archived.tables.cluster.nameserver
    again = f"{archived.topic}-again"
    replaying = ReplaySettings(
        nameserver=nameserver, from_=f"archive:{archived.path}", to_topic=again
    )
    assert replay(archived.spark, replaying, Run(dry_run=True)).details["would_send"] == 25
    assert replay(archived.spark, replaying).rows == 25
    archived.spark.sql(f"OPTIMIZE delta.`{archived.path}`")
    assert replay(archived.spark, replaying).rows == 0
    archived.send(5)
    archived.run()
    assert replay(archived.spark, replaying).rows == 5
    assert archived.tables.bodies(again) == numbers(0, 30)
    settings = ReconcileSettings(
        left=f"topic:{archived.topic}@{nameserver}", right=f"archive:{archived.path}", level="full"
    )
    report = reconcile(archived.spark, settings)
    assert (report.outcome, report.rows, report.details["right_rows"]) == (Outcome.DONE, 30, 30)
    archived.spark.sql(f"VACUUM delta.`{archived.path}`")
    archived.send(1)
    assert archived.run().rows == 1  # VACUUM leaves our own files in the folder alone.
    archived.insert_own_row()
    assert replay(archived.spark, replaying).rows == 1


@pytest.mark.parametrize("more", [{}, {"rate": 4}])
def test_a_replay_goes_on_with_files_that_are_rewritten_and_removed_before_they_are_sent(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    archived.send(24)
    archived.run(max_rows=8)
    rows, check = TableSource.rows, "spark.databricks.delta.retentionDurationCheck.enabled"

    def reading(source: TableSource, part: Part) -> DataFrame:
        frame = rows(source, part)
        if part.number == 1:
            archived.spark.sql(f"OPTIMIZE delta.`{archived.path}`")
            archived.spark.sql(f"VACUUM delta.`{archived.path}` RETAIN 0 HOURS")
        return frame

    again = f"{archived.topic}-again"
    replaying = ReplaySettings(
        nameserver=archived.tables.cluster.nameserver,
        from_=f"archive:{archived.path}",
        to_topic=again,
        **more,
    )
    monkeypatch.setattr(TableSource, "rows", reading)
    archived.spark.conf.set(check, "false")
    try:
        assert replay(archived.spark, replaying).batches == [0, 1, 2]
    finally:
        archived.spark.conf.unset(check)
    assert len(list(archived.path.glob("**/*.parquet"))) < 3  # The old files are gone.
    assert archived.tables.bodies(again) == numbers(0, 24)


@pytest.mark.parametrize("name", ["ignoreCorruptFiles", "ignoreMissingFiles"])
def test_a_session_that_passes_over_files_is_refused(archived: InDelta, name: str) -> None:
    """Delta heeds only the session's settings: rows would be missing without a word."""
    archived.send(3)
    archived.run()
    setting = f"spark.sql.files.{name}"
    archived.spark.conf.set(setting, "true")
    try:
        with pytest.raises(OptionError, match=f"{setting}.*--conf {setting}=false"):
            read_archive(archived.spark, str(archived.path))
        with pytest.raises(OptionError, match=setting):
            archived.run()
    finally:
        archived.spark.conf.unset(setting)
    assert archived.bodies == numbers(0, 3)


def test_other_tables_and_formats_are_told_apart(archived: InDelta, tmp_path: Path) -> None:
    archived.send(3)
    archived.run()
    table = str(archived.path)
    with pytest.raises(OptionError, match="is a Delta table"):
        archived.run(format="parquet")
    with pytest.raises(OptionError, match=f"OPTIMIZE delta.`{table}` in spark.sql"):
        archive_compact(archived.spark, CompactSettings(archive=table))
    with pytest.raises(OptionError, match=f"VACUUM delta.`{table}` in spark.sql"):
        archive_vacuum(archived.spark, VacuumSettings(archive=table))
    archived.path = tmp_path / "parquet"
    archived.run(format="parquet")
    with pytest.raises(OptionError, match="is a Parquet archive"):
        archived.run()
    archived.path = tmp_path / "theirs"
    archived.spark.range(3).write.format("delta").save(str(archived.path))
    with pytest.raises(OptionError, match="is a table, not an archive"):
        archived.run()
    with pytest.raises(OptionError, match="a Delta table, not an archive"):
        read_archive(archived.spark, str(archived.path))


def test_the_command_is_killed_again_and_again(archived: InDelta) -> None:
    archived.send(200)
    given = ["--topic", archived.topic, "-n", archived.tables.cluster.nameserver]
    given += ["--packages", PACKAGES, "--format", "delta", "--max-rows", "4"]
    for _ in range(2):
        archive_and_kill(archived.path, *given)
    assert archived.run(max_rows=100).rows < 200
    assert archived.bodies == numbers(0, 200)
