"""The jobs `dlq` and `latency`: what they find, and that dead letters are sent again only once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.store.logs import change, write_log
from tests.pipeline.tables import Tables, keeps_nothing, names_in

from cometmq.client import ClientConfig, DeadLetterFilter, Redriven, SyncClient
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs import latency as looking
from cometmq.pipeline.jobs.dlq import DlqSettings, dlq
from cometmq.pipeline.jobs.dlq_letters import Letters
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.latency import LatencySettings, latency
from cometmq.pipeline.jobs.receipts import Receipts
from cometmq.pipeline.jobs.report import Outcome, Report
from cometmq.pipeline.jobs.results import Results
from cometmq.pipeline.jobs.tables import span, survey, topic_table
from cometmq.pipeline.lanes import SEND_MESSAGE_V2
from cometmq.pipeline.wire import Settings, connect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from cometmq.pipeline.cluster import Survey
    from cometmq.pipeline.options import ReadOptions

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

TRACED = ClientConfig(trace=True, producer_group="shop")
BODIES = (b'{"id": 1}', b'{"id": 2}', b"text", b"\xff\xfe")


@pytest.fixture(scope="module")
def died(tables: Tables) -> str:
    """A group that has given up four messages of the topic `died`, and its clients' traces."""
    return gave_up(tables, "died")


def gave_up(tables: Tables, topic: str) -> str:
    """Return a group that has given up four messages of a topic."""
    cluster, group = tables.cluster, f"giving-up-{topic}"
    cluster.admin.create_group(group, max_retries=0)
    with SyncClient(cluster.nameserver, TRACED) as mq:
        for number, body in enumerate(BODIES):
            mq.send(topic, body, key=f"o-{number}", tag="paid", properties={"colour": "red"})
        with mq.consume(topic, group=group, start="first") as consumer:
            for _ in BODIES:
                next(consumer).retry()
    assert len(cluster.dead_letters(group, count=len(BODIES))) == len(BODIES)
    return group


def queues_of(offsets: dict[str, dict[str, dict[str, list[int]]]]) -> list[list[int]]:
    """Return the first offset and the end of what was read of each queue."""
    brokers = [each for of_topic in offsets.values() for each in of_topic.values()]
    return [ends for queues in brokers for ends in queues.values()]


def looked(tables: Tables, group: str, run: Run | None = None, **more: Any) -> Report:
    settings = DlqSettings(nameserver=tables.cluster.nameserver, group=group, **more)
    return dlq(tables.spark, settings, run)


def test_dead_letters_are_put_together_by_what_they_share(tables: Tables, died: str) -> None:
    report = looked(tables, died, cluster_by="topic,shape,key,tag", examples=1)
    assert (report.rows, report.size) == (4, sum(map(len, BODIES)))
    assert sum(end - first for first, end in queues_of(report.offsets)) == 4
    clusters = report.details["clusters"]
    assert {(each["topic"], each["key"], each["tag"]) for each in clusters} == {
        ("died", "o-#", "paid")
    }
    assert {each["shape"]: each["count"] for each in clusters} == {
        "json: id": 2,
        "text": 1,
        "binary": 1,
    }
    assert clusters[0]["count"] == 2
    assert {len(each["examples"]) for each in clusters} == {1}
    assert "redriven" not in report.details


