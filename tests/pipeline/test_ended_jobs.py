"""Jobs that are ended at any step, with or without a power cut, and then start again.

`SIMULATED_SEEDS=100..200 pytest tests/pipeline/test_ended_jobs.py` tries these seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.client.simulated_run import seeds_of
from tests.pipeline.ended import Lives

from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.archive_vacuum import VacuumSettings, archive_vacuum
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.pipeline.tables import Tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

_NUMBER: Final = "cast(cast(body AS string) AS bigint)"
_WINDOW: Final = 3
"""How many messages a window has."""


class Jobs:
    """Jobs in one folder, which read one topic."""

    def __init__(self, name: str, lives: Lives, tables: Tables) -> None:
        self.lives = lives
        self.tables = tables
        self.random = lives.random
        self.topic = f"{name}-{lives.told[0].replace(' ', '-')}"
        self.sent = 0

    def sending(self, *works: Callable[[], object]) -> tuple[Callable[[], object], ...]:
        """Have each of these jobs begin when there is something new."""

        def work(job: Callable[[], object]) -> Callable[[], object]:
            def does() -> None:
                self.send()
                job()

            does.__name__ = job.__name__
            return does

        return tuple(map(work, works))

    def send(self) -> None:
        """Send some messages more, whose bodies are their numbers."""
        count = self.random.randrange(1, 12)
        self.tables.fill(self.topic, count, queues=1, first=self.sent)
        self.sent += count

    def given(self, *, to_topic: bool = False) -> dict[str, Any]:
        """Return what all settings have in common."""
        where: dict[str, Any] = {"nameserver": self.tables.cluster.nameserver}
        return where if to_topic else {**where, "topic": self.topic, "max_rows": self.some()}

    def some(self) -> int:
        """Return how many rows go together."""
        return self.random.randrange(2, 12)

    def numbers(self) -> list[str]:
        """Return the bodies that were sent."""
        return [str(each) for each in range(self.sent)]


class Archived(Jobs):
    """An archive, its upkeep, and what is made of it."""

    def __init__(self, kind: str, lives: Lives, tables: Tables) -> None:
        super().__init__(f"ended-{kind}", lives, tables)
        self.kind = kind
        self.to = lives.path / "archive"
        self.again = f"{self.topic}-again"
        tables.cluster.admin.create_topic(self.again, queues=2)

    def archive(self) -> None:
        """Archive what there is."""
        settings = ArchiveSettings(**self.given(), to=str(self.to), format=self.kind)
        archive(self.tables.spark, settings, self.lives.run())

    def compact(self) -> None:
        """Merge batches."""
        if self._has_batches():
            settings = CompactSettings(archive=str(self.to))
            archive_compact(self.tables.spark, settings, self.lives.run())

    def vacuum(self) -> None:
        """Remove what is in no batch."""
        if self._has_batches():
            settings = VacuumSettings(archive=str(self.to), older_than_hours=0)
            archive_vacuum(self.tables.spark, settings, self.lives.run())

    def replay(self) -> None:
        """Send it to another topic."""
        if self._has_batches():
            settings = ReplaySettings(
                **self.given(to_topic=True),
                from_dir=str(self.to),
                to_topic=self.again,
                rate=self.random.choice((0, 1000)),
            )
            replay(self.tables.spark, settings, self.lives.run())

    def reconcile(self) -> None:
        """Compare it with the topic."""
        if self._has_batches():
            settings = ReconcileSettings(
                left=f"topic:{self.topic}@{self.tables.cluster.nameserver}",
                right=f"archive:{self.to}",
                findings=str(self.lives.path / "findings"),
            )
            self.found = reconcile(self.tables.spark, settings, self.lives.run())

    def check(self) -> None:
        """Check that each message is there once, by the manifests and without them."""
        self.archive()
        assert self._bodies(read_archive(self.tables.spark, str(self.to))) == self.numbers()
        self.replay()
        assert self.tables.bodies(self.again) == self.numbers()
        self.reconcile()
        assert self.found.details["differing"] == 0, self.found
        assert not [*(self.lives.path / "findings").glob("*.parquet")]
        if self.kind == "parquet":
            self.compact()
            self.vacuum()
            files = [str(each) for each in self.to.glob("batch=*")]
            assert self._bodies(self.tables.spark.read.parquet(*files)) == self.numbers()

    def _has_batches(self) -> bool:
        kinds = {"parquet": "_manifests/*.json", "delta": "_delta_log/*1.json"}
        return any(self.to.glob(kinds.get(self.kind, "metadata/*.avro")))

    def _bodies(self, frame: Any) -> list[str]:
        rows = frame.selectExpr("cast(body AS string) AS body").collect()
        return sorted((row["body"] for row in rows), key=int)


class Counted(Jobs):
    """Windows of three messages each."""

    def __init__(self, lives: Lives, tables: Tables) -> None:
        super().__init__("ended-windows", lives, tables)
        self.to = lives.path / "windows"

    def aggregate(self) -> None:
        """Count what there is."""
        settings = AggregateSettings(
            **self.given(),
            to=str(self.to),
            checkpoint=str(self.lives.path / "checkpoint"),
            time=f"timestamp_seconds({_NUMBER})",
            window=f"{_WINDOW} seconds",
            watermark="1 second",
            aggregations=f"count, sum({_NUMBER})",
        )
        aggregate(self.tables.spark, settings, self.lives.run())

    def check(self) -> None:
        """Check that each window that ended is there once, with all that is in it."""
        before = self.sent
        for _ in range(2):  # The last batch ends the windows of those before it.
            self.send()
            self.aggregate()
        rows = self.tables.spark.read.parquet(str(self.to)).orderBy("from").collect()
        at = [int(row["from"].timestamp()) for row in rows]
        assert at == list(range(0, len(rows) * _WINDOW, _WINDOW))
        assert len(rows) >= (before - 1) // _WINDOW
        sums = {
            tuple(row[name] for name in row.asDict() if name not in ("from", "to", "batch"))
            for row in rows
        }
        assert len(sums) == len(rows)
        assert {each[0] for each in sums} == {_WINDOW}


class Mirrored(Jobs):
    """A copy of the topic."""

    def __init__(self, lives: Lives, tables: Tables) -> None:
        super().__init__("ended-mirror", lives, tables)

    def mirror(self) -> None:
        """Copy what there is."""
        settings = MirrorSettings(
            **self.given(),
            to_nameserver=self.tables.cluster.nameserver,
            prefix="copy-",
            checkpoint=str(self.lives.path / "checkpoint"),
        )
        mirror(self.tables.spark, settings, self.lives.run())

    def check(self) -> None:
        """Check that each message was copied once."""
        self.mirror()
        assert self.tables.bodies(f"copy-{self.topic}") == self.numbers()


@pytest.fixture(params=seeds_of(1))
def lives(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lives]:
    """A folder of its own for each seed."""
    # `mirror` has no hook in its batches, in which it could sync what Spark notes.
    in_order = "mirror" in request.node.name
    lives = Lives(tmp_path, request.param, monkeypatch, in_order=in_order)
    yield lives
    lives.close()


def _lived(jobs: Archived | Counted | Mirrored, *works: Callable[[], object]) -> None:
    jobs.send()
    try:
        jobs.lives.live(jobs.sending(*works))
        jobs.check()
    except Exception as error:
        error.add_note("; ".join(jobs.lives.told))
        raise


def test_each_message_is_in_an_archive_once(lives: Lives, tables: Tables) -> None:
    jobs = Archived("parquet", lives, tables)
    works = (jobs.compact, jobs.vacuum, jobs.replay, jobs.reconcile)
    _lived(jobs, *(jobs.archive,) * 3, *works)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_each_message_is_in_a_table_once(lives: Lives, tables: Tables, kind: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    jobs = Archived(kind, lives, tables)
    _lived(jobs, jobs.archive, jobs.archive, jobs.replay, jobs.reconcile)


@pytest.mark.slow
def test_each_window_is_written_once(lives: Lives, tables: Tables) -> None:
    jobs = Counted(lives, tables)
    _lived(jobs, jobs.aggregate)


@pytest.mark.slow
def test_each_message_is_mirrored_once(lives: Lives, tables: Tables) -> None:
    jobs = Mirrored(lives, tables)
    _lived(jobs, jobs.mirror)


@pytest.mark.parametrize("lives", [0], indirect=True)
def test_windows_go_on_where_notes_and_the_state_of_a_first_batch_were_lost(
    lives: Lives, tables: Tables
) -> None:
    jobs = Counted(lives, tables)
    jobs.topic += "-lost"
    tables.fill(jobs.topic, 2, queues=1)
    jobs.sent = 2
    jobs.aggregate()
    checkpoint = lives.path / "checkpoint"
    for note in checkpoint.glob("commits/*0*"):  # As if it was killed in that batch.
        note.unlink()
    for name in ("metadata", ".metadata.crc"):
        (checkpoint / "state" / "0" / "_metadata" / name).write_bytes(b"")
    jobs.aggregate()
    for _ in range(3):
        jobs.send()
        jobs.aggregate()
    numbers = sorted(int(each.name) for each in checkpoint.glob("commits/[0-9]*"))
    for number in numbers[-2:]:
        for note in checkpoint.glob(f"commits/*{number}*"):
            note.unlink()
    jobs.check()
