"""`python -m bench client`: the costs and rates of sends, batches, consuming and pulls in the SDK.

A broker, `cometmq up` with async flush, runs beside it. The figures are, for the best round, the
client process's CPU time per message, including kernel time, which is also valid on a busy machine;
and the wall-clock rate, which depends on client and broker. The broker's CPU time is that of all
rounds. On two cores and a busy machine, prefix the command with `chrt -f 5`, which both processes
inherit, to get comparable rates. With `--java`, the official Java client does the same against the
same broker, in turn with ours.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import anyio
import trio
import uvloop

from bench import memory
from bench.servers import Server, cpu_seconds, start_cometmq
from cometmq.client import Client, ClientConfig, SyncClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from types import TracebackType
    from typing import Any

BODY: Final = os.urandom(1024)
ROUNDS: Final = 8
"""The rounds of each case, in either language: Java compiles code while it runs."""
IN_FLIGHT: Final = 64
BATCH: Final = 32
MANY: Final = 256
"""How many messages a pull asks for; Apache's protocol returns 32 of them."""
SENDS: Final = 12_800
BATCHES: Final = 400
WRITTEN_MIB: Final = 512
"""More than the broker writes in a case."""
LOOPS: Final = ("uvloop", "asyncio", "trio")
ALONE: Final = 1000
CASES: Final = {
    "send": f"await send, {IN_FLIGHT} in flight",
    "alone": "one send after the other: p50 by the clock",
    "batch": f"batches of {BATCH}, 8 in flight",
    "consume": "consume, trivial handler",
    "pull": f"pull of {BATCH}, one after the other",
    "bulk": f"pull of {MANY}, one after the other",
    "reader": f"a reader's pulls of {MANY}",
}
COUNTS: Final = {
    case: ROUNDS * {"send": SENDS, "alone": ALONE, "consume": SENDS}.get(case, BATCHES * BATCH)
    for case in CASES
}
"""The number of messages of each case, in all rounds."""
_RESIDENT: Final = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


async def measured(case: str, count: int, once: Callable[[], Awaitable[None]]) -> None:
    """Run something a few times, and print the least time of one of `count` messages."""
    cpu = clock = float("inf")
    memory.had(WRITTEN_MIB)
    for _ in range(ROUNDS):
        cpu_began, began = time.process_time(), time.perf_counter()
        await once()
        cpu = min(cpu, time.process_time() - cpu_began)
        clock = min(clock, time.perf_counter() - began)
    print(case, cpu / count * 1e6, clock / count * 1e6, flush=True)


async def measured_alone(once: Callable[[], Awaitable[object]]) -> None:
    """Print the wall-clock time of one call: the median of many, in the best round."""
    least = float("inf")
    for _ in range(ROUNDS):
        took: list[float] = []
        for _ in range(ALONE):
            began = time.perf_counter()
            await once()
            took.append(time.perf_counter() - began)
        least = min(least, median(took))
    print("alone", 0, least * 1e6, flush=True)


