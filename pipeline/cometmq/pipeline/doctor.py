"""`cometmq pipeline doctor`: checks whether Spark can run here, by running it."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.net.ending_signals import heeded_signals
from cometmq.pipeline.errors import JavaError, PipelineError
from cometmq.pipeline.java import find_java, fix_java as fixed_java
from cometmq.pipeline.spark_settings import API_MODE, REMOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

INSTALL: Final = (
    "`make install-spark` in a clone of CometMQ, elsewhere pip install 'cometmq[spark]'"
)
"""How to install what Spark needs."""
_VERSIONS: Final = {
    "pyspark": ("4.2", "4.4"),
    "pyarrow": ("18", ""),
    "numpy": ("1.26", ""),
    "pandas": ("2.2", "3"),
    "protobuf": ("5", ""),
}
"""Required packages: the first version that works, and the first that does not work any more."""

_ROUND_TRIP_SECONDS: Final = 180.0
_LAST_WORDS: Final = 2000
"""How many characters of a failed program's output to show."""

_ROUND_TRIP: Final = """
import sys
from cometmq.pipeline import session
from cometmq.pipeline.doctor import round_trip
print("rows", round_trip(session(master="local[2]"), sys.argv[1]))
"""
_PYTHON_TRIP: Final = """
from cometmq.pipeline import session
from cometmq.pipeline.doctor import python_trip
print("rows", python_trip(session(master="local[2]")))
"""
"""The round trip without a broker, which `.[spark]` does not install."""


_WELL: Final = "rows 10"
"""Its output on success, after which it may take long to end."""


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    is_well: bool
    text: str


def doctor(say: Callable[[str], None], *, fix_java: bool = False) -> Generator[Finding]:
    """Check everything that Spark needs; skip checks whose requirements are missing.

    `say` is called when a check begins that takes long.
    """
    looks: list[Callable[[], Finding]] = [
        lambda: Finding("python", sys.version_info >= (3, 11), platform.python_version()),
        *(partial(_package, name, *bounds) for name, bounds in _VERSIONS.items()),
        lambda: _attempt("java", lambda: _java(say, fix=fix_java)),
    ]
    is_well = True
    for look in looks:
        found = look()
        is_well &= found.is_well
        yield found
    if not is_well:
        return
    if find_spec("trio") is None:
        way, rows_go = "go to Spark's Python and back", _round_trip_without_topic
    else:
        way, rows_go = "are written to a topic and read again", _round_trip
    say(f"ten rows {way}; that takes 20 s, or a busy minute")
    yield _attempt("round trip", rows_go)


def _attempt(what: str, do: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, do())
    except PipelineError as error:
        return Finding(what, False, str(error))


def _java(say: Callable[[str], None], *, fix: bool) -> str:
    try:
        found = find_java()
    except JavaError:
        if not fix:
            raise
        found = fixed_java(say)
    return f"{found.version} ({found.program})"


def _package(name: str, lowest: str, beyond: str) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding(name, False, f"is missing: {INSTALL}")
    wanted = f">={lowest}" + (f",<{beyond}" if beyond else "")
    fits = _numbers(lowest) <= _numbers(installed) and (
        not beyond or _numbers(installed) < _numbers(beyond)
    )
    text = installed if fits else f"{installed}; pip install '{name}{wanted}'"
    return Finding(name, fits, text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _round_trip() -> str:
    """Write ten rows with Spark to a broker and read them back, in separate processes."""
    with _ended_in_order(), TemporaryDirectory() as folder, _broker(folder) as nameserver:
        _require_rows(_ROUND_TRIP, nameserver)
    return "10 rows written to a topic, and read again"


def _round_trip_without_topic() -> str:
    with _ended_in_order():
        _require_rows(_PYTHON_TRIP)
    return (
        "10 rows to Spark's Python and back, but not to a topic: that needs pip install"
        " 'cometmq[broker]'"
    )


def _require_rows(program: str, *arguments: str) -> None:
    """Run Spark in another process; raise `PipelineError` if not all rows come back."""
    said = _said([sys.executable, "-W", "ignore", "-c", program, *arguments])
    if _WELL not in said:
        raise PipelineError(said[-_LAST_WORDS:] or "Spark printed nothing")


@contextmanager
def _ended_in_order() -> Generator[None]:
    """Have a signal also end what was started, as Ctrl-C does: a broker would run for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # `timeout` sends two.
        raise SystemExit(128 + number)

    others = [number for number in heeded_signals() if number != signal.SIGINT]
    before = [signal.signal(number, end) for number in others]
    try:
        yield
    finally:
        for number, handler in zip(others, before, strict=True):
            signal.signal(number, handler)


def _said(command: list[str]) -> str:
    """Run Spark here, even if the environment names a Spark Connect server; return its output.

    Raise `PipelineError` if it does not end.
    """
    here = {name: text for name, text in os.environ.items() if name not in (REMOTE, API_MODE)}
    with TemporaryFile("w+") as said:  # Spark's Java would hold a pipe open.
        try:
            subprocess.run(
                command,
                stdout=said,
                stderr=said,
                check=False,
                timeout=_ROUND_TRIP_SECONDS,
                env=here,
            )
            is_ended = True
        except subprocess.TimeoutExpired:
            is_ended = False
        said.seek(0)
        text = said.read().strip()
    if not is_ended and _WELL not in text:
        raise PipelineError(
            f"Spark did not write and read ten rows within {_ROUND_TRIP_SECONDS:g} s: the machine"
            " is very busy, or Java cannot work here. It printed:"
            f" {text[-_LAST_WORDS:] or 'nothing'}"
        )
    return text


@contextmanager
def _broker(folder: str) -> Generator[str]:
    """Run `cometmq up` on free ports, and yield the address of its name server.

    It must not use settings for the user's own broker, which the environment may contain.
    """
    plain = {name: text for name, text in os.environ.items() if not name.startswith("COMETMQ_")}
    ports = ("--nameserver-port", "0", "--broker-port", "0", "--metrics-port", "0")
    up = [sys.executable, "-m", "cometmq.admin", "up", "--dir", folder, *ports]
    pipe = subprocess.PIPE
    with subprocess.Popen(up, stdout=pipe, stderr=pipe, text=True, env=plain) as daemon:
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        try:
            ready = re.search(r"nameserver=(\S+)", daemon.stdout.readline())
            if ready is None:
                raise PipelineError(
                    f"cometmq up does not start: {daemon.stderr.read()[-_LAST_WORDS:]}"
                )
            yield ready[1]
        finally:
            daemon.terminate()


def round_trip(spark: SparkSession, nameserver: str) -> int:
    """Write ten rows to a topic, read them back, and return how many came back unchanged."""
    rows = spark.range(10).selectExpr("concat('body ', id) AS body", "concat('k', id) AS key")
    rows.write.format("cometmq").mode("append").options(
        nameserver=nameserver, topic="doctor"
    ).save()
    read = spark.read.format("cometmq").options(nameserver=nameserver, topic="doctor").load()
    same: int = read.where("cast(body AS string) = concat('body ', substr(key, 2))").count()
    return same


def python_trip(spark: SparkSession) -> int:
    """Send ten rows through Spark's Python processes, and return how many came back."""
    came: int = spark.range(10).mapInArrow(_unchanged, "id BIGINT").count()
    return came


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
