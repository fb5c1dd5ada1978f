"""Archives and notes are on the disk before anything relies on them, or is removed for them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.tables import Tables

from cometmq.pipeline.jobs import durable
from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import MANIFESTS
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


class Disk:
    """What a power cut now would leave: files and folders as they were last synced."""

    def __init__(self) -> None:
        self._synced: dict[int, Any] = {}

    def fsync(self, descriptor: int) -> None:
        """Note the present state of a file or the names in a folder."""
        found = os.fstat(descriptor)
        is_folder = stat.S_ISDIR(found.st_mode)
        self._synced[found.st_ino] = (
            set(os.listdir(descriptor)) if is_folder else (found.st_size, found.st_mtime_ns)
        )

    def lacks(self, root: Path, *places: Path) -> list[str]:
        """Return what a power cut would change, lose or cut off of these files and folders."""
        every = [each for place in places for each in (place, *_below(place))]
        every += [each for place in places for each in place.parents if root in each.parents]
        return sorted({str(each.relative_to(root)) for each in every if not self._has(each)})

    def _has(self, path: Path) -> bool:
        if path.name not in self._synced.get(path.parent.stat().st_ino, ()):
            return False
        found = path.stat()
        if path.is_dir():
            return found.st_ino in self._synced
        return bool(self._synced.get(found.st_ino) == (found.st_size, found.st_mtime_ns))


def _below(place: Path) -> Iterator[Path]:
    return place.rglob("*") if place.is_dir() else iter(())


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(durable, "fsync", disk.fsync)
    return disk


def test_a_batch_and_where_it_ends_are_on_the_disk_before_its_manifest_and_that_before_the_next(
    spark: SparkSession,
    rocketmq_session: Cluster,
    tmp_path: Path,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables, root = Tables(spark, rocketmq_session), tmp_path / "new" / "archive"
    tables.fill("on-the-disk", 4)
    lacking: list[list[str]] = []
    write, remove = Folder.write, Folder.remove

    def writing(folder: Folder, text: str, *names: str) -> None:
        if names[0] == MANIFESTS:
            number = names[1].removesuffix(".json")
            offsets = [] if "-" in number else [root / "_checkpoint/offsets" / str(int(number))]
            lacking.append(disk.lacks(tmp_path / "new", root / f"batch={number}", *offsets))
        write(folder, text, *names)
        lacking.append(disk.lacks(tmp_path / "new", Path(folder.path, *names)))

    def removing(folder: Folder, *names: str) -> None:
        if names[0] == "batch=000000" and (merged := root / "batch=000000-000001").exists():
            manifest = root / MANIFESTS / "000000-000001.json"
            lacking.append(disk.lacks(tmp_path / "new", merged, manifest))
        remove(folder, *names)

    monkeypatch.setattr(Folder, "write", writing)
    monkeypatch.setattr(Folder, "remove", removing)
    nameserver = rocketmq_session.nameserver
    archive(
        spark,
        ArchiveSettings(nameserver=nameserver, topic="on-the-disk", to=str(root), max_rows=2),
    )
    assert archive_compact(spark, CompactSettings(archive=str(root))).details["batches_merged"] == 2
    # The note of the checkpoint; both batches before and after their manifests are written; the
    # merged batch before and after its own; and that batch before the first one is removed.
    assert lacking == [[]] * 8


def test_which_stream_a_mirror_is_and_how_far_it_came_outlasts_a_power_cut(
    spark: SparkSession, rocketmq_session: Cluster, tmp_path: Path, disk: Disk
) -> None:
    """As another stream it would send everything again, and the other cluster have it twice."""
    Tables(spark, rocketmq_session).fill("mirrored-on-the-disk", 1)
    nameserver, checkpoint = rocketmq_session.nameserver, tmp_path / "new" / "checkpoint"
    settings = MirrorSettings(
        nameserver=nameserver,
        topic="mirrored-on-the-disk",
        to_nameserver=nameserver,
        prefix="copy-",
        checkpoint=str(checkpoint),
    )
    assert mirror(spark, settings).rows == 1
    kept = [checkpoint / name for name in ("metadata", "offsets/0", "commits/0")]
    assert disk.lacks(tmp_path / "new", *kept) == []


def test_what_windows_have_reckoned_is_on_the_disk_before_their_batch_is_done(
    spark: SparkSession,
    rocketmq_session: Cluster,
    tmp_path: Path,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark writes a version of the state for each batch, and can continue from no other."""
    Tables(spark, rocketmq_session).fill("reckoned", 4)
    checkpoint = tmp_path / "new" / "checkpoint"
    settings = AggregateSettings(
        nameserver=rocketmq_session.nameserver,
        topic="reckoned",
        to_topic="reckoned-sums",
        mode="update",
        checkpoint=str(checkpoint),
        max_rows=2,
    )
    early: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        disk.fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".zip":
            batch = int(path.stem) - 1
            early.append((path.stem, not (checkpoint / "commits" / str(batch)).exists()))

    monkeypatch.setattr(durable, "fsync", fsync)
    batches = aggregate(spark, settings).batches
    assert len(batches) > 1  # How many depends on the queues that got the messages.
    # Each version has one file for each partition of the session.
    assert list(dict.fromkeys(early)) == [(str(batch + 1), True) for batch in batches]
    assert disk.lacks(tmp_path / "new", checkpoint / "state") == []


def test_of_a_folder_that_grows_each_file_is_synced_once_and_again_when_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if tmp_path in path.parents:
            synced.append(str(path.relative_to(tmp_path)))

    def news() -> list[str]:
        synced.clear()
        growing.sync()
        return synced

    monkeypatch.setattr(durable, "fsync", fsync)
    growing = durable.Growing(tmp_path / "state")
    assert news() == []
    (tmp_path / "state" / "0").mkdir(parents=True)
    (tmp_path / "state" / "0" / "1.zip").write_text("1")
    assert news() == ["state/0/1.zip", "state/0", "state"]
    assert news() == []
    (tmp_path / "state" / "0" / "2.zip").write_text("2")
    assert news() == ["state/0/2.zip", "state/0"]
    (tmp_path / "another").write_text("3")
    (tmp_path / "another").rename(tmp_path / "state" / "0" / "2.zip")
    assert news() == ["state/0/2.zip", "state/0"]
    (tmp_path / "state" / "1").mkdir()
    assert news() == ["state/1", "state"]


@pytest.mark.parametrize("before", [None, "old"])
def test_a_file_has_its_name_when_all_of_it_is_on_the_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    path, there = tmp_path / "new" / "report.json", list[str | None]()
    path.parent.mkdir()
    if before is not None:
        path.write_text(before)

    def fsync(descriptor: int) -> None:
        disk.fsync(descriptor)
        there.append(path.read_text() if path.exists() else None)

    monkeypatch.setattr(durable, "fsync", fsync)
    durable.write_whole(path, "text")
    assert (there[0], path.read_text()) == (before, "text")
    assert disk.lacks(tmp_path, path) == []


def test_folders_that_cannot_be_synced_or_read_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused: list[int] = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(durable, "fsync", fsync)
    durable.sync(tmp_path)
    durable.sync_name(tmp_path / "file")
    assert len(refused) > 2

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(durable, "fsync", failing)
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(OSError, match="Input/output"):
            durable.sync(path)
    with pytest.raises(OSError, match="Input/output"):
        durable.sync_name(tmp_path / "file")