def test_what_is_chosen_is_sent_again_once(tables: Tables, died: str, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts.jsonl"
    where: dict[str, Any] = {
        "redrive": "key IN ('o-0', 'o-2')",
        "to": "redriven",
        "receipts": str(receipts),
    }
    dry = looked(tables, died, Run(dry_run=True), **where)
    assert dry.details["chosen"] == 2
    assert "redriven" not in dry.details
    assert tables.cluster.sent("redriven") == []
    for redriven, earlier in ((2, 0), (0, 2)):  # As after a kill: nothing comes twice.
        report = looked(tables, died, **where, rate=1000)
        assert (report.details["redriven"], report.details["earlier"]) == (redriven, earlier)
    one, _ = receipts.read_text().splitlines()
    receipts.write_text(f"{one}\n{one[:20]}")  # The job was killed as it wrote.
    where["redrive"] = "key IN ('o-0', 'o-2', 'o-3')"
    report = looked(tables, died, **where)
    assert (report.details["redriven"], report.details["earlier"]) == (1, 2)
    sent = tables.cluster.sent("redriven", count=3)
    assert {(each.body, each.tag) for each in sent} == {(BODIES[n], "paid") for n in (0, 2, 3)}
    assert {each.properties["colour"] for each in sent} == {"red"}
    lines = [json.loads(line) for line in receipts.read_text().splitlines()]
    assert [line["to_topic"] for line in lines] == ["redriven"] * 3
    assert len({line["message_id"] for line in lines}) == 3
    assert all(datetime.fromisoformat(line["died"]).tzinfo for line in lines)
    assert len(tables.cluster.dead_letters(died)) == 4


def test_what_died_at_another_time_is_neither_shown_nor_sent(tables: Tables) -> None:
    topic, group = "died-by-time", "giving-up-by-time"
    tables.cluster.admin.create_group(group, max_retries=0)
    with (
        SyncClient(tables.cluster.nameserver) as mq,
        mq.consume(topic, group=group, start="first") as consumer,
    ):
        for number in range(3):
            mq.send(topic, b"%d" % number)
            next(consumer).retry()
            tables.cluster.dead_letters(group, count=number + 1)
            tables.cluster.clock.jump(1)
    letters = tables.cluster.dead_letters(group, count=3)
    _, second, third = (each.stored_at.isoformat() for each in letters)
    given: dict[str, Any] = {"since": second, "until": third, "redrive": "true"}
    for to in ("origin", "by-time-copied"):
        report = looked(tables, group, **given, to=to)
        assert (report.rows, report.details["chosen"], report.details["redriven"]) == (1, 1, 1)
    assert [each.body for each in tables.cluster.sent(topic, count=4)].count(b"1") == 2
    assert tables.bodies("by-time-copied") == ["1"]


def test_of_sql_that_is_wrong_nothing_is_read(tables: Tables, died: str) -> None:
    """Otherwise it would not count as wrong usage, as the job would have begun."""
    run = Run()
    with pytest.raises(OptionError, match=r"redrive: .*nope"):
        looked(tables, died, run, redrive="nope = 1")
    assert run.report is not None
    assert run.report.rows == 0


@pytest.mark.parametrize("other", [b"\xff\xfe", b"5", b"[1]"])
def test_receipts_go_on_behind_what_is_none(tmp_path: Path, other: bytes) -> None:
    path = tmp_path / "receipts.jsonl"
    path.write_bytes(other)
    for _ in range(2):
        Receipts(str(path)).write([{"group": "g", "broker": "b", "queue_offset": 1}])
    there, line = path.read_bytes().splitlines()
    assert (there, json.loads(line)["queue_offset"]) == (other, 1)


def test_without_a_file_or_anything_new_no_receipts_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Receipts("").write([{"group": "g", "broker": "b", "queue_offset": 1}])
    Receipts("receipts.jsonl").write([])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["", "\n", '\n{"group": ', "\n{"])
def test_of_receipts_what_was_cut_off_goes(tmp_path: Path, end: str) -> None:
    path = tmp_path / "receipts.jsonl"
    sent = [{"group": "g", "broker": "b", "queue_offset": number} for number in range(3)]
    path.write_text(json.dumps(sent[0]) + end)
    receipts = Receipts(str(path))
    receipts.write(sent[:2])
    receipts.write(sent)
    assert [json.loads(line) for line in path.read_text().splitlines()] == sent


def redriven_by_the_client(tables: Tables, group: str, to: Literal["group", "topic"]) -> Redriven:
    with SyncClient(tables.cluster.nameserver) as mq:
        return mq.admin.dead_letters.redrive(group, to=to)


def until_indexed(tables: Tables, group: str, count: int) -> None:
    """Wait until the broker's index knows `count` dead letters as sent again."""
    deadline = monotonic() + 20
    with SyncClient(tables.cluster.nameserver) as mq:
        while mq.admin.dead_letters.redrive(group, dry_run=True).earlier < count:
            assert monotonic() < deadline
            sleep(0.01)


