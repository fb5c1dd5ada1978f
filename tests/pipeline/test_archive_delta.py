"""`archive --format delta`: each message is in the table once, and others can read it."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("deltalake", reason="the extra cometmq[delta] is not installed")

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from py4j.protocol import Py4JError
from pyspark.sql.functions import expr
from tests.pipeline.archived import Archived
from tests.pipeline.killed_archives import archive_and_kill
from tests.pipeline.tables import Tables, numbers
from tests.pipeline.test_docs import examples

from cometmq.client import NewMessage
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import delta_commits, delta_tables
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_delta import ToDelta
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.delta_files import statistics_of, values_in
from cometmq.pipeline.jobs.delta_tables import DeltaTable
from cometmq.pipeline.jobs.expiry_guard import ExpiryGuard
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

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


class InDelta(Archived):
    """A topic and its table of Delta."""

    format = "delta"

    @property
    def table(self) -> Any:
        """The table, as somebody else opens it."""
        return deltalake.DeltaTable(self.path)

    def insert_own_row(self) -> None:
        """Add a row of no batch."""
        schema = pa.schema(self.table.schema())
        columns = {name: [b"0" if name == "body" else None] for name in schema.names}
        write_deltalake(self.table, pa.table(columns, schema=schema), mode="append")


def vacuum(table: Any) -> None:
    """Remove all files that are in no version of a table, however new they are."""
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


@pytest.fixture
def archived(spark: SparkSession, rocketmq_session: Cluster, tmp_path: Path) -> InDelta:
    return InDelta(Tables(spark, rocketmq_session), tmp_path)


def test_a_topic_is_in_a_table_once_and_the_next_run_goes_on(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded: list[Any] = []

    def look(_guard: ExpiryGuard, ends: Any) -> None:
        guarded.append(ends[archived.topic]["broker-a"])

    monkeypatch.setattr(ExpiryGuard, "look", look)
    archived.send(25)
    report = archived.run()
    assert (report.rows, report.size, len(report.batches)) == (25, 40, 3)
    assert report.details["files"] == len([*archived.path.glob("topic=*/**/*.parquet")]) > 2
    archived.send(5)
    assert archived.run(compression="gzip").rows == 5
    assert [*archived.path.glob("topic=*/**/*.gz.parquet")]
    assert (len(guarded), sum(guarded[-1].values())) == (4, 30)
    files: Any = pa.table(archived.table.get_add_actions(flatten=True))
    assert None not in files["min.store_time"].to_pylist()  # By which readers leave out files.
    assert archived.bodies == numbers(0, 30)
    rows = archived.table.to_pyarrow_table()
    assert sorted(int(body) for body in rows["body"].to_pylist()) == list(range(30))
    assert archived.table.metadata().partition_columns == ["topic", "date"]
    types = [rows.schema.field(name).type for name in ("batch", "topic", "date", "body")]
    assert types == [pa.int32(), pa.string(), pa.date32(), pa.binary()]
    of_batch = archived.table.to_pyarrow_table(filters=[("batch", "=", 3)])
    assert of_batch.num_rows == 5
    code = examples("docs/pipeline-jobs.md")[1].replace("/data/orders", str(archived.path))
    exec(compile(code, "docs/pipeline-jobs.md", "exec"), {})


@pytest.mark.slow
def test_files_are_not_larger_once_a_batch_has_told_how_large_rows_are(archived: InDelta) -> None:
    cluster = archived.tables.cluster
    cluster.admin.create_topic(archived.topic, queues=1)
    for rows in (5000, 2500):  # The second run goes by what the first has written.
        for _ in range(rows // 100):
            of_batch = [NewMessage(body=os.urandom(1024)) for _ in range(100)]
            cluster.client.send_batch(archived.topic, of_batch)
        assert archived.run(max_rows=2500, file_size="1m").rows == rows
    table = read_archive(archived.spark, str(archived.path))
    files = table.groupBy("batch").agg(expr("count(DISTINCT _metadata.file_path) AS files"))
    assert {row["batch"]: row["files"] for row in files.collect()} == {0: 1, 1: 3, 2: 3}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("looks", [True, False])
def test_a_batch_that_is_repeated_is_there_once(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """The job sees it when it begins; where it does not look, the batch's commit looks again."""
    archived.send(20)
    archived.run()
    archived.forget_the_last_commit()
    if not looks:
        last_of, looks_at = DeltaTable.last_of, iter([-1])

        def late(table: DeltaTable, stream: str | None) -> int:
            return next(looks_at, None) or last_of(table, stream)

        monkeypatch.setattr(DeltaTable, "last_of", late)
    archived.send(5)
    archived.run()
    assert archived.bodies == numbers(0, 25)


