"""Stopping jobs as terminals and service managers do: by a signal to the whole process group."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner
from tests.ending import ENDING
from tests.pipeline.programs import archiving
from tests.store.apache_stores import unpack

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

import pyspark

from cometmq.net import ending_signals
from cometmq.pipeline import command
from cometmq.pipeline.errors import PipelineError
from cometmq.pipeline.jobs.job import Job, Run, StoppedEarly, setting
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.jobs.stopping import heeded, interrupts_kept, stopped_by_signals
from cometmq.pipeline.jobs.streams import run_batches
from cometmq.pipeline.waiting import until_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from cometmq.testing import Cluster

pytestmark = pytest.mark.spark


ASKED = """
import sys, time
from cometmq.net import ending_signals
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.stopping import stopped_by_signals

run = Run()
with stopped_by_signals(run):
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(ending_signals.ONE_REQUEST_SECONDS)
    print(run.is_stopping, flush=True)
    time.sleep(60)
"""


class Context:
    """As much of a session as it takes to cancel what it is doing."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cancelled = 0

    @property
    def sparkContext(self) -> Context:  # noqa: N802  # Spark's name
        return self

    def cancelAllJobs(self) -> None:  # noqa: N802  # Spark's name
        self.cancelled += 1


class Busy:
    """A stream with one batch after another, by a clock that goes on while it is waited for."""

    BATCH: Final = 0.93

    def __init__(self, number: int, asked_at: float) -> None:
        self.now = 0.0
        self.number, self.ask_at = number, asked_at
        self.asked_at: float | None = None
        self.stopped_at: float | None = None
        self.status = {"isTriggerActive": True}

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802  # Spark's name
        self.now += seconds
        if self.now >= self.ask_at and self.asked_at is None:
            self.asked_at = self.now
            os.kill(os.getpid(), self.number)
        return self.stopped_at is not None

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        done = int(self.now / self.BATCH)
        return {"batchId": done - 1} if done else None

    def stop(self) -> None:
        self.stopped_at = self.now


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("asked_at", [0.3, 2.5, 2.9])
def test_a_stream_is_ended_before_the_next_batch_has_got_far(
    number: int, asked_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending_signals, "ONE_REQUEST_SECONDS", 0.0)
    query, before = Busy(number, asked_at), signal.getsignal(number)
    until_stopped(query)  # type: ignore[arg-type]  # As much of one as is asked.
    assert None not in (query.asked_at, query.stopped_at)
    end = (int((query.asked_at or 0) / query.BATCH) + 1) * query.BATCH
    assert end <= (query.stopped_at or 0) < end + 0.03
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("is_early", [True, False])
def test_two_signals_at_once_are_one_request(
    number: int, is_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `timeout` sends them: to its child, then to the group that the child is in."""
    monkeypatch.setattr(ending_signals, "ONE_REQUEST_SECONDS", 0.2)
    run = Run()
    run.is_early = is_early
    before = signal.getsignal(number)
    with (
        pytest.raises(StoppedEarly) if is_early else nullcontext(),
        stopped_by_signals(run),
    ):
        assert not run.is_stopping
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            assert run.is_stopping
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ENDING)
def test_a_second_request_ends_the_process_at_once(number: int) -> None:
    asked = subprocess.Popen(
        [sys.executable, "-c", ASKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert asked.stdin is not None
    assert asked.stdout is not None
    assert asked.stdout.readline() == "ready\n"
    for _ in range(3):
        asked.send_signal(number)
    asked.stdin.write("\n")  # A second later it says what it was asked.
    asked.stdin.flush()
    assert asked.stdout.readline() == "True\n"
    asked.send_signal(number)
    asked.communicate(timeout=60)
    assert asked.returncode == -number


def test_what_a_session_does_at_an_interrupt_is_undone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_kept():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_session_would_do_at_an_interrupt_it_does_at_no_moment() -> None:
    """A Ctrl-C right after the making of Spark's context used to end in tracebacks."""
    taking = pytest.importorskip("pyspark.core.context")
    before = signal.getsignal(signal.SIGINT)
    with interrupts_kept():
        taking.signal.signal(taking.signal.SIGINT, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGINT) is before
    assert taking.signal is signal


@pytest.mark.parametrize("has_batches", [True, False])
def test_it_is_told_that_a_job_will_stop_and_one_without_batches_is_ended(
    has_batches: bool,
) -> None:
    told: list[dict[str, object]] = []
    run = Run(progress=lambda news: told.append(dict(news)))
    spark = Context(run)
    with heeded(run, spark, has_batches=has_batches):  # type: ignore[arg-type]  # As above.
        run.stop()
        while not told or not (spark.cancelled or has_batches):
            run.pause(0)
    (news,) = told
    assert str(news["stopping"]).startswith("after the running batch" if has_batches else "now")
    assert bool(spark.cancelled) is not has_batches


def test_it_is_told_also_of_a_job_that_stops_at_once() -> None:
    told: list[dict[str, object]] = []
    run = Run(progress=lambda news: told.append(dict(news)))
    with heeded(run, Context(run), has_batches=True):  # type: ignore[arg-type]  # As above.
        run.stop()
    assert len(told) == 1


def test_a_job_that_nobody_stops_is_told_nothing_of() -> None:
    told: list[dict[str, object]] = []
    run = Run(progress=lambda news: told.append(dict(news)))
    with heeded(run, Context(run), has_batches=False):  # type: ignore[arg-type]  # As above.
        pass
    assert told == []


def test_no_batch_begins_once_a_job_shall_end() -> None:
    run = Run()
    run.begin_batch()
    run.stop()
    with pytest.raises(PipelineError, match="shall end"):
        run.begin_batch()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_lets_the_batch_end_and_the_job_goes_on(
    rocketmq_session: Cluster, tmp_path: Path, number: int
) -> None:
    job, once, first = archiving(
        rocketmq_session, f"stopped-{number}", 15, tmp_path / "archive", apart=True
    )
    os.killpg(job.pid, number)
    said, told = job.communicate(timeout=120)
    assert job.returncode == 0, told
    assert "rows 5" in first
    assert "stopping after the running batch" in told
    assert "Exception" not in told + said
    assert "stopped: true" in said
    rows = int(said.partition("rows: ")[2].split()[0])
    done = subprocess.run(once, capture_output=True, text=True, timeout=300, check=False)
    assert f"rows: {15 - rows}\n" in done.stdout, done.stderr
    assert not any(word in told + done.stderr for word in ("WARN", "log4j", "incubator"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the toy job."""

    what: str = setting("What.")


def toy(spark: object, settings: Settings, run: Run) -> Report:
    """Be cancelled."""
    assert spark is not None
    assert settings.what == "x"
    run.report_of("toy").rows = 7
    run.stop()
    raise PipelineError("Job 3 cancelled")


class Session:
    """As much of a session as the toy needs."""

    sparkContext = Context(Run())  # noqa: N815  # Spark's name

    def stop(self) -> None:
        """Do nothing."""


def toy_in(session: Callable[[], object], monkeypatch: pytest.MonkeyPatch, job: Job) -> Result:
    """Run a job's command with `session` in the place of Spark's start."""

    def opened(_conf: object, *, apart: bool) -> object:
        assert apart
        return session()

    monkeypatch.setattr("cometmq.pipeline.spark_session.open_session", opened)
    return CliRunner().invoke(command.job_command(job), ["--what", "x"])


def test_a_job_without_batches_that_was_stopped_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opened(_conf: object, *, apart: bool) -> Session:
        assert apart
        return Session()

    monkeypatch.setattr("cometmq.pipeline.spark_session.open_session", opened)
    job = Job("toy", Settings, toy, "A toy.", goes_on=False)
    path = tmp_path / "report.json"
    done = CliRunner().invoke(
        command.job_command(job), ["--what", "x", "--report", str(path), "--progress", "none"]
    )
    assert done.exit_code == 3
    assert done.stderr.endswith("stopped before it was done\nIf started again, it starts over.\n")
    assert '"stopped": true' in path.read_text()
    assert '"rows": 7' in path.read_text()


def interrupted() -> object:
    """Send a Ctrl-C while Spark starts."""
    os.kill(os.getpid(), signal.SIGINT)
    pytest.fail("it went on")


def interrupted_late() -> object:
    """Raise what a Ctrl-C raises once Spark has its own handler."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("start", [interrupted, interrupted_late])
def test_a_job_that_is_stopped_while_spark_starts_ends_at_once(
    start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    done = toy_in(start, monkeypatch, Job("toy", Settings, toy, "A toy."))
    assert done.exit_code == 0
    assert done.stderr == "starting Spark\nstopped before the first batch\n"
    assert "outcome: done" in done.stdout
    assert "stopped: true" in done.stdout
    assert signal.getsignal(signal.SIGINT) is before


def test_one_without_batches_has_failed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    done = toy_in(interrupted, monkeypatch, Job("toy", Settings, toy, "A toy.", goes_on=False))
    assert done.exit_code == 3
    assert "toy: stopped before it began\n" in done.stderr
    assert "stopped: true" in done.stdout


def test_the_start_of_spark_is_told_and_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(spark: object, settings: Settings, run: Run) -> Report:
        assert isinstance(spark, Session)
        assert settings.what == "x"
        return run.report_of("toy")

    done = toy_in(Session, monkeypatch, Job("toy", Settings, idle, "A toy."))
    assert re.fullmatch(r"starting Spark\nstarted Spark  seconds [0-9.]+\n", done.stderr)
    assert re.search(r"^seconds: 0.0\nstart_seconds: [0-9.]+$", done.stdout, re.MULTILINE)


class Ending(Session):
    """A session whose Java ends while it is asked to stop."""

    def stop(self) -> None:
        """Fail, as nobody answers."""
        raise ConnectionRefusedError


@pytest.mark.parametrize(("ended", "status"), [("it ended", 0), ("", 3)])
def test_a_java_that_ends_once_all_is_done_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, ended: str, status: int
) -> None:
    """It used to be a traceback and status 3, of a job that had done everything."""

    def idle(spark: object, settings: Settings, run: Run) -> Report:
        assert isinstance(spark, Ending)
        assert settings.what == "x"
        return run.report_of("toy")

    told = iter(["", ended, ended])

    def how(_seconds: float = 0) -> str:
        return next(told)

    monkeypatch.setattr("cometmq.pipeline.java_ended.how_java_ended", how)
    done = toy_in(Ending, monkeypatch, Job("toy", Settings, idle, "A toy."))
    assert done.exit_code == status
    assert ("Traceback" in done.stderr) is (status == 3)


def test_spark_is_started_so_that_no_file_here_hides_a_module_of_pythons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str | None] = []

    def opened() -> Session:
        seen.append(os.environ.get("PYTHONSAFEPATH"))
        return Session()

    toy_in(opened, monkeypatch, Job("toy", Settings, toy, "A toy."))
    assert seen == ["1"]


def test_no_folder_for_tables_is_made_where_a_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes `spark-warehouse` in the working directory, unless it is told another folder."""
    seen: list[str] = []

    def opened(conf: dict[str, str], *, apart: bool) -> Session:
        assert apart
        seen.append(conf["spark.sql.warehouse.dir"])
        return Session()

    monkeypatch.setattr("cometmq.pipeline.spark_session.open_session", opened)
    toy_command = command.job_command(Job("toy", Settings, toy, "A toy."))
    for given in ((), ("--conf", "spark.sql.warehouse.dir=/tables")):
        CliRunner().invoke(toy_command, ["--what", "x", *given])
    assert seen == [Path(gettempdir()).as_uri(), "/tables"]


def test_no_stream_is_started_of_a_job_that_shall_end() -> None:
    run = Run()
    run.stop()
    report = run.report_of("toy")
    run_batches(None, pytest.fail, None, run, report)  # type: ignore[arg-type]  # Unused.
    assert report.stopped


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_while_nobody_answers_ends_a_job_with_a_report(
    tmp_path: Path, number: int
) -> None:
    report = tmp_path / "report.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nameserver = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ["-n", nameserver, "--topic", "orders", "--to", str(tmp_path / "archive")]
        program = [sys.executable, "-m", "cometmq.admin", "pipeline", "archive", *arguments]
        job = subprocess.Popen(
            [*program, "--report", str(report)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        peer, _ = silent.accept()  # The job asks, and waits.
        with peer:
            assert peer.recv(1)
            job.send_signal(number)
            said, _ = job.communicate(timeout=30)
    assert job.returncode == 0, said
    assert "Traceback" not in said
    assert json.loads(report.read_text())["stopped"] is True
    assert not (tmp_path / "archive").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_java_starts_leaves_no_java_and_no_words_of_it(
    tmp_path: Path, number: int
) -> None:
    spark = Path(pyspark.__file__).parent
    started = tmp_path / "started"
    os.mkfifo(started)
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(
        f'#!/bin/sh\necho $$ > {started}\nSPARK_HOME={spark} exec {spark}/bin/spark-submit "$@"\n'
    )
    submit.chmod(0o755)
    store = str(unpack("clean", tmp_path))
    job = subprocess.Popen(
        [sys.executable, "-m", "cometmq.admin", "pipeline", "audit", "--store", store],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_HOME": str(tmp_path)},
    )
    java = int(started.read_text())  # The shell's process becomes Java.
    job.send_signal(number)
    try:
        said, told = job.communicate(timeout=120)  # Java holds both streams, too, while it runs.
    except subprocess.TimeoutExpired:
        os.kill(java, signal.SIGKILL)
        raise
    assert job.returncode == 3
    assert told.splitlines() == [
        "starting Spark",
        "cometmq pipeline audit: stopped before it began",
        "If started again, it starts over.",
    ]
    assert "stopped: true" in said
