"""`python -m tests.pipeline.kills`: streams whose driver, workers and broker are killed at random.

One job archives a topic to Parquet, a second mirrors it into another topic, a third counts and sums
it over windows, all in small batches; a fourth compacts and vacuums the archive over and over. In
each round the parent waits until a few more batches have begun, and then kills one of: the driver
with its JVM and all workers; one worker; the compaction; or the broker, which is started again on
its store. A job that ended is started again with the same arguments.
At the end every message must be in one file of the archive, and once in the other topic, and every
window that has ended must be there once and be right. (A message's time is its number.)

A kill comes a moment after a new batch has begun, so that the kills hit all parts of a batch. Kills
timed by the clock alone would nearly always hit the start of Spark.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.client import ClientConfig, SyncClient

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES: Final = 3_000
BATCH: Final = 300
WINDOW: Final = 1_000
"""In milliseconds, as is the next one: so many messages are in a window."""
WATERMARK: Final = 5_000
DEADLINE_SECONDS: Final = 240
JOBS: Final = ("archive", "mirror", "aggregate")
KILLED: Final = ("driver", "worker", "compaction", "broker")
COMPACTED_ENOUGH: Final = "compacted-enough"
"""The file that tells the compacting job to finish."""
PYTHON: Final = (sys.executable, "-W", "ignore", "-m")
_CHILD: Final = "tests.pipeline.killed"


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


class Broker:
    """`cometmq up`, on the same store and ports however often it is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = (free_port(), free_port())
        self.nameserver = f"127.0.0.1:{self._ports[0]}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        ports = ("--nameserver-port", str(self._ports[0]), "--broker-port", str(self._ports[1]))
        command = [
            sys.executable,
            "-m",
            "cometmq.admin",
            "up",
            "--dir",
            str(self._folder / "store"),
        ]
        with (self._folder / "broker.log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, *ports, "--metrics-port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not re.search(r"\bready\b", line):
            raise SystemExit(f"the broker does not start: {self._folder / 'broker.log'}")

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(slots=True)
class Child:
    """One job in its own process group, started again whenever it has ended."""

    job: str
    nameserver: str
    folder: Path
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _logs: list[Path] = field(default_factory=list[Path])

    @property
    def offsets(self) -> Path:
        """Where Spark notes that a batch begins."""
        return self.folder / f"{self.job}-checkpoint" / "offsets"

    def said(self) -> str:
        """Return the output of all its starts."""
        return "".join(log.read_text() for log in self._logs)

    def begun(self) -> int:
        """Return how many batches have begun; Spark keeps the notes of the last hundred."""
        numbers = (int(path.name) for path in self.offsets.glob("*") if path.name.isdigit())
        return max(numbers, default=-1) + 1

    def ensure(self) -> None:
        """Start it unless it is running."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        log = self.folder / f"{self.job}-{self.starts}.log"
        self._logs.append(log)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*PYTHON, _CHILD, self.job, self.nameserver, str(self.folder), str(BATCH)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self) -> None:
        """Let it run to its end, starting it again as often as that takes.

        It has its time for each batch, as a busy machine may need minutes for all of them.
        """
        deadline, begun = time.monotonic() + DEADLINE_SECONDS, self.begun()
        while time.monotonic() < deadline:
            self.ensure()
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):
                if self._process.wait(DEADLINE_SECONDS / 10) == 0:
                    return
            if self.begun() > begun:
                deadline, begun = time.monotonic() + DEADLINE_SECONDS, self.begun()
        raise SystemExit(f"{self.job} does not end: {self._logs[-1].read_text()[-3000:]}")

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a Python worker or the daemon that forks them; return whether there was one."""
        assert self._process is not None
        workers = [pid for pid in _session(self._process.pid) if "pyspark/daemon" in _command(pid)]
        if not workers:
            return False
        os.kill(chance.choice(workers), signal.SIGKILL)  # The first is the daemon itself.
        return True


def _session(leader: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            found.append(int(path.parent.name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace(".", "/")
    except OSError:
        return ""


def rounds(count: int, seed: int) -> None:
    """Kill `count` times, let all jobs finish, and check what they wrote."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        broker = Broker(folder)
        broker.start()
        try:
            with client_of(broker) as client:
                client.admin.create_topic("source", queues=3)
                client.admin.create_topic("copy-source", queues=3)
                client.admin.create_topic("sums", queues=1)
            children = [Child(job, broker.nameserver, folder) for job in JOBS]
            compacting = Child("compact", broker.nameserver, folder)
            for number in range(count):
                send(broker, number * MESSAGES)  # So that there is always something to do.
                compacting.ensure()
                what = KILLED[number // len(JOBS) % len(KILLED)]
                kill_one(children[number % len(JOBS)], compacting, broker, chance, what, number)
            for child in children:
                child.finish()
            (folder / COMPACTED_ENOUGH).touch()
            compacting.finish()
            check(folder, broker, [*children, compacting], count * MESSAGES)
        finally:
            broker.kill()


def client_of(broker: Broker) -> SyncClient:
    """Return a client with a long timeout: a send repeated on a busy machine would count twice."""
    return SyncClient(broker.nameserver, ClientConfig(timeout=DEADLINE_SECONDS))


def send(broker: Broker, first: int) -> None:
    """Send the next `MESSAGES` messages, numbered from `first`."""
    with client_of(broker) as client:
        for start in range(first, first + MESSAGES, 100):
            client.send_batch("source", [b"%d" % (start + index) for index in range(100)])


def kill_one(
    child: Child,
    compacting: Child,
    broker: Broker,
    chance: random.Random,
    what: str,
    number: int,
) -> None:
    """Wait until `child` has begun a few more batches, and kill what `what` names."""
    child.ensure()
    wanted = child.begun() + chance.randint(1, 3)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while child.begun() < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
        child.ensure()
    time.sleep(chance.random() * 0.3)
    if what == "broker":
        broker.kill()
        broker.start()
    elif what == "worker":
        child.kill_worker(chance)
    elif what == "compaction":
        compacting.kill()
    else:
        child.kill()
    say(f"round {number + 1}: {what} of {child.job}, {child.begun()} batches begun")


def check(folder: Path, broker: Broker, children: Sequence[Child], sent: int) -> None:
    """Check that each message is in one file and once in the copy, and each window there once.

    Also check that batches were merged.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            _CHILD,
            "count",
            broker.nameserver,
            str(folder),
            "0",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    say(done.stdout.strip())
    merged = sum(map(int, re.findall(r"merged (\d+)", "".join(map(Child.said, children)))))
    say(f"starts: { {child.job: child.starts for child in children} }, batches merged: {merged}")
    wanted = f"archive {sent} of {sent} distinct, plain {sent}, mirror {sent} of {sent} distinct"
    ended = max(sent - 1 - WATERMARK, 0) // WINDOW
    wanted += f"\nwindows {ended} of {ended} distinct"
    if wanted not in done.stdout or not merged:
        raise SystemExit(f"wanted: {wanted}, and batches merged\n{done.stderr[-3000:]}")


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    say(f"seed {given.seed}")
    rounds(given.rounds, given.seed)


if __name__ == "__main__":
    main()
