"""The servers that are compared: `cometmq up`, and Apache's name server and broker.

CPU time is what the scheduler has charged to all threads, including ended ones, of the process that
handles the messages.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

START: Final = Path(__file__).parent.parent / "tests" / "interop" / "apache" / "start.sh"
HEAP: Final = "4g"
STOP_SECONDS: Final = 60

_READY: Final = re.compile(r"ready nameserver=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+)")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ANONYMOUS: Final = re.compile(r"^RssAnon:\s+(\d+) kB", re.MULTILINE)


class Server(NamedTuple):
    """A running server."""

    name: str
    port: int
    nameserver_port: int
    pid: int
    pids: tuple[int, ...]
    """The processes to stop, in this order, including the one that is measured."""

    def cpu_us(self) -> float:
        """CPU time so far."""
        return cpu_seconds(self.pid) * 1e6

    def anonymous_mib(self) -> float:
        """Memory that no file backs."""
        found = _ANONYMOUS.search(Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def stop(self) -> None:
        """Stop it, and wait until it has."""
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
            _await_end(pid)


def start_cometmq(
    folder: Path, flush: str, *, python: str = sys.executable, options: Sequence[str] = ()
) -> tuple[Server, float]:
    """Start `cometmq up` on free ports; also return the seconds to its ready line."""
    ports = ["--broker-port", "0", "--nameserver-port", "0"]
    command = [python, "-m", "cometmq.admin", "up", "--dir", str(folder), "--flush", flush]
    log_path = folder.with_suffix(".log")  # A store refuses a folder with foreign files.
    begun = time.perf_counter()
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [*command, *ports, *options], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.perf_counter() - begun
    found = _READY.search(line)
    if found is None:
        raise RuntimeError(f"cometmq up did not start: {log_path.read_text()}")
    server = Server("CometMQ", int(found[2]), int(found[1]), process.pid, (process.pid,))
    return server, seconds


def start_apache(folder: Path, flush: str) -> tuple[Server, float]:
    """Start Apache's name server and broker with its recommended flags and a heap of 4 GiB."""
    port, nameserver_port = free_port(), free_port()
    begun = time.perf_counter()
    subprocess.run(
        [str(START), str(folder), str(port), str(nameserver_port), f"{flush.upper()}_FLUSH", HEAP],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - begun
    names, broker = (int((folder / f"{name}.pid").read_text()) for name in ("ns", "broker"))
    return Server("Apache", port, nameserver_port, broker, (broker, names)), seconds


def cpu_seconds(pid: int, *, with_ended_children: bool = False) -> float:
    """Return the CPU time of a process, user and kernel, in steps of a tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_ended_children else 13])) / _TICKS


def free_port() -> int:
    """Find a free port; the neighbouring ports that a broker also uses are probably free, too."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def _await_end(pid: int) -> None:
    """Wait for a process that may be a child, or a child of a shell that is gone."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:
            if not Path(f"/proc/{pid}").exists():
                return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
