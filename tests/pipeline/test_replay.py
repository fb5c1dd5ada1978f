"""The job `replay` from an archive: each message is sent once, and as fast as was asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

import pyarrow as pa
from py4j.protocol import Py4JError
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import functions
from tests.pipeline.tables import Tables, keeping_warnings, numbers

from cometmq.pipeline.errors import DamagedFileError, OptionError
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_compact import CompactSettings, archive_compact
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.pacing import Tempo
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.replay_notes import found_there
from cometmq.pipeline.jobs.replay_sources import ArchiveSource

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


@pytest.fixture
def archived(tables: Tables, tmp_path: Path) -> str:
    """An archive of twenty messages in four batches, of a topic of this test's own."""
    topic = tmp_path.name.replace("_", "-")
    tables.fill(topic, 20)
    to = str(tmp_path / "archive")
    given = {"nameserver": tables.cluster.nameserver, "topic": topic, "to": to}
    archive(tables.spark, ArchiveSettings(**given, max_rows=6))  # type: ignore[arg-type]  # texts
    return to


def another_is_made_at(archived: str) -> None:
    """Make an archive look like another stream's, as if it was deleted and recreated."""
    manifest = Path(archived) / "_manifests" / "000000.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "query_id": "another"}))


def replaying(tables: Tables, archived: str, **more: Any) -> ReplaySettings:
    return ReplaySettings(nameserver=tables.cluster.nameserver, from_dir=archived, **more)


def test_an_archive_is_replayed_once_however_often_and_its_path_is_written(
    tables: Tables, archived: str, tmp_path: Path
) -> None:
    given = {"to_topic": "replayed-once", "mark": "replayed=true", "checkpoint": str(tmp_path)}
    assert replay(tables.spark, replaying(tables, archived, **given)).rows == 20
    assert replay(tables.spark, replaying(tables, f"{archived}/", **given)).rows == 0
    notes = tmp_path / "to-replayed-once.json"
    notes.write_text(notes.read_text().replace(archived, f"{archived}/"))  # As it used to be noted.
    assert replay(tables.spark, replaying(tables, archived, **given)).rows == 0
    assert tables.bodies("replayed-once") == numbers(0, 20)
    another_is_made_at(archived)
    with pytest.raises(OptionError, match="name: to-replayed-once was the replay of another arch"):
        replay(tables.spark, replaying(tables, archived, **given))
    sent = tables.cluster.sent("replayed-once", count=20)
    assert {message.user_properties["replayed"] for message in sent} == {"true"}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("body =", "Syntax error"),
        ("queue_id + rand() > 1", r"rand\(\) chooses other rows each time"),
        pytest.param("nocolumn = 1", "nocolumn", marks=pytest.mark.slow),
        pytest.param("sum(queue_id) > 1", "sum", marks=pytest.mark.slow),
    ],
)
def test_sql_that_no_rows_can_be_asked_is_refused_before_any_is_sent(
    tables: Tables, archived: str, where: str, said: str
) -> None:
    tables.cluster.admin.create_topic("replay-refused")
    settings = replaying(tables, archived, to_topic="replay-refused", where=where)
    with pytest.raises(OptionError, match=f"(?i)^where: .*{said}") as caught:
        replay(tables.spark, settings)
    assert "\n" not in str(caught.value)
    assert tables.bodies("replay-refused") == []


def test_a_replay_that_was_killed_goes_on(tables: Tables, archived: str, tmp_path: Path) -> None:
    stopping = Run(progress=lambda _news: stopping.stop())
    settings = replaying(tables, archived, to_topic="replay-goes-on")
    report = replay(tables.spark, settings, stopping)
    assert report.stopped
    # As if it had died between the last rows and the note of them.
    (tmp_path / "archive" / "_replays" / "to-replay-goes-on.json").unlink()
    assert replay(tables.spark, settings).rows == 20
    assert tables.bodies("replay-goes-on") == numbers(0, 20)


