"""`archive-compact` and `archive-vacuum`: fewer files, and always the same messages."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

import pyarrow.parquet as pq
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.cluster import Bounds, Survey
from cometmq.pipeline.errors import DamagedFileError, HeldError, OptionError, PipelineError
from cometmq.pipeline.jobs import archive_files, expiry_guard
from cometmq.pipeline.jobs.archive import (
    ArchiveSettings,
    _ToParquet,  # pyright: ignore[reportPrivateUsage]  # To look at one of its steps.
    archive,
)
from cometmq.pipeline.jobs.archive_compact import (
    CompactSettings,
    _Compacting,  # pyright: ignore[reportPrivateUsage]  # To come between two of its steps.
    archive_compact,
)
from cometmq.pipeline.jobs.archive_files import (
    BatchName,
    Manifest,
    batches,
    read_archive,
    read_batches,
)
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.expiry_guard import ExpiryGuard
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.holding import BATCHES, held
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.replay_sources import ArchiveSource, Part
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.jobs.streams import StreamSettings, there_now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


class Archived:
    """A topic and the archive that it goes to."""

    def __init__(self, tables: Tables, topic: str, path: Path) -> None:
        self.tables, self.topic, self.path = tables, topic, path
        self.sent = 0

    def grow(self, count: int, **more: Any) -> Report:
        """Send some messages, and archive them."""
        self.tables.fill(self.topic, count, first=self.sent)
        self.sent += count
        settings = ArchiveSettings(
            nameserver=self.tables.cluster.nameserver, topic=self.topic, to=str(self.path), **more
        )
        return archive(self.tables.spark, settings)

    def compact(self, **more: Any) -> Report:
        return archive_compact(self.tables.spark, CompactSettings(archive=str(self.path), **more))

    @property
    def bodies(self) -> list[str]:
        rows = read_archive(self.tables.spark, str(self.path)).selectExpr(
            "cast(body AS string) AS body"
        )
        return sorted((row["body"] for row in rows.collect()), key=int)

    @property
    def names(self) -> list[str]:
        return [str(each) for each in batches(Folder(self.tables.spark, str(self.path)))]

    @property
    def folders(self) -> list[str]:
        return sorted(each.name for each in self.path.glob("batch=*"))

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("batch=*/**/*.parquet"))


@pytest.fixture(scope="module")
def three_batches(
    spark: SparkSession, rocketmq_session: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An archive of 30 messages of the topic `compacted`, to be copied."""
    archived = Archived(
        Tables(spark, rocketmq_session), "compacted", tmp_path_factory.mktemp("archives") / "three"
    )
    archived.grow(30, max_rows=10)
    assert len(archived.names) == 3
    return archived.path


@pytest.fixture
def archived(tables: Tables, three_batches: Path, tmp_path: Path) -> Archived:
    """A test's own copy of that archive, which cannot grow."""
    copied = Archived(tables, "compacted", tmp_path / "archive")
    shutil.copytree(three_batches, copied.path)
    return copied


def test_many_batches_become_one_with_the_same_messages(archived: Archived) -> None:
    before = len(archived.files)
    last = archived.path / "_manifests/000002.json"
    last.write_text(json.dumps({**json.loads(last.read_text()), "query_id": "adopted"}))
    source = ArchiveSource(archived.tables.spark, Folder(archived.tables.spark, str(archived.path)))
    known = source.identity()
    report = archived.compact()
    assert (archived.names, archived.folders) == (["000000-000002"], ["batch=000000-000002"])
    assert archived.bodies == numbers(0, 30)
    found = report.details
    assert (report.rows, found["batches_merged"], found["files_before"]) == (30, 3, before)
    assert report.size == sum(map(len, numbers(0, 30)))
    assert report.offsets == {"compacted": {"broker-a": {"0": [0, 15], "1": [0, 15]}}}
    assert found["files_after"] == len(archived.files) < before
    manifest = json.loads((archived.path / "_manifests/000000-000002.json").read_text())
    assert (manifest["rows"], manifest["first_batch"], manifest["batch"]) == (30, 0, 2)
    assert manifest["ends"]["compacted"]["broker-a"] == {"0": 15, "1": 15}
    assert (manifest["query_id"], source.identity()) == ("adopted", known)
    assert not source.is_other(known)
    assert source.is_other("of another archive at its place")
    assert not list((archived.path / "_compacting").iterdir())


@pytest.mark.slow
def test_what_was_compacted_grows_and_is_compacted_again(tables: Tables, tmp_path: Path) -> None:
    archived = Archived(tables, "compacted-again", tmp_path)
    for _ in range(3):
        archived.grow(4)
    archived.compact()
    archived.grow(4)
    archived.grow(4)
    assert archived.bodies == numbers(0, 20)
    table = read_archive(tables.spark, str(tmp_path))
    counts = table.groupBy("batch").count().orderBy("batch").collect()
    assert [tuple(row) for row in counts] == [(number, 4) for number in range(5)]
    archived.compact()
    assert archived.names == ["000000-000004"]
    assert archived.bodies == numbers(0, 20)
    assert archived.compact().details["batches_merged"] == 0


@pytest.mark.slow
def test_a_batch_that_is_repeated_after_it_was_merged_is_not_there_twice(
    tables: Tables, tmp_path: Path
) -> None:
    """The stream died before it noted that the batch was done; then the archive was compacted."""
    archived = Archived(tables, "merged-early", tmp_path)
    archived.grow(5)
    archived.grow(5)
    archived.compact()
    for name in ("1", ".1.crc"):
        (tmp_path / "_checkpoint" / "commits" / name).unlink()
    archived.grow(5)
    assert archived.names == ["000000-000001", "000002"]
    assert archived.bodies == numbers(0, 15)


