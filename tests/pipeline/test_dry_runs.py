"""A dry run of a job says what would be done, and changes nothing: no topic, file or folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.store.logs import change, write_log

from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.audit import AuditSettings, audit
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.latency import LatencySettings, latency
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.tables import Tables

    from cometmq.pipeline.jobs.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def what_there_is(tables: Tables, folder: Path) -> tuple[object, object]:
    """Return what files and folders hold and when they changed, and where queues end."""
    files = {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
    client = tables.cluster.client
    names = {each.name for each in tables.cluster.admin.topics()}
    ends = {queue: client.end_offset(queue) for name in names for queue in client.queues(name)}
    return files, ends


def dry(
    tables: Tables, folder: Path, job: Callable[..., Report], settings: object
) -> dict[str, Any]:
    """Run a job dry, check that nothing has changed, and return its report."""
    before = what_there_is(tables, folder)
    report = job(tables.spark, settings, Run(dry_run=True))
    assert what_there_is(tables, folder) == before
    assert report.outcome is Outcome.DONE
    return report.document()


def archived(tables: Tables, topic: str, to: Path) -> ArchiveSettings:
    """Archive a topic of ten messages in two batches."""
    tables.fill(topic, 10)
    settings = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic=topic, to=str(to), max_rows=5
    )
    archive(tables.spark, settings)
    return settings


def test_windows_are_neither_sent_nor_written_nor_is_their_plan(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("dry-windows", 5)
    given: dict[str, Any] = {
        "nameserver": tables.cluster.nameserver,
        "topic": "dry-windows",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    places: list[dict[str, Any]] = [
        {"to_topic": "dry-sums", "mode": "update"},
        {"to": str(tmp_path / "sums")},
    ]
    for more in places:
        said = dry(tables, tmp_path, aggregate, AggregateSettings(**given, **more))
        assert said["would_read"] == 5


def test_what_a_power_cut_has_left_of_an_archive_stays(tables: Tables, tmp_path: Path) -> None:
    settings = archived(tables, "dry-torn", tmp_path / "archive")
    (tmp_path / "archive/_checkpoint/commits/1").write_bytes(b"")
    assert dry(tables, tmp_path, archive, settings)["would_read"] == 5


def test_what_is_left_of_an_earlier_compaction_stays(tables: Tables, tmp_path: Path) -> None:
    archived(tables, "dry-small", tmp_path / "archive")
    (tmp_path / "archive/batch=000000-000001").mkdir()
    settings = CompactSettings(archive=str(tmp_path / "archive"))
    assert dry(tables, tmp_path, archive_compact, settings)["batches_merged"] == 2


@pytest.mark.slow
def test_notes_of_an_earlier_version_stay_as_they_are(tables: Tables, tmp_path: Path) -> None:
    archived(tables, "dry-noted", tmp_path / "archive")
    settings = ReplaySettings(
        nameserver=tables.cluster.nameserver,
        from_dir=str(tmp_path / "archive"),
        to_topic="dry-noted-again",
    )
    assert replay(tables.spark, settings).rows == 10
    (notes,) = (tmp_path / "archive/_replays").rglob("*.json")
    said = json.loads(notes.read_text())
    del said["firsts"]
    notes.write_text(json.dumps(said))
    assert dry(tables, tmp_path, replay, settings)["would_send"] == 0


def test_a_damaged_store_is_not_judged(tables: Tables, tmp_path: Path) -> None:
    places = write_log(tmp_path / "store", [b"a", b"b", b"c"])
    change(tmp_path / "store", places[1] + 4, b"\xff")
    settings = AuditSettings(
        store=str(tmp_path / "store"), check="log", findings=str(tmp_path / "findings")
    )
    said = dry(tables, tmp_path, audit, settings)
    assert (said["would_read"] > 0, "findings" in said) == (True, False)


def test_places_that_differ_are_not_compared(tables: Tables, tmp_path: Path) -> None:
    archived(tables, "dry-compared", tmp_path / "archive")
    tables.fill("dry-compared", 1, first=10)
    settings = ReconcileSettings(
        left=f"topic:dry-compared@{tables.cluster.nameserver}",
        right=f"archive:{tmp_path / 'archive'}",
        findings=str(tmp_path / "findings"),
    )
    said = dry(tables, tmp_path, reconcile, settings)
    assert (said["left_rows"], said["right_rows"], "blocks" in said) == (11, 10, False)


def test_times_are_not_measured(tables: Tables, tmp_path: Path) -> None:
    tables.fill("dry-timed", 3)
    settings = LatencySettings(
        nameserver=tables.cluster.nameserver,
        topic="dry-timed",
        tables=str(tmp_path / "tables"),
        html=str(tmp_path / "page.html"),
    )
    assert dry(tables, tmp_path, latency, settings)["rows"] == 3
