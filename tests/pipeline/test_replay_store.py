"""The job `replay` from a store's files: each message once, be it from there or an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.store.logs import SIZE, change, write_log
from tests.pipeline.tables import Tables, numbers
from tests.store.apache_stores import manifest_records, unpack

from cometmq.pipeline.errors import HeldError, OptionError
from cometmq.pipeline.jobs import replay_sources
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.holding import held
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.replay import (
    ReplaySettings,
    _Replaying,  # pyright: ignore[reportPrivateUsage]  # To come between two of its steps.
    replay,
)
from cometmq.pipeline.jobs.spark_errors import ours
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> Iterator[Tables]:
    """This module's own broker, whose store can be looked at."""
    with Cluster() as cluster:
        yield Tables(spark, cluster)


@pytest.fixture
def topic(live: Tables, tmp_path: Path) -> str:
    """A topic of this test's own, with forty messages."""
    name = tmp_path.name.replace("_", "-")
    live.fill(name, 40)
    return name


def store_of(tables: Tables) -> str:
    folder = tables.cluster._servers._folder.name  # pyright: ignore[reportPrivateUsage]  # No verb has it.
    return f"{folder}/store"


def replaying(tables: Tables, store: object, checkpoint: Path, **more: Any) -> ReplaySettings:
    given: dict[str, Any] = {"broker": "broker-a", "checkpoint": str(checkpoint), **more}
    nameserver = tables.cluster.nameserver
    return ReplaySettings(nameserver=nameserver, from_=f"store:{store}", **given)


def test_a_topic_of_a_live_store_is_replayed_once_and_what_came_since_by_the_next_run(
    live: Tables, topic: str, tmp_path: Path
) -> None:
    to = f"{topic}-again"
    settings = replaying(
        live, store_of(live), tmp_path / "cp", topic=topic, to_topic=to, mark="replayed=true"
    )
    assert replay(live.spark, settings, Run(dry_run=True)).details["would_send"] == 40
    assert replay(live.spark, settings).rows == 40
    assert replay(live.spark, settings).rows == 0
    assert live.bodies(to) == numbers(0, 40)
    live.fill(topic, 5, first=40)
    assert replay(live.spark, settings).rows == 5
    assert live.bodies(to) == numbers(0, 45)
    sent = live.cluster.sent(to, count=45)
    assert {message.user_properties["replayed"] for message in sent} == {"true"}


@pytest.mark.slow
def test_what_a_store_gave_an_archive_does_not_give_again(
    live: Tables, topic: str, tmp_path: Path
) -> None:
    """Nor does a run that lost its notes send anything twice."""
    to = f"{topic}-again"
    for checkpoint in ("one", "two"):
        settings = replaying(live, store_of(live), tmp_path / checkpoint, topic=topic, to_topic=to)
        assert replay(live.spark, settings).rows == 40
    nameserver = live.cluster.nameserver
    archive(
        live.spark,
        ArchiveSettings(nameserver=nameserver, topic=topic, to=str(tmp_path / "archive")),
    )
    from_archive = ReplaySettings(
        nameserver=nameserver, from_=f"archive:{tmp_path / 'archive'}", to_topic=to
    )
    assert replay(live.spark, from_archive).rows == 40
    assert live.bodies(to) == numbers(0, 40)


@pytest.mark.slow
def test_a_replay_that_was_stopped_inside_a_file_of_the_log_goes_on_there(
    live: Tables, topic: str, tmp_path: Path
) -> None:
    to = f"{topic}-again"
    stopping = Run(progress=lambda news: stopping.stop() if news["total"] == 20 else None)
    slowly = replaying(live, store_of(live), tmp_path / "cp", topic=topic, to_topic=to, rate=10)
    assert replay(live.spark, slowly, stopping).rows == 20
    live.fill(topic, 3, first=40)  # After what was begun, and no part of it.
    rest = replaying(live, store_of(live), tmp_path / "cp", topic=topic, to_topic=to)
    report = replay(live.spark, rest)
    assert (report.rows, len(report.batches)) == (23, 2)
    assert live.bodies(to) == numbers(0, 43)


def test_a_part_by_time_and_condition_of_a_copy_of_the_log_alone(
    live: Tables, topic: str, tmp_path: Path
) -> None:
    copytree(f"{store_of(live)}/commitlog", tmp_path / "copy" / "commitlog")
    where = "cast(cast(body AS string) AS int) < 7"
    settings = replaying(
        live,
        f"{tmp_path / 'copy'}#{topic}",
        tmp_path / "cp",
        to_topic=f"{topic}-again",
        where=where,
        since="2020-01-01",
    )
    assert replay(live.spark, settings).rows == 7
    assert live.bodies(f"{topic}-again") == numbers(0, 7)