def _emptied(archived: Archived, note: str) -> None:
    """Empty one of Spark's notes, as a power cut may leave it."""
    path = archived.path / "_checkpoint" / note
    path.write_bytes(b"")
    path.with_name(f".{path.name}.crc").write_bytes(b"")


def _forgotten(archived: Archived, note: str) -> None:
    path = archived.path / "_checkpoint" / note
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink()


@pytest.mark.slow
def test_a_stream_goes_on_behind_notes_that_a_power_cut_left_empty(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "power-cut", tmp_path)
    archived.grow(4)
    archived.grow(4)
    _emptied(archived, "commits/1")
    archived.grow(2)
    assert (archived.names, archived.bodies) == (["000000", "000001", "000002"], numbers(0, 10))
    shutil.rmtree(tmp_path / "batch=000002")
    (tmp_path / "_manifests" / "000002.json").unlink()
    _forgotten(archived, "commits/2")
    _emptied(archived, "offsets/2")
    archived.grow(2)
    assert (archived.names, archived.bodies) == (["000000", "000001", "000002"], numbers(0, 12))


@pytest.mark.slow
def test_a_power_cut_in_front_of_the_first_batch_leaves_a_stream_that_begins_anew(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "power-cut-early", tmp_path)
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    for note in ("metadata", "offsets/0"):
        _emptied(archived, note)
    archived.grow(4)
    assert (archived.names, archived.bodies) == (["000000"], numbers(0, 4))
    _emptied(archived, "metadata")  # No power cut does this any more.
    with pytest.raises(DamagedFileError, match="_checkpoint/metadata is damaged"):
        archived.grow(2)
    archived.grow(0, checkpoint=str(tmp_path / "new"), adopt=True)
    assert archived.bodies == numbers(0, 6)


@pytest.mark.slow
def test_a_batch_that_is_there_and_would_end_elsewhere_now_is_refused(
    tables: Tables, tmp_path: Path
) -> None:
    """As with an old copy of the checkpoint: the messages in between would be in no batch."""
    archived = Archived(tables, "forgotten", tmp_path)
    archived.grow(4)
    archived.grow(4)
    for note in ("commits/1", "offsets/1"):
        _forgotten(archived, note)
    with pytest.raises(DamagedFileError, match="batch 000001 exists, but does not end"):
        archived.grow(2)
    archived.grow(0, checkpoint=str(tmp_path / "new"), adopt=True)
    assert archived.bodies == numbers(0, 10)


@pytest.mark.slow
@pytest.mark.parametrize("first_lost", [1, 0])
def test_an_archive_that_lacks_what_its_checkpoint_says_is_done_is_refused(
    tables: Tables, tmp_path: Path, first_lost: int
) -> None:
    """An old copy of the archive, or a disk not mounted: nothing would read the messages again."""
    archived = Archived(tables, f"put-back-{first_lost}", tmp_path / "archive")
    at = {"checkpoint": str(tmp_path / "at")}
    archived.grow(4, **at)
    shutil.copytree(archived.path, tmp_path / "copy")
    archived.grow(4, **at)
    shutil.rmtree(archived.path)
    if first_lost:
        (tmp_path / "copy").rename(archived.path)
    there = archived.names
    with pytest.raises(OptionError, match=f"does not have batches {first_lost} to 1, which"):
        archived.grow(2, **at)
    assert archived.names == there
    archived.grow(0, checkpoint=str(tmp_path / "new"), adopt=True)
    assert archived.bodies == numbers(0, 10)


