"""`archive --format iceberg`: each message is in the table once, and others can read it."""

from __future__ import annotations

from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
pytest.importorskip("pyiceberg", reason="the extra cometmq[iceberg] is not installed")

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from tests.pipeline.archived import Archived
from tests.pipeline.killed_archives import archive_and_kill
from tests.pipeline.tables import Tables, numbers
from tests.pipeline.test_docs import examples

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import iceberg_files
from cometmq.pipeline.jobs.archive import archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.iceberg_files import SyncedFiles
from cometmq.pipeline.jobs.iceberg_tables import IcebergTable
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


class InIceberg(Archived):
    """A topic and its table of Iceberg."""

    format = "iceberg"

    @property
    def table(self) -> Any:
        """The table, as somebody else opens it."""
        catalog = SqlCatalog("cometmq", uri=f"sqlite:///{self.path}/_cometmq/iceberg.db")
        return catalog.load_table("cometmq.archive")


@pytest.fixture
def archived(spark: SparkSession, rocketmq_session: Cluster, tmp_path: Path) -> InIceberg:
    return InIceberg(Tables(spark, rocketmq_session), tmp_path)


def test_a_topic_is_in_a_table_once_and_the_next_run_goes_on(archived: InIceberg) -> None:
    archived.send(25)
    report = archived.run()
    assert (report.rows, report.size, len(report.batches)) == (25, 40, 3)
    archived.send(5)
    assert archived.run().rows == 5
    assert archived.bodies == numbers(0, 30)
    rows = archived.table.scan().to_arrow()
    assert sorted(int(body) for body in rows["body"].to_pylist()) == list(range(30))
    assert set(rows["topic"].to_pylist()) == {archived.topic}
    assert {str(each.name) for each in archived.table.spec().fields} == {"topic", "date"}
    by_topic = archived.table.scan(row_filter=f"topic = '{archived.topic}' AND batch = 3")
    assert by_topic.to_arrow().num_rows == 5
    code = examples("docs/pipeline-jobs.md")[2].replace("/data/orders", str(archived.path))
    exec(compile(code, "docs/pipeline-jobs.md", "exec"), {})


@pytest.mark.slow
def test_schema_hours_and_text_are_columns_of_the_table(archived: InIceberg) -> None:
    archived.send(0)
    for body in (b'{"id": 7}', b"no json"):
        archived.tables.cluster.send(archived.topic, body)
    report = archived.run(schema="id BIGINT", body="text", partition_by="date,hour")
    assert (report.details["misfits"], report.size) == (1, 16)
    rows = archived.table.scan().to_arrow().to_pylist()
    assert {row["body"]: row["value"] and row["value"]["id"] for row in rows} == {
        '{"id": 7}': 7,
        "no json": None,
    }
    with pytest.raises(OptionError, match=r"partition-by: .* was begun with"):
        archived.run(schema="id BIGINT", body="text")


def crash_at(monkeypatch: pytest.MonkeyPatch, number: int, *, behind: bool) -> None:
    """Let a batch fail before its commit, or after it (`behind`), as a kill does."""
    append = IcebergTable.append

    def crashing(self: IcebergTable, files: list[str], batch: int, *more: Any) -> int:
        if batch != number:
            return append(self, files, batch, *more)
        if behind:
            append(self, files, batch, *more)
        raise OSError("killed")

    monkeypatch.setattr(IcebergTable, "append", crashing)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_kill_around_the_commit_and_a_lost_checkpoint(
    archived: InIceberg, monkeypatch: pytest.MonkeyPatch, number: int, behind: bool
) -> None:
    archived.send(25)
    with monkeypatch.context() as patched:
        crash_at(patched, number, behind=behind)
        with pytest.raises(PipelineError, match="killed"):
            archived.run()
    there = 10 * (number + behind)
    assert len(archived.bodies) == len({*archived.bodies}) == there
    if there and number:  # The checkpoint is lost for good.
        rmtree(archived.path / "_checkpoint")
        with pytest.raises(OptionError, match="begun with another checkpoint"):
            archived.run()
        other = str(archived.path.parent / "other")
        assert archived.run(checkpoint=other, adopt=True).rows == 25 - there
    else:
        archived.run()
    assert archived.bodies == numbers(0, 25)
    batches = archived.table.scan().to_arrow()["batch"].unique().to_pylist()
    assert len(batches) == 3


@pytest.mark.slow
def test_a_batch_that_is_repeated_is_there_once_and_an_old_copy_of_a_checkpoint_is_refused(
    archived: InIceberg,
) -> None:
    archived.send(20)
    archived.run()
    checkpoint = archived.path / "_checkpoint"
    old = copytree(checkpoint, archived.path.parent / "old")
    archived.forget_the_last_commit()
    archived.send(10)
    archived.run()
    assert archived.bodies == numbers(0, 30)
    archived.send(10)
    rmtree(checkpoint)
    copytree(old, checkpoint)
    with pytest.raises(PipelineError, match=r"batch 2 exists, but does not end"):
        archived.run(max_rows=100)
    assert archived.bodies == numbers(0, 30)


@pytest.mark.slow
def test_a_table_that_was_rolled_back_is_refused_and_one_that_lost_old_snapshots_is_not(
    archived: InIceberg,
) -> None:
    archived.send(30)
    archived.run()
    table = archived.table
    _, second, third = (each.snapshot_id for each in table.history())
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    archived.send(10)
    with pytest.raises(OptionError, match="was rolled back to before batch 2"):
        archived.run()
    table.refresh().manage_snapshots().set_current_snapshot(snapshot_id=third).commit()
    table.refresh().maintenance.expire_snapshots().by_ids([second]).commit()
    assert archived.run().rows == 10
    assert archived.bodies == numbers(0, 40)