@pytest.mark.parametrize("to", ["group", "topic"])
def test_what_the_job_redrove_no_command_sends_again(
    tables: Tables, to: Literal["group", "topic"]
) -> None:
    topic = f"job-first-{to}"
    group = gave_up(tables, topic)
    report = looked(tables, group, redrive="key = 'o-1'")
    assert (report.details["redriven"], report.details["earlier"]) == (1, 0)
    assert [each.body for each in tables.cluster.sent(topic, count=5)].count(BODIES[1]) == 2
    until_indexed(tables, group, 1)
    redriven = redriven_by_the_client(tables, group, to)
    assert (redriven.sent, redriven.earlier) == (3, 1)


@pytest.mark.parametrize("to", ["group", "topic"])
def test_what_a_command_redrove_the_job_does_not_send_again(
    tables: Tables, tmp_path: Path, to: Literal["group", "topic"]
) -> None:
    topic = f"command-first-{to}"
    group = gave_up(tables, topic)
    with SyncClient(tables.cluster.nameserver) as mq:
        wanted = DeadLetterFilter(key="o-2")
        assert mq.admin.dead_letters.redrive(group, wanted, to=to).sent == 1
    until_indexed(tables, group, 1)
    receipts = tmp_path / "receipts.jsonl"
    news: list[Mapping[str, Any]] = []
    run = Run(progress=news.append)
    report = looked(tables, group, run, redrive="true", receipts=str(receipts))
    assert (report.details["redriven"], report.details["earlier"]) == (3, 1)
    told = [each for each in news if "redriven" in each]
    assert told[-1] == {"redriven": 3, "earlier": 1, "of": 4}
    assert len(told) < 4  # A line a second and a last one, not one for each message.
    # A message for the group goes to another topic than the one that a receipt would name.
    assert len(receipts.read_text().splitlines()) == (3 if to == "group" else 4)
    bodies = [each.body for each in tables.cluster.sent(topic, count=7)]
    assert bodies.count(BODIES[2]) == (1 if to == "group" else 2)
    until_indexed(tables, group, 4)
    report = looked(tables, group, redrive="true")
    assert (report.details["redriven"], report.details["earlier"]) == (0, 4)


