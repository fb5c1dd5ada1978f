"""Recreated topics: neither `replay` nor `dlq` takes one life of a topic for another."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.store.logs import BLANK, SIZE
from tests.pipeline.tables import Tables, numbers
from tests.store.records import record

from cometmq.client import SyncClient
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import replay as module
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.dlq import DlqSettings, dlq
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.replay_rows import to_send
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.pipeline.jobs.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[Tables]:
    """This module's own broker, whose store can be looked at."""
    with Cluster() as cluster:
        yield Tables(spark, cluster)


@pytest.fixture
def topic(tmp_path: Path) -> str:
    return tmp_path.name.replace("_", "-")


def live_once(tables: Tables, topic: str, to: Path) -> None:
    """Archive the first life of a topic: ten messages."""
    tables.fill(topic, 10)
    archive(tables.spark, archiving(tables, topic, to))


def live_again(tables: Tables, topic: str, to: Path) -> None:
    """Delete and recreate the topic, and archive its second life: twelve messages."""
    tables.cluster.admin.delete_topic(topic)
    tables.fill(topic, 12, first=100)
    archive(tables.spark, archiving(tables, topic, to))


def archiving(tables: Tables, topic: str, to: Path) -> ArchiveSettings:
    return ArchiveSettings(
        nameserver=tables.cluster.nameserver, topic=topic, to=str(to), fail_on_data_loss=False
    )


def replayed(tables: Tables, place: str, run: Run | None = None, **more: Any) -> Report:
    settings = ReplaySettings(nameserver=tables.cluster.nameserver, from_=place, **more)
    return replay(tables.spark, settings, run)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0, 10])
def test_both_lives_of_a_topic_are_replayed_each_message_once(
    tables: Tables, topic: str, tmp_path: Path, rate: int
) -> None:
    live_once(tables, topic, tmp_path)
    live_again(tables, topic, tmp_path)
    given: dict[str, Any] = {"to_topic": f"{topic}-again", "rate": rate}
    report = replayed(tables, f"archive:{tmp_path}", **given)
    assert (report.rows, report.size) == (22, 10 + 12 * 3)
    assert report.offsets == {topic: {"broker-a": {"0": [0, 6], "1": [0, 6]}}}
    (tmp_path / "_replays" / f"to-{topic}-again.json").unlink()  # As a kill leaves it.
    assert replayed(tables, f"archive:{tmp_path}", **given).rows == 22
    assert tables.bodies(f"{topic}-again") == [*numbers(0, 10), *numbers(100, 112)]
    earlier = replayed(tables, f"archive:{tmp_path}", **given).details["earlier"]
    assert earlier.startswith("2 batches, which are all")