@pytest.mark.parametrize(
    "dies_at", [pytest.param("write", marks=pytest.mark.slow), "rename", "manifest", "clean_up"]
)
def test_a_compaction_that_dies_leaves_every_message_there_once(
    archived: Archived, dies_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        _dying(patched, dies_at)
        with pytest.raises(KeyboardInterrupt):
            archived.compact()
    assert archived.bodies == numbers(0, 30)
    archived.compact()
    assert archived.folders == ["batch=000000-000002"]
    assert archived.bodies == numbers(0, 30)


def _dying(patched: pytest.MonkeyPatch, where: str) -> None:
    """Let the job die after writing files, renaming them, writing a manifest, or cleaning up."""
    rename, write, remove = Folder.rename, Folder.write, Folder.remove

    def renaming(folder: Folder, old: str, new: str) -> None:
        if where == "write":
            raise KeyboardInterrupt
        rename(folder, old, new)
        if where == "rename":
            raise KeyboardInterrupt

    def writing(folder: Folder, text: str, *names: str) -> None:
        write(folder, text, *names)
        if where == "manifest":
            raise KeyboardInterrupt

    def removing(folder: Folder, *names: str) -> None:
        remove(folder, *names)
        if where == "clean_up" and names[-1] == "batch=000001":
            raise KeyboardInterrupt

    patched.setattr(Folder, "rename", renaming)
    patched.setattr(Folder, "write", writing)
    patched.setattr(Folder, "remove", removing)


def test_files_that_do_not_hold_what_the_manifests_say_are_not_compacted(
    archived: Archived,
) -> None:
    first, second, _ = archived.files
    first.with_name(f".{first.name}.crc").unlink()
    first.write_bytes(second.read_bytes())
    with pytest.raises(PipelineError, match="nothing was changed"):
        archived.compact()
    assert archived.names == ["000000", "000001", "000002"]


@pytest.mark.slow
def test_what_another_compaction_has_merged_meanwhile_is_not_merged_again(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = _Compacting._compare  # pyright: ignore[reportPrivateUsage]  # As above.

    def comparing(compacting: _Compacting, manifest: Manifest, path: str) -> None:
        compare(compacting, manifest, path)
        monkeypatch.undo()
        archived.compact()

    monkeypatch.setattr(_Compacting, "_compare", comparing)
    monkeypatch.setattr(Folder, "local_path", None)  # Where no lock keeps the other one out.
    with pytest.raises(PipelineError, match="another archive-compact has merged them"):
        archived.compact()
    assert archived.names == ["000000-000002"]
    assert archived.bodies == numbers(0, 30)


def test_a_replay_beside_a_compaction_leaves_no_batch_out(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first batch is read, the others are merged, and no longer where they were."""
    parts = ArchiveSource.parts

    def parted(source: ArchiveSource, done: Any, begun: Any) -> Iterator[Part]:
        for part in parts(source, done, begun):
            yield part
            if part.number == 0:
                archived.compact()

    monkeypatch.setattr(ArchiveSource, "parts", parted)
    settings = ReplaySettings(
        from_dir=str(archived.path),
        nameserver=archived.tables.cluster.nameserver,
        to_topic="again-beside",
    )
    report = replay(archived.tables.spark, settings, Run(dry_run=True))
    assert (report.batches, report.details["would_send"]) == ([0, 1, 2], 30)
    assert archived.names == ["000000-000002"]


def merge_behind(monkeypatch: pytest.MonkeyPatch, archived: Archived, call: str) -> None:
    """Merge the batches once, after a table of their files was made and before it is read."""
    read = archive_files.read_files

    def reading(spark: SparkSession, base: str, paths: Sequence[str]) -> DataFrame:
        frame = read(spark, base, paths)
        if paths[-1].endswith(call):
            monkeypatch.undo()
            archived.compact()
        return frame

    monkeypatch.setattr(archive_files, "read_files", reading)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"rate": 4}])
def test_a_replay_goes_on_with_a_batch_that_is_merged_before_it_is_sent(
    archived: Archived, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    topic = f"again-merged-{len(more)}"
    archived.tables.cluster.admin.create_topic(topic, queues=2)
    settings = ReplaySettings(
        from_dir=str(archived.path),
        nameserver=archived.tables.cluster.nameserver,
        to_topic=topic,
        **more,
    )
    merge_behind(monkeypatch, archived, "batch=000001")
    report = replay(archived.tables.spark, settings)
    assert archived.names == ["000000-000002"]
    assert (report.rows, report.batches) == (30, [0, 1, 2])
    assert report.size == sum(map(len, numbers(0, 30)))
    assert archived.tables.bodies(topic) == numbers(0, 30)


def _without_the_last_batch(archived: Archived, path: Path) -> str:
    """Copy an archive, with its first two batches only, and return the copy's name."""
    shutil.copytree(archived.path, path)
    shutil.rmtree(path / "batch=000002")
    (path / "_manifests" / "000002.json").unlink()
    return f"archive:{path}"


@pytest.mark.slow
@pytest.mark.parametrize("differing", [False, True])
def test_a_comparison_begins_again_where_batches_are_merged_while_it_reads_them(
    archived: Archived, monkeypatch: pytest.MonkeyPatch, differing: bool, tmp_path: Path
) -> None:
    nameserver = archived.tables.cluster.nameserver
    other = f"topic:compacted@{nameserver}"
    if differing:
        other = _without_the_last_batch(archived, tmp_path / "other")
    settings = ReconcileSettings(left=f"archive:{archived.path}", right=other)
    merge_behind(monkeypatch, archived, "batch=000002")
    report = reconcile(archived.tables.spark, settings)
    assert archived.names == ["000000-000002"]
    assert (report.details["left_rows"], report.details.get("missing", 0)) == (30, 10 * differing)
    assert report.offsets == {"compacted": {"broker-a": {"0": [0, 15], "1": [0, 15]}}}


@pytest.mark.slow
def test_a_comparison_begins_again_where_batches_are_merged_before_it_looks_closely(
    archived: Archived, tmp_path: Path
) -> None:
    """By then it has made its tables, and their files are gone."""
    other = _without_the_last_batch(archived, tmp_path / "other")
    settings = ReconcileSettings(left=f"archive:{archived.path}", right=other, level="full")

    def merge(news: Mapping[str, Any]) -> None:
        if "blocks" in news:
            archived.compact()

    report = reconcile(archived.tables.spark, settings, Run(progress=merge))
    assert archived.names == ["000000-000002"]
    assert (report.details["left_rows"], report.details["missing"]) == (30, 10)


def test_the_last_messages_of_an_archive_are_found_beside_a_compaction(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at the manifests and one at the files that they name."""
    has_files, spark = Folder.has_files, archived.tables.spark

    def having(folder: Folder, *names: str) -> bool:
        monkeypatch.undo()
        archived.compact()
        return has_files(folder, *names)

    nameserver, to = archived.tables.cluster.nameserver, str(archived.path)
    settings = ArchiveSettings(nameserver=nameserver, topic="compacted", to=to)
    archiving = _ToParquet(spark, settings, Report("archive"), Run())
    monkeypatch.setattr(Folder, "has_files", having)
    found = {queue.id: last.offset for queue, last in archiving.last_messages().items()}
    assert archived.names == ["000000-000002"]
    assert found == {0: 14, 1: 14}


def test_what_fails_beside_no_compaction_is_told_and_not_done_again(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = archive_files.read_files, list[str]()

    def reading(spark: SparkSession, base: str, paths: Sequence[str]) -> DataFrame:
        frame = read(spark, base, paths)
        calls.append(paths[-1])
        for file in archived.path.glob("batch=000001/**/*.parquet"):
            file.unlink()
        return frame

    monkeypatch.setattr(archive_files, "read_files", reading)
    sides = ReconcileSettings(left=f"archive:{archived.path}", right=f"archive:{archived.path}")
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST.*batch=000001"):
        reconcile(archived.tables.spark, sides)
    assert len(calls) == 2


@pytest.mark.parametrize("merged_at", ["the first look", "the last look", "listing"])
def test_who_reads_an_archive_beside_a_compaction_sees_all_of_it(
    archived: Archived, merged_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_files, read, remove = Folder.has_files, archive_files.read_files, Folder.remove

    def having(folder: Folder, *names: str) -> bool:
        if names[-1] == ("batch=000000" if merged_at == "the first look" else "batch=000002"):
            monkeypatch.undo()
            archived.compact()
        return has_files(folder, *names)

    def removing(folder: Folder, *names: str) -> None:
        """Get half way: one folder has lost its files, and no folder is removed."""
        if names[-1] == "batch=000001":
            for file in archived.path.glob("batch=000001/**/*.parquet"):
                file.unlink()
        elif not names[-1].startswith("batch="):
            remove(folder, *names)

    def reading(spark: SparkSession, base: str, paths: Sequence[str]) -> DataFrame:
        monkeypatch.undo()
        with monkeypatch.context() as patched:
            patched.setattr(Folder, "remove", removing)
            archived.compact()
        return read(spark, base, paths)

    if merged_at == "listing":
        monkeypatch.setattr(archive_files, "read_files", reading)
    else:
        monkeypatch.setattr(Folder, "has_files", having)
    assert archived.bodies == numbers(0, 30)
    assert archived.names == ["000000-000002"]


def test_a_stream_begins_beside_a_compaction(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last manifest is removed after the stream has found it, before it reads it."""
    read = Manifest.read

    def reading(folder: Folder, name: BatchName) -> Manifest:
        monkeypatch.undo()
        archived.compact()
        return read(folder, name)

    monkeypatch.setattr(Manifest, "read", reading)
    archived.grow(0)
    assert archived.names[0] == "000000-000002"
    assert archived.bodies == numbers(0, 30)


def test_merging_that_came_to_no_end_is_cleared_away_by_the_next(archived: Archived) -> None:
    shutil.copytree(archived.path / "batch=000001", archived.path / "batch=000001-000002")
    archived.compact()
    assert archived.folders == ["batch=000000-000002"]


@pytest.mark.parametrize(
    ("name", "lost", "is_copied"),
    [
        ("000000-000001", [0, 1], False),
        ("000000-000002", [1], False),
        ("000001-000002", [1, 2], False),
        ("000002-000007", [2], False),
        ("000000-000002", [0, 1, 2], True),
    ],
)
def test_a_merged_batch_that_has_lost_its_manifest_stays(
    archived: Archived, name: str, lost: list[int], is_copied: bool
) -> None:
    """It used to be taken for a merge that came to no end, though nothing else has its messages.

    `is_copied`: manifests were copied first, and folders when they had been merged.
    """
    for number in lost:
        if not is_copied:
            (archived.path / f"_manifests/{number:06d}.json").unlink()
        there = archived.path / f"batch={number:06d}"
        shutil.copytree(there, there.with_name(f"batch={name}"), dirs_exist_ok=True)
        shutil.rmtree(there)
    archived.compact()
    vacuum = VacuumSettings(archive=str(archived.path), older_than_hours=0)
    assert archive_vacuum(archived.tables.spark, vacuum).details["removed"] == []
    assert len([*archived.path.glob(f"batch={name}/**/*.parquet")]) == len(lost)


def test_files_become_as_large_as_asked_for_however_well_bodies_compress(
    archived: Archived,
) -> None:
    """It used to go by the size of bodies, and made twenty files of two."""
    for path in archived.path.glob("_manifests/*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "bytes": 10 << 20}))
    report = archived.compact(file_size="1m")
    assert (report.details["files_after"], len(archived.files)) == (1, 1)


@pytest.mark.parametrize("parts", [["topic", "date"], []])
def test_merged_files_have_a_size_an_order_and_a_compression(
    archived: Archived, tmp_path: Path, parts: list[str]
) -> None:
    spark, parquet = archived.tables.spark, cast("Any", pq)
    settings = CompactSettings(archive=str(archived.path), file_size="1m", compression="gzip")
    compacting: Any = _Compacting(spark, settings)
    folder = Folder(spark, str(archived.path))
    there = batches(folder)
    manifest = reduce(Manifest.followed_by, [Manifest.read(folder, name) for name in there])
    of_four_rows = (1 << 20) * 30 // 4
    frame = read_batches(spark, folder, there[::-1])
    merged = tmp_path / "merged"
    compacting._write(frame, replace(manifest, parts=parts), of_four_rows, str(merged))
    files = sorted(merged.glob("topic=compacted/date=*/*.parquet" if parts else "*.parquet"))
    rows: list[list[dict[str, Any]]] = [
        parquet.read_table(path, partitioning=None).to_pylist() for path in files
    ]
    assert [len(each) for each in rows] == [4] * 7 + [2]
    places = [
        (each["from_batch"], each["queue_id"], each["queue_offset"])
        for some in rows
        for each in some
    ]
    assert places == sorted(places)
    assert parquet.read_metadata(files[0]).row_group(0).column(0).compression == "GZIP"


def test_what_a_kill_has_left_in_the_place_of_a_merged_batch_is_replaced(
    archived: Archived,
) -> None:
    """Where a batch without rows has no folder, that is not removed before."""
    none = archived.path / "_manifests" / "000001.json"
    said = {**json.loads(none.read_text()), "rows": 0, "bytes": 0, "checksum": "0"}
    none.write_text(json.dumps(said))
    shutil.rmtree(archived.path / "batch=000001")
    shutil.copytree(archived.path / "batch=000000", archived.path / "batch=000000-000002")
    before = archived.bodies
    archived.compact()
    assert (archived.names, archived.folders) == (["000000-000002"], ["batch=000000-000002"])
    assert archived.bodies == before
    assert (len(before), len(archived.files)) == (20, 1)


def test_a_compaction_leaves_batches_without_a_manifest(archived: Archived) -> None:
    """One has lost its manifest, which `replay` reports; an `archive` is just writing the other."""
    (archived.path / "_manifests" / "000001.json").unlink()
    shutil.copytree(archived.path / "batch=000002", archived.path / "batch=000003")
    before = archived.folders
    assert archived.compact().details["batches_merged"] == 0
    assert (archived.names, archived.folders) == (["000000", "000002"], before)


@pytest.mark.slow
def test_batches_with_other_columns_stay_apart_and_empty_ones_between_do_not(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "apart", tmp_path)
    archived.grow(4)
    archived.grow(4, body="text")
    archived.grow(4, body="text", filter="NOSUCH")
    archived.grow(4, body="text")
    assert archived.bodies == numbers(0, 8) + numbers(12, 16)
    archived.compact()
    assert archived.names == ["000000", "000001-000003"]
    assert archived.bodies == numbers(0, 8) + numbers(12, 16)
    tables.cluster.admin.create_topic("again-apart", queues=2)
    settings = ReplaySettings(
        from_dir=str(tmp_path), nameserver=tables.cluster.nameserver, to_topic="again-apart"
    )
    assert replay(tables.spark, settings, Run(dry_run=True)).details["would_send"] == 12


@pytest.mark.slow
def test_the_folders_of_a_compacted_archive_have_the_names_that_they_had(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "by-the-hour", tmp_path)

    def folders() -> set[str]:
        found = (each.parent.relative_to(tmp_path).as_posix() for each in archived.files)
        return {each.partition("/")[2] for each in found}

    archived.grow(4, partition_by="topic,date,hour")
    archived.grow(4, partition_by="topic,date,hour")
    for hour in tmp_path.glob("batch=*/topic=*/date=*/hour=*"):
        hour.rename(hour.with_name("hour=05"))  # Whatever the hour of the test is.
    before = folders()
    archived.compact()
    assert (archived.names, folders()) == (["000000-000001"], before)


@pytest.mark.slow
def test_an_archive_in_which_nothing_passed_can_be_gone_on_with_and_replayed(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "sparse", tmp_path)
    archived.grow(4, filter="NOSUCH")
    with pytest.raises(OptionError, match="is empty"):
        read_archive(tables.spark, str(tmp_path))
    archived.grow(4)
    settings = ReplaySettings(
        from_dir=str(tmp_path), nameserver=tables.cluster.nameserver, to_topic="again-sparse"
    )
    assert replay(tables.spark, settings, Run(dry_run=True)).details["would_send"] == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"partition_by": ""}, "partition-by: .* was begun with \\['topic', 'date'\\]"),
        ({"schema": "id BIGINT"}, "schema: .* was begun with 'none'"),
    ],
)
def test_other_folders_or_columns_than_an_archive_has_are_refused(
    archived: Archived, more: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        archived.grow(0, **more)


@pytest.mark.slow
def test_a_topic_of_digits_and_a_folder_like_a_pattern_keep_their_names(
    tables: Tables, three_batches: Path, tmp_path: Path
) -> None:
    shutil.copytree(three_batches, tmp_path / "archive1")  # What the pattern would match.
    archived = Archived(tables, "007", tmp_path / "archive[1]")
    archived.grow(4)
    archived.grow(4)
    archived.compact()
    found = read_archive(tables.spark, str(archived.path))
    rows = found.select("topic", "batch").distinct().collect()
    assert sorted((row["topic"], row["batch"]) for row in rows) == [("007", 0), ("007", 1)]


def test_a_dry_compaction_says_what_it_would_do(archived: Archived) -> None:
    settings = CompactSettings(archive=str(archived.path))
    news: list[Mapping[str, Any]] = []
    run = Run(dry_run=True, progress=news.append)
    report = archive_compact(archived.tables.spark, settings, run)
    assert (report.details["batches_merged"], report.details["files_after"]) == (3, 1)
    assert news == [{"batches": "0 to 2", "rows": 30, "files": f"{len(archived.files)} to 1"}]
    assert archived.names == ["000000", "000001", "000002"]
    said = report.document()
    assert (said["job"], said["bytes"]) == ("archive-compact", sum(map(len, numbers(0, 30))))


def test_a_compaction_that_shall_stop_looks_at_no_more_batches(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to look at the whole archive first: minutes, if there are thousands of batches."""
    read, run, looked = Manifest.read, Run(), list[BatchName]()

    def reading(folder: Folder, name: BatchName) -> Manifest:
        looked.append(name)
        if len(looked) == 2:
            run.stop()
        return read(folder, name)

    monkeypatch.setattr(Manifest, "read", reading)
    settings = CompactSettings(archive=str(archived.path))
    assert archive_compact(archived.tables.spark, settings, run).stopped
    assert archived.names == ["000000", "000001", "000002"]
    assert len(looked) == 2
    assert archive_compact(archived.tables.spark, settings, run).stopped
    assert len(looked) == 2


def test_a_file_that_is_replaced_has_no_checksum_of_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop keeps the checksum in a separate file, which a kill leaves as it was."""
    folder = Folder(spark, str(tmp_path))
    (tmp_path / "notes.json").write_text("old")
    (tmp_path / ".notes.json.crc").write_bytes(b"crc\0\0\0\x02\0\1\2\3\4")
    with pytest.raises(Exception, match="Checksum error"):
        folder.read("notes.json")
    folder.write("new", "notes.json")
    assert folder.read("notes.json") == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["notes.json"]


def test_what_a_batch_beside_has_given_its_place_was_changed_never(
    spark: SparkSession, tmp_path: Path
) -> None:
    """`archive-vacuum` used to fail if a staged batch that it had listed was renamed meanwhile."""
    folder = Folder(spark, str(tmp_path))
    assert folder.modified_ms("_staging", "batch=000005") is None
    assert folder.modified_ms() == tmp_path.stat().st_mtime_ns // 1_000_000


def test_no_archive_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not an archive"):
        archive_compact(spark, CompactSettings(archive=str(tmp_path)))
    with pytest.raises(OptionError, match="is not an archive"):
        archive_vacuum(spark, VacuumSettings(archive=str(tmp_path)))
    with pytest.raises(OptionError, match="file-size"):
        CompactSettings(archive=str(tmp_path), file_size="12 apples")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"file_size": "1023k"}, "^file-size: must be at least 1m"),
        ({"file_size": "2m", "batch_size": "1m"}, "^file-size: .* at most --batch-size"),
    ],
)
def test_sizes_that_cannot_be_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        CompactSettings(archive="/data/orders", **given)
    CompactSettings(archive="/data/orders", file_size="1m", batch_size="1m")


