"""`cometmq pipeline doctor`: whether Spark can run here, found out by running it."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.errors import JavaError, PipelineError
from cometmq.pipeline.java import find_java, fix_java as fixed_java

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import SparkSession

_VERSIONS: Final = {
    "pyspark": ("4.2", "4.4"),
    "pyarrow": ("18", ""),
    "numpy": ("1.26", ""),
    "pandas": ("2.2", "3"),
    "protobuf": ("5", ""),
}
"""What must be installed: from which version on, and in front of which."""

_ROUND_TRIP_SECONDS: Final = 180

_ROUND_TRIP: Final = """
import sys
from cometmq.pipeline import session
from cometmq.pipeline.doctor import round_trip
print("rows", round_trip(session(master="local[2]"), sys.argv[1]))
"""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    is_well: bool
    text: str


def doctor(*, fix_java: bool = False) -> list[Finding]:
    """Look at everything that Spark needs; what needs the rest is left out when that is missing."""
    found = [Finding("python", sys.version_info >= (3, 11), platform.python_version())]
    found += [_package(name, *bounds) for name, bounds in _VERSIONS.items()]
    found.append(_java(fix_java))
    if all(each.is_well for each in found):
        found.append(_attempt("round trip", _round_trip))
    return found


def _attempt(what: str, do: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, do())
    except PipelineError as error:
        return Finding(what, False, str(error))


def _java(fix: bool) -> Finding:
    def look() -> str:
        try:
            found = find_java()
        except JavaError:
            if not fix:
                raise
            found = fixed_java()
        return f"{found.version} ({found.program})"

    return _attempt("java", look)


def _package(name: str, lowest: str, beyond: str) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "is missing; pip install 'cometmq[spark]'")
    wanted = f">={lowest}" + (f",<{beyond}" if beyond else "")
    fits = _numbers(lowest) <= _numbers(installed) and (
        not beyond or _numbers(installed) < _numbers(beyond)
    )
    text = installed if fits else f"{installed}; pip install '{name}{wanted}'"
    return Finding(name, fits, text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _round_trip() -> str:
    """Write ten rows with a Spark to a broker, and read them again; each is another process."""
    if find_spec("trio") is None:
        return "left out: there is no broker here; pip install 'cometmq[broker]'"
    with TemporaryDirectory() as folder, _broker(folder) as nameserver:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ROUND_TRIP, nameserver],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ROUND_TRIP_SECONDS,
        )
    if "rows 10" not in done.stdout:
        raise PipelineError((done.stdout + done.stderr).strip()[-2000:] or "nothing was said")
    return "10 rows written to a topic, and read again"


@contextmanager
def _broker(folder: str) -> Generator[str]:
    """Run `cometmq up` on free ports, and say where its name server is."""
    ports = ("--nameserver-port", "0", "--broker-port", "0", "--metrics-port", "0")
    up = [sys.executable, "-m", "cometmq.admin", "up", "--dir", folder, *ports]
    with subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        try:
            ready = re.search(r"nameserver=(\S+)", daemon.stdout.readline())
            if ready is None:
                raise PipelineError(f"cometmq up does not start: {daemon.stderr.read()[-2000:]}")
            yield ready[1]
        finally:
            daemon.terminate()


def round_trip(spark: SparkSession, nameserver: str) -> int:
    """Write ten rows to a topic, read them again, and return how many came back as they were."""
    rows = spark.range(10).selectExpr("concat('body ', id) AS body", "concat('k', id) AS key")
    rows.write.format("cometmq").mode("append").options(
        nameserver=nameserver, topic="doctor"
    ).save()
    read = spark.read.format("cometmq").options(nameserver=nameserver, topic="doctor").load()
    same: int = read.where("cast(body AS string) = concat('body ', substr(key, 2))").count()
    return same
