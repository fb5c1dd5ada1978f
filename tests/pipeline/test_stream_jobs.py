"""The jobs `transform` and `aggregate`, and what all jobs that read a stream share."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import AnalysisException
from tests.pipeline.tables import Tables, numbers

from cometmq.pipeline.errors import HeldError, OptionError, PipelineError
from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.holding import BATCHES, STREAM, held
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.transform import TransformSettings, transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.pipeline.jobs.report import Report
    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

KEPT = "topic, broker, queue_id, queue_offset"


@pytest.mark.slow
def test_a_second_run_on_the_checkpoint_or_folder_of_another_is_refused(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("streamed-at-once", 1)
    spark, nameserver = tables.spark, tables.cluster.nameserver
    given: Any = {"nameserver": nameserver, "topic": "streamed-at-once"}
    given["checkpoint"] = str(tmp_path / "checkpoint")
    to = str(tmp_path / "to")
    runs: dict[str, Callable[[], object]] = {
        "mirror": lambda: mirror(
            spark, MirrorSettings(**given, to_nameserver=nameserver, prefix="m-")
        ),
        "transform": lambda: transform(
            spark, TransformSettings(**given, sql="SELECT body FROM messages", to_topic="t")
        ),
        "aggregate": lambda: aggregate(spark, AggregateSettings(**given, to=to)),
    }
    with held(Run(), "mirror", (Folder(spark, given["checkpoint"]), STREAM)):
        for start in runs.values():
            with pytest.raises(HeldError, match=r"/checkpoint: mirror \(process "):
                start()
    with (
        held(Run(), "archive", (Folder(spark, to), BATCHES)),
        pytest.raises(HeldError, match=r"/to: archive \(process "),
    ):
        runs["aggregate"]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("job", ["archive", "mirror", "transform", "aggregate"])
def test_messages_in_queues_that_the_topic_no_longer_has_are_told_until_they_are_read(
    tables: Tables, tmp_path: Path, job: str
) -> None:
    topic = f"narrowed-{job}"
    spark, nameserver = tables.spark, tables.cluster.nameserver
    given: Any = {"nameserver": nameserver, "topic": topic, "checkpoint": str(tmp_path / "at")}
    runs: dict[str, Callable[[Run], Report]] = {
        "archive": lambda run: archive(spark, ArchiveSettings(**given, to=str(tmp_path)), run),
        "mirror": lambda run: mirror(
            spark, MirrorSettings(**given, to_nameserver=nameserver, prefix="m-"), run
        ),
        "transform": lambda run: transform(
            spark,
            TransformSettings(
                **given,
                sql=f"SELECT {KEPT}, store_time, body FROM messages",
                to_topic="narrowed-to",
            ),
            run,
        ),
        "aggregate": lambda run: aggregate(
            spark, AggregateSettings(**given, to=str(tmp_path / "to")), run
        ),
    }

    def done() -> tuple[int, list[str]]:
        news: list[Mapping[str, Any]] = []
        rows = runs[job](Run(progress=news.append)).rows
        said = [str(each["warning"]) for each in news if "warning" in each]
        return rows, [each.partition(", because")[0] for each in said if topic in each]

    tables.fill(topic, 4)
    assert done() == (4, [])
    tables.fill(topic, 4, first=4)
    tables.cluster.admin.create_topic(topic, queues=1)
    assert done() == (2, ["2 messages were not read"])
    assert done() == (0, ["2 messages were not read"])
    tables.cluster.admin.create_topic(topic, queues=2)
    assert done() == (2, [])


def transforming(tables: Tables, checkpoint: Path, **more: Any) -> TransformSettings:
    return TransformSettings(
        nameserver=tables.cluster.nameserver, checkpoint=str(checkpoint), **more
    )


def test_a_beginning_that_is_not_there_is_a_mistake(tables: Tables, tmp_path: Path) -> None:
    """A stream that has not begun has lost nothing."""
    tables.fill("not-there", 3)
    sql = f"SELECT {KEPT}, store_time, body FROM messages"
    given = {"topic": "not-there", "to_topic": "not-there-out", "sql": sql}
    settings = transforming(tables, tmp_path, **given, start='{"not-there": {"0": 99}}')
    with pytest.raises(OptionError, match="startingOffsets: offset 99 of queue not-there/"):
        transform(tables.spark, settings)
    lost = transforming(tables, tmp_path, **given, start=settings.start, fail_on_data_loss=False)
    assert transform(tables.spark, lost).rows < 3


def test_sql_routes_rows_and_misfits_go_aside(tables: Tables, tmp_path: Path) -> None:
    for body in (b'{"id": 1, "amount": 5}', b'{"id": 2, "amount": 500}', b"no JSON", b"\xff\xfe"):
        tables.cluster.send("orders-in", body, key="k")
    settings = transforming(
        tables,
        tmp_path,
        topic="orders-in",
        schema="id BIGINT, amount DOUBLE",
        dead_letter="orders-misfits",
        sql=f"SELECT {KEPT}, cast(value.id AS string) AS body, key,"
        " if(value.amount > 100, 'orders-big', 'orders-small') AS to_topic FROM messages",
    )
    report = transform(tables.spark, settings)
    assert report.details["dead_letters"] == 2
    assert report.details["written"] == {"orders-big": 1, "orders-small": 1}
    assert report.rows == 4  # Trap 12: although the batch is looked at three times.
    assert tables.bodies("orders-big") == ["2"]
    assert tables.bodies("orders-small") == ["1"]
    misfits = tables.cluster.sent("orders-misfits", count=2)
    assert {message.body for message in misfits} == {b"no JSON", b"\xff\xfe"}
    assert "is no JSON of" in misfits[0].user_properties["DEAD_LETTER_REASON"]


@pytest.mark.parametrize("to_topic", ["'circle-in'", "topic", "coalesce('circle-in', 'x')"])
def test_sql_that_sends_each_row_to_its_source_is_refused_before_it_begins(
    tables: Tables, tmp_path: Path, to_topic: str
) -> None:
    tables.fill("circle-in", 1)
    sql = f"SELECT {KEPT}, body, {to_topic} AS to_topic FROM messages"
    with pytest.raises(OptionError, match="sql: each row of circle-in is sent to a topic that is"):
        transform(tables.spark, transforming(tables, tmp_path, topic="circle-in", sql=sql))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_row_for_its_source_ends_the_job_unless_it_is_forced(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("round-in", 10, queues=1)
    sql = (
        f"SELECT {KEPT}, body, if(cast(cast(body AS string) AS int) = 7, 'round-in', 'round-out')"
        " AS to_topic FROM messages"
    )
    given = {"topic": "round-in", "sql": sql, "max_rows": 5}
    with pytest.raises(PipelineError) as caught:
        transform(tables.spark, transforming(tables, tmp_path, **given))
    assert str(caught.value).startswith("column to_topic: round-in is read, and what is sent to it")
    assert tables.bodies("round-in") == numbers(0, 10)
    assert tables.bodies("round-out") == numbers(0, 5)
    transform(tables.spark, transforming(tables, tmp_path, **given, force=True))
    assert tables.bodies("round-out") == [str(each) for each in range(10) if each != 7]
    assert tables.bodies("round-in") == sorted([*numbers(0, 10), "7"], key=int)


FITTING = {
    b'{"id": 1, "amount": 5}': (1, 5.0),
    b' {"amount": null, "more": [2]} ': (None, None),
    b"{}": (None, None),
    b'{"id": 1, "id": 2}': (2, None),
}
MISFITS = (
    b"no JSON",
    b"\xff\xfe",
    b"[1, 2]",
    b'[{"id": 1}]',
    b"3",
    b'"x"',
    b"null",
    b"  ",
    b'{"id": "abc"}',
    b'{"id": 1.5, "amount": 5}',
    b'{"id": 1, "amount": {}}',
    b"{'id': 1}",
    b'{"id": 1',
    b'{"id": 1}}',
    b'{"id": 1} more',
    b'{"id": 1}, "amount": 5',
    b'{"id": 1}]',
)
SEEN = (
    f"SELECT {KEPT}, concat_ws(' ', coalesce(cast(value.id AS string), '-'),"
    " coalesce(cast(value.amount AS string), '-'), cast(value IS NULL AS string)) AS body"
    " FROM messages"
)


@pytest.mark.parametrize("dead_letter", ["shapes-misfits", ""])
def test_no_body_is_lost_whatever_its_shape(
    tables: Tables, tmp_path: Path, dead_letter: str
) -> None:
    """Each is either seen by the SQL with what it says, or is a dead letter."""
    source = f"shapes-{dead_letter or 'alone'}"
    for body in (*FITTING, *MISFITS):
        tables.cluster.send(source, body)
    settings = transforming(
        tables,
        tmp_path,
        topic=source,
        to_topic=f"{source}-out",
        schema="id BIGINT, amount DOUBLE",
        dead_letter=dead_letter,
        sql=SEEN,
    )
    report = transform(tables.spark, settings)
    fitting = [
        " ".join("-" if each is None else str(each) for each in (*row, "false"))
        for row in FITTING.values()
    ]
    misfits = [] if dead_letter else ["- - true"] * len(MISFITS)
    out = tables.cluster.sent(f"{source}-out", count=len(fitting) + len(misfits))
    assert sorted(each.body.decode() for each in out) == sorted(fitting + misfits)
    if dead_letter:
        assert report.details["dead_letters"] == len(MISFITS)
        letters = tables.cluster.sent(dead_letter, count=len(MISFITS))
        assert {each.body for each in letters} == set(MISFITS)


def test_a_dead_letter_that_is_transformed_again_keeps_what_it_is(
    tables: Tables, tmp_path: Path
) -> None:
    before = {"DEAD_LETTER_REASON": "another", "a": "b"}
    tables.cluster.client.send("letters-in", b"no JSON", properties=before, flag=7)
    settings = transforming(
        tables,
        tmp_path,
        topic="letters-in",
        to_topic="letters-out",
        schema="id BIGINT",
        dead_letter="letters-again",
        sql=SEEN.replace("value.amount", "value.id"),
    )
    assert transform(tables.spark, settings).details["dead_letters"] == 1
    (letter,) = tables.cluster.sent("letters-again", count=1)
    assert letter.flag == 7
    reason = "the body is no JSON of id BIGINT"
    assert letter.user_properties == {"DEAD_LETTER_REASON": reason, "a": "b"}


@pytest.mark.parametrize("place", ["messages", "numbered"])
def test_trap_12_messages_that_sql_looks_at_twice_are_read_and_counted_once(
    tables: Tables, tmp_path: Path, place: str
) -> None:
    topic = f"twice-{place}"
    tables.fill(topic, 10)
    half = f"SELECT {KEPT}, body FROM {place} WHERE cast(cast(body AS string) AS int)"
    numbered = "WITH numbered AS (SELECT * FROM messages)" if place == "numbered" else ""
    settings = transforming(
        tables,
        tmp_path,
        topic=topic,
        to_topic=f"{topic}-out",
        sql=f"{numbered} {half} < 5 UNION ALL {half} >= 5",
    )
    assert transform(tables.spark, settings).rows == 10
    assert tables.bodies(f"{topic}-out") == numbers(0, 10)


def test_a_transformation_that_is_repeated_stores_its_rows_once(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("repeated-in", 10)
    settings = transforming(
        tables,
        tmp_path,
        topic="repeated-in",
        to_topic="repeated-out",
        sql=f"SELECT {KEPT}, body FROM messages",
    )
    transform(tables.spark, settings)
    for path in (tmp_path / "commits").iterdir():
        path.unlink()
    transform(tables.spark, settings)
    assert tables.bodies("repeated-out") == numbers(0, 10)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sql": "SELECT body FROM messages"}, "the rows have no topic, broker"),
        ({"sql": "SELECT nonsense FROM messages"}, "sql: "),
        ({"sql": "SELECT count(*) AS body FROM messages"}, "sql: GROUP BY or an aggregate"),
        (
            {"sql": f"SELECT {KEPT}, body FROM messages", "to_topic": ""},
            "to-topic: name where to write",
        ),
        ({"sql": "@/no/such/file"}, "sql: /no/such/file"),
        ({"sql": "SELEC body FROM messages"}, "sql: [PARSE_SYNTAX_ERROR]"),
        ({"sql": "SELECT 1", "schema": "id BIGNT"}, "schema: "),
        ({"sql": "SELECT 1", "dead_letter": "D"}, "dead-letter: without a schema"),
        (
            {"sql": f"SELECT {KEPT}, body FROM messages", "fail_on_data_loss": False},
            "fail-on-data-loss: the rows have no store_time",
        ),
    ],
)
def test_sql_that_cannot_be_is_refused(
    tables: Tables, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    tables.fill("refused-in", 1)
    given = {"topic": "refused-in", "to_topic": "refused-out", **more}
    with pytest.raises(OptionError) as caught:
        transform(tables.spark, transforming(tables, tmp_path, **given))
    assert said in str(caught.value)


def test_windows_are_reckoned_and_sent_once(tables: Tables, tmp_path: Path) -> None:
    for misfit in (b"no JSON", b"\xff\xfe", b'{"amount": "many"}'):
        tables.cluster.send("amounts", misfit)  # Trap 17: in ANSI mode what does not fit raises.
    times = {"12:00:10": 5, "12:00:50": 7, "12:01:10": 100, "12:30:00": 1}
    for time, amount in times.items():
        body = json.dumps({"at_text": f"2026-11-21T{time}Z", "who": "a", "amount": amount})
        tables.cluster.send("amounts", body.encode())
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="amounts",
        to_topic="sums",
        schema="at_text STRING, who STRING, amount DOUBLE",
        time="cast(at_text AS timestamp)",
        key="who",
        aggregations="count, sum(amount), p50(amount)",
        max_rows=0,
        checkpoint=str(tmp_path),
    )
    aggregate(tables.spark, settings)
    tables.cluster.send(
        "amounts",
        json.dumps({"at_text": "2026-11-21T12:40:00Z", "who": "a", "amount": 1}).encode(),
    )
    aggregate(tables.spark, settings)
    sums = [json.loads(message.body) for message in tables.cluster.sent("sums", count=2)]
    first = min(sums, key=lambda each: str(each["from"]))
    assert (first["key"], first["count"], first["sum_amount"]) == ("a", 2, 12.0)
    assert first["from"].startswith("2026-11-21T12:00:00")
    assert sorted(each["count"] for each in sums) == [1, 2]  # The others may still grow.


def test_bodies_that_do_not_fit_are_in_no_window_and_are_counted(
    tables: Tables, tmp_path: Path
) -> None:
    for body in (*FITTING, *MISFITS):
        tables.cluster.send("shapes-summed", body)
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="shapes-summed",
        to_topic="shapes-sums",
        schema="id BIGINT, amount DOUBLE",
        window="1000 days",
        aggregations="count, sum(id), count(amount)",
        mode="update",
        max_rows=0,
        checkpoint=str(tmp_path),
    )
    told: list[int] = []
    report = aggregate(
        tables.spark, settings, Run(progress=lambda news: told.append(news["misfits"]))
    )
    assert report.rows == len(FITTING) + len(MISFITS)
    assert report.size == sum(map(len, (*FITTING, *MISFITS)))
    assert (report.details["misfits"], told) == (len(MISFITS), [len(MISFITS)])
    (sums,) = (json.loads(each.body) for each in tables.cluster.sent("shapes-sums", count=1))
    assert (sums["count"], sums["sum_id"], sums["count_amount"]) == (len(FITTING), 3, 1)
    tables.cluster.send("shapes-summed", b"[]")
    tables.cluster.send("shapes-summed", b'{"id": 4}')
    assert aggregate(tables.spark, settings).details["misfits"] == 1
    bodies = [json.loads(each.body) for each in tables.cluster.sent("shapes-sums", count=2)]
    assert sorted(each["count"] for each in bodies) == [len(FITTING), len(FITTING) + 1]


@pytest.mark.slow
def test_a_window_is_sent_whenever_it_changed(tables: Tables, tmp_path: Path) -> None:
    """Spark lets no sink in Python write in this mode."""
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="changing",
        to_topic="changes",
        window="1000 days",
        mode="update",
        checkpoint=str(tmp_path),
    )
    for count in (2, 1):
        tables.fill("changing", count)
        aggregate(tables.spark, settings)
    assert aggregate(tables.spark, settings).rows == 0
    bodies = [json.loads(each.body)["count"] for each in tables.cluster.sent("changes", count=2)]
    assert sorted(bodies) == [2, 3]


@pytest.mark.slow
def test_a_window_that_is_again_what_it_was_is_sent_again(tables: Tables, tmp_path: Path) -> None:
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="swinging",
        to_topic="swings",
        window="1000 days",
        key="'all'",
        aggregations="avg(double(string(body)))",
        mode="update",
        checkpoint=str(tmp_path),
    )
    tables.cluster.admin.create_topic("swings", queues=8)
    for first in (5, 7, 3):  # The averages of these and all before: 5, 6, 5.
        tables.fill("swinging", 1, first=first)
        aggregate(tables.spark, settings)
    last, *_ = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda each: -int(each.name))
    for name in (last.name, f".{last.name}.crc"):  # As after a kill: that batch is repeated.
        (last.parent / name).unlink()
    assert aggregate(tables.spark, settings).rows == 1
    sent = tables.cluster.sent("swings", count=3)
    (queue,) = {each.queue for each in sent}
    assert queue
    (name,) = set(json.loads(sent[0].body)) - {"from", "to", "key"}
    assert [json.loads(each.body)[name] for each in sent] == [5.0, 6.0, 5.0]


def test_a_checkpoint_that_would_be_read_as_results_is_refused(
    tables: Tables, tmp_path: Path
) -> None:
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="amounts-beside",
        to=str(tmp_path / "sums"),
        checkpoint=f"file:{tmp_path}/sums/",
    )
    tables.fill("amounts-beside", 1)
    for checkpoint in (settings.checkpoint, str(tmp_path / "sums/checkpoint")):
        with pytest.raises(OptionError, match=r"checkpoint: .* is in the folder of the results"):
            aggregate(tables.spark, replace(settings, checkpoint=checkpoint))
    hidden = str(tmp_path / "sums/_checkpoint")
    assert aggregate(tables.spark, replace(settings, checkpoint=hidden)).rows == 1
    assert aggregate(tables.spark, replace(settings, checkpoint=hidden)).rows == 0


def test_no_checkpoint_is_begun_among_results(tables: Tables, tmp_path: Path) -> None:
    tables.fill("copied-into-results", 1)
    results = tmp_path / "sums"
    (results / "batch=000000").mkdir(parents=True)
    copying = MirrorSettings(
        nameserver=tables.cluster.nameserver,
        to_nameserver=tables.cluster.nameserver,
        topic="copied-into-results",
        prefix="copy-",
        checkpoint=str(results),
    )
    with pytest.raises(OptionError, match="has results of a job"):
        mirror(tables.spark, copying)
    assert [each.name for each in results.iterdir() if not each.name.startswith(".")] == [
        "batch=000000"
    ]


def test_windows_are_files_once_also_when_a_batch_is_repeated(
    tables: Tables, tmp_path: Path
) -> None:
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="amounts-filed",
        to=str(tmp_path / "sums"),
        schema="at_text STRING, who STRING, amount DOUBLE",
        time="cast(at_text AS timestamp)",
        key="who",
        aggregations="count, sum(amount)",
        checkpoint=str(tmp_path / "checkpoint"),
    )

    def send(*times: str) -> None:
        for time in times:
            body = json.dumps({"at_text": f"2026-11-21T{time}Z", "who": "a", "amount": 2})
            tables.cluster.send("amounts-filed", body.encode())

    def sums() -> list[tuple[str, str, int, float]]:
        frame = tables.spark.read.parquet(settings.to)
        assert frame.columns == ["from", "to", "key", "count", "sum_amount", "batch"]
        rows = frame.selectExpr("string(from)", "key", "count", "sum_amount").collect()
        return sorted((row[0], row["key"], row["count"], row["sum_amount"]) for row in rows)

    def windows(run: Run | None = None) -> tuple[int, int]:
        details = aggregate(tables.spark, settings, run).details
        return details["windows"], details["windows_open"]

    send("12:00:10", "12:00:50", "12:01:10")
    told: list[Mapping[str, Any]] = []
    assert windows(Run(progress=told.append)) == (0, 2)
    assert told[-1]["waiting"].startswith("no windows ended; 2 stay open until a message comes")
    copytree(settings.checkpoint, tmp_path / "copy")
    send("12:30:00")  # Ends the first two windows, in the batch after its own.
    assert windows() == (0, 3)
    send("12:40:00")
    assert windows() == (2, 2)
    ended = [("2026-11-21 12:00:00", "a", 2, 4.0), ("2026-11-21 12:01:00", "a", 1, 2.0)]
    assert sums() == ended
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    aggregate(tables.spark, settings)
    assert sums() == ended
    other = replace(settings, checkpoint=str(tmp_path / "other"))
    with pytest.raises(OptionError, match="was begun with another checkpoint"):
        aggregate(tables.spark, other)
    assert not (tmp_path / "other").exists()
    older = replace(settings, checkpoint=str(tmp_path / "copy"))
    with pytest.raises(OptionError, match=r"perhaps an old copy, only \d+ batches are done"):
        aggregate(tables.spark, older)
    rmtree(settings.to)  # As if its disk is not mounted.
    with pytest.raises(OptionError, match=r"\d+ batches are done, whose results"):
        aggregate(tables.spark, settings)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_checkpoint_that_another_job_began_is_refused(
    tables: Tables,
    tmp_path: Path,
    dry_run: bool,  # A parameter of the test.
) -> None:
    """What the other job has read would count as read, and be missed."""
    topic = f"claimed-{dry_run}".lower()
    tables.fill(topic, 3)
    given: dict[str, Any] = {
        "nameserver": tables.cluster.nameserver,
        "topic": topic,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    copying = MirrorSettings(**given, to_nameserver=tables.cluster.nameserver, prefix="copy-")
    assert mirror(tables.spark, copying).rows == 3
    sql = f"SELECT {KEPT}, store_time, body FROM messages"
    said = "was begun by mirror, so what that has read would count as read by {}"
    run = Run(dry_run=dry_run)
    summing = AggregateSettings(**given, to_topic="sums-of-claimed")
    for each in (summing, replace(summing, to_topic="", to=str(tmp_path / "sums"))):
        with pytest.raises(OptionError, match=said.format("aggregate")):
            aggregate(tables.spark, each, run)
    with pytest.raises(OptionError, match=said.format("archive")):
        archive(tables.spark, ArchiveSettings(**given, to=str(tmp_path / "archive")), run)
    with pytest.raises(OptionError, match=said.format("transform")):
        transform(tables.spark, TransformSettings(**given, sql=sql, to_topic="others"), run)
    tables.fill(topic, 2, first=3)
    assert mirror(tables.spark, copying).rows == 2


@pytest.mark.slow
def test_a_backlog_in_several_batches_makes_nothing_late(
    spark: SparkSession, rocketmq: Cluster, tmp_path: Path
) -> None:
    """Batches shared by backlog read a young queue ahead, and the old one's rest would be late."""
    tables = Tables(spark, rocketmq)
    for first in (0, 20, 40):
        tables.fill("grown", 20, queues=1, first=first)
        rocketmq.clock.jump(3600)
    rocketmq.admin.create_topic("grown", queues=2)
    young = max(rocketmq.client.queues("grown"), key=lambda queue: queue.id)
    for number in range(60, 80):
        rocketmq.send("grown", str(number).encode(), queue=young)
    settings = AggregateSettings(
        nameserver=rocketmq.nameserver,
        topic="grown",
        to_topic="grown-sums",
        max_rows=20,
        mode="update",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    report = aggregate(spark, settings)
    assert (report.rows, report.details["late_rows"], "late" in report.details) == (80, 0, False)


def test_what_came_too_late_is_told(tables: Tables, tmp_path: Path) -> None:
    def send(*minutes: int) -> None:
        for minute in minutes:
            body = json.dumps({"at_text": f"2026-11-21T12:{minute}:00Z"})
            tables.cluster.send("late", body.encode())

    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="late",
        to_topic="late-sums",
        schema="at_text STRING",
        time="cast(at_text AS timestamp)",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    send(10, 50)
    assert "late" not in aggregate(tables.spark, settings).details
    send(55)  # Late is what is older than the watermark of the batch before the last.
    aggregate(tables.spark, settings)
    send(11, 56)
    told: list[Mapping[str, Any]] = []
    report = aggregate(tables.spark, settings, Run(progress=told.append))
    assert report.details["late_rows"] == 1
    assert report.details["late"].startswith("at least 1 messages came later than the watermark")
    assert [each["late_rows"] for each in told if "batch" in each] == [1]


def repeatable(tables: Tables, checkpoint: Path, topic: str, key: str = "") -> Callable[[], None]:
    """Fill a topic; return a function that aggregates it into TOPIC-out, always as batch 0."""
    tables.fill(topic, 3)
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic=topic,
        to_topic=f"{topic}-out",
        checkpoint=str(checkpoint),
        window="1d",  # Which Spark does not know.
        watermark="1m",
        mode="update",
        key=key,
    )

    def run_batch() -> None:
        assert aggregate(tables.spark, settings).batches == [0]
        (checkpoint / "commits/0").unlink()
        (checkpoint / "commits/.0.crc").unlink(missing_ok=True)

    return run_batch


