"""Jobs as programs of their own, which can be ended from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.testing import Cluster


class Program(NamedTuple):
    """A job that is in its stream."""

    job: subprocess.Popen[str]
    once: list[str]
    """What reads the rest of the topic, and ends."""
    first: str
    """What it said of its first batch."""


def as_users_have_it() -> dict[str, str]:
    """Return the environment without what makes tests of Spark quicker (see `conftest`)."""
    quickly = ("SPARK_HOME", "SPARK_SUBMIT_OPTS")
    return {name: value for name, value in os.environ.items() if name not in quickly}


def archiving(
    cluster: Cluster, topic: str, count: int, to: Path, *, apart: bool = False
) -> Program:
    """Send so many messages, and archive five of them a second until somebody ends that.

    It is behind its first batch; `apart` has it in a process group of its own.
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
