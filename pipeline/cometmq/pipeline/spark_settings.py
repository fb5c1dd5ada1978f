"""What can be told to be wrong about settings of Spark before it is started, which takes a while.

Of most settings Spark alone knows what they may be; these are the ones that people write.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
_UNITS: Final = "day|hour|minute|second|millisecond|microsecond|week"
_INTERVAL: Final = re.compile(
    rf"\s*(interval\s+)?[0-9]+(\.[0-9]+)?\s+({_UNITS})s?(\s+[0-9]+(\.[0-9]+)?\s+({_UNITS})s?)*\s*",
    re.IGNORECASE | re.ASCII,
)


def read_settings(master: str, given: Iterable[str]) -> dict[str, str]:
    """Return what is given as NAME=VALUE; refuse values that cannot be, those of `master` too."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            raise OptionError(f"--conf {pair}: write NAME=VALUE, such as spark.driver.memory=4g")
        found[name] = value
    _check_master(found.get("spark.master", master))
    for name, pattern in _MEMORY.items():
        if name in found and not pattern.fullmatch(found[name]):
            raise OptionError(f"--conf {name}={found[name]}: write a size, such as 4g or 512m")
    return found


def _check_master(master: str) -> None:
    if not _MASTER.fullmatch(master):
        raise OptionError(
            f"--master {master}: write local[*], local[2], spark://HOST:PORT, yarn or"
            " k8s://https://HOST:PORT"
        )


def is_interval(text: str) -> bool:
    """Whether a trigger can be this long, as Spark reads it: `30 seconds`, `1 minute 30 seconds`.

    Of months nobody knows how long they are.
    """
    return _INTERVAL.fullmatch(text) is not None
