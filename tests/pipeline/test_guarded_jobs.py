"""Whole jobs on clusters that answer only signed requests over TLS."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from tests.pipeline.guarded import Guarded, guarded
from tests.pipeline.tables import Tables, numbers

from cometmq.client import SyncClient
from cometmq.pipeline.jobs.aggregate import AggregateSettings, aggregate
from cometmq.pipeline.jobs.archive import ArchiveSettings, archive
from cometmq.pipeline.jobs.dlq import DlqSettings, dlq
from cometmq.pipeline.jobs.latency import LatencySettings, latency
from cometmq.pipeline.jobs.mirror import MirrorSettings, mirror
from cometmq.pipeline.jobs.reconcile import ReconcileSettings, reconcile
from cometmq.pipeline.jobs.replay import ReplaySettings, replay
from cometmq.pipeline.jobs.report import Outcome
from cometmq.pipeline.jobs.transform import TransformSettings, transform
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SECRET = "hush-hush-here"
PLACE = "topic, broker, queue_id, queue_offset"


@pytest.fixture
def here(rocketmq_session: Cluster, certificate: Path) -> Iterator[Guarded]:
    with guarded(rocketmq_session, certificate, SECRET) as found:
        yield found


def test_jobs_get_into_a_guarded_cluster(tables: Tables, here: Guarded, tmp_path: Path) -> None:
    tables.fill("guarded", 10)
    tables.fill("%DLQ%guarding", 3)
    spark, to = tables.spark, str(tmp_path / "archive")
    where = {"nameserver": here.nameserver, "credentials": here.credentials}
    topic = {**where, "topic": "guarded", "checkpoint": str(tmp_path / "checkpoint")}

    archive(spark, ArchiveSettings(**where, topic="guarded", to=to, group="shown"))  # type: ignore[arg-type]  # as they are called
    replay(spark, ReplaySettings(**where, from_dir=to, to_topic="guarded-again"))  # type: ignore[arg-type]  # as above
    assert tables.bodies("guarded-again") == numbers(0, 10)

    sql = f"SELECT {PLACE}, body FROM messages"
    transform(spark, TransformSettings(**topic, to_topic="guarded-out", sql=sql))  # type: ignore[arg-type]  # as above
    assert tables.bodies("guarded-out") == numbers(0, 10)

    topic["checkpoint"] = str(tmp_path / "windows")
    aggregate(spark, AggregateSettings(**topic, to_topic="guarded-sums", mode="update"))  # type: ignore[arg-type]  # as above
    assert tables.cluster.sent("guarded-sums", count=1)

    report = latency(spark, LatencySettings(**where, topic="guarded", groups="shown"))  # type: ignore[arg-type]  # as above
    assert {each["group"] for each in report.details["lag"]} == {"shown"}

    letters = DlqSettings(**where, group="guarding", redrive="true", to="guarded-letters")  # type: ignore[arg-type]  # as above
    dlq(spark, letters)
    assert tables.bodies("guarded-letters") == numbers(0, 3)

    sides = ReconcileSettings(
        left=f"topic:guarded@{here.nameserver}",
        left_credentials=here.credentials,
        right=f"archive:{to}",
    )
    assert reconcile(spark, sides).outcome is Outcome.DONE
    assert here.refused == []


def test_dead_letters_of_a_guarded_cluster_go_to_where_they_came_from_once(
    tables: Tables, here: Guarded
) -> None:
    tables.cluster.admin.create_group("guarding-it", max_retries=0)
    with SyncClient(tables.cluster.nameserver) as mq:
        mq.send("guarded-origin", b"1", key="o-1")
        with mq.consume("guarded-origin", group="guarding-it", start="first") as consumer:
            next(consumer).retry()
    assert len(tables.cluster.dead_letters("guarding-it", count=1)) == 1
    settings = DlqSettings(
        nameserver=here.nameserver,
        credentials=here.credentials,
        group="guarding-it",
        redrive="true",
    )
    for sent in (1, 0):
        report = dlq(tables.spark, settings)
        assert (report.details["redriven"], report.details["earlier"]) == (sent, 1 - sent)
    assert tables.bodies("guarded-origin") == ["1", "1"]
    assert here.refused == []


def test_a_mirror_gets_into_both_of_its_clusters(
    tables: Tables, here: Guarded, certificate: Path, tmp_path: Path
) -> None:
    tables.fill("mirrored-guarded", 10)
    with Cluster() as other, guarded(other, certificate, "hush-hush-there") as there:
        settings = MirrorSettings(
            nameserver=here.nameserver,
            credentials=here.credentials,
            to_nameserver=there.nameserver,
            to_credentials=there.credentials,
            topic="mirrored-guarded",
            checkpoint=str(tmp_path),
        )
        assert mirror(tables.spark, settings).rows == 10
        assert len(other.sent("mirrored-guarded", count=10)) == 10
        assert there.codes
        assert here.refused == there.refused == []


@pytest.mark.slow
def test_a_secret_is_in_no_file_and_no_line(tables: Tables, here: Guarded, tmp_path: Path) -> None:
    """The event log has what Spark's UI shows: plans, settings, tasks and their errors."""
    tables.fill("secretive", 5)
    (tmp_path / "events").mkdir()
    arguments = [sys.executable, "-m", "cometmq.admin", "pipeline", "transform", *here.arguments()]
    arguments += ["--topic=secretive", "--to-topic=secretive-out"]
    arguments += [f"--sql=SELECT {PLACE}, body FROM messages", f"--checkpoint={tmp_path / 'cp'}"]
    arguments += ["--master=local[1]", f"--report={tmp_path / 'report.json'}"]
    arguments += ["--conf=spark.eventLog.enabled=true", "--conf=spark.eventLog.compress=false"]
    arguments += [f"--conf=spark.eventLog.dir=file://{tmp_path / 'events'}"]
    done = subprocess.run(
        arguments,
        env={**os.environ, "COMETMQ_SECRET_KEY": SECRET, "COMETMQ_SPARK_LOG": "INFO"},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert tables.bodies("secretive-out") == numbers(0, 5)
    found = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"SparkListenerSQLExecutionStart" in each for each in found)
    assert not any(SECRET.encode() in each for each in (*found, done.stdout, done.stderr))


def test_a_plan_does_not_show_the_secret(
    tables: Tables, here: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.fill("planned", 1)
    options = {**here.credentials.at(here.nameserver), "topic": "planned"}
    assert SECRET in options.values()
    frame = tables.spark.read.format("cometmq").options(**options).load()
    for mode in ("extended", "formatted", "cost"):
        frame.explain(mode=mode)
    shown = capsys.readouterr().out
    assert "queue_offset" in shown
    assert SECRET not in shown