def test_a_batch_that_is_repeated_has_the_same_time_and_a_key_may_have_it(
    tables: Tables, tmp_path: Path
) -> None:
    """Spark notes the time: otherwise the results would be there twice."""
    run_batch = repeatable(tables, tmp_path, "at-what-time", "cast(current_timestamp() AS string)")
    for _ in range(2):
        run_batch()
    assert tables.read("at-what-time-out").count() == 1


def test_a_batch_that_is_repeated_in_another_zone_of_time_sends_its_windows_once(
    tables: Tables, tmp_path: Path
) -> None:
    run_batch = repeatable(tables, tmp_path, "in-which-zone")
    zone = "spark.sql.session.timeZone"
    before = tables.spark.conf.get(zone)
    try:
        for each in (before, "America/New_York"):
            tables.spark.conf.set(zone, each)
            run_batch()
    finally:
        tables.spark.conf.set(zone, before)
    assert tables.read("in-which-zone-out").count() == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "to-topic, to: give one of them"),
        ({"to_topic": "z", "to": "b"}, "to-topic, to: give one of them"),
        ({"to": "b", "mode": "update"}, "files cannot be updated"),
    ],
)
def test_results_have_one_place_to_go_to(more: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        AggregateSettings(nameserver="127.0.0.1:1", topic="a", checkpoint="c", **more)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"key": "nobody"},
        {"key": "rand()"},
        {"key": "concat(current_date(), uuid())"},
        {"key": "hour(now())"},
        {"key": "current_time()"},
        {"key": "explode(array(rand()))"},
        {"key": "explode(array(1, 2))"},
        {"time": "timestamp_seconds(rand())"},
        {"time": "explode(array(store_time, store_time))"},
        {"time": "explode(array(timestamp_seconds(rand())))"},
        {"time": "inline(array(struct(store_time, born_time)))"},
        {"time": "*"},
        {"time": "now()"},
        {"time": "nobody"},
        {"time": "key"},
        {"window": "1 month"},
        {"window": "0 seconds"},
        {"window": ""},
        {"slide": "2 minutes"},
        {"watermark": "-1 minute"},
        {"watermark": "soon"},
        {"aggregations": "count,count"},
        {"aggregations": "count, count(*)"},
        {"aggregations": "sum(queue_id+queue_offset),sum(queue_id-queue_offset)"},
        {"aggregations": "sum(nobody)"},
        {"aggregations": "count, count( Distinct key)"},
        {"schema": "DOUBLE"},
        {"schema": "a INT, b INT, A INT"},
    ],
)
def test_windows_that_cannot_be_are_refused_before_a_stream_begins(
    tables: Tables, tmp_path: Path, more: dict[str, str]
) -> None:
    tables.fill("planned", 1)
    (option,) = more
    with pytest.raises(OptionError, match=rf"^{option}: ") as caught:
        aggregate(
            tables.spark,
            AggregateSettings(
                nameserver=tables.cluster.nameserver,
                topic="planned",
                to_topic="planned-out",
                checkpoint=str(tmp_path / "checkpoint"),
                **more,  # type: ignore[arg-type]  # texts
            ),
        )
    assert "SQLSTATE" not in str(caught.value)
    assert not (tmp_path / "checkpoint").exists()


