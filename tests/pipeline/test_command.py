"""The commands of `cometmq pipeline`, up to where Spark would start."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import MISSING, Field, dataclass, fields, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cometmq.admin.program import program
from cometmq.pipeline import command
from cometmq.pipeline.errors import (
    DamagedFileError,
    DataLossError,
    HeldError,
    JavaError,
    OptionError,
    PipelineError,
    RefusedError,
    WorkerLateError,
)
from cometmq.pipeline.java import find_java, make_shim
from cometmq.pipeline.jobs import JOBS, durable, in_session
from cometmq.pipeline.jobs.aggregate import AggregateSettings
from cometmq.pipeline.jobs.archive import ArchiveSettings
from cometmq.pipeline.jobs.audit_settings import AuditSettings
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.job import Job, Run, setting
from cometmq.pipeline.jobs.option_words import (
    in_words_of_the_command,
    with_the_option_of_a_folder,
)
from cometmq.pipeline.jobs.report import Outcome, Report, Span, as_json
from cometmq.pipeline.jobs.spark_errors import ours
from cometmq.pipeline.jobs.streams import StreamSettings, run_batches
from cometmq.pipeline.jobs.transform import TransformSettings
from cometmq.pipeline.spark_settings import read_settings
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySettings:
    """The settings of a toy job: texts, a number and a flag."""

    nameserver: str = setting("Where.")
    to: str = setting("Whereto.")
    count: int = setting("How many.", 3)
    careful: bool = setting("Whether.", True)


ENDINGS: Mapping[str, PipelineError] = {
    "without-java": JavaError("Java was not found"),
    "damaged": DamagedFileError("a is damaged: put it back"),
    "held": HeldError("path: a: archive is at work there"),
    "expired": DataLossError("what comes next expired"),
}


def toy(spark: Any, settings: ToySettings, run: Run) -> Report:
    """End in the way that the setting `nameserver` names."""
    if settings.nameserver == "wrong":
        raise OptionError("nameserver: is wrong; write another")
    if settings.nameserver == "half":
        report = run.report_of("toy")
        report.rows, report.batches = 7, [0, 1]
        report.details["redriven"] = 0
        report.details["last"] = [{"at": datetime(2026, 11, 21, 12), "key": None}]
        raise PipelineError("it went away")
    if settings.nameserver in ("shut", "passed"):  # `passed` read a batch, and no row.
        report = run.report_of("toy")
        report.rows, report.batches = {"shut": (7, []), "passed": (0, [0])}[settings.nameserver]
        raise OptionError("topic: t: none of its brokers allows writing")
    if settings.nameserver == "away":
        raise PipelineError("it is away")
    if settings.nameserver in ENDINGS:
        raise ENDINGS[settings.nameserver]
    if settings.nameserver.startswith("refused"):  # In Spark's words.
        run.report_of("toy").rows = 7
        said = RefusedError("127.0.0.1:9", int(settings.nameserver.partition("-")[2]), "no")
        raise ours(RuntimeError(f"it\ncometmq.pipeline.errors.RefusedError: {said}\n\tat x"))
    if settings.nameserver == "crash":
        raise ZeroDivisionError
    run.tell(step=1)
    found = Outcome.FINDINGS if settings.count > 3 else Outcome.DONE
    return Report("toy", found, rows=settings.count, dry_run=run.dry_run)


TOY = Job("toy", ToySettings, toy, "A toy.")


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Run jobs without a session of Spark."""

    def without_spark(job: Job, settings: Any, run: Run, *_: object) -> Report:
        return job.function(None, settings, run)  # type: ignore[arg-type]  # the toy wants none

    monkeypatch.setattr(command, "run_in_session", without_spark)
    return CliRunner()


