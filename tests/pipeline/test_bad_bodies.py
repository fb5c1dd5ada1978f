"""Messages whose body does not match its flags, and those without one: brokers accept both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark.errors import PySparkException
from tests.pipeline.tables import Tables

from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.archive_files import read_archive
from cometmq.pipeline.jobs.dlq import DlqSettings, dlq
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.report import Outcome
from cometmq.pipeline.jobs.transform import TransformSettings, transform
from cometmq.pipeline.records.bodies import COMPRESSED, INNER_BATCH
from cometmq.pipeline.wire import Settings, Wire

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cometmq.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

TOPIC = "bad-bodies"
BAD = rf"its body: not a whole zlib stream: .*\({TOPIC}, queue 0, offset 2\)"
SEND_MESSAGE_V2 = 310
UPDATE_AND_CREATE_TOPIC = 17
CONSUMER_SEND_MSG_BACK = 36


@pytest.fixture(scope="module")
def tables(spark: SparkSession, rocketmq_session: Cluster) -> Tables:
    tables = Tables(spark, rocketmq_session)
    fill(tables, TOPIC)
    return tables


def fill(tables: Tables, topic: str) -> None:
    """Send five messages; the second has no body, and the third a bad one."""
    tables.fill(topic, 1, queues=1)
    empty = tables.spark.sql("SELECT '' AS body, 'empty' AS key")
    tables.write(empty, topic, emptyBodies="send")
    send_raw(tables, topic, COMPRESSED, b"no zlib")
    tables.fill(topic, 2, first=1)


def create_batch_topic(tables: Tables, topic: str) -> None:
    """Create a topic whose batches stay one record each."""
    peer = Wire(tables.cluster.broker, Settings())
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "attributes": "+queue.type=BatchCQ"}
    peer.expect(UPDATE_AND_CREATE_TOPIC, fields)
    peer.close()


def send_raw(tables: Tables, topic: str, sys_flag: int, body: bytes, properties: str = "") -> None:
    """Send a body as it is, with flags that it need not match."""
    peer = Wire(tables.cluster.broker, Settings())
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag)}
    fields |= {"g": "0", "h": "0", "i": properties, "j": "0", "k": "false"}
    peer.expect(SEND_MESSAGE_V2, fields, body)
    peer.close()


@pytest.fixture
def where(tables: Tables, tmp_path: Path) -> dict[str, Any]:
    checkpoint = str(tmp_path / "checkpoint")
    return {"nameserver": tables.cluster.nameserver, "topic": TOPIC, "checkpoint": checkpoint}


def copied(tables: Tables, topic: str) -> list[tuple[bytes, str | None]]:
    rows = tables.read(topic, columns="body, key").collect()
    return sorted((bytes(row["body"]), row["key"]) for row in rows)


COPIES = [(b"", "empty"), (b"0", None), (b"1", None), (b"2", None)]


def test_a_table_has_null_in_the_place_of_a_body_that_is_skipped(tables: Tables) -> None:
    with pytest.raises(PySparkException, match=BAD):
        tables.read(TOPIC).collect()
    rows = tables.read(TOPIC, onBadBody="skip").orderBy("queue_offset").collect()
    assert [row["body"] for row in rows] == [b"0", b"", None, b"1", b"2"]
    assert tables.read(TOPIC, onBadBody="skip").where("body IS NULL").count() == 1


@pytest.mark.slow
def test_a_mirror_copies_what_has_no_body_and_leaves_out_what_it_is_told_to_skip(
    tables: Tables, where: dict[str, Any]
) -> None:
    to: dict[str, Any] = {"to_nameserver": tables.cluster.nameserver, "prefix": "copy-of-"}
    with pytest.raises(PipelineError, match=BAD):
        mirror(tables.spark, MirrorSettings(**where, **to))
    report = mirror(tables.spark, MirrorSettings(**where, **to, on_bad_body="skip"))
    assert (report.details["bad_bodies"], report.details["empty_bodies"]) == (1, 1)
    assert copied(tables, f"copy-of-{TOPIC}") == COPIES


def test_what_has_no_body_is_a_dead_letter_of_a_transformation_as_it_is(
    tables: Tables, where: dict[str, Any]
) -> None:
    """It is no JSON object, nor are the others. The SQL never sees it, so cannot leave it out."""
    more: dict[str, Any] = {"schema": "id BIGINT", "dead_letter": "dead-bad-bodies"}
    sql = "SELECT topic, broker, queue_id, queue_offset, body FROM messages"
    more |= {"to_topic": "transformed-bad-bodies", "on_bad_body": "skip"}
    settings = TransformSettings(**where, **more, sql=sql)
    report = transform(tables.spark, settings)
    assert (report.details["bad_bodies"], report.details["dead_letters"]) == (1, len(COPIES))
    assert copied(tables, "dead-bad-bodies") == COPIES


@pytest.mark.slow
def test_an_archive_keeps_the_row_of_a_body_that_is_skipped_and_a_replay_counts_it(
    tables: Tables, where: dict[str, Any], tmp_path: Path
) -> None:
    to = str(tmp_path / "archive")
    with pytest.raises(PipelineError, match=BAD):
        archive(tables.spark, ArchiveSettings(**where, to=to))
    report = archive(tables.spark, ArchiveSettings(**where, to=to, on_bad_body="skip"))
    assert (report.rows, report.details["bad_bodies"]) == (5, 1)
    (row,) = read_archive(tables.spark, to).where("body IS NULL").collect()
    assert row["queue_offset"] == 2
    sides = ReconcileSettings(left=f"topic:{TOPIC}@{where['nameserver']}", right=f"archive:{to}")
    assert reconcile(tables.spark, sides).outcome is Outcome.DONE
    settings = ReplaySettings(
        from_dir=to, nameserver=tables.cluster.nameserver, to_topic="replayed-bad-bodies"
    )
    report = replay(tables.spark, settings)
    assert (report.rows, report.details["bad_bodies"], report.details["empty_bodies"]) == (4, 1, 1)
    assert copied(tables, "replayed-bad-bodies") == COPIES


def test_a_batch_that_nobody_can_read_is_passed_over_as_one_message(
    tables: Tables, where: dict[str, Any]
) -> None:
    topic = "bad-batches"
    create_batch_topic(tables, topic)
    tables.fill(topic, 1)
    send_raw(tables, topic, INNER_BATCH, b"no batch", "INNER_NUM\x012\x02")
    tables.fill(topic, 1, first=1)
    with pytest.raises(PySparkException, match=r"its batch: its message at 0 is cut short"):
        tables.read(topic).collect()
    rows = tables.read(topic, onBadBody="skip").orderBy("queue_offset").collect()
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(0, b"0"), (1, None), (3, b"1")]
    where |= {"to_nameserver": tables.cluster.nameserver, "prefix": "copy-of-", "topic": topic}
    report = mirror(tables.spark, MirrorSettings(**where, on_bad_body="skip"))
    assert (report.rows, report.details["bad_bodies"]) == (3, 1)
    assert copied(tables, f"copy-of-{topic}") == [(b"0", None), (b"1", None)]


def gave_up(tables: Tables, topic: str, group: str) -> None:
    """Let a group give up all messages of a topic, as a consumer does that never reads bodies."""
    tables.cluster.admin.create_group(group, max_retries=0)
    rows = tables.read(topic, columns="physical_offset, message_id").collect()
    peer = Wire(tables.cluster.broker, Settings())
    for row in rows:
        fields = {"offset": str(row["physical_offset"]), "originMsgId": row["message_id"]}
        fields |= {"group": group, "originTopic": topic, "delayLevel": "-1"}
        peer.expect(CONSUMER_SEND_MSG_BACK, fields)
    peer.close()
    letters = {"topic": f"%DLQ%{group}", "columns": "queue_offset"}
    assert tables.read(**letters).count() == len(rows)


@pytest.mark.slow
def test_dead_letters_that_nobody_can_read_are_left_where_they_are_and_counted(
    tables: Tables, where: dict[str, Any], tmp_path: Path
) -> None:
    group, receipts = "reading-no-body", tmp_path / "receipts.jsonl"
    fill(tables, "given-up-bodies")
    gave_up(tables, "given-up-bodies", group)
    settings: dict[str, Any] = {"nameserver": where["nameserver"], "group": group}
    settings |= {"redrive": "true", "to": "redriven-bad-bodies", "cluster_by": "shape"}
    with pytest.raises(PySparkException, match="its body: not a whole zlib stream"):
        dlq(tables.spark, DlqSettings(**settings))
    settings |= {"on_bad_body": "skip", "receipts": str(receipts)}
    for redriven, earlier in ((4, 0), (0, 4)):
        found = dlq(tables.spark, DlqSettings(**settings))
        assert (found.rows, found.size) == (5, 3)
        assert (found.details["bad_bodies"], found.details["empty_bodies"]) == (1, 1)
        assert found.details["chosen"] == 4
        assert (found.details["redriven"], found.details["earlier"]) == (redriven, earlier)
    assert {"bad body": 1}.items() <= {
        each["shape"]: each["count"] for each in found.details["clusters"]
    }.items()
    assert copied(tables, "redriven-bad-bodies") == COPIES
    assert len(receipts.read_text().splitlines()) == 4
    settings |= {"to": "origin", "redrive": "length(body) > 0"}
    assert dlq(tables.spark, DlqSettings(**settings)).details["redriven"] == 3


@pytest.mark.slow
def test_sql_and_windows_do_not_see_a_body_that_is_skipped(
    tables: Tables, where: dict[str, Any], tmp_path: Path
) -> None:
    sql = "SELECT topic, broker, queue_id, queue_offset, body FROM messages WHERE text <> ''"
    skipping: dict[str, Any] = {"on_bad_body": "skip", "to_topic": "transformed-bad-bodies"}
    report = transform(tables.spark, TransformSettings(**where, **skipping, sql=sql))
    assert (report.details["bad_bodies"], report.details["written"]) == (
        1,
        {"transformed-bad-bodies": 3},
    )
    where["checkpoint"] = str(tmp_path / "windows")
    skipping["to_topic"] = "summed-bad-bodies"
    report = aggregate(tables.spark, AggregateSettings(**where, **skipping, mode="update"))
    assert (report.rows, report.details["bad_bodies"]) == (5, 1)
