"""The load generator `mqload.c`, which is run once for each measurement."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BODY_SIZE: Final = 1024
QUEUES: Final = 4
BATCH: Final = 32
"""The number of messages of a batch, and of a pull."""

_SHOWN: Final = re.compile(
    r"([\d.]+) req/s ([\d.]+) msg/s .* p50=([\d.]+)us p99=([\d.]+)us .* total_msgs=(\d+) errs=(\d+)"
)


class Load(NamedTuple):
    """The parameters of the load generator."""

    kind: str
    """`send`, `batch` or `pull`."""
    connections: int
    in_flight: int


class Shown(NamedTuple):
    """The result of the load generator."""

    rate: float
    """Messages per second."""
    p50_us: float
    p99_us: float
    """The p99 of requests."""
    messages: int
    refused: int
    """The requests that were answered with an error; they are not in the other figures."""


def run(program: Path, load: Load, port: int, topic: str, seconds: float) -> Shown:
    """Run it once; raise RuntimeError if it fails."""
    how: Sequence[object] = (*load, topic, seconds, BODY_SIZE, QUEUES, BATCH)
    kind, connections, in_flight, *rest = map(str, how)
    command = [kind, "127.0.0.1", str(port), rest[0], connections, in_flight, *rest[1:]]
    ended = subprocess.run([str(program), *command], capture_output=True, text=True, check=False)
    found = _SHOWN.search(ended.stdout)
    # Status 3: a busy broker of Apache's refuses sends that have waited for 200 ms.
    if ended.returncode not in (0, 3) or found is None or not int(found[5]):
        raise RuntimeError(f"mqload {' '.join(command)}: {ended.stdout}{ended.stderr}")
    _, rate, p50_us, p99_us, count, refused = found.groups()
    return Shown(float(rate), float(p50_us), float(p99_us), int(count), int(refused))