def test_a_job_goes_on_where_nobody_reads_what_it_says(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `| head`: that is neither a failure nor a finding."""
    del runner  # Only its patch of `run_in_session` is needed.
    with ExitStack() as until:
        for name in ("stdout", "stderr"):
            reading, writing = os.pipe()
            os.close(reading)
            stream = until.enter_context(os.fdopen(writing, "w"))
            monkeypatch.setattr(sys, name, stream)
        common: dict[str, Any] = {"master": "local[2]", "conf": (), "dry_run": False}
        common |= {"report": None, "progress": "plain"}
        for count, status in ((3, Outcome.DONE), (4, Outcome.FINDINGS)):
            given = {"nameserver": "a:1", "to": "x", "count": count, "careful": True}
            assert command.run_job(TOY, given, **common) == status
        failing = {"nameserver": "crash", "to": "x", "count": 3, "careful": True}
        assert command.run_job(TOY, failing, **common) == Outcome.FAILED


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--nameserver", "here"], 0),
        (["--nameserver", "here", "--count", "4"], 1),
        (["--nameserver", "wrong"], 2),
        (None, 2),
        (["--nameserver", "here", "--conf", "nonsense"], 2),
        (["--nameserver", "away"], 3),
        (["--nameserver", "without-java"], 3),
        (["--nameserver", "damaged"], 3),
        (["--nameserver", "shut"], 3),  # A wrong command would have written nothing.
        (["--nameserver", "passed"], 3),
        (["--nameserver", "shut", "--dry-run"], 2),
        (["--nameserver", "crash"], 3),  # Not 1, which says that it ran to its end.
    ],
)
def test_the_exit_status_says_how_a_job_ended(
    runner: CliRunner, arguments: list[str] | None, status: int
) -> None:
    given = [] if arguments is None else ["--to", "there", *arguments]
    done = runner.invoke(command.job_command(TOY), given)
    assert done.exit_code == status, done.output


def test_a_report_says_what_was_done(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["--to", "there", "--no-careful", "--dry-run", "--report", str(path)]
    done = runner.invoke(command.job_command(TOY), [*arguments, "--progress", "json"])
    assert done.exit_code == 0, done.output
    said = json.loads(path.read_text())
    assert (said["job"], said["outcome"], said["rows"], said["dry_run"]) == ("toy", "done", 3, True)
    assert '{"step": 1}' in done.output


def test_a_report_that_a_full_disk_refuses_is_told_and_the_earlier_stays(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "report.json"
    arguments = ["-n", "here", "--to", "there", "--report", str(path)]
    monkeypatch.setattr(durable, "fsync", full)
    for earlier, left in (("", ""), ("earlier", "; the file there is of an earlier run")):
        if earlier:
            path.write_text(earlier)
        done = runner.invoke(command.job_command(TOY), arguments)
        said = f"toy: --report: {path}: its disk is full; make room there{left}\n"
        assert (done.exit_code, done.stderr.endswith(said)) == (0, True), done.stderr
        assert not earlier or path.read_text() == earlier


def test_a_report_of_a_failure_says_why(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["-n", "away", "--to", "there", "--report", str(path)]
    done = runner.invoke(command.job_command(TOY), arguments)
    assert json.loads(path.read_text())["error"] == "it is away"
    assert done.stderr.endswith("toy: it is away\nNothing was done; start it again.\n")
    assert "it is away" not in done.stdout


def test_a_report_of_a_failure_says_what_was_done_before(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["-n", "half", "--to", "there", "--report", str(path)]
    done = runner.invoke(command.job_command(TOY), arguments)
    said = json.loads(path.read_text())
    assert (said["outcome"], said["rows"], said["batches"]) == ("failed", 7, [0, 1])
    assert said["error"] == "it went away"
    assert "rows: 7" in done.stdout
    assert "redriven: 0\n" in done.stdout
    assert not re.search("^(bytes|stopped|offsets):", done.stdout, re.MULTILINE)
    noon = datetime(2026, 11, 21, 12).astimezone(UTC).isoformat()
    assert noon.endswith("+00:00")
    assert f'last: [{{"at": "{noon}", "key": null}}]' in done.stdout
    assert said["last"] == [{"at": noon, "key": None}]


def test_what_nobody_thought_of_is_told_with_its_place(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["-n", "crash", "--to", "there", "--report", str(path)]
    done = runner.invoke(command.job_command(TOY), arguments)
    said = json.loads(path.read_text())
    assert (said["outcome"], said["error"]) == ("failed", "ZeroDivisionError")
    assert "in toy\n    raise ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("job", "arguments", "said"),
    [
        (TOY, ["-n", "away"], "Nothing was done; start it again."),
        (TOY, ["-n", "half"], "If started again, it continues where it was."),
        (replace(TOY, goes_on=False), ["-n", "half"], "If started again, it starts over."),
        (TOY, ["-n", "without-java"], "toy: Java was not found"),  # Starting again is no help.
        (TOY, ["-n", "shut"], "If started again, it continues where it was."),
        (replace(TOY, goes_on=False), ["-n", "shut"], "none of its brokers allows writing"),
        (TOY, ["-n", "refused-16"], "until its credentials change or may do more."),
        (TOY, ["-n", "refused-1"], "If started again, it continues where it was."),
        (TOY, ["-n", "held"], "toy: path: a: archive is at work there"),  # The error says when.
        (TOY, ["-n", "wrong"], "toy: nameserver: is wrong; write another"),
        (TOY, ["-n", "away", "--dry-run"], "toy: it is away"),
        (TOY, ["-n", "damaged"], "toy: a is damaged: put it back"),
        (TOY, ["-n", "expired"], "toy: what comes next expired"),
    ],
)
def test_a_failure_says_what_starting_again_does(
    runner: CliRunner, job: Job, arguments: list[str], said: str
) -> None:
    done = runner.invoke(command.job_command(job), ["--to", "there", *arguments])
    assert done.stderr.splitlines()[-1].endswith(said)


NUMERIC = ("int", "float")
MISTAKES = {
    "archive --to a": "either by --topic (several with commas) or by --topic-pattern",
    "archive --to a --topic-pattern (": "topic-pattern: not a regular expression",
    "archive --to a --topic t --partition-by year": "partition-by: 'year'",
    "archive --to a --topic t --body json": "body: 'json'",
    "archive --to a --topic t --compression best": "compression: 'best'",
    "archive --to a --topic t --partition-by topic,topic": "partition-by: topic is there twice",
    "archive-compact --archive a --compression best": "compression: 'best' is not one of zstd",
    "archive --to a --topic t --format orc": "'orc' is none of parquet, delta, iceberg",
    "archive --to a --topic t --trigger often": "trigger: 'often'",
    "archive --to a --topic t --trigger 999999999_weeks": "weeks' is longer than 50,000 weeks",
    "archive --to a --topic t --trigger 10": "trigger: '10' is neither once nor like '30 sec",
    "audit --store s --master bogus": "--master bogus: write local[*], local[2], spark://HOST:PORT",
    "audit --store s --master other://h:1": "--master other://h:1: write local[*]",
    "audit --store s --master local[0]": "--master local[0]: write local[*]",
    "audit --store s --master spark://here": "--master spark://here: write local[*]",
    "audit --store s --conf spark.master=x": "--master x: write local[*]",
    "audit --store s --conf spark.driver.memory=banana": "driver.memory=banana: write a size, such",
    "audit --store s --conf spark.driver.memory=4gb": "spark.driver.memory=4gb: write a size, such",
    "audit --store s --packages nonsense": "--packages nonsense: write GROUP:NAME:VERSION",
    "audit --store s --packages g:n:1,,h:n:1": "--packages : write GROUP:NAME:VERSION",
    "audit --store s --packages g::1": "--packages g::1: write GROUP:NAME:VERSION",
    "audit --store s --conf spark.jars.packages=g:n": "--packages g:n: write GROUP:NAME:VERSION",
    "archive --to a --topic t --max-rows -1": "max-rows: '-1'",
    "archive --to a --topic t --start=": "start: must not be empty; write earliest, latest or JSON",
    "archive --to a --topic t --start group:": "start: '' is not a name of a group",
    "archive --to a --topic t --on-bad-body=": "on-bad-body: '' is neither fail nor skip",
    "archive --to a --topic t --report=": "report: must not be empty; name a file",
    "archive --to a --topic t -n here": "nameserver: 'here' is not HOST:PORT",
    "mirror --topic t --to-nameserver here --checkpoint c": "to-nameserver: 'here' is not HOST",
    "archive --to a --topic t --conf x": "--conf x: write NAME=VALUE",
    "archive --to a --topic t --conf driver.memory=1g": "did you mean spark.driver.memory?",
    "replay --from-dir a --to-topic t --mark x": "mark: 'x'",
    "replay --from-dir a --to-topic t --mark =x": "mark: '=x': write NAME=VALUE",
    "replay --from-dir a --to-topic t --mark x=": "mark: 'x=': write NAME=VALUE",
    "replay --from-dir a --to-topic t --mark KEYS=zz": "mark: KEYS is a property that brokers and",
    "replay --from-dir a --to-topic t --mark a\x01b=c": "mark: 'a\\x01b=c': U+0001 cannot be in",
    "replay --from-dir a --to-topic=": "to-topic: must not be empty; write TOPIC",
    "replay --from-dir a --to-topic a.b": "to-topic: topic 'a.b': only letters, digits",
    f"replay --from a --to-topic {'t' * 128}": "characters, but at most 127",
    "replay --from a --to-topic SCHEDULE_TOPIC_XXXX": "only the broker itself writes to it",
    "replay --from a --to-topic %RETRY%g": "brokers put there what a group is to consume again",
    "replay --from archiv:a --to-topic t": "from: 'archiv:a' is neither archive:DIR nor store:DIR",
    "replay --to-topic t": "from: give archive:DIR or store:DIR",
    "replay --from store:no --to-topic t": "from: no: no such folder",
    "replay --from store:no#t --broker b --to-topic t": "from: no: no such folder",
    "replay --from store:no --broker b --checkpoint c --to-topic t": "from: no: no such folder",
    "replay --from-dir a --to-topic t --since then": "since: 'then' is not a time",
    "replay --from-dir a --to-topic t --since 1764410000000000": "since: '1764410000000000' is no",
    "replay --from-dir a --to-topic t --rate -1": "rate: must not be negative",
    f"replay --from-dir a --to-topic t --name {'ä' * 123}": "name: of 246 bytes: must be at",
    "transform --topic t --sql @no-such-file --checkpoint c": "sql: no-such-file: No such file",
    "transform --topic t --sql @/bin/sh --checkpoint c": "not UTF-8 text (invalid",
    "transform --topic t --sql s --checkpoint c --dead-letter d": "dead-letter: without a schema",
    "transform --topic t --sql s --checkpoint c --udf prices": "udf: 'prices' is not MODULE:FUNCT",
    "transform --topic t --sql s --checkpoint c --udf no.where:f --udf a:g": "udf: there is no mod",
    "aggregate --topic t --to-topic u --checkpoint c --mode each": "mode: 'each'",
    "aggregate --topic t --to-topic u --checkpoint c --aggregations sum": "aggregations: 'sum'",
    "aggregate --topic t --to-topic u --checkpoint c --window often": "window: 'often' is not a d",
    "aggregate --topic t --to-topic u --checkpoint c --window 1_month": "window: '1 month' is not",
    "aggregate --topic t --to-topic u --checkpoint c --watermark 5": "watermark: '5' is not a d",
    "aggregate --topic t --to-topic u --checkpoint c --slide -1": "slide: '-1' is not a durati",
    "aggregate --topic t --to-topic u --checkpoint c --time=": "time: must not be empty; leave",
    "mirror --topic t --to-nameserver 127.0.0.1:9876 --checkpoint c": "is the cluster that is read",
    "mirror --topic t --to-nameserver h:1 --checkpoint c --delivery twice": "delivery: 'twice'",
    "transform --topic t,u --sql s --checkpoint c --to-topic u": "to-topic: u is read, so all",
    "transform --topic t --sql s --checkpoint c --schema S --dead-letter t": "dead-letter: t is",
    "transform --topic t --sql s --checkpoint c --to-topic a.b": "to-topic: topic 'a.b': only",
    "transform --topic t --sql s --checkpoint c --schema S --dead-letter a.b": "dead-letter: topic",
    "aggregate --topic t --to-topic SELF_TEST_TOPIC --checkpoint c": "only the broker itself",
    "mirror --topic t --to-nameserver h:1 --checkpoint c --prefix a.": "prefix: topic 'a.t': only",
    "mirror --topic %RETRY%g --to-nameserver h:1 --checkpoint c": "topic: topic '%RETRY%g': broke",
    "mirror --topic-pattern t --to-nameserver h:1 --checkpoint c --prefix a.": "prefix: topic 'a.",
    "aggregate --topic t --to-topic t --checkpoint c": "to-topic: t is read, so all",
    "dlq --group g --redrive true --to %DLQ%g": "to: %DLQ%g is the topic that is read",
    "dlq --group g --redrive true --to=": "to: give the name of a topic",
    "dlq --group g --to again": "redrive: give what to send again",
    "dlq --group g --cluster-by colour": "cluster-by: 'colour'",
    "dlq --group g --until then": "until: 'then' is not a time",
    "dlq --group g --since 2 --until 1": "until: '1' is not after since, '2'",
    "latency --topic t --since 1 --until 1": "until: '1' is not after since, '1'",
    "reconcile --left store:a --right store:b --since 2 --until 1": "until: '1' is not after",
    "replay --from a --to-topic t --since 20 --until 19": "until: '19' is not after since",
    "audit --store s --check taste": "check: 'taste'",
    "audit --store s --split-size 1000": "split-size: 1000 is less than 4096",
    "audit --store no-such-folder": "audit: store: no-such-folder: no such folder",
    "audit --check log --store s3x://a": "audit: store: s3x://a: Unrecognized filesystem type",
    "latency --store no-such": "latency: store: no-such: no such folder",
    "latency --topic t --bucket 999999999_weeks": "bucket: '999999999 weeks' is longer than 50,000",
    "reconcile --left store:no-such --right store:d": "reconcile: left: no-such: no such folder",
    "audit --store s --since then": "since: 'then' is not a time",
    "audit --store s --sample 0": "sample: 0.0 must be more than 0 and at most 1",
    "audit --store s --sample 0.5 --check gaps": "sample: only `log` and `blocks` compare",
    "latency": "topic, store: give one of them",
    "latency --topic t --html no-such/l.html": "html: no-such/l.html: no such folder",
    "latency --topic t --since then": "since: 'then' is not a time",
    "reconcile --left here --right store:d": "left: 'here' is not",
    "reconcile --left topic:t@h --right store:d": "left: 'h' is not HOST:PORT",
    "reconcile --left store:c --right topic:t@h:1#x": "right: 'h:1#x' is not HOST:PORT",
    "audit --check log --store store:/s": "audit: store: store:/s: ",
    "reconcile --left store:c --right store:d --level deep": "level: 'deep'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Starting Spark takes half a minute on a busy machine."""
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    arguments = [
        each.replace("_weeks", " weeks").replace("_month", " month") for each in line.split()
    ]
    done = CliRunner().invoke(program, ["pipeline", *arguments])
    assert done.exit_code == 2, done.output
    assert MISTAKES[line] in done.stderr


@pytest.mark.parametrize("said", [["--to", "-x"], ["--to=-x"], ["--to", "--"]])
def test_a_value_may_begin_with_a_dash(runner: CliRunner, said: list[str]) -> None:
    """A folder's name may, and so does SQL that begins with a comment."""
    done = runner.invoke(command.job_command(TOY), ["-n", "here:1", *said])
    assert (done.exit_code, done.stderr) == (0, "step 1\n")


def test_a_value_that_is_left_out_is_missed_by_the_option(runner: CliRunner) -> None:
    done = runner.invoke(command.job_command(TOY), ["-n", "here:1", "--to"])
    assert done.exit_code == 2
    assert "Option '--to' requires an argument." in done.stderr


def test_that_spark_is_not_installed_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "commitlog").mkdir()

    def found(_name: str) -> None:
        """Find nothing."""

    monkeypatch.setattr(in_session, "find_spec", found)
    line = f"audit --store {tmp_path}"
    done = CliRunner().invoke(program, ["pipeline", *line.split()])
    assert done.exit_code == 2
    said = (
        "cometmq pipeline audit: Spark is not installed: `make install-spark` in a clone of"
        " CometMQ, elsewhere pip install 'cometmq[spark]'\n"
    )
    assert done.stderr == said