@pytest.mark.slow
def test_messages_that_were_there_before_are_told(tables: Tables, archived: str) -> None:
    """Those of a second cluster whose brokers have the same names and addresses may pass for them.

    In replays of one name, a message does if its place and store millisecond are the same as well.
    """
    topic = Path(archived).parent.name.replace("_", "-") + "-told"
    first = replay(tables.spark, replaying(tables, archived, to_topic=topic, where="queue_id < 2"))
    assert "there_before" not in first.details
    told: list[str] = []
    run = keeping_warnings(told)
    settings = replaying(tables, archived, to_topic=topic, checkpoint=f"{archived}-notes")
    report = replay(tables.spark, settings, run)
    assert (report.rows, report.details["there_before"]) == (20, first.rows)
    assert told == [found_there(first.rows, f"to-{topic}")]
    assert tables.bodies(topic) == numbers(0, 20)
    # With its own name, a replay takes nothing for sent that another one has sent.
    own = replay(tables.spark, replace(settings, name="south"))
    assert (own.rows, "there_before" in own.details) == (20, False)
    assert len(tables.bodies(topic)) == 40


@pytest.mark.slow
def test_an_archive_of_a_cluster_whose_broker_is_called_alike_hides_nothing(
    tables: Tables, archived: str
) -> None:
    """Even if both were filled at once: their brokers have different addresses."""
    other = f"{archived}-of-the-south"
    copytree(archived, other)
    for path in Path(other).rglob("*.parquet"):
        rows = parquet.ParquetFile(path).read()
        for column, text in (("store_host", "10.0.0.7:10911"), ("body", b"77")):
            index = rows.schema.get_field_index(column)
            values = pa.array([text] * len(rows), rows.schema.field(index).type)
            rows = rows.set_column(index, rows.schema.field(index), values)
        parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)  # As Spark does.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    topic = Path(archived).parent.name.replace("_", "-") + "-both"
    for each in (archived, other, other):
        report = replay(tables.spark, replaying(tables, each, to_topic=topic))
        assert "there_before" not in report.details
    assert tables.bodies(topic) == [*numbers(0, 20), *["77"] * 20]


