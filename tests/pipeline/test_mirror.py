"""The job `mirror`: each message is copied once, in its order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.errors import OptionError, WorkerLateError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.planning import WORTH_A_TASK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def copying(topic: str, tables: Tables, checkpoint: Path, **more: Any) -> MirrorSettings:
    """Return settings that copy a topic within the cluster."""
    return MirrorSettings(
        nameserver=tables.cluster.nameserver,
        to_nameserver=tables.cluster.nameserver,
        prefix="copy-of-",
        topic=topic,
        checkpoint=str(checkpoint),
        **more,
    )


def test_a_mirror_keeps_all_of_a_message_and_copies_it_once(tables: Tables, tmp_path: Path) -> None:
    tables.cluster.send("mirrored", b"0", key="k", tag="t", properties={"a": "b"})
    settings = copying("mirrored", tables, tmp_path)
    with ThreadPoolExecutor(1) as another_thread:  # It has no session of Spark's.
        assert another_thread.submit(mirror, tables.spark, settings).result().rows == 1
    for path in (tmp_path / "commits").iterdir():
        path.unlink()
    mirror(tables.spark, settings)
    assert mirror(tables.spark, settings).document()["bytes"] == 0  # It has no batch.
    (copy,) = tables.cluster.sent("copy-of-mirrored", count=1)
    assert (copy.body, copy.keys, copy.tag, copy.user_properties) == (b"0", ["k"], "t", {"a": "b"})


def test_a_pattern_that_fits_no_topic_is_told(tables: Tables, tmp_path: Path) -> None:
    news: list[dict[str, Any]] = []
    settings = copying("", tables, tmp_path / "mirror", topic_pattern="no-such-.*")
    mirror(tables.spark, settings, Run(progress=lambda each: news.append(dict(each))))
    archiving = ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic_pattern="no-such-.*", to=str(tmp_path / "to")
    )
    run = Run(dry_run=True, progress=lambda each: news.append(dict(each)))
    archive(tables.spark, archiving, run)
    said = [each["warning"] for each in news if "warning" in each]
    assert said == ["topic-pattern: no topic's whole name matches 'no-such-.*'"] * 2


def test_a_mirror_goes_on_behind_a_power_cut_and_copies_each_message_once(
    tables: Tables, tmp_path: Path
) -> None:
    """The job takes no part in its batches, so a power cut may lose what Spark notes of one."""
    tables.fill("mirrored-cut", 60)
    settings = copying("mirrored-cut", tables, tmp_path, max_rows=20)
    assert mirror(tables.spark, settings).batches == [0, 1, 2]
    for note in ("offsets/2", "offsets/.2.crc"):
        (tmp_path / note).write_bytes(b"")
    tables.fill("mirrored-cut", 5, first=60)
    dry = mirror(tables.spark, settings, Run(dry_run=True))
    assert dry.details["would_read"] == 25
    said: list[str] = []
    report = mirror(tables.spark, settings, Run(progress=lambda news: said.append(str(news))))
    assert report.rows == 25
    assert "offsets/2 is empty, as after a power cut; the stream continues after batch 1" in said[0]
    assert tables.bodies("copy-of-mirrored-cut") == numbers(0, 65)


def test_a_mirror_waits_again_for_a_python_process_that_is_late(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("mirrored-late", 3)
    watch, late = Run.watch, [WorkerLateError("this machine is so busy")]

    def busy_once(run: Run, *given: Any, **more: Any) -> None:
        if late:
            raise late.pop()
        watch(run, *given, **more)

    monkeypatch.setattr(Run, "watch", busy_once)
    settings = copying("mirrored-late", tables, tmp_path)
    mirror(tables.spark, settings)
    assert tables.bodies("copy-of-mirrored-late") == numbers(0, 3)


def test_a_mirror_takes_nothing_from_a_checkpoint_of_another_job(
    tables: Tables, tmp_path: Path
) -> None:
    """The other job could not go back: it would do again, differently, what it has done."""
    tables.fill("mirrored-wrongly", 3)
    archiving = ArchiveSettings(
        nameserver=tables.cluster.nameserver,
        topic="mirrored-wrongly",
        checkpoint=str(tmp_path / "checkpoint"),
        to=str(tmp_path / "archive"),
    )
    archive(tables.spark, archiving)
    for note in ("offsets/0", "offsets/.0.crc"):
        (tmp_path / "checkpoint" / note).write_bytes(b"")
    before = sorted((tmp_path / "checkpoint").rglob("*"))
    settings = copying("mirrored-wrongly", tables, tmp_path / "checkpoint")
    with pytest.raises(OptionError, match="was begun by archive, so"):
        mirror(tables.spark, settings)
    assert sorted((tmp_path / "checkpoint").rglob("*")) == before


def test_a_topic_that_was_made_anew_is_mirrored_from_its_beginning(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("mirrored-anew", 50)
    settings = copying("mirrored-anew", tables, tmp_path, fail_on_data_loss=False)
    mirror(tables.spark, settings)
    tables.cluster.admin.delete_topic("mirrored-anew")
    tables.fill("mirrored-anew", 60, first=100)
    report = mirror(tables.spark, settings)
    assert (report.rows, report.size) == (60, 60 * 3)
    assert tables.bodies("copy-of-mirrored-anew") == [*numbers(0, 50), *numbers(100, 160)]


def test_messages_of_one_queue_are_mirrored_in_their_order(tables: Tables, tmp_path: Path) -> None:
    """A read cuts a long queue into tasks; from the second batch on they start at the same time."""
    topic, batch = "mirrored-in-order", 2 * WORTH_A_TASK
    for each in (topic, f"copy-of-{topic}"):
        tables.cluster.admin.create_topic(each, queues=1)
    rows = tables.spark.range(0, 5 * batch, 1, 1).selectExpr("cast(id AS string) AS body")
    tables.write(rows, topic)
    assert mirror(tables.spark, copying(topic, tables, tmp_path, max_rows=batch)).batches[-1] == 4
    copies = tables.read(f"copy-of-{topic}", "queue_offset BIGINT, body BINARY")
    copies = copies.orderBy("queue_offset").selectExpr("cast(body AS string) AS body")
    assert [row["body"] for row in copies.collect()] == numbers(0, 5 * batch)