def test_fields_are_columns_whatever_they_are_called(tables: Tables, tmp_path: Path) -> None:
    for number in (1.24, 2.26):
        body = {"key": "cpu", "value": number, "AT": int(number), "store_time": "2026-11-21 12:00"}
        tables.cluster.send("measures", json.dumps(body).encode(), key="another")
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="measures",
        to_topic="measures-sums",
        schema="key STRING, value DOUBLE, AT BIGINT, store_time TIMESTAMP",
        key="key",
        aggregations="sum(round(value, 1)), max(if(',' = key, 0, at))",
        window="1 day",
        mode="update",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    with pytest.raises(OptionError, match=r"^time: store_time is also a field"):
        aggregate(tables.spark, settings)
    settings = replace(settings, time="cast(store_time AS timestamp)")
    aggregate(tables.spark, settings)
    (sums,) = (json.loads(each.body) for each in tables.cluster.sent("measures-sums", count=1))
    assert (sums["from"], sums["key"]) == ("2026-11-21T00:00:00.000Z", "cpu")
    assert (sums["sum_round_value_1_"], sums["max_if_key_0_at_"]) == (3.5, 2)


def test_messages_without_a_time_are_in_no_window_and_are_counted(
    tables: Tables, tmp_path: Path
) -> None:
    for body in (b'{"t": "2026-11-20T10:00:00Z"}', b'{"t": null}', b"{}", b"no JSON"):
        tables.cluster.send("timeless", body)
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="timeless",
        to_topic="timeless-counts",
        schema="t TIMESTAMP",
        time="t",
        mode="update",
        checkpoint=str(tmp_path),
    )
    report = aggregate(tables.spark, settings)
    assert report.rows == 4
    assert (report.details["misfits"], report.details["untimed"]) == (1, 2)
    (counts,) = (json.loads(each.body) for each in tables.cluster.sent("timeless-counts", count=1))
    assert counts["count"] == 1
    tables.cluster.send("timeless", b'{"t": "2026-11-20T10:00:01Z"}')
    assert "untimed" not in aggregate(tables.spark, settings).details
    _, counts = (json.loads(each.body) for each in tables.cluster.sent("timeless-counts", count=2))
    assert counts["count"] == 2