@pytest.mark.parametrize(
    ("trigger", "is_one"),
    [
        ("once", True),
        ("5 seconds", True),
        ("1 minute 30 seconds", True),
        ("interval 500 milliseconds", True),
        ("0.5 seconds", True),
        ("0 seconds", True),
        ("30s", True),
        ("1m30s", True),
        ("5 bananas", False),
        ("5seconds", False),
        ("5b", False),
        ("5s later", False),
        ("1 month", False),  # Spark does not know how long that is.
        ("-1 second", False),
        ("1 minute bananas", False),
        ("", False),
    ],
)
def test_a_trigger_is_once_or_a_time(trigger: str, is_one: bool) -> None:
    with nullcontext() if is_one else pytest.raises(OptionError, match=r"^trigger: "):
        StreamSettings(nameserver="h:1", topic="t", checkpoint="c", trigger=trigger)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"window": "1 day 2 hours", "slide": "30 minutes", "watermark": "0 seconds"}, ""),
        ({"window": "50000 weeks", "watermark": "50000 weeks"}, ""),
        ({"window": "1m", "slide": "500ms", "watermark": "2h"}, ""),
        ({"window": "1m", "slide": "2m"}, "slide: '2m' is longer than a window, '1m'"),
        ({"watermark": "50000 weeks 1 second"}, "watermark: '50000 weeks 1 second' is longer than"),
        ({"window": "1 month"}, "window: '1 month' is not a duration"),
        ({"window": "0 seconds"}, "window: '0 seconds' must be longer than 0"),
        (
            {"window": "1.5 minutes"},
            "window: '1.5 minutes' is not a duration",
        ),  # Nor is it to Spark.
        ({"watermark": ""}, "watermark: '' is not a duration"),
        ({"slide": "2 minutes"}, "slide: '2 minutes' is longer than a window, '1 minute'"),
        ({"window": "1000 seconds", "slide": "1 second"}, ""),
        ({"window": "1001 seconds", "slide": "1 second"}, "slide: each message would be in 1,001"),
    ],
)
def test_windows_are_looked_at_before_spark_is_started(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) if said else nullcontext() as caught:
        AggregateSettings(nameserver="h:1", topic="t", to_topic="u", checkpoint="c", **given)
    assert caught is None or str(caught.value).startswith(said)


