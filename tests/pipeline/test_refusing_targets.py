"""A job whose first batch cannot be written fails, and goes on once it can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from click.testing import CliRunner
from tests.pipeline.guarded import guarded
from tests.pipeline.tables import Tables, numbers

from cometmq.admin.program import program
from cometmq.pipeline import command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from cometmq.pipeline.jobs.job import Job, Run
    from cometmq.pipeline.jobs.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]

SECRET = "hush-hush-here"
SQL = "SELECT topic, broker, queue_id, queue_offset, store_time, body FROM messages"


@pytest.fixture
def transformed(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run the command `transform`, in the Spark of the tests, from one topic into another."""

    def in_this_spark(job: Job, settings: object, run: Run, *_: object) -> Report:
        return job.function(tables.spark, settings, run)

    monkeypatch.setattr(command, "run_in_session", in_this_spark)

    def run(topic: str, to_topic: str, *arguments: str) -> Result:
        given = ["--topic", topic, "--to-topic", to_topic, "--sql", SQL]
        given += ["--checkpoint", str(tmp_path / "checkpoint"), *arguments]
        return CliRunner().invoke(program, ["pipeline", "transform", *given])

    return run


@pytest.mark.slow
def test_a_read_only_target_is_a_failure_also_of_the_first_batch_and_the_job_goes_on(
    tables: Tables, transformed: Callable[..., Result]
) -> None:
    tables.fill("open-in", 5)
    admin = tables.cluster.admin
    admin.create_topic("shut-out", queues=2, permission="r")
    where = ("-n", tables.cluster.nameserver)
    done = transformed("open-in", "shut-out", *where)
    assert done.exit_code == 3, done.output
    assert done.stderr.endswith(
        "cometmq pipeline transform: topic: shut-out: none of its brokers allows writing\n"
        "If started again, it continues where it was.\n"
    )
    assert "outcome: failed" in done.stdout
    admin.create_topic("shut-out", queues=2, permission="rw")
    done = transformed("open-in", "shut-out", *where)
    assert done.exit_code == 0, done.output
    assert tables.bodies("shut-out") == numbers(0, 5)


@pytest.mark.slow
def test_a_guarded_broker_that_lets_nobody_make_the_topic_says_what_to_do(
    tables: Tables,
    transformed: Callable[..., Result],
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables.fill("guarded-in", 5)
    monkeypatch.setenv("COMETMQ_SECRET_KEY", SECRET)
    with guarded(tables.cluster, certificate, SECRET) as here:
        for front in here.fronts:
            front.denied.add(17)
        done = transformed("guarded-in", "guarded-not-there", *here.arguments())
        assert done.exit_code == 3, done.output
        assert "refused with code 16: no. Topic guarded-not-there does not exist" in done.stderr
        assert "`cometmq topic create guarded-not-there`\nIf started again, it" in done.stderr
        assert set(here.refused) == {17}
        tables.cluster.admin.create_topic("guarded-not-there", queues=1)
        done = transformed("guarded-in", "guarded-not-there", *here.arguments())
        assert done.exit_code == 0, done.output
    assert tables.bodies("guarded-not-there") == numbers(0, 5)