@pytest.mark.slow
def test_a_rollback_while_the_files_of_a_batch_are_written_is_seen_before_its_commit(
    archived: InIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived.send(30)
    append = IcebergTable.append

    def late(self: IcebergTable, files: Any, batch: int, *more: Any) -> int:
        if batch == 2:
            first = archived.table.history()[0].snapshot_id
            archived.table.manage_snapshots().rollback_to_snapshot(first).commit()
        return append(self, files, batch, *more)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "append", late)
        with pytest.raises(PipelineError, match="was rolled back to before batch 1"):
            archived.run()
    assert archived.bodies == numbers(0, 10)
    second = archived.table.snapshots()[1].snapshot_id
    archived.table.manage_snapshots().set_current_snapshot(snapshot_id=second).commit()
    assert archived.run().rows == 10
    assert archived.bodies == numbers(0, 30)


@pytest.mark.slow
def test_what_others_commit_stays_and_is_no_batch(
    archived: InIceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them comes between the files of a batch and its commit."""
    archived.send(20)
    archived.run()
    theirs = archived.table.scan().to_arrow().slice(0, 1)
    theirs = theirs.set_column(0, "batch", pa.array([None], pa.int32()))
    added = IcebergTable._append  # pyright: ignore[reportPrivateUsage]  # Right before the commit.
    tries: list[int] = []

    def late(self: IcebergTable, *given: Any) -> None:
        if not tries:
            archived.table.append(theirs)
        tries.append(1)
        added(self, *given)

    monkeypatch.setattr(IcebergTable, "_append", late)
    archived.send(5)
    assert archived.run().rows == 5
    assert len(tries) >= 1
    assert len(archived.bodies) == 26
    assert {*archived.bodies} == {*numbers(0, 25)}
    archived.table.delete("queue_offset = 0 AND batch IS NOT NULL")  # Its files are rewritten.
    kept = len(archived.bodies)
    given: dict[str, Any] = {"nameserver": archived.tables.cluster.nameserver}
    replayed = f"{archived.topic}-again"
    again = ReplaySettings(**given, from_dir=str(archived.path), to_topic=replayed)
    assert replay(archived.spark, again).rows == kept - 1 == 23
    assert replay(archived.spark, again).rows == 0


@pytest.mark.slow
def test_the_command_is_killed_again_and_again(archived: InIceberg) -> None:
    archived.send(200)
    given = ["--topic", archived.topic, "-n", archived.tables.cluster.nameserver]
    for _ in range(2):
        archive_and_kill(archived.path, *given, "--format", "iceberg", "--max-rows", "4")
    assert archived.run(max_rows=100).rows < 200
    assert archived.bodies == numbers(0, 200)


@pytest.mark.slow
def test_what_is_in_a_table_is_what_the_topic_holds(archived: InIceberg) -> None:
    archived.send(25)
    archived.run()
    where = f"topic:{archived.topic}@{archived.tables.cluster.nameserver}"
    places = ReconcileSettings(left=where, right=f"archive:{archived.path}", level="full")
    report = reconcile(archived.spark, places)
    assert (report.outcome, report.details["left_rows"]) == (Outcome.DONE, 25)
    assert report.details["right_rows"] == 25


@pytest.mark.slow
def test_other_formats_and_folders_are_told_apart(archived: InIceberg, tmp_path: Path) -> None:
    archived.send(3)
    archived.run()
    table = str(archived.path)
    with pytest.raises(OptionError, match="is an Iceberg table"):
        archived.run(format="parquet")
    with pytest.raises(OptionError, match="is an Iceberg table"):
        archive_compact(archived.spark, CompactSettings(archive=table))
    with pytest.raises(OptionError, match="is an Iceberg table"):
        archive_vacuum(archived.spark, VacuumSettings(archive=table))
    archived.path = tmp_path / "parquet"
    archived.run(format="parquet")
    with pytest.raises(OptionError, match="is a Parquet archive"):
        archived.run()
    for name, said in (("a?b", r"contains '\?'"), ("a#b", "contains '#'")):
        archived.path = tmp_path / name
        with pytest.raises(OptionError, match=said):
            archived.run()
    dry = archived.path = tmp_path / "dry"
    archive(archived.spark, archived.settings(), Run(dry_run=True))
    assert not dry.exists()


@pytest.mark.slow
def test_a_copy_of_a_table_and_a_damaged_catalog_are_refused(
    archived: InIceberg, tmp_path: Path
) -> None:
    """A copy names the files of the original: its next batch would be in both."""
    archived.send(3)
    archived.run()
    original, archived.path = archived.path, tmp_path / "copy"
    copytree(original, archived.path)
    archived.send(3)
    with pytest.raises(
        OptionError, match=f"^format: .*/copy is a copy of the table at .*{original}"
    ):
        archived.run()
    with pytest.raises(OptionError, match=r"^from: .* is a copy of the table at"):
        read_archive(archived.spark, str(archived.path))
    catalog = archived.path / "_cometmq" / "iceberg.db"
    catalog.write_bytes(b"no catalog" * 1000)
    with pytest.raises(PipelineError, match=r"iceberg.db: file is not a database\. If another"):
        archived.run()
    catalog.write_bytes(b"")
    with pytest.raises(OptionError, match="does not have batches 0 to 0, which by the checkpoint"):
        archived.run()


def test_what_a_commit_names_is_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(path: Path) -> None:
        synced.append(path.name)

    monkeypatch.setattr(iceberg_files, "sync", sync)
    with SyncedFiles({}).new_output(f"file://{tmp_path}/a b%.json").create() as file:
        file.write(b"{}")
        assert not synced
    assert synced == ["a b%.json"]
    assert (tmp_path / "a b%.json").read_bytes() == b"{}"
