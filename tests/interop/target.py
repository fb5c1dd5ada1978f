"""The servers that a program written for RocketMQ talks to: ours, or Apache's to prove the program.

They are Apache's with COMETMQ_INTEROP=apache in the environment (`make interop-apache`).
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tests.interop.apache_broker import ApacheBroker

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 60
ON_APACHE = os.environ.get("COMETMQ_INTEROP") == "apache"
QUICK_QUESTIONS = {"transactionTimeOut": "2000", "transactionCheckInterval": "2000"}
"""How soon a broker asks about transactions."""
REPEAT = "COMETMQ_INTEROP=apache " if ON_APACHE else ""


class Target(NamedTuple):
    """The addresses of the servers, as `host:port`."""

    nameserver: str
    broker: str


@contextmanager
def running_target(folder: Path) -> Generator[Target]:
    if ON_APACHE:
        with ApacheBroker(folder, QUICK_QUESTIONS) as apache:
            yield Target(apache.nameserver, f"127.0.0.1:{apache.port}")
    else:
        with running_up(folder) as target:
            yield target


@contextmanager
def running_up(folder: Path, broker_port: int = 0) -> Generator[Target]:
    """Run `cometmq up` on free ports, or with the broker on `broker_port`.

    It must shut down cleanly and have logged no traceback.
    """
    log = folder / "up.log"
    command = [sys.executable, "-m", "cometmq.admin", "up", "--dir", str(folder / "data")]
    command += ["--broker-port", str(broker_port), "--nameserver-port", "0"]
    command += ["--metrics-port", "0"]
    for setting in QUICK_QUESTIONS.items():
        command += ["--set", "=".join(setting)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        line = process.stdout.readline() if readable else ""
        assert line.startswith("cometmq ready "), f"not ready: {line!r}\n{log.read_text()}"
        found = re.search(r"nameserver=(\S+) broker=(\S+)", line)
        assert found is not None, line
        yield Target(found[1], found[2])
        process.send_signal(signal.SIGTERM)
        status = process.wait(STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert status == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()