WRONG = {"str": 5, "int": "5", "float": "0.5", "bool": "false", "tuple[str, ...]": "f:g"}
"""For each type of a setting, a value of another type."""


def settings_of(
    job: str, types: Collection[str]
) -> tuple[Callable[..., object], dict[str, Field[Any]], dict[str, str]]:
    """Return the settings of a job, those of some types by their names, and what they need."""
    settings = import_module(JOBS[job]).JOB.settings
    declared = [each for each in fields(settings) if str(each.type) in types]
    needed = {each.name: "x" for each in declared if each.default is MISSING}
    return settings, {each.name.rstrip("_").replace("_", "-"): each for each in declared}, needed


@pytest.mark.parametrize("job", JOBS)
def test_a_setting_of_another_type_is_refused_by_its_name(job: str) -> None:
    """The text "false" would be taken for true, and send a replay into its own topic."""
    settings, declared, needed = settings_of(job, WRONG)
    for name, each in declared.items():
        with pytest.raises(OptionError) as caught:
            settings(**{**needed, each.name: WRONG[str(each.type)]})
        assert str(caught.value).startswith(f"{name}: {WRONG[str(each.type)]!r} is not ")


@pytest.mark.parametrize("job", JOBS)
def test_a_setting_that_is_not_utf_8_is_refused_by_its_name(job: str) -> None:
    """As a folder's name of other bytes, of which py4j could not even tell Java."""
    settings, declared, needed = settings_of(job, ["str"])
    for name, each in declared.items():
        with pytest.raises(OptionError) as caught:
            settings(**{**needed, each.name: "a\udcff"})
        assert str(caught.value) == f"{name}: 'a\\udcff' is not UTF-8, which Java needs"


@pytest.mark.parametrize("job", JOBS)
def test_a_setting_that_says_nothing_is_refused_by_its_name(job: str) -> None:
    """As from an unset shell variable; about SQL, Spark would complain half a minute later."""
    settings, declared, needed = settings_of(job, ["str"])
    for name, each in declared.items():
        with pytest.raises(OptionError, match=f"^{name}: must not be blank; "):
            settings(**{**needed, each.name: " \t"})
        if each.name in needed:
            with pytest.raises(OptionError, match=f"^{name}: must not be empty; "):
                settings(**{**needed, each.name: ""})


def test_each_of_several_texts_is_one() -> None:
    given: dict[str, Any] = {"nameserver": "h:1", "topic": "t", "sql": "s", "checkpoint": "c"}
    given["udf"] = ("f:g", 5)
    with pytest.raises(OptionError, match=r"^udf: \('f:g', 5\) is not a tuple of texts$"):
        TransformSettings(**given)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("audit --store s", "shown"),
        ("dlq --group g", "examples"),
        ("latency --topic t", "shown"),
        ("reconcile --left store:c --right store:d", "shown"),
    ],
)
def test_more_rows_than_java_can_count_are_refused_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str
) -> None:
    """Users who ask for all of them would otherwise be told after hours of work."""
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    done = CliRunner().invoke(program, ["pipeline", *line.split(), f"--{name}", str(1 << 31)])
    assert done.exit_code == 2, done.output
    assert f"{name}: 2147483648 is more than 2147483647, the most there can be" in done.stderr


NUMBERS = {
    "archive --to a --topic t": ("max-rows", "guard", "file-size"),
    "replay --from-dir a --to-topic t": ("rate",),
    "transform --topic t --sql s --checkpoint c --to-topic u": ("max-rows",),
    "aggregate --topic t --to-topic u --checkpoint c": ("max-rows",),
    "mirror --topic t --to-nameserver h:1 --checkpoint c": ("max-rows",),
    "audit --store s": ("sample", "shown", "split-size"),
    "dlq --group g": ("rate", "examples"),
    "latency --topic t": ("shown",),
    "reconcile --left store:c --right store:d": ("block", "shown"),
    "archive-compact --archive a": ("file-size", "batch-size"),
    "archive-vacuum --archive a": ("older-than-hours",),
}
"""The options of each job that are numbers or sizes."""


def test_no_number_of_a_job_is_left_out() -> None:
    for line, names in NUMBERS.items():
        declared = fields(import_module(JOBS[line.split()[0]]).JOB.settings)
        numbers = {each.name.replace("_", "-") for each in declared if each.type in NUMERIC}
        assert numbers <= {*names}
    assert {line.split()[0] for line in NUMBERS} == {*JOBS}


@pytest.mark.parametrize(
    ("line", "name"), [(line, name) for line, names in NUMBERS.items() for name in names]
)
@pytest.mark.parametrize("text", ["-1", "many"])
def test_a_number_of_a_job_that_cannot_be_is_told_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str, text: str
) -> None:
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    done = CliRunner().invoke(program, ["pipeline", *line.split(), f"--{name}", text])
    assert done.exit_code == 2, done.output
    assert name in done.stderr


def test_a_report_covers_queues_from_the_first_to_the_last_that_was_read() -> None:
    report = Report("toy")
    report.cover([Span("t", "b", 10, 5, 7), Span("t", "b", 2, 3, 9), Span("a", "b", "0", 0, 1)])
    report.cover([Span("t", "b", "10", 9, 12), Span("t", "b", 2, 0, 2)])
    said = report.document()["offsets"]
    assert as_json(said) == '{"a": {"b": {"0": [0, 1]}}, "t": {"b": {"2": [0, 9], "10": [5, 12]}}}'
    assert report.document()["bytes"] is None
    for size in (None, 3, 4):  # Spark says `None` for no rows.
        report.count_bytes(size)
    assert report.document()["bytes"] == 7


