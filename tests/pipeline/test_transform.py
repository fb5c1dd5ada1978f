"""The SQL of `transform`: Python functions in it, what is refused, and recreated topics."""

from __future__ import annotations

import re
import sys
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.tables import Tables, names_in, numbers

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.report import Outcome
from cometmq.pipeline.jobs.transform import TransformSettings, transform

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

KEPT = "topic, broker, queue_id, queue_offset"
FUNCTIONS = """
from pyspark.sql.functions import udf

TIMES = 2

def gross(net: float | None) -> float | None:
    return None if net is None else net * TIMES

def whole(net: float) -> float:
    return int(net)

@udf("array<string>")
def halves(text):
    return [text[:1], text[1:]]

def failing(text: str) -> str:
    raise RuntimeError("no such price")
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of functions that only this process can import."""
    name = f"{tmp_path.name}_functions"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def transforming(tables: Tables, checkpoint: Path, **more: Any) -> TransformSettings:
    return TransformSettings(
        nameserver=tables.cluster.nameserver, checkpoint=str(checkpoint / "checkpoint"), **more
    )


def test_a_star_is_a_copy_of_the_message(tables: Tables, tmp_path: Path) -> None:
    tables.cluster.send("starred", b'{"n": 1}', key="k", tag="t", properties={"a": "b"})
    tables.cluster.send("starred", b'{"n": 2}', tag="u")
    sql = "SELECT * FROM messages WHERE value.n < 2"
    settings = transforming(
        tables, tmp_path, topic="starred", to_topic="starred-out", sql=sql, schema="n INT"
    )
    report = transform(tables.spark, settings)
    assert {"text", "value"}.isdisjoint(report.details["columns"])
    (sent,) = tables.cluster.sent("starred-out", count=1)
    assert (sent.body, sent.keys, sent.tag) == (b'{"n": 1}', ["k"], "t")
    assert sent.user_properties["a"] == "b"


def test_sql_calls_functions_of_python(tables: Tables, functions: str, tmp_path: Path) -> None:
    tables.fill("priced-in", 10)
    body = (
        "concat_ws(' ', gross(cast(text AS double)), whole(cast(text AS double)),"
        " size(halves(text)), coalesce(string(gross(NULL)), 'none'))"
    )
    settings = transforming(
        tables,
        tmp_path,
        topic="priced-in",
        to_topic="priced-out",
        udf=tuple(f"{functions}:{name}" for name in ("gross", "whole", "halves")),
        sql=f"SELECT {KEPT}, {body} AS body FROM messages",
    )
    # Afterwards the caller's names are there again, and nothing else.
    tables.spark.range(3).createOrReplaceTempView("messages")
    before = names_in(tables.spark)
    assert transform(tables.spark, settings).rows == 10
    assert names_in(tables.spark) == before
    assert tables.spark.table("messages").count() == 3
    tables.spark.catalog.dropTempView("messages")
    sent = tables.cluster.sent("priced-out", count=10)
    wanted = [f"{number * 2}.0 {number}.0 2 none" for number in range(10)]
    assert sorted(each.body.decode() for each in sent) == sorted(wanted)


def test_what_a_function_raises_ends_the_job_with_its_words(
    tables: Tables, functions: str, tmp_path: Path
) -> None:
    tables.fill("failing-in", 1)
    settings = transforming(
        tables,
        tmp_path,
        topic="failing-in",
        to_topic="failing-out",
        udf=(f"{functions}:failing",),
        sql=f"SELECT {KEPT}, failing(text) AS body FROM messages",
    )
    with pytest.raises(PipelineError, match="no such price"):
        transform(tables.spark, settings)


