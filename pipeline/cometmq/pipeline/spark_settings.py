"""Checks of Spark's settings before Spark is started, which takes a while.

Only Spark knows the valid values of most settings; these are the ones that people set.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

REMOTE: Final = "SPARK_REMOTE"
"""Environment variable: the address of a Spark Connect server, or `local[2]` to start one here."""
API_MODE: Final = "SPARK_API_MODE"
"""Environment variable: with `connect`, Spark starts such a server here."""
SKIPS_FILES: Final = ("ignoreCorruptFiles", "ignoreMissingFiles")
"""Options of reads, and after `spark.sql.files.` settings, with which a damaged or missing file
silently reduces the rows."""

_MASTER: Final = re.compile(
    r"local(\[([1-9][0-9]*|\*)(\s*,\s*[0-9]+)?\])?"
    r"|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|spark://[^\s/,]+:[0-9]+(,[^\s/,]+:[0-9]+)*"
    r"|yarn|k8s://.+"
)
_MEMORY: Final = {
    "spark.driver.memory": re.compile(r"[1-9][0-9]*[kmgt]", re.IGNORECASE),  # As Java takes it.
    "spark.executor.memory": re.compile(r"[1-9][0-9]*([kmgtp]b?|b)?", re.IGNORECASE),
}
_PACKAGES: Final = "spark.jars.packages"
_PACKAGE: Final = re.compile(r"[^:/,]*[^:/,\s][^:/,]*([:/][^:/,]*[^:/,\s][^:/,]*){2}")
_AREAS: Final = ("app", "driver", "executor", "jars", "local", "sql", "submit")
"""What follows `spark.` in the settings that people set."""
_SECONDS: Final = {
    "week": 604_800,
    "day": 86_400,
    "hour": 3600,
    "minute": 60,
    "second": 1,
    "millisecond": 0.001,
    "microsecond": 0.000_001,
}
_SHORT: Final = {
    "w": "week",
    "d": "day",
    "h": "hour",
    "m": "minute",
    "s": "second",
    "ms": "millisecond",
}
_SHORT_PART: Final = re.compile(r"([0-9]+)(ms|[wdhms])", re.ASCII)
_LONGEST_WEEKS: Final = 50_000
"""Less than a twentieth of Spark's limit, 2^63 microseconds, as Spark adds times to others."""
_LONGEST: Final = _LONGEST_WEEKS * _SECONDS["week"]
_PART: Final = re.compile(
    rf"([0-9]{{1,9}})\s+({'|'.join(_SECONDS)})s?|([0-9]{{1,9}}\.[0-9]{{1,6}})\s+(second)s?",
    re.IGNORECASE | re.ASCII,
)


def read_settings(master: str, given: Iterable[str]) -> dict[str, str]:
    """Parse settings given as NAME=VALUE; refuse invalid values, also of `master`."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            raise OptionError(f"--conf {pair}: write NAME=VALUE, such as spark.driver.memory=4g")
        refuse_shortened(name, "--conf ")
        found[name] = value
    _check_master(found.get("spark.master", master))
    for name, pattern in _MEMORY.items():
        if name in found and not pattern.fullmatch(found[name]):
            raise OptionError(f"--conf {name}={found[name]}: write a size, such as 4g or 512m")
    for package in found[_PACKAGES].rstrip(",").split(",") if found.get(_PACKAGES) else ():
        if not _PACKAGE.fullmatch(package):
            raise OptionError(f"--packages {package}: write GROUP:NAME:VERSION")
    return found


def refuse_shortened(name: str, where: str) -> None:
    """Refuse the name of a Spark setting without `spark.`, which Spark would keep and ignore.

    Other names may be settings that Spark passes on, such as `hive.exec.dynamic.partition`.
    """
    if name.partition(".")[0] in _AREAS:
        raise OptionError(f"{where}{name}: is not a setting of Spark; did you mean spark.{name}?")


def _check_master(master: str) -> None:
    if not _MASTER.fullmatch(master):
        raise OptionError(
            f"--master {master}: write local[*], local[2], spark://HOST:PORT, yarn or"
            " k8s://https://HOST:PORT"
        )


def spelled_out(text: str) -> str:
    """Return a duration as Spark takes it; `1m30s`, which is short for one, is written in words."""
    parts = _SHORT_PART.findall(text)
    if "".join(map("".join, parts)) != text:
        return text
    return " ".join(f"{count} {_SHORT[unit]}s" for count, unit in parts)


def interval_seconds(text: str) -> float | None:
    """Parse a duration as Spark does: `30 seconds`, `1 minute 30 seconds`; or short, as `30s`.

    Return `None` if it is invalid, or has months, which have no fixed length.
    """
    rest = re.sub(r"\A\s*interval\s", "", spelled_out(text), flags=re.IGNORECASE).strip()
    if not rest:
        return None
    seconds = 0.0
    while rest:
        found = _PART.match(rest)
        if found is None or not (found.end() == len(rest) or rest[found.end()].isspace()):
            return None
        seconds += float(found[1] or found[3]) * _SECONDS[(found[2] or found[4]).lower()]
        rest = rest[found.end() :].lstrip()
    return seconds


def read_interval(option: str, text: str) -> float:
    """Return a duration in seconds; raise `OptionError` if it is invalid."""
    seconds = interval_seconds(text)
    if seconds is None:
        raise OptionError(
            f"{option}: {text!r} is not a duration such as '1 minute' or 30s, in units up to weeks"
        )
    if seconds > _LONGEST:
        raise OptionError(f"{option}: {text!r} is longer than {_LONGEST_WEEKS:,} weeks")
    return seconds