def test_errors_name_the_options_of_the_command_line() -> None:
    words = {
        "startingOffsets: offset 5 of queue t/b/0 does not exist. With failOnDataLoss=false it": (
            "start: offset 5 of queue t/b/0 does not exist. With --no-fail-on-data-loss it"
        ),
        "topic: t was read, and topicPattern does not name it": (
            "topic: t was read, and --topic-pattern does not name it"
        ),
        "tlsCa: needs tls; without it nothing": "tls-ca: needs tls; without it nothing",
        "topic t: its topic is `t`": "topic t: its topic is `t`",
    }
    assert {text: in_words_of_the_command(text) for text in words} == words
    columns = "sql: did you mean one of these: [`topic`, `flag`, `topic`]?"
    assert in_words_of_the_command(columns) == columns
    column = "[COLUMN_ALREADY_EXISTS] The column `topic` already exists."
    assert in_words_of_the_command(column) == column
    given = {"to": "s3x://a", "checkpoint": "s3x://a/b", "from_": "archive:c", "store": None}
    named = {
        "path: s3x://a: No FileSystem": "to: s3x://a: No FileSystem",
        "path: s3x://a/b/c: No FileSystem": "checkpoint: s3x://a/b/c: No FileSystem",
        "path: elsewhere: a file": "path: elsewhere: a file",
        "from: c is not an archive": "from: c is not an archive",
        "name: s3x://a was another": "name: s3x://a was another",
    }
    assert {text: with_the_option_of_a_folder(text, given) for text in named} == named
    found = with_the_option_of_a_folder("from: d is not an archive", {"right": "archive:d#orders"})
    assert found == "right: d is not an archive"
    said = in_words_of_the_command("secretKey: is missing, but accessKey is set", "to_")
    assert said == "to-secret-key-file: is missing, but --to-access-key is set"


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[*]", "local[2]", "local[2,3]", "local[*, 4]", "local-cluster[2,1,1024]"),
        *("spark://h:7077", "spark://h:7077,i:7077", "yarn", "k8s://https://h:443"),
    ],
)
def test_masters_of_spark_are_taken(master: str) -> None:
    given = ("spark.driver.memory=4g", "spark.executor.memory=512MB", "spark.a=x=y")
    found = {"spark.driver.memory": "4g", "spark.executor.memory": "512MB", "spark.a": "x=y"}
    assert read_settings(master, given) == found


@pytest.mark.parametrize("packages", ["", "g:n:1", "g.h:n_2.13:4.4.0,g/n/1-x,", "g:n:1, g:n:2"])
def test_packages_of_maven_are_taken(packages: str) -> None:
    pair = f"spark.jars.packages={packages}"
    assert read_settings("local", [pair]) == {"spark.jars.packages": packages}


@pytest.mark.spark
def test_a_spark_that_cannot_be_started_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
    from py4j.protocol import Py4JError

    from cometmq.pipeline import spark_session

    (tmp_path / "commitlog").mkdir()

    def fail(*_: object, **__: object) -> None:
        raise Py4JError("An error occurred\n: org.apache.SparkException: no way\n\tat a.b.C\n\tat")

    monkeypatch.setattr(spark_session, "open_session", fail)
    line = f"audit --store {tmp_path} --progress none"
    done = CliRunner().invoke(program, ["pipeline", *line.split()])
    assert done.exit_code == 3
    said = "cometmq pipeline audit: Spark cannot be started: org.apache.SparkException: no way\n"
    assert done.stderr == said