AS_M = "m.topic, m.broker, m.queue_id, m.queue_offset, m.body"


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (f"SELECT {KEPT}, max(body) AS body FROM messages GROUP BY {KEPT}", "GROUP BY"),
        ("SELECT count(*) AS body FROM messages", "GROUP BY or an aggregate"),
        (f"SELECT DISTINCT {KEPT}, body FROM messages", "DISTINCT"),
        (f"SELECT {KEPT}, body FROM messages UNION SELECT {KEPT}, body FROM messages", "DISTINCT"),
        (f"SELECT {KEPT}, body FROM messages LIMIT 5", "LIMIT"),
        (f"SELECT {KEPT}, body FROM messages OFFSET 5", "OFFSET"),
        (
            f"SELECT {KEPT}, cast(row_number() OVER (PARTITION BY key ORDER BY queue_offset)"
            " AS string) AS body FROM messages",
            "OVER",
        ),
        (f"SELECT {AS_M} FROM messages m JOIN messages n ON m.key = n.key", "a JOIN of messages"),
        (
            "WITH last AS (SELECT key, max(queue_offset) AS at FROM messages GROUP BY key)"
            f" SELECT {AS_M} FROM messages m JOIN last ON last.key = m.key",
            "GROUP BY",
        ),
        (f"SELECT {KEPT}, body FROM messages EXCEPT SELECT {KEPT}, body FROM messages", "EXCEPT"),
        (f"SELECT {KEPT} FROM messages EXCEPT ALL SELECT {KEPT} FROM messages", "EXCEPT"),
        (f"SELECT {KEPT} FROM messages INTERSECT ALL SELECT {KEPT} FROM messages", "INTERSECT"),
        (f"SELECT {AS_M} FROM (VALUES (1)) t(a) LEFT JOIN messages m ON t.a = m.flag", "JOIN"),
        (f"SELECT {AS_M} FROM messages m RIGHT JOIN (VALUES (1)) t(a) ON t.a = m.flag", "JOIN"),
        (f"SELECT {AS_M} FROM messages m FULL JOIN (VALUES (1)) t(a) ON t.a = m.flag", "JOIN"),
        ("SELECT t.* FROM (VALUES (1)) t(a) LEFT ANTI JOIN messages m ON t.a = m.flag", "JOIN"),
        ("SELECT t.* FROM (VALUES (1)) t(a) LEFT SEMI JOIN messages m ON t.a = m.flag", "JOIN"),
    ],
)
def test_sql_that_puts_messages_together_is_refused_before_a_stream_begins(
    tables: Tables, tmp_path: Path, sql: str, words: str
) -> None:
    tables.fill("together-in", 1)
    settings = transforming(tables, tmp_path, topic="together-in", to_topic="together-out", sql=sql)
    with pytest.raises(OptionError, match=f"^sql: .*{words}.* combines messages"):
        transform(tables.spark, settings)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE made USING parquet LOCATION '{folder}/made' AS SELECT 1 AS a",
        "CREATE OR REPLACE TEMP VIEW made AS SELECT 1 AS a",
        "DROP VIEW kept",
        "INSERT OVERWRITE DIRECTORY '{folder}/made' USING parquet SELECT 1 AS a",
        "FROM VALUES (1) INSERT INTO kept SELECT *",
        "WITH a AS (SELECT 1) INSERT INTO kept SELECT * FROM a",
        "EXECUTE IMMEDIATE 'DROP VIEW kept'",
        "BEGIN DROP VIEW kept; END",
        "SET spark.sql.shuffle.partitions = 9",
        "CALL nobody()",
    ],
)
def test_a_command_is_refused_and_does_nothing(tables: Tables, tmp_path: Path, sql: str) -> None:
    tables.fill("together-in", 1)
    tables.spark.range(1).createOrReplaceTempView("kept")
    text = sql.format(folder=tmp_path)
    settings = transforming(
        tables, tmp_path, topic="together-in", to_topic="together-out", sql=text
    )
    for dry in (True, False):
        with pytest.raises(OptionError, match=r"^sql: is a command, not a query"):
            transform(tables.spark, settings, Run(dry_run=dry))
    assert tables.spark.catalog.tableExists("kept")
    assert not tables.spark.catalog.tableExists("made")
    assert tables.spark.conf.get("spark.sql.shuffle.partitions") != "9"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "joined",
    [
        "messages m LEFT JOIN t ON t.a = m.flag",
        "messages m LEFT ANTI JOIN t ON t.a = m.flag",
        "messages m LEFT SEMI JOIN t ON t.a = m.flag",
        "t RIGHT JOIN messages m ON t.a = m.flag",
        "t JOIN messages m ON t.a = m.flag",
        "messages m CROSS JOIN t",
    ],
)
def test_a_join_may_keep_or_drop_each_message_by_a_table(
    tables: Tables, tmp_path: Path, joined: str
) -> None:
    tables.fill("together-in", 1)
    sql = f"WITH t AS (SELECT * FROM VALUES (1) AS v(a)) SELECT {AS_M} FROM {joined}"
    settings = transforming(tables, tmp_path, topic="together-in", to_topic="together-out", sql=sql)
    assert transform(tables.spark, settings, Run(dry_run=True)).outcome == Outcome.DONE