@pytest.mark.slow
def test_both_lives_in_one_file_of_a_log_are_replayed_in_their_order(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    live_once(tables, topic, tmp_path / "archive")
    live_again(tables, topic, tmp_path / "archive")
    folder = tables.cluster._servers._folder.name  # pyright: ignore[reportPrivateUsage]  # No verb has it.
    tables.cluster.admin.create_topic(f"{topic}-again", queues=1)
    given: dict[str, Any] = {"broker": "broker-a", "to_topic": f"{topic}-again"}
    for checkpoint in ("one", "two"):  # The second has no notes.
        report = replayed(
            tables, f"store:{folder}/store#{topic}", checkpoint=str(tmp_path / checkpoint), **given
        )
        assert report.rows == 22
    rows = tables.read(f"{topic}-again").orderBy("queue_offset").collect()
    bodies = [int(row["body"]) for row in rows]
    assert sorted(bodies) == [*range(10), *range(100, 112)]
    for parity in (0, 1):  # Those that were in one queue.
        of_queue = [each for each in bodies if each % 2 == parity]
        assert of_queue == sorted(of_queue)


def of_earlier_version(monkeypatch: pytest.MonkeyPatch, *unknown: str) -> None:
    """Let messages be identified by their places alone, or without the columns `unknown`."""

    def without(*args: Any, **more: Any) -> DataFrame:
        found: DataFrame = to_send(*args, **more).drop(*(unknown or ("store_time", "source_host")))
        return found

    monkeypatch.setattr(module, "to_send", without)


def begun_earlier(
    tables: Tables, archived: Path, to_topic: str, patch: pytest.MonkeyPatch, *unknown: str
) -> tuple[Path, dict[str, Any]]:
    """Replay as an earlier version did; return the path of the notes, and notes as of a kill."""
    with patch.context() as earlier:
        of_earlier_version(earlier, *unknown)
        replayed(tables, f"archive:{archived}", to_topic=to_topic)
    notes = archived / "_replays" / f"to-{to_topic}.json"
    return notes, json.loads(notes.read_text()) | {"done": []}


@pytest.mark.slow
def test_what_an_earlier_version_sent_is_not_sent_again_and_what_it_cannot_tell_is_refused(
    tables: Tables, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_once(tables, topic, tmp_path)
    given: dict[str, Any] = {"to_topic": f"{topic}-again"}
    notes, said = begun_earlier(tables, tmp_path, f"{topic}-again", monkeypatch)
    del said["by_time"], said["by_host"], said["firsts"]
    notes.write_text(json.dumps(said))
    assert replayed(tables, f"archive:{tmp_path}", **given).rows == 10
    assert tables.bodies(f"{topic}-again") == numbers(0, 10)
    live_again(tables, topic, tmp_path)
    with pytest.raises(
        OptionError, match=rf"name: to-{topic}-again was begun by an earlier versio"
    ):
        replayed(tables, f"archive:{tmp_path}", **given)
    assert replayed(tables, f"archive:{tmp_path}", to_topic=f"{topic}-other").rows == 22
    assert len(tables.bodies(f"{topic}-other")) == 22


@pytest.mark.slow
def test_what_was_sent_before_the_address_of_the_broker_told_is_not_sent_again(
    tables: Tables, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_once(tables, topic, tmp_path)
    given: dict[str, Any] = {"to_topic": f"{topic}-again"}
    notes, said = begun_earlier(tables, tmp_path, f"{topic}-again", monkeypatch, "source_host")
    del said["by_host"]
    notes.write_text(json.dumps(said))
    assert replayed(tables, f"archive:{tmp_path}", **given).details["there_before"] == 10
    assert tables.bodies(f"{topic}-again") == numbers(0, 10)


def write_life(store: Path, number: int, numbers: range, store_ms: int) -> None:
    """Write a file of a log, one life of a topic: its offsets from 0 on, all stored at once."""
    data = bytearray()
    for offset, each in enumerate(numbers):
        place = number * SIZE + len(data)
        body = b"%d" % each
        data += record(place, body, queue_offset=offset, store_timestamp=store_ms)
    rest = SIZE - len(data)
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    path = store / "commitlog" / f"{number * SIZE:020d}"
    path.write_bytes(bytes(data + rest.to_bytes(4, "big") + BLANK).ljust(SIZE, b"\0"))


def test_what_an_earlier_version_sent_of_a_life_that_expired_hides_nothing_of_the_next_one(
    tables: Tables, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only their store times tell the messages apart: nothing is left of the first life."""
    given: dict[str, Any] = {"broker": "b", "to_topic": topic, "checkpoint": str(tmp_path / "cp")}
    write_life(tmp_path / "store", 0, range(10), 2)
    with monkeypatch.context() as patch:
        of_earlier_version(patch)
        assert replayed(tables, f"store:{tmp_path / 'store'}", **given).rows == 10
    notes = tmp_path / "cp" / f"to-{topic}.json"
    said = json.loads(notes.read_text())
    del said["by_time"], said["by_host"], said["firsts"]
    notes.write_text(json.dumps(said))
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    tomorrow_ms = int(time.time() + 86_400) * 1000
    write_life(tmp_path / "store", 1, range(100, 112), tomorrow_ms)
    assert replayed(tables, f"store:{tmp_path / 'store'}", **given).rows == 12
    assert tables.bodies(topic) == [*numbers(0, 10), *numbers(100, 112)]


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 30])
def test_notes_of_a_topic_that_was_made_anew_are_not_gone_by(
    tables: Tables, topic: str, tmp_path: Path, others: int
) -> None:
    """However many messages of others the new topic has."""
    live_once(tables, topic, tmp_path)
    to = f"{topic}-again"
    given: dict[str, Any] = {"to_topic": to}
    replayed(tables, f"archive:{tmp_path}", **given)
    tables.cluster.admin.delete_topic(to)
    with pytest.raises(PipelineError, match=f"to-topic: {to}, to which an earlier run of this re"):
        replayed(tables, f"archive:{tmp_path}", **given)
    tables.cluster.admin.create_topic(to, queues=2)
    tables.fill(to, others, first=1000)
    news: list[object] = []
    run = Run(progress=lambda each: news.append(each.get("warning")))
    report = replayed(tables, f"archive:{tmp_path}", run, **given)
    assert (report.rows, report.details["made_anew"]) == (10, True)
    assert f"{to} was recreated since; all is sent again" in news
    assert replayed(tables, f"archive:{tmp_path}", **given).rows == 0
    assert tables.bodies(to) == [*numbers(0, 10), *numbers(1000, 1000 + others)]


@pytest.mark.slow
def test_a_topic_that_is_made_anew_while_it_is_written_to_is_told_and_the_next_run_heals_it(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    live_once(tables, topic, tmp_path)
    live_again(tables, topic, tmp_path)
    to = f"{topic}-again"

    def make_anew(news: Mapping[str, Any]) -> None:
        if news.get("total") == 22:  # After the first part its first messages are noted.
            tables.cluster.admin.delete_topic(to)
            tables.cluster.admin.create_topic(to, queues=2)

    with pytest.raises(PipelineError, match=f"to-topic: {to} was recreated while this wrote"):
        replayed(tables, f"archive:{tmp_path}", Run(progress=make_anew), to_topic=to)
    report = replayed(tables, f"archive:{tmp_path}", to_topic=to)
    assert (report.rows, report.details["made_anew"]) == (22, True)
    assert len(tables.bodies(to)) == 22


def gave_up(tables: Tables, topic: str, body: bytes) -> None:
    """Send a message, and let a group give it up."""
    group = f"giving-up-{topic}"
    tables.cluster.admin.create_group(group, max_retries=0)
    with SyncClient(tables.cluster.nameserver) as mq:
        mq.send(topic, body)
        with mq.consume(topic, group=group, start="first") as consumer:
            next(consumer).retry()
    assert len(tables.cluster.dead_letters(group, count=1)) == 1


@pytest.mark.slow
def test_dead_letters_of_a_topic_that_was_made_anew_are_copied_too(
    tables: Tables, topic: str, tmp_path: Path
) -> None:
    receipts = tmp_path / "receipts.jsonl"
    settings = DlqSettings(
        nameserver=tables.cluster.nameserver,
        group=f"giving-up-{topic}",
        redrive="true",
        to=f"{topic}-copies",
        receipts=str(receipts),
    )
    for body in (b"1", b"2"):
        gave_up(tables, topic, body)
        for redriven in (1, 0):
            report = dlq(tables.spark, settings)
            assert (report.details["redriven"], report.details["earlier"]) == (
                redriven,
                1 - redriven,
            )
        tables.cluster.admin.delete_topic(f"%DLQ%giving-up-{topic}")
    assert tables.bodies(f"{topic}-copies") == ["1", "2"]
    assert len(receipts.read_text().splitlines()) == 2