def test_what_cannot_be_checked_of_a_store_by_uri_is_told_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers of the function are told as well, by its settings."""
    said = "check: checkpoint and index are for local stores only; for one by URI write log,blocks"
    with pytest.raises(OptionError, match=said):
        AuditSettings(store="hdfs://host/store")
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    done = CliRunner().invoke(program, ["pipeline", "audit", "--store", "hdfs://host/store"])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


NOWHERE = (
    "archive --to {to} --topic nowhere",
    "archive --to {to} --topic there --start group:nobody",
    'archive --to {to} --topic there --start {{"there":{{"0":7}}}}',
    "mirror --topic nowhere --prefix x --to-nameserver {nameserver} --checkpoint {to}",
    "transform --topic nowhere --sql SELECT --to-topic x --checkpoint {to}",
    "aggregate --topic there,nowhere --to-topic x --checkpoint {to}",
    "dlq --group nobody",
    "latency --topic nowhere",
    "latency --trace-topic nowhere",
    "reconcile --left topic:there@{nameserver} --right topic:nowhere@{nameserver}",
)


@pytest.mark.parametrize("line", NOWHERE)
def test_topics_are_looked_for_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster, tmp_path: Path, line: str
) -> None:
    rocketmq_session.admin.create_topic("there", queues=1)
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq_session.nameserver)
    given = line.format(to=tmp_path / "to", nameserver=rocketmq_session.nameserver)
    done = CliRunner().invoke(program, ["pipeline", *given.split()])
    assert done.exit_code == 2, done.output
    assert re.search(
        "no such topic|has no offset|no broker knows|offset 7 of .* does not exist", done.stderr
    )
    if named := re.search(r"--(\S+) \S*nowhere", line):
        assert f": {named[1]}: nowhere: no such topic" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_dead_letters_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster
) -> None:
    rocketmq_session.admin.create_group("content")

    def without_spark(*_: object) -> Report:
        return Report("dlq")

    monkeypatch.setattr(command, "run_in_session", without_spark)
    arguments = ["pipeline", "dlq", "-n", rocketmq_session.nameserver, "--group"]
    done = CliRunner().invoke(program, [*arguments, "content"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(program, [*arguments, "contend"])
    assert done.exit_code == 2, done.output
    assert "no broker knows the group 'contend'; did you mean 'content'?" in done.stderr


@pytest.mark.parametrize(("pattern", "status"), [("there.*|x-.*", 2), ("there.*", 0)])
def test_a_mirror_does_not_copy_its_copies(
    monkeypatch: pytest.MonkeyPatch,
    rocketmq_session: Cluster,
    tmp_path: Path,
    pattern: str,
    status: int,
) -> None:
    rocketmq_session.admin.create_topic("there", queues=1)

    def without_spark(*_: object) -> Report:
        return Report("mirror")

    monkeypatch.setattr(command, "run_in_session", without_spark)
    here = rocketmq_session.nameserver
    arguments = ["-n", here, "--to-nameserver", here, "--prefix", "x-", "--topic-pattern", pattern]
    arguments += ["--checkpoint", str(tmp_path)]
    done = CliRunner().invoke(program, ["pipeline", "mirror", *arguments])
    assert done.exit_code == status, done.output
    assert ("matches x-there, too, which is the copy of there" in done.stderr) == (status == 2)


def spellings(address: str) -> list[str]:
    """Return other ways to write the address of a name server."""
    port = address.rpartition(":")[2]
    return [f"localhost:{port}", f"{address};{address}", f"127.0.0.1:1,{address}"]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--topic-pattern", "(x-)?there"], "is the cluster that is read; give a prefix"),
        (
            ["--topic-pattern", "(x-)?there", "--prefix", "x-"],
            "matches x-there, too, which is the copy of there",
        ),
        (
            ["--topic", "there,x-there", "--prefix", "x-"],
            "topic: x-there is read, which is the copy of there",
        ),
    ],
)
def test_a_mirror_knows_its_own_cluster_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
    rocketmq_session: Cluster,
    tmp_path: Path,
    number: int,
    more: list[str],
    said: str,
) -> None:
    rocketmq_session.admin.create_topic("there", queues=1)
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    here = rocketmq_session.nameserver
    arguments = ["-n", here, "--to-nameserver", spellings(here)[number], *more]
    arguments += ["--checkpoint", str(tmp_path)]
    done = CliRunner().invoke(program, ["pipeline", "mirror", *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.stderr


def test_a_mirror_makes_no_copy_whose_name_cannot_be(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster, tmp_path: Path
) -> None:
    """Only a name server can say which topics a pattern matches."""
    rocketmq_session.admin.create_topic(f"there-{'x' * 120}", queues=1)
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    here = rocketmq_session.nameserver
    arguments = ["-n", here, "--to-nameserver", here, "--prefix", "x-"]
    arguments += ["--topic-pattern", "there-x+", "--checkpoint", str(tmp_path)]
    done = CliRunner().invoke(program, ["pipeline", "mirror", *arguments])
    assert done.exit_code == 2, done.output
    assert "128 characters, but at most 127" in done.stderr


@pytest.mark.parametrize("more", [["--topic", "there"], ["--topic-pattern", "(x-)?there"]])
def test_a_mirror_into_another_cluster_needs_no_prefix(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster, tmp_path: Path, more: list[str]
) -> None:
    rocketmq_session.admin.create_topic("there", queues=1)

    def without_spark(*_: object) -> Report:
        return Report("mirror")

    monkeypatch.setattr(command, "run_in_session", without_spark)
    with Cluster() as other:
        arguments = ["-n", rocketmq_session.nameserver, "--to-nameserver", other.nameserver]
        arguments += [*more, "--checkpoint", str(tmp_path)]
        done = CliRunner().invoke(program, ["pipeline", "mirror", *arguments])
    assert done.exit_code == 0, done.output


AWAY = (
    "mirror --topic there --prefix x- --to-nameserver {nobody} --checkpoint new",
    "mirror --topic there --prefix x- --to-nameserver {here} -n {nobody} --checkpoint begun",
    "archive --topic there -n {nobody} --to a --checkpoint begun",
    "aggregate --topic there -n {nobody} --to-topic u --checkpoint begun",
    "transform --topic there -n {nobody} --to-topic u --sql s --checkpoint begun",
    "replay --from a -n {nobody} --to-topic u",
)


@pytest.mark.parametrize("line", AWAY)
def test_a_cluster_that_is_away_is_told_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster, tmp_path: Path, line: str
) -> None:
    """Also the cluster to write to, and that of a stream that has begun (no topic is asked for)."""
    pauses: list[float] = []
    monkeypatch.setattr("cometmq.pipeline.retrying.time.sleep", pauses.append)
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    monkeypatch.setenv("NAMESRV_ADDR", rocketmq_session.nameserver)
    monkeypatch.chdir(tmp_path)
    rocketmq_session.admin.create_topic("there", queues=1)
    Path("begun", "offsets").mkdir(parents=True)
    Path("begun", "offsets", "0").touch()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = f"127.0.0.1:{gone.getsockname()[1]}"
    given = line.format(nobody=nobody, here=rocketmq_session.nameserver)
    done = CliRunner().invoke(program, ["pipeline", *given.split()])
    assert done.exit_code == 3, done.output
    assert nobody in done.stderr
    assert pauses  # The cluster may just be starting.
    assert done.stderr.endswith("Nothing was done; start it again.\n")
    assert [each.name for each in tmp_path.iterdir()] == ["begun"]


def test_a_stream_that_has_begun_is_left_to_say_what_is_gone(
    monkeypatch: pytest.MonkeyPatch, rocketmq_session: Cluster, tmp_path: Path
) -> None:
    """Its topic may have been deleted since, which `--no-fail-on-data-loss` passes over."""
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "_checkpoint" / "offsets" / "0").touch()

    def without_spark(*_: object) -> Report:
        return Report("archive")

    monkeypatch.setattr(command, "run_in_session", without_spark)
    arguments = ["-n", rocketmq_session.nameserver, "--topic", "nowhere", "--to", str(tmp_path)]
    done = CliRunner().invoke(program, ["pipeline", "archive", *arguments])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("start", ["yesterday", '{"t": [5]}', '{"t": {"0": -3}}', "group:a b"])
def test_a_beginning_that_cannot_be_is_told_of_a_stream_that_has_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: str
) -> None:
    """`--start` has no effect by then, whatever it seems to ask for."""
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    (tmp_path / "_checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "_checkpoint" / "offsets" / "0").touch()
    arguments = ["--topic", "t", "--to", str(tmp_path), "--start", start]
    done = CliRunner().invoke(program, ["pipeline", "archive", *arguments])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("cometmq pipeline archive: start: ")


def test_settings_of_a_stream_are_refused_by_their_own_names() -> None:
    """A caller who sets them in Python has not written the options of the source."""
    for wrong, said in (
        ({"start": "erliest"}, "start: 'erliest' is not earliest"),
        ({"max_rows": -1}, "max-rows: '-1' is no"),
        ({"topic": ""}, "topic: name the topics to read, either by --topic "),
    ):
        given: dict[str, Any] = {"nameserver": "h:1", "topic": "t", "to": "a", **wrong}
        with pytest.raises(OptionError) as caught:
            ArchiveSettings(**given)
        assert str(caught.value).startswith(said)


class Said:
    """Spark's progress report about one batch."""

    def __init__(self, document: dict[str, Any], read: list[int]) -> None:
        self.document = {"timestamp": f"at {document['batchId']}", **document}
        self.read = read

    def timestamp(self) -> str:
        return str(self.document["timestamp"])

    def batchId(self) -> int:  # noqa: N802  # Spark's name
        return int(self.document["batchId"])

    def json(self) -> str:
        self.read.append(self.batchId())
        return json.dumps(self.document)


def saying(*documents: dict[str, Any]) -> Any:
    """Return as much of a Spark stream as it takes to report these batches."""
    said = [Said(each, []) for each in documents]
    return SimpleNamespace(recentProgress=lambda: said)


class Query:
    """A stream of 300 batches of 10 rows; Spark keeps only the reports of the last hundred."""

    def __init__(self, error: Exception | None) -> None:
        self.batches = 0
        self.error = error
        self.read: list[int] = []
        """The batches whose reports were read."""

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802  # Spark's name
        self.batches += 50
        if self.error is not None and self.batches == 300:
            raise self.error
        return self.batches == 300

    def stop(self) -> None:
        """Do nothing: it ends by itself."""

    @property
    def _jsq(self) -> Query:
        return self

    def recentProgress(self) -> list[Said]:  # noqa: N802  # Spark's name
        return [
            Said(
                {
                    "batchDuration": 1000,
                    "batchId": number,
                    "numInputRows": 10,
                    "processedRowsPerSecond": 1.0,
                    "sources": [
                        {
                            "startOffset": {"queues": {}, "lost": 4 * number},
                            "endOffset": {"queues": {}, "lost": 4 * number + 4},
                        }
                    ],
                    "stateOperators": [{"numRowsDroppedByWatermark": 2, "numRowsTotal": 5}],
                    "observedMetrics": {"bodies": {"misfits": 3}},
                },
                self.read,
            )
            for number in range(max(self.batches - 100, 0), self.batches)
        ]


@pytest.mark.spark
@pytest.mark.parametrize("fails", [False, True])
def test_a_long_stream_is_counted_as_a_whole(fails: bool) -> None:
    errors = pytest.importorskip("pyspark.errors", reason="cometmq[spark] is not installed")
    run = Run()
    report = run.report_of("aggregate")
    query = Query(errors.StreamingQueryException("it failed") if fails else None)
    with pytest.raises(PipelineError, match="it failed") if fails else nullcontext():
        run.watch(query, report)  # type: ignore[arg-type]  # As much of one as is asked.
    assert (report.rows, len(report.batches)) == (3000, 300)
    assert report.details == {"late_rows": 600, "lost": 1200, "misfits": 900, "windows_open": 5}
    # With thousands of queues a report is a megabyte; it used to be read five times a second.
    assert sorted(query.read) == list(range(300))