def test_a_subquery_about_messages_is_refused(tables: Tables, tmp_path: Path) -> None:
    tables.fill("together-in", 1)
    sql = f"SELECT {KEPT}, body FROM messages WHERE key IN (SELECT key FROM messages)"
    settings = transforming(tables, tmp_path, topic="together-in", to_topic="together-out", sql=sql)
    with pytest.raises(OptionError, match=r"^sql: .*Streaming query is not allowed in subquery"):
        transform(tables.spark, settings)


@pytest.mark.slow
def test_sql_may_look_into_tables_that_do_not_stream(tables: Tables, tmp_path: Path) -> None:
    tables.fill("joined-in", 6)
    prices = tables.spark.createDataFrame([(n, f"p{n}") for n in range(4)], "id int, price string")
    prices.write.parquet(str(tmp_path / "prices"))
    there = f"parquet.`{tmp_path}/prices`"
    settings = transforming(
        tables,
        tmp_path,
        topic="joined-in",
        to_topic="joined-out",
        sql=f"SELECT {AS_M.replace(', m.body', '')},"
        f" concat(price, ' ', (SELECT max(id) FROM {there})) AS body"
        " FROM (SELECT *, explode(array(text)) AS number FROM messages) m"
        f" JOIN (SELECT id, first(price) AS price FROM {there} GROUP BY id) p"
        " ON p.id = cast(m.number AS int) ORDER BY queue_offset",
    )
    assert transform(tables.spark, settings).rows == 6
    sent = tables.cluster.sent("joined-out", count=4)
    assert sorted(each.body.decode() for each in sent) == ["p0 3", "p1 3", "p2 3", "p3 3"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (f"SELECT {KEPT}, body FROM messages WHERE rand() < 0.5", "rand()"),
        (
            f"SELECT {KEPT}, body FROM (SELECT *, rand() AS r FROM messages) WHERE r < 0.5",
            "rand()",
        ),
        (f"SELECT {KEPT}, body FROM messages TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        (f"SELECT {KEPT}, body FROM messages WHERE store_time > now() - INTERVAL 1 DAY", "now()"),
        (f"SELECT {KEPT}, body, string(uuid()) AS sharding_key FROM messages", "uuid()"),
        (f"SELECT {KEPT}, body, if(rand() < 0.5, 'x', 'y') AS to_topic FROM messages", "rand()"),
        (
            f"SELECT {KEPT}, body, 'x' AS sharding_key FROM messages UNION ALL"
            f" SELECT {KEPT}, body, uuid() FROM messages",
            "uuid()",
        ),
    ],
)
def test_sql_that_would_choose_other_rows_the_next_time_is_refused(
    tables: Tables, tmp_path: Path, sql: str, why: str
) -> None:
    """A batch that is repeated would send other rows, or send them to another place."""
    tables.fill("chosen-in", 1)
    settings = transforming(tables, tmp_path, topic="chosen-in", to_topic="chosen-out", sql=sql)
    with pytest.raises(OptionError, match=f"^sql: .*{re.escape(why)} changes when a batch is"):
        transform(tables.spark, settings)
    assert not (tmp_path / "checkpoint").exists()


def test_what_a_row_says_may_be_another_the_next_time(tables: Tables, tmp_path: Path) -> None:
    """What was sent first stays."""
    tables.fill("stamped-in", 3)
    sql = f"SELECT {KEPT}, concat(uuid(), ' ', current_timestamp()) AS body FROM messages"
    settings = transforming(tables, tmp_path, topic="stamped-in", to_topic="stamped-out", sql=sql)
    assert transform(tables.spark, settings).details["written"] == {"stamped-out": 3}
    first = {each.body for each in tables.cluster.sent("stamped-out", count=3)}
    for path in (tmp_path / "checkpoint" / "commits").iterdir():  # As after a kill.
        path.unlink()
    transform(tables.spark, settings)
    assert {each.body for each in tables.cluster.sent("stamped-out", count=3)} == first
    assert len(tables.cluster.sent("stamped-out")) == 3


UNTIMED = f"SELECT {KEPT}, body FROM messages"
TIMED = f"SELECT {KEPT}, store_time, body FROM messages"