def crash_at(monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool], *, behind: bool) -> None:
    """Let a batch fail before its data is written, or after it (`behind`), as a kill does."""
    append = DeltaTable.append

    def crashing(table: DeltaTable, files: Any, stream: Any, batch: int, *more: Any) -> None:
        if behind or not when(batch):
            append(table, files, stream, batch, *more)
        if when(batch):
            raise OSError("killed")

    monkeypatch.setattr(DeltaTable, "append", crashing)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_kill_in_front_of_the_first_commit_leaves_no_table(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a table's log may be there before the first file in it is."""
    archived.send(5)

    def crash(*_: object, **__: object) -> None:
        (archived.path / "_delta_log").mkdir()
        (archived.path / "_delta_log" / ".0.json.1.tmp").touch()
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create", crash)
        with pytest.raises(PipelineError, match="killed"):
            archived.run()
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 5)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_table_that_was_restored_to_before_its_last_batches_is_refused(
    archived: InDelta, is_repeated: bool
) -> None:
    """Their messages would be in no batch, as Delta takes a repeated batch for written already."""
    archived.send(20)
    archived.run()
    archived.table.restore(1)  # The first version has no batch.
    archived.insert_own_row()
    if is_repeated:
        archived.forget_the_last_commit()
    archived.send(10)
    with pytest.raises(OptionError, match="restored to a version without batches 1 to 1"):
        archived.run(adopt=True)
    if is_repeated:
        archived.table.restore(2)
        archived.run()
        archived.insert_own_row()
    else:
        other = str(archived.path.parent / "other")
        assert archived.run(checkpoint=other, adopt=True).rows == 20
    assert archived.bodies == ["0", *numbers(0, 30)]
    table = read_archive(archived.spark, str(archived.path)).where("batch IS NOT NULL")
    numbered = {row["batch"] for row in table.select("batch").distinct().collect()}
    assert numbered == ({0, 1, 2} if is_repeated else {0, 2, 3})


