"""A job whose Java ends says so in one line."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from pyspark import SparkContext
from tests.pipeline.programs import archiving

from cometmq.pipeline.java_ended import how_java_ended, say_nothing_of_its_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.testing import Cluster

pytestmark = pytest.mark.spark


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A stand-in for Java: it ends as soon as its stdin does, with status 5."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(5)"], stdin=subprocess.PIPE
    )
    with process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        yield process
        process.kill()


def test_how_java_ended_is_told(java: subprocess.Popen[bytes]) -> None:
    assert how_java_ended(0) == ""
    java.kill()
    assert "killed by signal 9, as happens when a system runs out of memory" in how_java_ended(30)


def test_one_that_crashed_is_told_with_its_status(java: subprocess.Popen[bytes]) -> None:
    assert java.stdin is not None
    java.stdin.close()
    assert how_java_ended(30).endswith("ended before the job did, with status 5")


def test_who_has_no_process_of_java_knows_no_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for gateway in (None, SimpleNamespace()):
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        assert how_java_ended() == ""


def test_errors_are_told_as_long_as_java_runs(
    java: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loggers = [logging.getLogger(name) for name in (None, "py4j.clientserver")]
    for logger in loggers:
        monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    say_nothing_of_its_end()
    for has_ended in (False, True):
        if has_ended:
            java.kill()
            java.wait()
        for logger in loggers:
            logger.error("no answer", exc_info=ConnectionError())
            logger.error("nothing of it")
    told = [each.getMessage() for each in caplog.records]
    assert told == ["no answer", "nothing of it"] * 2 + ["nothing of it"] * 2


@pytest.mark.slow
def test_a_job_whose_java_is_killed_says_so_in_a_line_and_goes_on(
    rocketmq_session: Cluster, tmp_path: Path
) -> None:
    job, _, _ = archiving(rocketmq_session, "java-ended", 60, tmp_path / "archive")
    (java,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(java), signal.SIGKILL)
    _, told = job.communicate(timeout=120)
    assert job.returncode == 3
    ended, again = [line for line in told.splitlines() if not line.startswith("batch ")]
    assert ended.endswith("killed by signal 9, as happens when a system runs out of memory")
    assert again == "If started again, it continues where it was."