def made_anew(tables: Tables, checkpoint: Path, topic: str) -> dict[str, Any]:
    """Send a topic's four rows without their time, and recreate it with six; return settings."""
    given: dict[str, Any] = {"topic": topic, "to_topic": f"{topic}-out"}
    tables.fill(topic, 4)
    transform(tables.spark, transforming(tables, checkpoint, sql=UNTIMED, **given))
    tables.cluster.admin.delete_topic(topic)
    tables.fill(topic, 6, first=10)
    return given


def test_a_topic_made_anew_is_sent_by_sql_that_says_the_time_since_then_alone(
    tables: Tables, tmp_path: Path
) -> None:
    """Rows sent without the time from the same places would pass for the new topic's messages."""
    given = made_anew(tables, tmp_path, "transformed-anew")
    settings = transforming(tables, tmp_path, sql=TIMED, fail_on_data_loss=False, **given)
    assert transform(tables.spark, settings).details["written"] == {"transformed-anew-out": 6}
    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):  # As after a kill.
        path.unlink()
    assert transform(tables.spark, settings).rows == 6
    assert tables.bodies("transformed-anew-out") == [*numbers(0, 4), *numbers(10, 16)]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(), ("offsets", "commits")])
def test_a_batch_of_a_topic_made_anew_that_sent_nothing_is_sent_when_it_is_repeated(
    tables: Tables, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Its rows used to pass for those that were sent without a time from the old topic's places.

    A stream that starts over, because its batches' ends were removed, must send it, too.
    """
    topic = f"failed-anew-{len(lost)}"
    given = {**made_anew(tables, tmp_path, topic), "fail_on_data_loss": False}
    failing = TIMED.replace("body", "string(raise_error('no')) AS body")
    with pytest.raises(PipelineError, match="USER_RAISED_EXCEPTION"):
        transform(tables.spark, transforming(tables, tmp_path, sql=failing, **given))
    for name in lost:
        rmtree(tmp_path / "checkpoint" / name)
    transform(tables.spark, transforming(tables, tmp_path, sql=TIMED, **given))
    assert tables.bodies(f"{topic}-out") == [*numbers(0, 4), *numbers(10, 16)]


@pytest.mark.slow
def test_behind_a_topic_made_anew_sql_goes_on_with_the_time_alone(
    tables: Tables, tmp_path: Path
) -> None:
    """After the loss, the option is left out again, but new messages still have old places."""
    given = made_anew(tables, tmp_path, "behind-anew")
    told = transforming(tables, tmp_path, sql=TIMED, fail_on_data_loss=False, **given)
    tables.cluster.admin.delete_topic("behind-anew")
    tables.fill("behind-anew", 2, first=20)
    assert transform(tables.spark, told).rows == 2
    tables.fill("behind-anew", 2, first=22)
    for dry_run in (True, False):
        with pytest.raises(OptionError, match="sql: the rows have no store_time, which those"):
            transform(
                tables.spark,
                transforming(tables, tmp_path, sql=UNTIMED, **given),
                Run(dry_run=dry_run),
            )
    transform(tables.spark, transforming(tables, tmp_path, sql=TIMED, **given))
    assert tables.bodies("behind-anew-out") == [*numbers(0, 4), *numbers(20, 24)]


@pytest.mark.slow
def test_a_run_that_ends_in_front_of_its_batches_notes_no_time(
    tables: Tables, tmp_path: Path
) -> None:
    """Otherwise rows sent without it would be refused later, or pass for unsent and come twice."""
    tables.fill("ended-early", 4)
    given: dict[str, Any] = {"topic": "ended-early", "to_topic": "ended-early-out"}
    run = Run()
    run.stop()
    timed, untimed = (transforming(tables, tmp_path, sql=sql, **given) for sql in (TIMED, UNTIMED))
    assert transform(tables.spark, timed, run).stopped
    for count in (4, 2):
        assert transform(tables.spark, untimed).rows == count
        tables.fill("ended-early", 2, first=4)
    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):  # As after a kill.
        path.unlink()
    transform(tables.spark, timed)
    assert tables.bodies("ended-early-out") == sorted([*numbers(0, 6), *numbers(4, 6)], key=int)


def stopped(run_of: TransformSettings, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a run as its first batch begins, when Spark has already noted where the batch ends."""
    run = Run()
    begin_batch = run.begin_batch

    def stop() -> None:
        run.stop()
        begin_batch()

    monkeypatch.setattr(run, "begin_batch", stop)
    assert transform(tables.spark, run_of, run).stopped


def test_a_batch_of_a_topic_made_anew_that_was_stopped_as_it_began_is_sent_when_it_is_repeated(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = made_anew(tables, tmp_path, "stopped-anew")
    timed = transforming(tables, tmp_path, sql=TIMED, fail_on_data_loss=False, **given)
    stopped(timed, tables, monkeypatch)
    assert (tmp_path / "checkpoint" / "offsets" / "1").exists()
    assert transform(tables.spark, timed).rows == 6
    assert tables.bodies("stopped-anew-out") == [*numbers(0, 4), *numbers(10, 16)]


def test_behind_a_run_that_was_stopped_as_it_began_sql_goes_on_without_the_time_and_with_it(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.fill("stopped-early", 4)
    given: dict[str, Any] = {"topic": "stopped-early", "to_topic": "stopped-early-out"}
    timed, untimed = (transforming(tables, tmp_path, sql=sql, **given) for sql in (TIMED, UNTIMED))
    stopped(timed, tables, monkeypatch)
    assert transform(tables.spark, untimed).rows == 4
    for path in (tmp_path / "checkpoint" / "commits").glob("*0*"):  # As after a kill.
        path.unlink()
    assert transform(tables.spark, timed).rows == 4
    assert tables.bodies("stopped-early-out") == numbers(0, 4)


def test_sql_that_takes_no_message_writes_none(tables: Tables, tmp_path: Path) -> None:
    tables.fill("none-in", 3)
    for number, condition in enumerate(("false", "flag = 7")):
        sql = f"SELECT {KEPT}, body FROM messages WHERE {condition}"
        settings = transforming(
            tables, tmp_path / str(number), topic="none-in", to_topic="none-out", sql=sql
        )
        assert transform(tables.spark, settings).details["written"] == {}


@pytest.mark.parametrize(
    ("selected", "words"),
    [
        ("*, 1 AS another", "column another: not known"),
        ("*, upper(text) AS text", "column text: not known"),
        (KEPT, "column body: is required"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_a_stream_begins(
    tables: Tables, tmp_path: Path, selected: str, words: str
) -> None:
    tables.fill("columns-in", 1)
    sql = f"SELECT {selected} FROM messages"
    settings = transforming(tables, tmp_path, topic="columns-in", to_topic="columns-out", sql=sql)
    for dry_run in (True, False):
        with pytest.raises(OptionError, match=words):
            transform(tables.spark, settings, Run(dry_run=dry_run))
    assert not (tmp_path / "checkpoint").exists()


def test_a_batch_that_spark_need_not_read_is_in_the_report(tables: Tables, tmp_path: Path) -> None:
    tables.fill("read-in-vain", 4)
    sql = f"SELECT {KEPT}, body FROM messages WHERE 1 = 0"
    settings = transforming(
        tables, tmp_path, topic="read-in-vain", to_topic="read-out", sql=sql, max_rows=0
    )
    report = transform(tables.spark, settings)
    assert (report.rows, report.batches) == (0, [0])
    assert report.offsets == {"read-in-vain": {"broker-a": {"0": [0, 2], "1": [0, 2]}}}
    assert transform(tables.spark, settings).batches == []


@pytest.mark.slow
def test_what_ends_the_users_own_sql_or_function_is_told_in_a_line_with_its_place(
    tables: Tables, functions: str, tmp_path: Path
) -> None:
    tables.cluster.send("no-number", b"x1")
    failing: dict[str, Any] = {"topic": "no-number", "to_topic": "numbers"}
    cast = f"SELECT {KEPT}, body FROM messages WHERE cast(text AS int) > 1"
    with pytest.raises(PipelineError) as caught:
        transform(tables.spark, transforming(tables, tmp_path, sql=cast, **failing))
    said = str(caught.value)
    assert said.startswith("[CAST_INVALID_INPUT] The value 'x1' of the type \"STRING\" cannot be")
    assert said.endswith("In the SQL, line 1, position 72: cast(text AS int)")
    sql = f"SELECT {KEPT}, failing(text) AS body FROM messages"
    udf = (f"{functions}:failing",)
    with pytest.raises(PipelineError) as caught:
        transform(tables.spark, transforming(tables, tmp_path, sql=sql, udf=udf, **failing))
    place = rf"{functions}\.py, line [0-9]+, in failing: RuntimeError: no such price"
    assert re.search(rf"{place}\Z", str(caught.value))
    assert "\n" not in said + str(caught.value)