@pytest.mark.slow
def test_a_table_that_is_restored_while_its_stream_runs_is_refused(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived.send(30)
    written = ToDelta.written

    def restoring(self: ToDelta, number: int, batch_id: int) -> Any:
        if number == 2:
            archived.table.restore(1)
        return written(self, number, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(ToDelta, "written", restoring)
        with pytest.raises(PipelineError, match="restored to a version without batches 1 to 1"):
            archived.run()
    assert archived.bodies == numbers(0, 10)
    archived.table.restore(2)
    assert archived.run().rows == 10
    assert archived.bodies == numbers(0, 30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restored to a version without batches 1", "without body, which"])
def test_what_others_do_while_the_files_of_a_batch_are_written_is_seen_before_its_commit(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    archived.send(30)
    append = DeltaTable.append

    def late(table: DeltaTable, files: Any, stream: Any, batch: int, *more: Any) -> None:
        if batch == 2 and how.startswith("restored"):
            archived.table.restore(1)
        elif batch == 2:
            rows = archived.table.to_pyarrow_table().rename_columns({"body": "payload"})
            given = {"schema_mode": "overwrite", "partition_by": ["topic", "date"]}
            write_deltalake(archived.table, rows, mode="overwrite", **given)
        append(table, files, stream, batch, *more)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "append", late)
        with pytest.raises(PipelineError, match=how):
            archived.run()
    table = archived.table
    assert 2 not in table.to_pyarrow_table()["batch"].to_pylist()
    table.restore(2)  # Both batches are there again, with their bodies.
    assert archived.run().rows == 10
    assert archived.bodies == numbers(0, 30)


@pytest.mark.slow
def test_a_restored_table_and_a_lost_commit_are_refused_whatever_else_others_did(
    archived: InDelta,
) -> None:
    archived.send(20)
    archived.run()
    archived.table.restore(1)
    archived.insert_own_row()  # It is appended, too, but it is no batch.
    with pytest.raises(OptionError, match="restored to a version without batches 1 to 1"):
        archived.run()
    for number in (2, 3, 4):
        (archived.path / "_delta_log" / f"{number:020d}.json").unlink()
    with pytest.raises(OptionError, match="does not have batches 1 to 1, which by the"):
        archived.run()


def test_a_table_that_batches_no_longer_fit_is_refused(archived: InDelta) -> None:
    archived.send(5)
    archived.run()
    rows = archived.table.to_pyarrow_table()

    def change(rows: pa.Table, parts: list[str]) -> None:
        write_deltalake(
            archived.table, rows, mode="overwrite", schema_mode="overwrite", partition_by=parts
        )

    archived.send(5)
    change(rows.rename_columns({"body": "payload"}), ["topic", "date"])
    with pytest.raises(PipelineError, match="is a table without body, which each batch has: it"):
        archived.run()
    at, longer = rows.schema.get_field_index("flag"), rows["flag"].cast(pa.int64())
    change(rows.set_column(at, "flag", longer), ["topic", "date"])
    with pytest.raises(PipelineError, match="whose column flag is now bigint, and not int"):
        archived.run()
    change(rows, ["date"])
    with pytest.raises(PipelineError, match="now divided by date, and not by topic, date"):
        archived.run()
    change(rows, ["topic", "date"])
    archived.table.alter.add_constraint({"small": "queue_id < 100"})
    with pytest.raises(PipelineError, match=r"with delta\.constraints\.small, which nobody would"):
        archived.run()
    archived.table.alter.drop_constraint("small")
    archived.table.alter.add_columns(deltalake.Field("note", "string"))
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 10)


@pytest.mark.slow
def test_a_batch_is_added_though_others_change_the_table_and_a_power_cut_tore_a_commit(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived.send(10)
    archived.run()
    log = archived.path / "_delta_log"
    (log / f"{archived.table.version() + 1:020d}.json").touch()  # Its name was there, no byte.
    added = DeltaTable._append  # pyright: ignore[reportPrivateUsage]  # Right before the commit.
    tries: list[int] = []
    synced: list[int] = []
    before = archived.table.version()

    def late(table: DeltaTable, *given: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            archived.table.alter.add_columns(deltalake.Field("note", "string"))
        added(table, *given)

    def sync(_folder: object, number: int) -> None:
        synced.append(number)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "_append", late)
        for module in (delta_commits, delta_tables):
            patched.setattr(module, "sync_commit", sync)
        archived.send(5)
        assert archived.run().rows == 5
    assert len(tries) == 2
    ours = archived.table.version()
    assert synced == [before, before - 1, ours - 1, ours]  # Theirs, too.
    assert archived.bodies == numbers(0, 15)
    archived.table.alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}
    )
    archived.send(1)
    with pytest.raises(PipelineError, match="so that it would forget which batches it has"):
        archived.run()


@pytest.mark.slow
def test_a_table_whose_files_do_not_say_what_they_are_is_not_read(archived: InDelta) -> None:
    archived.send(3)
    archived.run()
    (file,) = archived.path.glob("topic=*/date=*/*.parquet")
    last = archived.path / "_delta_log" / f"{1:020d}.json"
    said = last.read_text()
    moved = said.replace(f"/{file.parent.name}/", "/")
    assert moved != said
    last.write_text(moved)
    with pytest.raises(OptionError, match="is not in a folder that is named after its topic, date"):
        read_archive(archived.spark, str(archived.path))
    last.write_text(said)
    first = last.with_name(f"{0:020d}.json")
    by_name = '"configuration":{"delta.columnMapping.mode":"name"}'
    first.write_text(first.read_text().replace('"configuration":{}', by_name))
    with pytest.raises(PipelineError, match=r"columnMapping"):
        read_archive(archived.spark, str(archived.path))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_batch_without_rows_is_no_batch_of_the_table(archived: InDelta) -> None:
    archived.send(4)
    assert archived.run(filter="NOSUCH").rows == 0
    archived.forget_the_last_commit()
    archived.send(4)
    assert archived.run().rows == 4
    assert archived.bodies == numbers(4, 8)


@pytest.mark.slow
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
    assert archived.table.optimize.compact()["numFilesRemoved"] > 2
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
    vacuum(archived.table)
    archived.send(1)
    assert archived.run().rows == 1  # It leaves our own files in the folder alone.
    archived.insert_own_row()
    assert replay(archived.spark, replaying).rows == 1


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"rate": 4}])
def test_a_replay_goes_on_with_files_that_are_rewritten_and_removed_before_they_are_sent(
    archived: InDelta, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    archived.send(24)
    archived.run(max_rows=8)
    rows = TableSource.rows

    def reading(source: TableSource, part: Part) -> DataFrame:
        frame = rows(source, part)
        if part.number == 1:
            archived.table.optimize.compact()
            vacuum(archived.table)
        return frame

    again = f"{archived.topic}-again"
    replaying = ReplaySettings(
        nameserver=archived.tables.cluster.nameserver,
        from_=f"archive:{archived.path}",
        to_topic=again,
        **more,
    )
    monkeypatch.setattr(TableSource, "rows", reading)
    assert replay(archived.spark, replaying).batches == [0, 1, 2]
    assert len(list(archived.path.glob("**/*.parquet"))) < 3  # The old files are gone.
    assert archived.tables.bodies(again) == numbers(0, 24)


@pytest.mark.slow
def test_a_session_that_passes_over_damaged_files_does_not_here(archived: InDelta) -> None:
    archived.send(3)
    archived.run()
    (file,) = archived.path.glob("topic=*/date=*/*.parquet")
    file.with_name(f".{file.name}.crc").unlink()
    file.write_bytes(b"damaged" * (file.stat().st_size // 7))
    setting = "spark.sql.files.ignoreCorruptFiles"
    archived.spark.conf.set(setting, "true")
    try:
        with pytest.raises(Py4JError, match="FAILED_READ_FILE"):
            read_archive(archived.spark, str(archived.path)).collect()
    finally:
        archived.spark.conf.unset(setting)


@pytest.mark.slow
def test_other_tables_and_formats_are_told_apart(archived: InDelta, tmp_path: Path) -> None:
    archived.send(3)
    archived.run()
    table = str(archived.path)
    with pytest.raises(OptionError, match="is a Delta table"):
        archived.run(format="parquet")
    with pytest.raises(OptionError, match=f"^archive: {table} is a Delta table: the engines"):
        archive_compact(archived.spark, CompactSettings(archive=table))
    with pytest.raises(OptionError, match=f"^archive: {table} is a Delta table: the engines"):
        archive_vacuum(archived.spark, VacuumSettings(archive=table))
    archived.path = tmp_path / "parquet"
    archived.run(format="parquet")
    with pytest.raises(OptionError, match="is a Parquet archive"):
        archived.run()
    archived.path = tmp_path / "theirs"
    write_deltalake(archived.path, pa.table({"batch": [1]}))
    with pytest.raises(OptionError, match="is a table, not an archive"):
        archived.run()
    write_deltalake(archived.path, pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(OptionError, match=r"format: .* is a Delta table, not an archive"):
        archived.run()
    with pytest.raises(OptionError, match="a Delta table, not an archive"):
        read_archive(archived.spark, str(archived.path))


@pytest.mark.slow
def test_the_command_is_killed_again_and_again(archived: InDelta) -> None:
    archived.send(200)
    given = ["--topic", archived.topic, "-n", archived.tables.cluster.nameserver]
    for _ in range(2):
        archive_and_kill(archived.path, *given, "--format", "delta", "--max-rows", "4")
    assert archived.run(max_rows=100).rows < 200
    assert archived.bodies == numbers(0, 200)


def test_a_folder_whose_name_deltalake_would_misread_is_refused(
    archived: InDelta, tmp_path: Path
) -> None:
    archived.path = tmp_path / "100%41"
    with pytest.raises(OptionError, match=r"^format: the path .*/100%41 contains '%'"):
        archived.run()


def test_what_the_log_says_of_a_file_is_what_is_in_it(tmp_path: Path) -> None:
    when = datetime(2026, 11, 30, 23, 59, 59, 999_001, UTC)
    pq.write_table(
        pa.table(
            {
                "number": [3, None, -1],
                "at": pa.array([when] * 3, pa.timestamp("us", "UTC")),
                "day": [date(2026, 11, 30), date(1969, 7, 20), None],
                "text": ["a", "b", "c"],
                "yes": [True, False, True],
                "empty": pa.array([None] * 3, pa.int32()),
                "value": pa.array(
                    [{"id": 1, "day": 1 << 30}, None, None],
                    pa.struct({"id": pa.int64(), "day": pa.date32()}),  # In the year 2.9 million.
                ),
                "old": [datetime(1, 2, 3, 4, 5, 6, 7, UTC), None, None],
            }
        ),
        tmp_path / "file",
        row_group_size=2,
    )
    assert statistics_of(tmp_path / "file") == {
        "numRecords": 3,
        "minValues": {
            "number": -1,
            "at": "2026-11-30T23:59:59.999Z",
            "day": "1969-07-20",
            "old": "0001-02-03T04:05:06.000Z",
        },
        "maxValues": {
            "number": 3,
            "at": "2026-12-01T00:00:00.000Z",
            "day": "2026-11-30",
            "old": "0001-02-03T04:05:06.001Z",
        },
        "nullCount": {"number": 1, "at": 0, "day": 1, "old": 2},
    }


def test_a_file_that_says_nothing_of_a_column_leaves_it_out(tmp_path: Path) -> None:
    table = pa.table({"number": [3, 4], "other": [1, 2]})
    pq.write_table(table, tmp_path / "file", write_statistics=["number"])
    said = statistics_of(tmp_path / "file")
    assert (said["numRecords"], said["minValues"], said["maxValues"]) == (
        2,
        {"number": 3},
        {"number": 4},
    )


def test_values_are_in_the_names_of_folders() -> None:
    path = "topic=%25RETRY%25a b/date=__HIVE_DEFAULT_PARTITION__/hour=05/part-0.parquet"
    assert values_in(path) == {"topic": "%RETRY%a b", "date": None, "hour": "05"}
    assert values_in("part-0.parquet") == {}