async def at_once(tasks: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `tasks` of the same concurrently."""
    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(work)


class Cases:
    """What is measured, with one client on one loop."""

    def __init__(self, mq: Client, loop: str) -> None:
        self._mq = mq
        self._single, self._batched = f"single-{loop}", f"batched-{loop}"

    async def run(self) -> None:
        """Measure all."""
        mq = self._mq
        await measured("send", SENDS, lambda: at_once(IN_FLIGHT, self._send_some))
        await measured_alone(lambda: mq.send(self._single, BODY))
        await measured("batch", BATCHES * BATCH, lambda: at_once(8, self._send_batches))
        await measured("consume", SENDS, self._consume)
        await measured("pull", BATCHES * BATCH, lambda: self._pull(BATCH))
        await measured("bulk", BATCHES * BATCH, lambda: self._pull(MANY))
        await measured("reader", BATCHES * BATCH, self._read)

    async def _send_some(self) -> None:
        for _ in range(SENDS // IN_FLIGHT):
            await self._mq.send(self._single, BODY)

    async def _send_batches(self) -> None:
        for _ in range(BATCHES // 8):
            await self._mq.send_batch(self._batched, [BODY] * BATCH)

    async def _consume(self) -> None:
        # A new group for each round, from the first message.
        group = f"g{time.monotonic_ns()}"
        async with self._mq.consume(self._single, group=group, start="first") as consumer:
            for _ in range(SENDS):
                async with await anext(consumer):
                    pass

    async def _pull(self, count: int) -> None:
        left = BATCHES * BATCH
        for queue in await self._mq.queues(self._batched):
            offset = 0
            while (
                left > 0 and not (found := await self._mq.pull(queue, offset, count=count)).is_empty
            ):
                offset = found.next_offset
                left -= len(found.messages)

    async def _read(self) -> None:
        reader = self._mq.reader(self._batched)
        await reader.assign(start="first")
        left = BATCHES * BATCH
        while left > 0 and (messages := await reader.pull(count=MANY)):
            left -= len(messages)


async def measure(nameserver: str, loop: str) -> None:
    """Measure all cases with one client: print that it is ready, and wait for the word to start."""
    async with Client(nameserver, ClientConfig(timeout=30)) as mq:
        await mq.send(f"warm-{loop}", BODY)
        print("ready", flush=True)
        if sys.stdin.read(1):
            await Cases(mq, loop).run()


def run_on(loop: str, nameserver: str) -> None:
    """Measure on one loop."""
    if loop == "trio":
        trio.run(measure, nameserver, loop)
        return
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(measure(nameserver, loop))


class Took(NamedTuple):
    """The least microseconds of a message: the client's CPU time, and by the clock.

    Sends one after the other have only the latter.
    """

    cpu: float
    clock: float

    @property
    def rate(self) -> float:
        """Messages per second, by the clock."""
        return 1e6 / self.clock


class Start(NamedTuple):
    """The start of a client until its first send was answered, and its state when idle then."""

    seconds: float
    cpu_seconds: float
    resident_mib: float


class Program:
    """A client in a separate process that waits for a word when it is ready."""

    def __init__(self, command: Sequence[str]) -> None:
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self._line()
        seconds = time.perf_counter() - begun
        if line != "ready":
            raise RuntimeError(f"{command[0]} did not start: {line!r}")
        used = cpu_seconds(self._process.pid)
        self.start = Start(seconds, used, self._resident_mib())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def figures(self) -> Iterator[tuple[str, Took]]:
        """Start the measurement, and yield each case with the time of a message."""
        assert self._process.stdin is not None
        self._process.stdin.write("g")
        self._process.stdin.flush()
        while line := self._line():
            case, cpu, clock = line.split()
            yield case, Took(float(cpu), float(clock))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _resident_mib(self) -> float:
        found = _RESIDENT.search(Path(f"/proc/{self._process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


def our_command(loop: str, nameserver: str) -> list[str]:
    """Return the command that starts our client on a loop."""
    command = [sys.executable, "-m", "bench.client", "--loop", loop]
    return [*command, "--nameserver", nameserver]


def show_loops(nameserver: str, server: Server, loops: Sequence[str]) -> None:
    """Measure our client on each loop, each in a separate process."""
    print("| what | messages/s by the clock | client: µs of CPU a message | broker |")
    print("|---|---|---|---|")
    starts: list[str] = []
    for loop in loops:
        with Program(our_command(loop, nameserver)) as program:
            broker_us = server.cpu_us()
            for case, took in program.figures():
                broker_us, before = server.cpu_us(), broker_us
                row = (
                    f"{took.rate:,.0f} | {took.cpu:.2f} | {(broker_us - before) / COUNTS[case]:.2f}"
                )
                if case == "alone":
                    row = f"p50 {took.clock:.0f} µs | | "
                print(f"| {loop}: {CASES[case]} | {row} |", flush=True)
            starts.append(f"{loop} {program.start.resident_mib:.0f} MiB")
    print(f"\nResident when connected and idle: {', '.join(starts)}.")


def show_beside_java(nameserver: str, loop: str, pairs: int, folder: Path) -> None:
    """Measure our client and the official one in turn, and print how many times better ours is."""
    from bench.java_client import java_command  # Needs Java and Maven.

    java = [*java_command(folder), nameserver, str(SENDS), str(BATCHES), str(ROUNDS)]
    best: dict[str, dict[str, float]] = {"ours": {}, "java": {}}
    for _ in range(pairs):
        for name, command in (("java", java), ("ours", our_command(loop, nameserver))):
            found = best[name]
            with Program(command) as program:
                facts = {"seconds": program.start.seconds, "start": program.start.cpu_seconds}
                facts["resident"] = program.start.resident_mib
                for case, took in program.figures():
                    facts |= {f"{case} cpu": took.cpu, f"{case} clock": took.clock}
            best[name] = {key: min(found.get(key, each), each) for key, each in facts.items()}
    print(f"| what | ours, {loop} | Java | times better |\n|---|---|---|---|")
    rows = {"alone clock": f"{CASES['alone']}: µs"}
    for case, text in CASES.items():
        if case != "alone":
            rows |= {f"{case} cpu": f"{text}: µs of CPU a message"}
            rows |= {f"{case} clock": f"{text}: µs by the clock a message"}
    rows |= {"seconds": "from start to the first send's answer: s", "start": "the same: s of CPU"}
    rows |= {"resident": "resident then: MiB"}
    for key, text in rows.items():
        ours, theirs = best["ours"][key], best["java"].get(key)
        if theirs is None:
            continue  # Java has no such case.
        print(f"| {text} | {ours:.3g} | {theirs:.3g} | {theirs / ours:.2f} |")


def main(arguments: Sequence[str]) -> None:
    """Measure on each loop, or beside the Java client."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--loop", choices=LOOPS, help="only this one")
    parser.add_argument("--java", action="store_true", help="beside the official Java client")
    parser.add_argument("--pairs", type=int, default=2, help="of runs, with --java")
    parser.add_argument("--nameserver", help=argparse.SUPPRESS)  # For processes of this program.
    asked = parser.parse_args(arguments)
    if asked.nameserver:
        run_on(asked.loop or LOOPS[0], asked.nameserver)
        return
    with tempfile.TemporaryDirectory() as folder:
        server, _ = start_cometmq(Path(folder) / "store", "async")
        address = f"127.0.0.1:{server.nameserver_port}"
        try:
            with SyncClient(address) as mq:
                for client in (*LOOPS, "java"):
                    for kind in ("warm", "single", "batched"):
                        mq.admin.create_topic(f"{kind}-{client}", queues=4)
            if asked.java:
                show_beside_java(address, asked.loop or LOOPS[0], asked.pairs, Path(folder))
            else:
                show_loops(address, server, [asked.loop] if asked.loop else LOOPS)
        finally:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
