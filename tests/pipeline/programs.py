"""Jobs run as separate programs, which a test can end from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.testing import Cluster


class Program(NamedTuple):
    """A running job that has finished its first batch."""

    job: subprocess.Popen[str]
    once: list[str]
    """The command that reads the rest of the topic, and ends."""
    first: str
    """The line that it printed about its first batch."""


def as_users_have_it() -> dict[str, str]:
    """Return the environment without the variables that make Spark start quickly (`conftest`)."""
    quickly = ("SPARK_HOME", "SPARK_SUBMIT_OPTS")
    return {name: value for name, value in os.environ.items() if name not in quickly}


def archiving(
    cluster: Cluster, topic: str, count: int, to: Path, *, apart: bool = False
) -> Program:
    """Send `count` messages, and start a job that archives five a second until a test ends it.

    The job returned has finished its first batch; `apart` gives it its own process group.
    """
    for n in range(count):
        cluster.send(topic, b"o-%d" % n)
    arguments = ["-n", cluster.nameserver, "--topic", topic, "--to", str(to)]
    arguments += ["--max-rows", "5", "--master", "local[1]"]
    once = [sys.executable, "-m", "cometmq.admin", "pipeline", "archive", *arguments]
    job = subprocess.Popen(
        [*once, "--trigger", "1 second"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=apart,
    )
    assert job.stderr is not None
    return Program(job, once, next(line for line in job.stderr if line.startswith("batch 0")))