def send_of_id(tables: Tables, topic: str, message_id: str, body: bytes) -> None:
    """Send a message with an id that the producer chose."""
    address = tables.cluster.broker
    properties = f"UNIQ_KEY\x01{message_id}\x02KEYS\x01{body.decode()}\x02"
    fields = {"a": "shop", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
    fields |= {"g": "1700000000000", "i": properties, "j": "0", "k": "false", "m": "false"}
    peer = connect(address, Settings())
    try:
        peer.expect(SEND_MESSAGE_V2, fields, body)
    finally:
        peer.close()


def test_two_dead_letters_of_one_id_are_two(tables: Tables, tmp_path: Path) -> None:
    """As after a message was sent twice."""
    group, topic, receipts = "twins", "twins-in", tmp_path / "receipts.jsonl"
    tables.cluster.admin.create_topic(topic, queues=1)
    tables.cluster.admin.create_group(group, max_retries=0)
    for body in (b"one", b"two", b"three"):
        send_of_id(tables, topic, "7F0000010000000000000000000000AA", body)
    with (
        SyncClient(tables.cluster.nameserver) as mq,
        mq.consume(topic, group=group, start="first") as consumer,
    ):
        for _ in range(3):
            next(consumer).retry()
    letters = tables.cluster.dead_letters(group, count=3)
    assert len({each.id for each in letters}) == 1
    given: dict[str, Any] = {"receipts": str(receipts)}
    one = looked(tables, group, redrive="key = 'two'", **given)
    assert (one.details["chosen"], one.details["redriven"]) == (1, 1)
    until_indexed(tables, group, 1)
    rest = looked(tables, group, redrive="true", **given)
    assert (rest.details["chosen"], rest.details["redriven"]) == (3, 2)
    assert rest.details["earlier"] == 1
    bodies = [each.body for each in tables.cluster.sent(topic, count=6)]
    assert {body: bodies.count(body) for body in bodies} == {b"one": 2, b"two": 2, b"three": 2}
    lines = [json.loads(line) for line in receipts.read_text().splitlines()]
    assert len({(line["broker"], line["queue_id"], line["queue_offset"]) for line in lines}) == 3
    assert len(lines) == 3


@pytest.mark.parametrize("more", [{}, {"redrive": "true"}, {"redrive": "true", "to": "elsewhere"}])
def test_a_group_without_dead_letters_is_a_report_of_none(
    tables: Tables, more: dict[str, Any]
) -> None:
    tables.cluster.admin.create_group("never-gave-up")
    report = looked(tables, "never-gave-up", **more)
    assert (report.outcome, report.rows, report.details["clusters"]) == (Outcome.DONE, 0, [])
    if more:
        assert (report.details["chosen"], report.details["redriven"]) == (0, 0)


def test_a_group_whose_dead_letters_were_thrown_away_is_a_report_of_none(tables: Tables) -> None:
    group = gave_up(tables, "thrown-away")
    assert tables.cluster.admin.dead_letters.purge(group) == len(BODIES)
    assert looked(tables, group).rows == 0


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("never-gave-upp", "no broker knows the group 'never-gave-upp'; did you mean 'never-gave-"),
        ("nobody", "no broker knows the group 'nobody'"),
        ("no group", "group: group 'no group'"),
    ],
)
def test_a_group_that_is_not_there_is_named(tables: Tables, group: str, said: str) -> None:
    tables.cluster.admin.create_group("never-gave-up")
    with pytest.raises(OptionError) as caught:
        looked(tables, group)
    assert said in str(caught.value)


def test_a_redrive_ends_when_it_is_asked_to_and_goes_on(tables: Tables) -> None:
    group = gave_up(tables, "stopped-midway")
    stopping = Run(progress=lambda news: stopping.stop() if news.get("redriven") == 1 else None)
    report = looked(tables, group, stopping, redrive="true")
    assert report.stopped
    assert report.details["redriven"] == 1
    assert looked(tables, group, redrive="true").details["failed"] == []
    until_indexed(tables, group, 4)
    assert len(tables.cluster.sent("stopped-midway", count=8)) == 8