@pytest.mark.parametrize(
    ("lost", "said", "left"),
    [
        ("batch=000001/**/*.parquet", "has 0 rows of batch 000001, but its manifest says 6", 14),
        pytest.param(
            "_manifests/000002.json",
            "has no manifest of batches 000002",
            14,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "_manifests/00000[01].json",
            "has no manifest of batches 000000-000001",
            8,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_files_that_an_archive_has_lost_are_told_before_anything_is_sent(
    tables: Tables, archived: str, lost: str, said: str, left: int
) -> None:
    for path in Path(archived).glob(lost):
        path.unlink()
    topic = Path(archived).parent.name.replace("_", "-") + "-again"
    tables.cluster.admin.create_topic(topic)
    with pytest.raises(DamagedFileError, match=f"{said}: put the files back from a copy, or give"):
        replay(tables.spark, replaying(tables, archived, to_topic=topic))
    assert tables.bodies(topic) == []
    report = replay(tables.spark, replaying(tables, archived, to_topic=topic, on_damage="skip"))
    assert (report.rows, report.details["damaged"]) == (left, [said])


def test_a_damaged_file_is_told_though_spark_is_to_pass_over_such(
    tables: Tables, archived: str
) -> None:
    for path in Path(archived).glob("batch=000001/**/*.parquet"):
        data = path.read_bytes()
        half = len(data) // 2  # The file's end says how many rows there are.
        path.write_bytes(data[:4] + bytes(half) + data[4 + half :])
        path.with_name(f".{path.name}.crc").unlink()
    setting = "spark.sql.files.ignoreCorruptFiles"
    tables.spark.conf.set(setting, "true")
    try:
        with pytest.raises((Py4JError, PySparkException), match="FAILED_READ_FILE"):
            replay(tables.spark, replaying(tables, archived, to_topic="replay-corrupt"))
    finally:
        tables.spark.conf.unset(setting)


@pytest.mark.slow
def test_rows_that_were_lost_of_a_merged_batch_are_missed(tables: Tables, archived: str) -> None:
    archive_compact(tables.spark, CompactSettings(archive=archived))
    (path,) = Path(archived).glob("batch=000000-000003/**/*.parquet")
    source = ArchiveSource(tables.spark, Folder(tables.spark, archived))
    assert source.lacks(()) == []
    path.unlink()
    said = "has 0 rows of batch 000000-000003, but its manifest says 20"
    assert source.lacks(["000000.json"]) == [said]
    assert source.lacks([f"00000{number}.json" for number in range(4)]) == []


@pytest.mark.slow
def test_an_archive_that_goes_while_it_is_replayed_is_told(tables: Tables, archived: str) -> None:
    run = Run(progress=lambda _news: rmtree(f"{archived}/_manifests", ignore_errors=True))
    with pytest.raises(DamagedFileError, match=r"batch 000001 no longer has a manifest: put it"):
        replay(tables.spark, replaying(tables, archived, to_topic="replay-gone"), run)


@pytest.fixture
def archived_at_once(tables: Tables, tmp_path: Path) -> str:
    """An archive of sixty messages in one batch, of a topic of this test's own."""
    topic = tmp_path.name.replace("_", "-")
    tables.fill(topic, 60, queues=3)
    to = str(tmp_path / "archive")
    archive(tables.spark, ArchiveSettings(nameserver=tables.cluster.nameserver, topic=topic, to=to))
    return to


@pytest.mark.slow
def test_a_replay_holds_its_rate_inside_a_batch(tables: Tables, archived_at_once: str) -> None:
    settings = replaying(tables, archived_at_once, to_topic="replayed-slowly", rate=20)
    report = replay(tables.spark, settings)
    assert (report.rows, report.batches) == (60, [0])
    assert 0 < report.details["rows_per_second"] <= 20
    rows = tables.read("replayed-slowly").orderBy("store_time").collect()
    begin = rows[0]["store_time"]
    for index, row in enumerate(rows):  # A second's share may come in its first moment.
        waited = (row["store_time"] - begin).total_seconds()
        assert waited >= (index + 1 - 2 * settings.rate) / settings.rate
    queues: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda each: each["queue_offset"]):
        queues.setdefault(row["queue_id"], []).append(int(row["body"]))
    assert all(bodies == sorted(bodies) for bodies in queues.values())
    assert sorted(body for bodies in queues.values() for body in bodies) == list(range(60))


@pytest.mark.slow
def test_a_replay_at_a_speed_sends_together_what_was_stored_in_one_second(
    tables: Tables, archived_at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of each queue in the archive count as stored half a second apart."""
    monkeypatch.setattr("cometmq.pipeline.jobs.replay._AT", "(60 + queue_offset) * 500000")
    news: list[int] = []
    pauses: list[float] = []
    run = Run(progress=lambda each: news.append(each["rows"]))
    monkeypatch.setattr(run, "pause", pauses.append)
    settings = replaying(tables, archived_at_once, to_topic="replayed-at-speed", speed="2x")
    assert replay(tables.spark, settings, run).rows == 60
    assert news == [12] * 5  # Four of each of three queues: two seconds of then.
    assert tables.bodies("replayed-at-speed") == numbers(0, 60)


@pytest.mark.slow
def test_messages_of_which_nobody_knows_when_they_were_stored_go_without_waiting(
    tables: Tables, archived_at_once: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would count as stored in 1970, and the messages after them as decades later."""
    batch = tmp_path / "archive" / "batch=000000"
    rows = tables.spark.read.parquet(str(batch)).withColumn(
        "store_time",
        functions.expr("if(cast(cast(body AS string) AS int) < 12, null, store_time)"),
    )
    rows.write.partitionBy("topic", "date").parquet(str(tmp_path / "without"))
    rmtree(batch)
    (tmp_path / "without").rename(batch)
    run = Run()
    pauses: list[float] = []
    monkeypatch.setattr(run, "pause", pauses.append)
    settings = replaying(tables, archived_at_once, to_topic="replayed-timeless", speed="1x")
    assert replay(tables.spark, settings, run).rows == 60
    assert tables.bodies("replayed-timeless") == numbers(0, 60)
    assert sum(pauses) < 60


def test_a_tempo_waits_as_long_as_lies_between_pieces_or_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("cometmq.pipeline.jobs.pacing.time.monotonic", lambda: now)
    run = Run()
    pauses: list[float] = []
    monkeypatch.setattr(run, "pause", pauses.append)
    tempo = Tempo(10.0, run)
    assert tempo.second_us == 10_000_000
    for stored_us in (5_000_000, 25_000_000, 65_000_000):
        assert tempo.wait(stored_us)
    now = 103.0  # A piece took longer than it should have: the next one makes up for it.
    assert tempo.wait(75_000_000)
    assert tempo.wait(37_000_000_000)
    assert tempo.wait(0)  # Stored at an unknown time.
    assert pauses == [0.0, 2.0, 6.0, 4.0, pytest.approx(3696.5)]
    run.stop()
    assert not tempo.wait(0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rate": 5, "speed": "1x"}, "rate, speed: give only one of them"),
        ({"speed": "fast"}, "speed: 'fast'"),
        ({"speed": "0x"}, "speed: '0x'"),
    ],
)
def test_how_fast_a_replay_goes_is_said_once(more: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReplaySettings(nameserver="127.0.0.1:1", from_dir="a", to_topic="b", **more)
    assert said in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0, 7, 1000])
def test_a_replay_that_was_stopped_inside_a_batch_goes_on_there_at_any_rate(
    tables: Tables, archived_at_once: str, tmp_path: Path, rate: int
) -> None:
    name = f"replayed-on-{rate}"
    stopping = Run(progress=lambda news: stopping.stop() if news["total"] == 40 else None)
    slowly = replaying(tables, archived_at_once, to_topic=name, rate=20)
    report = replay(tables.spark, slowly, stopping)
    assert (report.rows, report.batches, report.stopped) == (40, [], True)
    settings = replaying(tables, archived_at_once, to_topic=name, rate=rate)
    assert replay(tables.spark, settings, Run(dry_run=True)).details["would_send"] == 20
    assert replay(tables.spark, settings).rows == 20
    assert tables.bodies(name) == numbers(0, 60)
    assert replay(tables.spark, settings).rows == 0


def test_a_piece_of_a_replay_that_was_not_noted_is_sent_once(
    tables: Tables, archived_at_once: str, tmp_path: Path
) -> None:
    notes = tmp_path / "archive" / "_replays"

    def watch(news: Mapping[str, Any]) -> None:
        if news["total"] == 15:
            copytree(notes, tmp_path / "first")
        elif news["total"] == 30:
            stopping.stop()

    stopping = Run(progress=watch)
    settings = replaying(tables, archived_at_once, to_topic="replayed-unnoted", rate=15)
    assert replay(tables.spark, settings, stopping).rows == 30
    rmtree(notes)
    copytree(tmp_path / "first", notes)
    assert replay(tables.spark, replace(settings, rate=25)).rows == 45
    assert tables.bodies("replayed-unnoted") == numbers(0, 60)


def test_a_part_is_replayed_and_a_dry_run_counts_it(tables: Tables, archived: str) -> None:
    where = "cast(cast(body AS string) AS int) < 5"
    settings = replaying(tables, archived, to_topic="replayed-part", where=where)
    assert replay(tables.spark, settings, Run(dry_run=True)).details["would_send"] == 5
    assert replay(tables.spark, settings).rows == 5
    assert tables.bodies("replayed-part") == numbers(0, 5)
    other = replaying(tables, archived, to_topic="replayed-part", where="TRUE")
    with pytest.raises(OptionError, match="was another replay"):
        replay(tables.spark, other)


def test_a_replay_into_its_own_source_is_refused(
    tables: Tables, archived: str, tmp_path: Path
) -> None:
    topic = tmp_path.name.replace("_", "-")
    with pytest.raises(OptionError, match="to-topic: the archive has messages of"):
        replay(tables.spark, replaying(tables, archived, to_topic=topic))


@pytest.mark.slow
def test_a_topic_that_an_archive_knows_nothing_of_is_refused(
    tables: Tables, archived: str, tmp_path: Path
) -> None:
    """If it was mistyped, everything used to be noted as done, with nothing sent."""
    with pytest.raises(OptionError, match=f"topic: {archived} has no message of topic mistyped"):
        replay(tables.spark, replaying(tables, archived, to_topic="T", topic="mistyped"))
    assert not Path(archived, "_replays").exists()
    topic = tmp_path.name.replace("_", "-")
    told = replaying(tables, archived, to_topic="replayed-named", topic=topic)
    assert replay(tables.spark, told, Run(dry_run=True)).details["would_send"] == 20


def test_what_is_no_archive_is_said(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not an archive"):
        replay(tables.spark, replaying(tables, str(tmp_path), to_topic="T"))