@pytest.mark.spark
def test_what_ends_a_stream_is_a_failure_also_of_its_first_batch() -> None:
    """A checkpoint has begun by then; the status of a wrong command says that nothing changed."""
    errors = pytest.importorskip("pyspark.errors", reason="cometmq[spark] is not installed")
    said = "cometmq.pipeline.errors.OptionError: topic: t: none of its brokers allows writing"

    def fail(_seconds: float) -> bool:
        raise errors.StreamingQueryException(f"boom\n{said}")

    query: Any = SimpleNamespace(_jsq=saying(), awaitTermination=fail)
    with pytest.raises(PipelineError, match=r"^topic: t: none of its brokers") as caught:
        Run().watch(query, Report("transform"))
    assert not isinstance(caught.value, OptionError)


def offsets(end: int) -> str:
    return json.dumps({"queues": {"t": {"b": {"0": end, "1": 3}}}})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("latest", "behind"), [(offsets(9), {"behind": 4}), (offsets(5), {"behind": 0}), ("null", {})]
)
def test_how_far_a_batch_is_behind_is_said_where_it_is_known(
    latest: str, behind: dict[str, int]
) -> None:
    """Spark asks for no latest offset for a batch repeated after a stop, and writes null."""
    pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")
    progress: dict[str, Any] = {
        "batchDuration": 1000,
        "batchId": 7,
        "numInputRows": 5,
        "processedRowsPerSecond": 1.0,
        "sources": [{"startOffset": offsets(0), "endOffset": offsets(5), "latestOffset": latest}],
        "stateOperators": [],
        "observedMetrics": {},
    }
    told: list[Mapping[str, Any]] = []
    run = Run(progress=told.append)

    def ended(_seconds: float) -> bool:
        return True

    query: Any = SimpleNamespace(_jsq=saying(progress), awaitTermination=ended)
    run.watch(query, run.report_of("mirror"))
    assert told == [{"batch": 7, "rows": 5, "rows_per_second": 1, "total": 5, **behind}]
    assert run.last_batch is not None
    assert sum(run.last_batch.lags.values()) == behind.get("behind", 0)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_explains_its_settings(name: str) -> None:
    done = CliRunner().invoke(program, ["pipeline", name, "--help"])
    assert done.exit_code == 0, done.output
    assert "--dry-run" in done.output
    assert any(
        f"--{each}" in done.output for each in ("nameserver", "from", "store", "left", "archive")
    )


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_shows_examples_that_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("paid.sql").write_text("SELECT * FROM messages")
    ran: list[object] = []

    def run_in_session(job: Job, *_: object) -> Report:
        ran.append(job)
        return Report(job.name)

    monkeypatch.setattr(command, "run_in_session", run_in_session)
    job = import_module(JOBS[name]).JOB
    shown = CliRunner().invoke(program, ["pipeline", name, "--help"]).output
    for line in job.examples:
        assert "\n    cometmq pipeline " + line.partition("\n")[0] in shown
        _, *words = shlex.split(line.replace("\\\n", ""))
        done = CliRunner().invoke(command.job_command(replace(job, look=None)), words)
        assert done.exit_code == 0, done.output
    assert len(ran) == len(job.examples) > 0


def test_what_is_said_of_each_job_in_the_list_is_whole() -> None:
    done = CliRunner().invoke(program, ["pipeline", "--help"])
    assert min(JOBS) in done.output
    assert "..." not in done.output.replace("[ARGS]...", "")


def test_a_word_means_the_same_in_each_job() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for module in JOBS.values():
        for each in fields(import_module(module).JOB.settings):
            kind = (str(each.type), each.metadata.get("metavar", "").removesuffix("[,...]"))
            kinds.setdefault(each.name, set()).add(kind)
    # `cometmq dlq redrive` says `--to`, too.
    assert {name for name, said in kinds.items() if len(said) > 1} == {"to"}


def test_only_jobs_that_write_no_messages_begin_anew() -> None:
    jobs = {name: import_module(module).JOB for name, module in JOBS.items()}
    anew = {name for name, job in jobs.items() if not job.goes_on}
    assert anew == {"audit", "latency", "reconcile"}


def test_java_is_taken_from_java_home_first(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "21.0.8")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).version == 21


@pytest.mark.parametrize("home", ["old", "none"])
def test_what_fix_java_made_is_taken_where_java_home_is_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Otherwise the error would recommend `doctor --fix-java` again and again."""
    monkeypatch.setattr("cometmq.pipeline.java.fixed_home", lambda: tmp_path / "fixed")
    java_home(tmp_path / "fixed", "17.0.9")
    java_home(tmp_path / "old", "1.8.0_392")
    found = find_java({"JAVA_HOME": str(tmp_path / home), "PATH": ""})
    assert (found.home, found.version) == (str(tmp_path / "fixed"), 17)


def test_a_java_that_is_too_old_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipeline.java.fixed_home", lambda: tmp_path / "none")
    home = java_home(tmp_path / "jdk", "1.8.0_392")
    with pytest.raises(JavaError, match=r"is Java 8\. Spark needs Java 17 or newer.*--fix-java"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_a_java_that_cannot_begin_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java says why on stdout, such as too little memory, or a removed working folder."""
    monkeypatch.setattr("cometmq.pipeline.java.fixed_home", lambda: tmp_path / "none")
    program = java_home(tmp_path / "jdk", "17") / "bin" / "java"
    program.write_text("#!/bin/sh\necho Could not reserve enough space\nexit 1\n")
    with pytest.raises(JavaError, match=r"does not print its version: 'Could not reserve enough"):
        find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""})


def test_no_java_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.pipeline.java.fixed_home", lambda: tmp_path / "none")
    with pytest.raises(JavaError, match=r"Java was not found.*--fix-java"):
        find_java({"PATH": ""})