def test_vacuum_removes_what_no_manifest_speaks_of_once_it_is_old(
    archived: Archived,
) -> None:
    tables, tmp_path = archived.tables, archived.path
    left = ["_staging/000001", "batch=000001-000002", "batch=000007"]
    for name in (*left, "_compacting/000000-000001", "batch=kept"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part.parquet").write_bytes(b"1234")
    (tmp_path / "_manifests" / "000000-000003.json.new").touch()

    def of_age(minutes: int) -> None:
        made = time.time() - 60 * minutes
        for name in ("batch=000000", *left, "batch=kept"):
            os.utime(tmp_path / name, (made, made))

    settings = VacuumSettings(archive=str(tmp_path))
    of_age(24 * 60 - 10)
    assert archive_vacuum(tables.spark, settings).details["removed"] == []
    of_age(24 * 60 + 10)
    dry = archive_vacuum(tables.spark, settings, Run(dry_run=True))
    assert dry.details["removed"] == left
    assert (tmp_path / "batch=000007").exists()
    report = archive_vacuum(tables.spark, settings)
    assert (report.details["removed"], report.details["removed_bytes"]) == (left, 12)
    assert archived.folders == [*(f"batch=00000{number}" for number in range(3)), "batch=kept"]
    assert (tmp_path / "_compacting" / "000000-000001").exists()
    assert archived.bodies == numbers(0, 30)


@pytest.mark.parametrize(("lost", "named"), [((0, 1), "000000-000001"), ((1,), "000001")])
def test_vacuum_leaves_batches_that_have_lost_their_manifests(
    archived: Archived, lost: tuple[int, ...], named: str
) -> None:
    """A crash leaves batches without a manifest only after the last batch."""
    news: list[Mapping[str, Any]] = []
    for number in lost:
        (archived.path / "_manifests" / f"00000{number}.json").unlink()
        os.utime(archived.path / f"batch=00000{number}", (1_000_000, 1_000_000))
    settings = VacuumSettings(archive=str(archived.path))
    report = archive_vacuum(archived.tables.spark, settings, Run(progress=news.append))
    assert report.details["removed"] == []
    assert archived.folders == [f"batch=00000{number}" for number in range(3)]
    assert f"has no manifest of batches {named}; their files stay" in str(news)


def test_vacuum_leaves_a_batch_that_was_written_again_while_it_removed_others(
    archived: Archived,
) -> None:
    """`archive` continued after a crash of days ago, and replaced what the crash had left."""
    path = archived.path
    for name in ("batch=000007", "batch=000008", "batch=000009", "batch=000010"):
        (path / name).mkdir()
        os.utime(path / name, (1_000_000, 1_000_000))

    def write_again(news: Mapping[str, Any]) -> None:
        if news.get("removed") == "batch=000007":
            os.utime(path / "batch=000008")
            shutil.copy(path / "_manifests" / "000000.json", path / "_manifests" / "000009.json")
            (path / "batch=000010").rmdir()

    run = Run(progress=write_again)
    report = archive_vacuum(archived.tables.spark, VacuumSettings(archive=str(path)), run)
    assert report.details["removed"] == ["batch=000007"]
    assert (path / "batch=000008").is_dir()
    assert (path / "batch=000009").is_dir()


def test_vacuum_leaves_the_batch_that_an_archive_beside_it_writes_however_young(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its new name and its manifest it looks like what a crash left."""
    archived = Archived(tables, "vacuumed-beside", tmp_path)
    archived.grow(4)
    for name, age_seconds in (("batch=000007", 3_600), ("batch=000008", 25 * 3_600)):
        (tmp_path / name).mkdir()
        made = time.time() - age_seconds
        os.utime(tmp_path / name, (made, made))
    removed: list[list[str]] = []
    rename = Folder.rename

    def vacuumed(run: Run | None = None, hours: int = 0) -> None:
        settings = VacuumSettings(archive=str(tmp_path), older_than_hours=hours)
        removed.append(archive_vacuum(tables.spark, settings, run).details["removed"])

    def renaming(folder: Folder, old: str, new: str) -> None:
        vacuumed(hours=26)
        vacuumed(Run(dry_run=True))
        vacuumed()
        rename(folder, old, new)
        vacuumed()

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "rename", renaming)
        archived.grow(4)
    assert removed == [[], ["batch=000008"], ["batch=000008"], []]
    assert archived.bodies == numbers(0, 8)
    vacuumed()
    assert removed[-1] == ["batch=000007"]
    assert archived.bodies == numbers(0, 8)


def test_no_archive_begins_while_vacuum_removes_something(archived: Archived) -> None:
    (archived.path / "batch=000007").mkdir()
    refused: list[str] = []

    def begin(news: Mapping[str, Any]) -> None:
        folder = Folder(archived.tables.spark, str(archived.path))
        with (
            pytest.raises(HeldError) as raised,
            held(Run(), "archive", (folder, BATCHES)),
        ):
            pytest.fail(f"it has begun beside {news}")
        refused.append(str(raised.value))

    settings = VacuumSettings(archive=str(archived.path), older_than_hours=0)
    archive_vacuum(archived.tables.spark, settings, Run(progress=begin))
    assert len(refused) == 1
    assert "archive-vacuum (process" in refused[0]


def test_a_vacuum_that_is_stopped_leaves_the_rest_to_the_next(archived: Archived) -> None:
    for name in ("batch=000007", "batch=000008", "_staging/000001"):
        (archived.path / name).mkdir(parents=True)
        os.utime(archived.path / name, (1_000_000, 1_000_000))

    def stop_at_the_first(each: Mapping[str, Any]) -> None:
        if "removed" in each:
            run.stop()

    run = Run(progress=stop_at_the_first)
    settings = VacuumSettings(archive=str(archived.path))
    report = archive_vacuum(archived.tables.spark, settings, run)
    assert (report.stopped, report.details["removed"]) == (True, ["_staging/000001"])
    report = archive_vacuum(archived.tables.spark, settings)
    assert (report.stopped, len(report.details["removed"])) == (False, 2)


@pytest.mark.parametrize(
    "dies", [pytest.param("behind it", marks=pytest.mark.slow), "in its middle"]
)
def test_a_vacuum_that_is_killed_at_any_removal_leaves_the_rest_to_the_next_and_takes_no_batch(
    archived: Archived, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    with monkeypatch.context() as patched:
        _dying(patched, "manifest")  # All of what was merged is still there.
        with pytest.raises(KeyboardInterrupt):
            archived.compact()
    for name in ("batch=000007", "_staging/000003", "_compacting/000000-000001"):
        (archived.path / name / "topic=T").mkdir(parents=True)
        for part in ("one", "two"):
            (archived.path / name / "topic=T" / f"{part}.parquet").write_bytes(b"1234")
    settings = VacuumSettings(archive=str(archived.path), older_than_hours=0)
    spark = archived.tables.spark
    strays = archive_vacuum(spark, settings, Run(dry_run=True)).details["removed"]
    assert len(strays) == 9
    kept = archived.path.with_name("kept")
    archived.path.rename(kept)
    for number, stray in enumerate(strays):
        shutil.copytree(kept, archived.path)
        with monkeypatch.context() as patched:
            _killed_at(patched, stray, in_its_middle=dies == "in its middle")
            with pytest.raises(KeyboardInterrupt):
                archive_vacuum(spark, settings)
        _require_all(archived)
        left = strays[number + 1 :]
        if (archived.path / stray).exists():
            left = [stray, *left]
        assert archive_vacuum(spark, settings).details["removed"] == left
        _require_all(archived)
        assert archived.folders == ["batch=000000-000002"]
        assert archive_vacuum(spark, settings).details["removed"] == []
        if stray != strays[-1]:
            shutil.rmtree(archived.path)
    assert archived.bodies == numbers(0, 30)


def _killed_at(patched: pytest.MonkeyPatch, stray: str, *, in_its_middle: bool) -> None:
    """Let the job die after it has removed `stray`, or when half of that is gone."""
    remove = Folder.remove

    def removing(folder: Folder, *names: str) -> None:
        path = Path(folder.of(*names))
        if list(names) != [stray]:
            remove(folder, *names)
            return
        if not in_its_middle:
            remove(folder, *names)
        elif path.is_dir():
            next(path.rglob("*.parquet")).unlink()
        raise KeyboardInterrupt

    patched.setattr(Folder, "remove", removing)


def _require_all(archived: Archived) -> None:
    """Check that the manifest of the merged batch and all of its files are there."""
    assert archived.names == ["000000-000002"]
    files = [each.name for each in archived.path.glob("batch=000000-000002/**/*.parquet")]
    kept = archived.path.with_name("kept").glob("batch=000000-000002/**/*.parquet")
    assert files == [each.name for each in kept] != []


@pytest.mark.slow
def test_a_replay_goes_on_behind_batches_that_were_merged_since(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "replayed-merged", tmp_path)
    archived.grow(6)
    archived.grow(6)
    tables.cluster.admin.create_topic("again-merged", queues=2)
    settings = ReplaySettings(
        from_dir=str(tmp_path), nameserver=tables.cluster.nameserver, to_topic="again-merged"
    )
    assert replay(tables.spark, settings).rows == 12
    archived.compact()
    assert replay(tables.spark, settings).rows == 0
    archived.grow(3)
    archived.compact(file_size="1m")
    archived.grow(3)
    replay(tables.spark, settings)
    assert tables.bodies("again-merged") == numbers(0, 18)


@pytest.mark.slow
def test_another_checkpoint_that_adopts_an_archive_numbers_its_batches_behind(
    tables: Tables, tmp_path: Path
) -> None:
    archived = Archived(tables, "adopted", tmp_path / "archive")
    archived.grow(4)
    archived.grow(4)
    other = {"checkpoint": str(tmp_path / "other")}
    with pytest.raises(OptionError, match="begun with another checkpoint"):
        archived.grow(4, **other)
    archived.grow(4, **other, adopt=True)
    archived.grow(4, **other)
    assert archived.names == ["000000", "000001", "000002", "000003"]
    assert archived.bodies == numbers(0, 20)


@pytest.mark.slow
def test_checkpoints_that_take_turns_in_an_archive_put_no_message_there_twice(
    tables: Tables, tmp_path: Path
) -> None:
    """Each manifest covers only its own stream's topics; a merged one covers all streams'."""
    path = tmp_path / "archive"
    first, second = (Archived(tables, f"in-turns-{name}", path) for name in "ab")
    shape = {"partition_by": "", "max_rows": 4}
    at, at_second = ({"checkpoint": str(tmp_path / name), **shape} for name in "ab")

    def forget(note: str) -> None:
        """Make it look as if the stream died right after it wrote a manifest."""
        for name in (note, f".{note}.crc"):
            tmp_path.joinpath("a" if note == "1" else "b", "commits", name).unlink()

    first.grow(8, **at)
    forget("1")
    second.grow(4, **at_second, adopt=True)
    with pytest.raises(
        OptionError, match=r"in-turns-a/broker-a/0 up to 4, but .* is at 2: messages"
    ):
        first.grow(2, **at, adopt=True)
    second.compact(file_size="1m")
    assert second.names == ["000000-000002"]
    forget("0")
    second.grow(1, **at_second)
    assert first.grow(0, checkpoint=str(tmp_path / "new"), **shape, adopt=True).rows == 2
    found = read_archive(tables.spark, str(path)).groupBy("topic", "body").count().collect()
    assert {row["count"] for row in found} == {1}
    assert sorted(row["topic"] for row in found) == ["in-turns-a"] * 10 + ["in-turns-b"] * 5


def test_small_files_of_a_short_trigger_are_warned_of_and_counted(
    tables: Tables, tmp_path: Path
) -> None:
    news: list[Mapping[str, Any]] = []
    tables.fill("small-files", 6)

    def stop_when_warned(each: Mapping[str, Any]) -> None:
        news.append(each)
        if "batch" in each:
            run.stop()

    run = Run(progress=stop_when_warned)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver,
        topic="small-files",
        to=str(tmp_path),
        trigger="1s",
    )
    report = archive(tables.spark, settings, run)
    assert any("archive-compact" in str(each.get("warning")) for each in news)
    assert report.details["files"] == len(list(tmp_path.glob("batch=*/**/*.parquet")))
    assert report.details["file_bytes"] > 0


def test_a_stream_near_what_expires_next_is_warned_of(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker deletes only from a log of many segments, so the cluster's answer is replaced."""
    tables.fill("near-expiry", 4)
    settings = StreamSettings(
        nameserver=tables.cluster.nameserver, topic="near-expiry", checkpoint="unused"
    )
    cluster, there = there_now(settings)
    assert {str(queue): tuple(each) for queue, each in there.queues.items()} == {
        "near-expiry/broker-a/0": (0, 2),
        "near-expiry/broker-a/1": (0, 2),
    }
    news: list[Mapping[str, Any]] = []
    report = Report("archive")
    now = 0.0
    guard = ExpiryGuard(settings, 10, Run(progress=news.append), report, clock=lambda: now)
    guard.look({"near-expiry": {"broker-a": {"0": 0, "1": 0}}})
    assert (news, report.details) == ([], {})  # Nothing has been deleted yet.

    zero, one = there.queues
    deleted = Survey({zero: Bounds(1000, 2000), one: Bounds(1000, 2000)})

    def says(_settings: StreamSettings) -> tuple[object, Survey]:
        return cluster, deleted

    monkeypatch.setattr(expiry_guard, "there_now", says)
    guard.look({"near-expiry": {"broker-a": {"0": 1050, "1": 2000}}})
    assert news == []  # Not so soon again.
    now = 60.0
    guard.look({"near-expiry": {"broker-a": {"0": 1100, "1": 2000}}})
    assert news == []
    assert report.details["nearest_to_expiry"] == {"queue": str(zero), "percent": 10.0}
    now = 120.0
    guard.look({"near-expiry": {"broker-a": {"0": 1050, "1": 2000}}})
    assert len(news) == 1
    assert "5.0 % from the oldest one" in news[0]["warning"]