@pytest.mark.slow
def test_the_only_topic_of_users_is_found_in_the_log(
    live: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = write_log(tmp_path / "store", [b"%d" % number for number in range(300)])
    change(tmp_path / "store", places[0] + 90, b"U")  # The topic of one message.
    monkeypatch.setattr(replay_sources, "is_users", "T".__eq__)
    settings = replaying(live, tmp_path / "store", tmp_path / "cp", to_topic="only-topic")
    report = replay(live.spark, settings)
    assert report.rows == 299
    assert len(report.batches) > 1  # Files of the log.
    assert live.bodies("only-topic") == numbers(1, 300)


@pytest.mark.slow
def test_topics_of_apaches_store_are_listed_but_those_of_its_brokers(
    live: Tables, tmp_path: Path
) -> None:
    root = unpack("clean", tmp_path)
    with pytest.raises(OptionError) as caught:
        replay(live.spark, replaying(live, root, tmp_path / "cp", to_topic="from-apache"))
    listed = str(caught.value).partition(": it has ")[2].split(", ")
    assert {each for each in listed if len(each) < 20} == {
        "S_bcq", "S_del", "S_delay", "S_mix", "S_prio", "S_retry", "S_roll", "S_tx"
    }  # fmt: skip
    missing = replaying(live, root, tmp_path / "cp", topic="nowhere", to_topic="from-apache")
    with pytest.raises(OptionError, match=r"has no message of nowhere; it has .*S_mix"):
        replay(live.spark, missing)
    settings = replaying(live, root, tmp_path / "cp", topic="S_roll", to_topic="from-apache")
    count = sum(line["topic"] == "S_roll" for line in manifest_records("clean"))
    assert replay(live.spark, settings).rows == count == 1440
    assert live.read("from-apache").count() == count
    other = replaying(live, root, tmp_path / "cp", topic="S_mix", to_topic="from-apache")
    with pytest.raises(OptionError, match=r"was another replay, from store:.*#S_roll"):
        replay(live.spark, other)


def test_damage_is_named_with_its_place_or_passed_over(live: Tables, tmp_path: Path) -> None:
    places = write_log(tmp_path / "store", [b"%d" % number for number in range(80)])
    first = sum(place < SIZE for place in places)
    change(tmp_path / "store", places[first] + 4, b"\0\0\0\0")
    settings = replaying(
        live, tmp_path / "store", tmp_path / "cp", topic="T", to_topic="from-damaged"
    )
    run = Run()
    with pytest.raises(Exception, match="no sound record") as caught:
        replay(live.spark, settings, run)
    assert f"no sound record at {places[first]}" in str(ours(caught.value))
    assert run.report_so_far("replay").rows == first  # Those of the file before it.
    skipping = replaying(
        live,
        tmp_path / "store",
        tmp_path / "cp",
        topic="T",
        to_topic="from-damaged",
        on_damage="skip",
    )
    assert replay(live.spark, skipping).rows == 80 - first - 1
    assert live.bodies("from-damaged") == [*numbers(0, first), *numbers(first + 1, 80)]


def test_a_log_that_ends_in_front_of_what_was_replayed_is_another_store(
    live: Tables, tmp_path: Path
) -> None:
    def run(store: str) -> Report:
        given = replaying(live, tmp_path / store, tmp_path / "cp", to_topic="shrunk", force=True)
        return replay(live.spark, given)

    write_log(tmp_path / "store", [b"%d" % number for number in range(40)])
    write_log(tmp_path / "other", [b"1"])
    run("store")
    with pytest.raises(OptionError, match="to-shrunk was another replay, from store:"):
        run("other")
    for path in (tmp_path / "store" / "commitlog").iterdir():
        path.unlink()
    write_log(tmp_path / "store", [b"1"])
    with pytest.raises(OptionError, match="before it lost its end"):
        run("store")
    notes = tmp_path / "cp" / "to-shrunk.json"
    notes.write_text(json.dumps({**json.loads(notes.read_text()), "source": ""}))  # Earlier ones.
    with pytest.raises(OptionError, match="was replayed up to"):
        run("store")


def test_a_longer_log_with_other_messages_is_another_store(live: Tables, tmp_path: Path) -> None:
    """As where a link to the newest of several stores leads elsewhere by the next run.

    What was behind the end of the first was sent, and what was before it left out.
    """
    link = tmp_path / "newest"
    for name, count in (("one", 40), ("other", 60)):
        write_log(tmp_path / name, [b"%s-%d" % (name.encode(), number) for number in range(count)])
    link.symlink_to(tmp_path / "one")
    given = replaying(live, link, tmp_path / "cp", to_topic="linked", force=True)
    assert replay(live.spark, given).rows == 40
    copytree(tmp_path / "one", tmp_path / "copy")
    for each in ("copy", "one"):
        link.unlink()
        link.symlink_to(tmp_path / each)
        assert replay(live.spark, given).rows == 0
    link.unlink()
    link.symlink_to(tmp_path / "other")
    with pytest.raises(OptionError, match="was the replay of another archive or store that was at"):
        replay(live.spark, given)


@pytest.mark.slow
def test_what_expired_between_two_runs_is_told(live: Tables, tmp_path: Path) -> None:
    write_log(tmp_path / "store", [b"%d" % number for number in range(300)])
    first = replaying(live, tmp_path / "store", tmp_path / "cp", to_topic="expired")
    stopping = Run(progress=lambda _news: stopping.stop())
    assert replay(live.spark, first, stopping).stopped
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        path.unlink()
    news: list[object] = []
    report = replay(live.spark, first, Run(progress=lambda each: news.append(each.get("warning"))))
    expired = report.details["expired_bytes"]
    assert expired > 0
    assert f"{expired} bytes of the log expired before they were replayed" in news


def test_what_expires_while_a_replay_runs_is_told_and_does_not_count_as_sent(
    live: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file goes after the look into it and before its sending, the next one before both."""
    places = write_log(tmp_path / "store", [b"%d" % number for number in range(150)])
    log = sorted((tmp_path / "store" / "commitlog").iterdir())
    given = replaying(live, tmp_path / "store", tmp_path / "cp", to_topic="expiring")
    send = _Replaying._send  # pyright: ignore[reportPrivateUsage]  # As above.

    def expire(*each: Any) -> int:
        for path in log[:2]:
            path.unlink(missing_ok=True)
        return send(*each)

    monkeypatch.setattr(_Replaying, "_send", expire)
    report = replay(live.spark, given)
    rest = sum(place >= 2 * SIZE for place in places)
    assert (report.details["expired_bytes"], report.rows) == (2 * SIZE, rest)
    assert live.bodies("expiring") == numbers(150 - rest, 150)
    assert "expired_bytes" not in replay(live.spark, given).details


def test_what_was_begun_and_expired_before_the_next_run_is_told(
    live: Tables, tmp_path: Path
) -> None:
    places = write_log(tmp_path / "store", [b"%d" % number for number in range(60)])
    given = replaying(live, tmp_path / "store", tmp_path / "cp", to_topic="begun")
    stopping = Run(progress=lambda _news: stopping.stop())
    assert replay(live.spark, replace(given, rate=5), stopping).rows == 5
    (tmp_path / "store" / "commitlog" / f"{0:020d}").unlink()
    report = replay(live.spark, given)
    rest = sum(place >= SIZE for place in places)
    assert (report.details["expired_bytes"], report.rows) == (SIZE, rest)
    assert live.bodies("begun") == [*numbers(0, 5), *numbers(60 - rest, 60)]


def test_two_replays_of_one_name_do_not_run_at_once(live: Tables, tmp_path: Path) -> None:
    write_log(tmp_path / "store", [b"1"])
    given = replaying(live, tmp_path / "store", tmp_path / "cp", to_topic="at-once")
    with (
        held(Run(), "replay", (Folder(live.spark, str(tmp_path / "cp")), "to-at-once.lock")),
        pytest.raises(HeldError, match=r"/cp: replay \(process "),
    ):
        replay(live.spark, given)
    seen: list[object] = []

    def second(_news: object) -> None:
        with pytest.raises(HeldError, match=r"/cp: replay \(process "):
            replay(live.spark, given)
        seen.append(replay(live.spark, replace(given, name="another")).rows)

    assert replay(live.spark, given, Run(progress=second)).rows == 1
    assert seen == [1]
    assert sorted(each.name for each in (tmp_path / "cp").iterdir()) == [
        "another.json",
        "to-at-once.json",
    ]


def test_a_store_is_not_replayed_into_the_topic_that_it_is_of(
    live: Tables, topic: str, tmp_path: Path
) -> None:
    settings = replaying(live, store_of(live), tmp_path / "cp", topic=topic, to_topic=topic)
    with pytest.raises(OptionError, match=f"to-topic: the store has messages of {topic} itself"):
        replay(live.spark, settings)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "from: give archive:DIR or store:DIR"),
        ({"from_": "store:"}, "from: 'store:' is neither"),
        ({"from_": "topic:a@b:1"}, "from: 'topic:a@b:1' is neither"),
        ({"from_": "store:s"}, "broker: give the name of the store's broker"),
        ({"from_": "store:s", "broker": "b"}, "checkpoint: give a folder"),
        ({"from_": "store:s#a", "topic": "b"}, "topic: b is not a"),
        ({"from_": "store:s", "topic": "a'b"}, 'topic: topic "a\'b"'),
        ({"from_": "store:s", "on_damage": "no"}, "on-damage: 'no' is neither fail nor skip"),
        ({"from_": "s", "broker": "b"}, "broker: is for stores only"),
        ({"from_": "s", "from_dir": "s"}, "from: give archive:DIR or store:DIR"),
    ],
)
def test_settings_that_cannot_be_are_named(
    more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s/commitlog").mkdir(parents=True)
    with pytest.raises(OptionError) as caught:
        ReplaySettings(nameserver="127.0.0.1:1", to_topic="t", **more)
    assert said in str(caught.value)