def test_the_shim_leaves_out_the_one_argument_that_a_small_java_cannot_take(
    tmp_path: Path,
) -> None:
    import subprocess

    real = java_home(tmp_path / "real", "17.0.9")
    shim = make_shim(real, tmp_path / "shim")
    assert shim.version == 17
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    shown = subprocess.run(
        [shim.program, *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines() == ["-Xmx1g", "a b", "Main"]


def java_home(home: Path, version: str) -> Path:
    """Make a fake Java that prints its version if asked for it, and else its arguments."""
    program_path = home / "bin" / "java"
    program_path.parent.mkdir(parents=True)
    program_path.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'printf "%s\\n" "$@"\n'
    )
    program_path.chmod(0o755)
    return home


BUSY = (
    "this machine is so busy that a Python process took longer to start than the ten seconds that"
    " Spark waits for one; try again when it is less busy, or with fewer tasks at a time"
    " (--master 'local[1]')"
)


BATCH = """[STREAM_FAILED] it: Traceback (most recent call last):
  File "/x/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/cometmq/pipeline/jobs/transform.py", line 183, in batch
    self._write(self._selected(parsed))
pyspark.errors.exceptions.captured.NumberFormatException: """
CAST = """[CAST_INVALID_INPUT] The value '0 x' cannot be cast to "INT". SQLSTATE: 22018
== SQL (line 1, position 72) ==
...ffset, body FROM messages WHERE cast(text AS int) > 1
                                   ^^^^^^^^^^^^^^^^^
 SQLSTATE: 39000"""
SAID = (
    "[CAST_INVALID_INPUT] The value '0 x' cannot be cast to \"INT\"."
    " In the SQL, line 1, position 72: cast(text AS int)"
)
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/me/prices.py", line 2, in gross
    return decimal.Decimal(text)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/x/site-packages/numbers.py", line 9, in parse
    raise Wrong(text)
numbers.Wrong: '0 x'
 SQLSTATE: 39000"""
LIBRARY = WORKER.replace("/x/site-packages/numbers.py", json.decoder.__file__)
OURS = WORKER.replace("/x/site-packages/numbers.py", "/x/site-packages/cometmq/pipeline/wire.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BATCH + CAST, SAID),
        (CAST, SAID),
        (BATCH + WORKER, "/me/prices.py, line 2, in gross: numbers.Wrong: '0 x'"),
        (BATCH + LIBRARY, "/me/prices.py, line 2, in gross: numbers.Wrong: '0 x'"),
        (BATCH + "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\nmore", None),
        (BATCH + OURS, BATCH + OURS.removesuffix("\n SQLSTATE: 39000")),
    ],
)
def test_what_ended_the_users_own_sql_or_function_is_told_with_its_place(
    text: str, said: str | None
) -> None:
    assert str(ours(RuntimeError(text))) == (said or "[DIVIDE_BY_ZERO] Division by zero.")


UNWRITTEN = """o1.parquet.
: [TASK_WRITE_FAILED] to file:/a. SQLSTATE: 58030
\tat x
Caused by: org.apache.spark.SparkException: it failed
\tat x
Caused by: java.io.IOException: Mkdirs failed to create /a/b
\tat x"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "[PYTHON] failed\nTraceback\ncometmq.pipeline.errors.OptionError: topic: no\n at x",
            OptionError,
            "topic: no",
        ),
        ("boom\ncometmq.pipeline.errors.DataLossError: it expired", DataLossError, "it expired"),
        ("boom\ncometmq.pipeline.errors.DamagedFileError: a: is", DamagedFileError, "a: is"),
        ("boom\ncometmq.pipeline.errors.RefusedError: it refused", PipelineError, "it refused"),
        (
            "boom\ncometmq.pipeline.errors.RefusedError: 127.0.0.1:9 refused with code 16: no: pw",
            RefusedError,
            "127.0.0.1:9 refused with code 16: no: pw",
        ),
        ("[SPARK] it\nfailed\n\tat org.apache", PipelineError, "[SPARK] it\nfailed"),
        ("An error occurred while calling o1.do.\n: disk full\n\tat x", PipelineError, "disk full"),
        (
            "[A] no `x`. SQLSTATE: 42703; line 1 pos 4;",
            PipelineError,
            "[A] no `x` (line 1, pos 4).",
        ),
        (
            "[A] at 'x'. SQLSTATE: 42601 (line 2, pos 9)",
            PipelineError,
            "[A] at 'x' (line 2, pos 9).",
        ),
        ("[A] not so. SQLSTATE: 42K09;\nmore", PipelineError, "[A] not so.\nmore"),
        (UNWRITTEN, PipelineError, "[TASK_WRITE_FAILED] to file:/a. Mkdirs failed to create /a/b"),
        (
            UNWRITTEN.replace("TASK_WRITE_FAILED", "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT"),
            PipelineError,
            "[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] to file:/a. Mkdirs failed to create /a/b",
        ),
        ("", PipelineError, "Spark failed"),
        ("o1.x.\n: Python worker failed to connect back.\n\tat x", WorkerLateError, BUSY),
    ],
)
def test_of_what_spark_says_ours_counts(text: str, kind: type[PipelineError], said: str) -> None:
    error = ours(RuntimeError(text))
    assert (type(error), str(error)) == (kind, said)


LATE = "[STREAM_FAILED] it\nPython worker failed to connect back.\n\tat x"


class Writer:
    """As much of Spark's stream writer as `run_batches` uses; each start returns the next query."""

    def __init__(self, queries: list[Query]) -> None:
        self.queries = queries
        self.foreachBatch = self.outputMode = self.option = self.queryName = self.trigger = (
            self.same
        )

    def same(self, *_: object, **__: object) -> Writer:
        return self

    def start(self) -> Query:
        return self.queries.pop(0)


@pytest.mark.spark
@pytest.mark.parametrize(("late", "ends"), [(1, True), (2, True), (3, False)])
def test_a_python_process_that_is_late_is_waited_for_again(
    late: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nowhere(Folder):
        @property
        def local_path(self) -> None:
            return None

        def __init__(self, *_: object) -> None:
            """Need no Spark."""

        def exists(self, *names: str) -> bool:
            del names
            return False

        def names(self, *names: str) -> list[str]:
            del names
            return []

        def write(self, text: str, *names: str) -> None:
            """Keep nothing."""

    monkeypatch.setattr("cometmq.pipeline.jobs.streams.Folder", Nowhere)
    errors = pytest.importorskip("pyspark.errors", reason="cometmq[spark] is not installed")
    queries = [Query(errors.StreamingQueryException(LATE)) for _ in range(late)]
    frame: Any = SimpleNamespace(sparkSession=None, writeStream=Writer([*queries, Query(None)]))
    settings = StreamSettings(nameserver="127.0.0.1:1", topic="t", checkpoint="c")
    news: list[str] = []
    run = Run(progress=lambda each: news.append(str(each.get("warning", ""))))
    report = run.report_of("archive")
    with nullcontext() if ends else pytest.raises(WorkerLateError, match="this machine is so busy"):
        run_batches(frame, lambda _frame, _number: None, settings, run, report)
    assert sum("trying again" in each for each in news) == min(late, 2)


def test_a_report_that_cannot_be_written_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    nowhere = str(tmp_path / "nowhere" / "report.json")
    arguments = ["--archive", "a", "--report", nowhere]
    done = CliRunner().invoke(program, ["pipeline", "archive-vacuum", *arguments])
    assert done.exit_code == 2, done.output
    assert f"report: {nowhere}: no such folder" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("job", "option"), [("dlq --group g --redrive true", "receipts"), ("latency --topic t", "html")]
)
def test_a_report_takes_the_place_of_no_other_file_of_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str, option: str
) -> None:
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    path, link = tmp_path / "written", tmp_path / "link"
    path.write_text("earlier")
    link.symlink_to(path)
    arguments = [*job.split(), "-n", "127.0.0.1:1", f"--{option}", str(link)]
    done = CliRunner().invoke(program, ["pipeline", *arguments, "--report", str(path)])
    assert done.exit_code == 2, done.output
    assert f"report: {path} is also the file of --{option}; name another" in done.stderr
    assert path.read_text() == "earlier"


def test_a_wheel_that_cannot_be_written_is_told_in_a_line(runner: CliRunner) -> None:
    said = runner.invoke(program, ["pipeline", "wheel", "/proc"])
    assert (said.exit_code, said.stderr) == (1, "Error: /proc: No such file or directory\n")


def test_a_wheel_is_written_into_a_folder_that_is_made(runner: CliRunner, tmp_path: Path) -> None:
    said = runner.invoke(program, ["pipeline", "wheel", str(tmp_path / "new" / "wheels")])
    assert said.exit_code == 0, said.stderr
    (path,) = (tmp_path / "new" / "wheels").iterdir()
    assert said.stdout == f"{path}\n"