def test_trap_15_another_aggregation_needs_another_checkpoint(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("planned", 1)
    given = {
        "nameserver": tables.cluster.nameserver,
        "topic": "planned",
        "to_topic": "planned-out",
        "checkpoint": str(tmp_path),
    }
    aggregate(tables.spark, AggregateSettings(**given))  # type: ignore[arg-type]  # texts
    others = {
        "schema": "n INT",
        "key": "tag",
        "window": "1 hour",
        "slide": "10 seconds",
        "time": "born_time",
        "aggregations": "count,max(flag)",
        "mode": "update",
        "watermark": "2 minutes",
    }
    for name, other in others.items():
        with pytest.raises(OptionError, match=f"^{name}: was .* when"):
            aggregate(tables.spark, AggregateSettings(**given, **{name: other}))  # type: ignore[arg-type]  # as above
    respelled = {"window": "1m", "watermark": "60 seconds"}
    aggregate(tables.spark, AggregateSettings(**given, **respelled))  # type: ignore[arg-type]  # as above
    with pytest.raises(OptionError, match="aggregations: 'sum' is not"):
        aggregate(tables.spark, AggregateSettings(**given, aggregations="sum"))  # type: ignore[arg-type]  # as above


def test_what_spark_does_not_begin_binds_no_checkpoint(tables: Tables, tmp_path: Path) -> None:
    tables.fill("not-begun", 1)
    settings = AggregateSettings(
        nameserver=tables.cluster.nameserver,
        topic="not-begun",
        to_topic="not-begun-out",
        aggregations="sum(count(*)) over ()",
        checkpoint=str(tmp_path),
    )
    with pytest.raises(AnalysisException, match="NON_TIME_WINDOW"):
        aggregate(tables.spark, settings)
    assert aggregate(tables.spark, replace(settings, aggregations="count")).rows == 1
    for torn in (
        (),
        ("offsets/0", "commits/0", "metadata"),
    ):  # A power cut leaves the note of the settings.
        for note in torn:
            (tmp_path / note).write_bytes(b"")
        with pytest.raises(OptionError, match=r"^aggregations: was 'count' when"):
            aggregate(tables.spark, settings)


def test_a_dry_run_counts_a_batch_that_a_power_cut_has_left_as_not_done(
    tables: Tables, tmp_path: Path
) -> None:
    tables.fill("looked-at", 10)
    sql = f"SELECT {KEPT}, store_time, body FROM messages"
    given = {"topic": "looked-at", "to_topic": "looked-at-again", "sql": sql}
    settings = transforming(tables, tmp_path, **given)
    assert transform(tables.spark, settings).batches == [0]
    dry = transform(tables.spark, settings, Run(dry_run=True))
    assert dry.details["would_read"] == 0
    (tmp_path / "commits/0").write_bytes(b"")
    dry = transform(tables.spark, settings, Run(dry_run=True))
    assert dry.details["would_read"] == 10
    assert (tmp_path / "commits/0").exists()
    (tmp_path / "offsets/0").write_bytes(b"")
    (tmp_path / "metadata").write_bytes(b"")
    dry = transform(tables.spark, settings, Run(dry_run=True))
    assert dry.details["would_read"] == 10