def test_a_redrive_whose_broker_goes_away_says_so(
    tables: Tables, died: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end in a traceback, like an error that nobody foresaw."""

    def gone(_nameserver: str, config: ClientConfig) -> SyncClient:
        return SyncClient("127.0.0.1:1", replace(config, timeout=1))

    monkeypatch.setattr("cometmq.pipeline.jobs.dlq.SyncClient", gone)
    run = Run()
    with pytest.raises(PipelineError, match=re.escape("127.0.0.1:1")):
        looked(tables, died, run, redrive="true")
    told = run.report_so_far("dlq")
    assert (told.details["chosen"], told.details["redriven"]) == (4, 0)


def test_dead_letters_that_a_broker_does_not_take_back_are_a_failure(tables: Tables) -> None:
    group, run = gave_up(tables, "takes-none-back"), Run()
    tables.cluster.admin.create_topic("takes-none-back", permission="r")
    with pytest.raises(
        PipelineError, match=r", and 4 in all, could not be redriven: .*takes-none-back"
    ):
        looked(tables, group, run, redrive="true")
    told = run.report_so_far("dlq").details
    assert (told["redriven"], told["earlier"], len(told["failed"])) == (0, 0, 4)


def test_a_file_that_cannot_be_made_is_told_before_anything_is_read(
    tables: Tables, died: str
) -> None:
    """In a folder that takes no files, whatever its permissions say."""
    run, nowhere = Run(), "/proc/nowhere"
    with pytest.raises(OptionError, match=f"^receipts: {nowhere}: "):
        looked(tables, died, run, redrive="true", receipts=nowhere)
    assert run.report_so_far("dlq").rows == 0
    with pytest.raises(OptionError, match=f"^html: {nowhere}: "):
        measured(tables, topic="died", html=nowhere)


def test_sends_go_on_where_they_were_stopped(tables: Tables, died: str) -> None:
    stopping = Run()
    stopping.stop()
    given: dict[str, Any] = {"redrive": "true", "to": "stopped", "rate": 1}
    report = looked(tables, died, stopping, **given)
    assert report.stopped
    assert report.details["redriven"] == 0


def test_dead_letters_that_go_before_they_are_copied_do_not_count_as_sent(
    tables: Tables, tmp_path: Path
) -> None:
    """Here they are purged and others take their places; with a rate, hours may pass."""
    group, receipts = gave_up(tables, "thrown"), tmp_path / "receipts.jsonl"

    def throw_away(news: Mapping[str, Any]) -> None:
        if news.get("redriven") == 2:
            tables.cluster.admin.dead_letters.purge(group)
            gave_up(tables, "thrown")

    given: dict[str, Any] = {"redrive": "true", "to": "thrown-copied", "receipts": str(receipts)}
    run = Run(progress=throw_away)
    with pytest.raises(PipelineError, match="2 of the dead letters that were chosen are gone"):
        looked(tables, group, run, **given, rate=2)
    assert run.report_so_far("dlq").details["redriven"] == 2
    assert len(receipts.read_text().splitlines()) == 2


def test_dead_letters_that_go_before_they_are_redriven_do_not_count_as_sent(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here others take their places, which nobody has chosen."""
    group, receipts = gave_up(tables, "thrown-at-once"), tmp_path / "receipts.jsonl"
    chosen = Letters.chosen

    def choosing(letters: Letters) -> list[dict[str, Any]]:
        found = chosen(letters)
        tables.cluster.admin.dead_letters.purge(group)
        gave_up(tables, "thrown-at-once")
        return found

    monkeypatch.setattr(Letters, "chosen", choosing)
    run = Run()
    with pytest.raises(PipelineError, match="2 of the dead letters that were chosen are gone"):
        looked(tables, group, run, redrive="tag = 'paid' AND key < 'o-2'", receipts=str(receipts))
    told = run.report_so_far("dlq").details
    assert (told["chosen"], told["redriven"], told["earlier"]) == (2, 0, 0)
    assert len(tables.cluster.sent("thrown-at-once", count=8)) == 8
    assert not receipts.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cluster_by": "mood"}, "cluster-by: 'mood' is not one of"),
        ({"rate": -1}, "rate, examples"),
        ({"on_bad_body": "ignore"}, "on-bad-body: 'ignore' is neither fail nor skip"),
        ({"redrive": "nonsense = 1"}, "redrive: "),
        ({"redrive": "((("}, "redrive: "),
        ({"redrive": "key = 'o-1' AND"}, "redrive: "),
        ({"redrive": "1 / queue_offset > 0"}, "redrive: [DIVIDE_BY_ZERO]"),
        ({"redrive": "cast(cast(body AS string) AS int) = 1"}, "redrive: [CAST_INVALID_INPUT]"),
        ({"redrive": "raise_error('no, ' || key) IS NULL"}, "redrive: [USER_RAISED_EXCEPTION]"),
        ({"redrive": "key"}, "redrive: [DATATYPE_MISMATCH"),
        ({"redrive": "true", "to": "a'b"}, "to: "),
        ({"since": "yesterday"}, "since: 'yesterday' is not a time"),
    ],
)
def test_settings_that_cannot_be_are_said(
    tables: Tables, died: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        looked(tables, died, **given)


def measured(of: Tables, /, **more: Any) -> dict[str, Any]:
    settings = LatencySettings(nameserver=of.cluster.nameserver, **more)
    report = latency(of.spark, settings)
    return {"rows": report.rows, "offsets": report.offsets, **report.details}


def test_spark_keeps_nothing_of_a_measurement_that_fails(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise PipelineError("its disk is full")

    tables.fill("measured-in-vain", 2)
    monkeypatch.setattr(Results, "write", full)
    with pytest.raises(PipelineError, match="full"):
        measured(tables, topic="measured-in-vain", tables=str(tmp_path / "tables"))
    assert keeps_nothing(tables.spark)


def test_times_groups_and_hosts_of_a_topic_are_measured(
    tables: Tables, died: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    tables.fill("timed", 20)
    for group in ("behind", "elsewhere"):
        tables.cluster.admin.create_group(group)
    with (
        SyncClient(tables.cluster.nameserver) as mq,
        mq.consume("timed", group="behind", start="first") as consumer,
        next(consumer),
    ):
        pass
    found = measured(tables, topic="timed", groups="behind, elsewhere", tables=str(tmp_path))
    assert found["rows"] == 20
    (total,) = found["total"]
    assert (total["topic"], total["count"], total["negative"]) == ("timed", 20, 0)
    # Up to an hour: tests of the sink let a minute of the broker's clock pass in an instant.
    assert 0 <= total["p50_ms"] <= total["p99_ms"] <= total["max_ms"] < 3_600_000
    assert [each["host"] for each in found["hosts"]] == ["127.0.0.1"]
    assert sum(each["count"] for each in found["queues"]) == 20
    assert sum(each["count"] for each in found["heat"]) == 20
    assert sum(each["count"] for each in found["buckets"]) == 20
    assert sum(end - first for first, end in queues_of(found["offsets"])) == 20
    assert {each["group"] for each in found["lag"]} == {"behind"}
    assert sum(each["messages"] for each in found["lag"]) == 19
    assert found["not_read"] == [{"group": "elsewhere", "topic": "timed"}]
    waits = [each["waits_since"] for each in found["lag"]]
    assert None not in waits
    assert tables.spark.read.parquet(str(tmp_path / "queues")).count() == len(found["queues"])
    later = (now + timedelta(days=1)).isoformat()
    assert measured(tables, topic="timed", since=later, tables=str(tmp_path))["rows"] == 0
    assert tables.spark.read.parquet(str(tmp_path / "queues")).count() == 0
    assert not (tmp_path / "lag").exists()  # It was of an earlier run.
    of_none = measured(tables, topic="timed", since=later, groups="behind")
    assert (of_none["rows"], [each["waits_since"] for each in of_none["lag"]]) == (0, waits)


def with_a_group(tables: Tables, topic: str, group: str, *at: int) -> tuple[ReadOptions, Survey]:
    """Let a group have read each queue of a topic up to `at`; return what a survey says."""
    tables.cluster.admin.create_group(group)
    options, found = survey({"nameserver": tables.cluster.nameserver}, topic)
    ends = dict(zip(sorted(found.queues), at, strict=True))
    options.cluster().commit(group, ends, found.addresses)
    return options, found


def survey_is(monkeypatch: pytest.MonkeyPatch, *earlier: object) -> None:
    """Let the job find the survey of an earlier time."""

    def surveyed(*_: object) -> tuple[object, ...]:
        return earlier

    monkeypatch.setattr(looking, "survey", surveyed)


@pytest.mark.slow
def test_the_lag_is_of_what_waited_when_it_was_asked_and_no_more_is_read_for_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("behind-by-two", 6)
    # The first is after the queue's end, as with a topic that was recreated.
    options, found = with_a_group(tables, "behind-by-two", "nearly", 7, 2)
    first, second = sorted(found.queues)
    tables.fill("behind-by-two", 2, first=6)  # One after each end surveyed.
    frames: list[DataFrame] = []

    def recorded(*given: Any, **more: Any) -> DataFrame:
        frames.append(topic_table(*given, **more))
        return frames[-1]

    survey_is(monkeypatch, options, found)
    monkeypatch.setattr(looking, "topic_table", recorded)
    for more in ({}, {"since": "2100-01-01"}):
        lag = measured(tables, topic="behind-by-two", groups="nearly", **more)["lag"]
        waits = [(each["queue_id"], each["messages"], bool(each["waits_since"])) for each in lag]
        assert waits == [(second.id, 1, True), (first.id, 0, False)]
    assert [each.count() for each in frames] == [8, 8, 3]


@pytest.mark.slow
def test_a_group_that_is_ahead_of_a_queue_waits_for_nothing_and_is_told(tables: Tables) -> None:
    """Such as a group of a topic that was deleted and recreated."""
    tables.fill("made-shorter", 4)
    _, there = with_a_group(tables, "made-shorter", "ahead", 7, 1)
    first, second = sorted(there.queues)
    lag = measured(tables, topic="made-shorter", groups="ahead")["lag"]
    found = [(each["queue_id"], each["messages"], each["ahead"]) for each in lag]
    assert found == [(second.id, 1, 0), (first.id, 0, 5)]


@pytest.mark.slow
def test_what_expired_and_what_came_since_waits_for_nobody(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("gone-in-front", 8)
    options, found = with_a_group(tables, "gone-in-front", "slow", 0, 4)
    first, second = sorted(found.queues)
    tables.fill("gone-in-front", 2, first=8)
    found.queues[first] = found.queues[first]._replace(first=3)

    survey_is(monkeypatch, options, found)
    lag = measured(tables, topic="gone-in-front", groups="slow")["lag"]
    waits = [(each["queue_id"], each["messages"], bool(each["waits_since"])) for each in lag]
    assert waits == [(first.id, 1, True), (second.id, 0, False)]


@pytest.mark.slow
def test_since_takes_its_own_millisecond_and_until_does_not(tables: Tables) -> None:
    for number in range(3):
        tables.fill("between", 1, first=number, queues=1)
        tables.cluster.clock.jump(1)
    rows = tables.read("between").selectExpr("unix_millis(store_time) AS ms").collect()
    _, second, third = sorted(str(row["ms"]) for row in rows)
    for given, count in (
        ({"since": second}, 2),
        ({"until": second}, 1),
        ({"since": second, "until": third}, 1),
    ):
        assert measured(tables, topic="between", **given)["rows"] == count


@pytest.mark.slow
def test_traces_say_how_long_sends_and_consumptions_took(tables: Tables, died: str) -> None:
    before = names_in(tables.spark)
    found = measured(tables, trace_topic="RMQ_SYS_TRACE_TOPIC")
    assert names_in(tables.spark) == before
    (sends,) = (each for each in found["sends"] if each["topic"] == "died")
    assert (sends["producer"], sends["count"], sends["failed"]) == ("shop", 4, 0)
    (consumed,) = (each for each in found["consumptions"] if each["consumer"] == died)
    assert (consumed["count"], consumed["failed"]) == (4, 4)
    (delivered,) = (each for each in found["deliveries"] if each["consumer"] == died)
    assert (delivered["topic"], delivered["count"], delivered["negative"]) == ("died", 4, 0)


def test_traces_say_how_long_it_took_until_a_message_was_consumed(tables: Tables) -> None:
    tables.cluster.admin.create_group("content")
    with SyncClient(tables.cluster.nameserver, TRACED) as mq:
        mq.send("consumed", b"x")
        with mq.consume("consumed", group="content", start="first") as consumer, next(consumer):
            pass
    found = measured(tables, trace_topic="RMQ_SYS_TRACE_TOPIC")
    (acknowledged,) = (each for each in found["acknowledgements"] if each["consumer"] == "content")
    (delivered,) = (each for each in found["deliveries"] if each["consumer"] == "content")
    assert (acknowledged["topic"], acknowledged["count"]) == ("consumed", 1)
    assert acknowledged["max_ms"] >= delivered["max_ms"] >= 0


@pytest.mark.slow
def test_a_report_is_a_page_that_needs_nothing_else(tables: Tables, tmp_path: Path) -> None:
    tables.fill("seen", 20)
    tables.cluster.admin.create_group("looking")
    path = tmp_path / "latency.html"
    measured(tables, topic="seen", groups="looking", html=str(path))
    text = path.read_text()
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert {"From born to stored", "How long when", "Queues", "Consumer groups"} <= set(headings)
    drawn = re.findall(r"<title>[0-9: -]+, [a-z0-9. ]+: ([0-9]+)</title>", text)
    assert sum(map(int, drawn)) == 20
    settings = LatencySettings(
        nameserver=tables.cluster.nameserver, topic="seen", html=str(tmp_path / "dry.html")
    )
    dry = latency(tables.spark, settings, Run(dry_run=True))
    assert dry.rows == sum(end - first for first, end in queues_of(dry.offsets)) == 20
    assert not (tmp_path / "dry.html").exists()


def test_how_long_the_messages_of_a_store_took_is_measured_without_a_cluster() -> None:
    assert LatencySettings(store="/store").nameserver == ""
    for source in ({"topic": "T"}, {"trace_topic": "T"}):
        with pytest.raises(OptionError, match="nameserver: must not be empty"):
            LatencySettings(**source)  # type: ignore[arg-type]  # mypy does not look into the dict.
    with pytest.raises(OptionError, match="topic, store: give one of them"):
        LatencySettings(store="/store", topic="T")


def test_a_broker_that_a_store_does_not_name_has_no_name_in_the_report_either() -> None:
    report = Report("latency")
    row = {"topic": "T", "broker": None, "queue_id": 0, "first": 0, "end": 3}
    report.cover([span(row)])
    assert report.offsets == {"T": {"": {"0": [0, 3]}}}


def test_a_host_whose_clock_is_ahead_is_told(tables: Tables, tmp_path: Path) -> None:
    """Its messages seem to be the quickest, so it is not among the slowest hosts shown."""
    places = write_log(tmp_path, [b"x" * 200] * 12)
    for number, place in enumerate(places):
        host = bytes((10, 0, 0, number % 3)) + (9).to_bytes(4, "big")
        ahead = 5000 if number % 3 == 2 and number > 2 else -7
        times = (1_000_000 + ahead).to_bytes(8, "big") + host + (1_000_000).to_bytes(8, "big")
        change(tmp_path, place + 40, times)
    found = measured(tables, store=str(tmp_path), shown=2)
    assert "10.0.0.2" not in {each["host"] for each in found["hosts"]}
    (clock,) = found["clocks"]
    assert (clock["host"], clock["count"]) == ("10.0.0.2", 4)
    assert (clock["negative"], clock["min_ms"]) == (0.75, -5000)
    heat = {each["from_ms"]: each["count"] for each in found["heat"]}
    assert heat == {-1: 3, 4: 9}


def test_one_message_of_very_many_tells_of_a_clock(tables: Tables, tmp_path: Path) -> None:
    """Even though its share is rounded to zero."""
    size = 1 << 22
    first, *_ = write_log(tmp_path, [b"x"] * 20_001, size=size)
    change(tmp_path, first + 40, (9).to_bytes(8, "big"), size=size)  # Stored at 2.
    (clock,) = measured(tables, store=str(tmp_path))["clocks"]
    assert (clock["count"], clock["negative"], clock["min_ms"]) == (20_001, 0, -7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"groups": "nobody-at-all"}, "groups: no broker knows the group 'nobody-at-all'"),
        ({"groups": "no group"}, "groups: group 'no group'"),
        ({"bucket": "0 seconds"}, "bucket: "),
        ({"bucket": "-1 minute"}, "bucket: "),
        ({"bucket": "1 month"}, "bucket: "),
        ({"bucket": "a while"}, "bucket: "),
        ({"bucket": "1' minute"}, "bucket: "),
        ({"bucket": ""}, "bucket: "),
        ({"bucket": "100 microseconds"}, "bucket: 100 microseconds is less than a millisecond"),
        ({"shown": -1}, "shown: must not be negative"),
    ],
)
def test_measures_that_cannot_be_are_said(tables: Tables, given: dict[str, Any], said: str) -> None:
    tables.fill("measured-in-vain", 1)
    with pytest.raises(OptionError) as caught:
        measured(tables, topic="measured-in-vain", **given)
    assert str(caught.value).startswith(said)


def test_latency_wants_to_know_of_what(tables: Tables) -> None:
    for given in ({}, {"topic": "T", "store": "/tmp"}, {"store": "/tmp", "groups": "g"}):
        with pytest.raises(OptionError):
            measured(tables, **given)
