"""`python -m bench.scale`: a broker's start time and memory, and its speed with many topics.

Only for CometMQ; the load comes from `cometmq bench`, and for end to end from a program in C. Many
topics are compared with one topic by the server's CPU time per message, and by rate.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import memory as machine_memory
from bench.broker import circumstances, write
from bench.compiled import compiled
from bench.servers import Server, start_cometmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STARTS: Final = 5
QUEUES: Final = 8
MEMORY_MESSAGES: Final = 5_000_000
MEMORY_TOPICS: Final = 1_000
MEMORY_BODY_SIZE: Final = 100
END_TO_END_RATES: Final = (1_000, 10_000)
END_TO_END_SECONDS: Final = 10
WRITTEN_MIB: Final = 1024
"""What most runs write."""


def load(server: Server, *arguments: object) -> Any:
    """Run `cometmq bench` against a server; return its document and the server's CPU time."""
    machine_memory.had(WRITTEN_MIB)
    before = server.cpu_us()
    command = [sys.executable, "-m", "cometmq.admin", "bench", *map(str, arguments)]
    ended = subprocess.run(
        [*command, "--broker", f"127.0.0.1:{server.port}", "--json"],
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command[3:])}: {ended.stderr}")
    document = json.loads(ended.stdout)
    document["cpu_us"] = server.cpu_us() - before
    return document


def starts(folder: Path) -> Iterator[str]:
    """Measure the time to the ready line, and the memory then."""
    seconds: list[float] = []
    memory: list[float] = []
    for number in range(STARTS):
        server, took = start_cometmq(folder / f"start{number}", "sync")
        seconds.append(took)
        memory.append(server.anonymous_mib())
        server.stop()
    yield f"| ready line after exec | {statistics.median(seconds):.2f} s | 0.6 s |"
    yield f"| anonymous memory, idle | {statistics.median(memory):.0f} MiB | 60 MiB |"


def memory(folder: Path) -> Iterator[str]:
    """Measure the memory after many messages on many topics."""
    server, _ = start_cometmq(folder / "memory", "async")
    try:
        sent = 0
        while sent < MEMORY_MESSAGES:
            how = ("--topics", MEMORY_TOPICS, "--queues", QUEUES, "--size", MEMORY_BODY_SIZE)
            sent += load(server, "batch", *how, "--in-flight", 2, "--seconds", 10)["messages"]
        now = server.anonymous_mib()
    finally:
        server.stop()
    yield f"| … after {sent:,} messages on {MEMORY_TOPICS:,} topics | {now:.0f} MiB | 150 MiB |"


def topics(folder: Path) -> Iterator[str]:
    """Measure sends to one, a thousand and ten thousand topics of 8 queues."""
    server, _ = start_cometmq(folder / "topics", "async")
    try:
        rates: dict[int, float] = {}
        for count in (1, 1_000, 10_000):
            how = ("--topics", count, "--queues", QUEUES, "--topic", f"Many{count}x")
            sent = 0
            while sent < 2 * count * QUEUES:  # Creates the topics and the files of their queues.
                sent += load(server, "send", *how, "--seconds", 5)["messages"]
            runs = [load(server, "send", *how, "--seconds", 5) for _ in range(3)]
            rates[count] = statistics.median(run["messages_per_second"] for run in runs)
            cpu_us = statistics.median(run["cpu_us"] / run["messages"] for run in runs)
            part = rates[count] / rates[1]
            yield (
                f"| sends to {count:,} topics x {QUEUES} queues"
                f" | {rates[count]:,.0f} msg/s, {cpu_us:.2f} µs of CPU each, {part:.0%} of one's"
                " | 90 % |"
            )
    finally:
        server.stop()


def end_to_end(folder: Path) -> Iterator[str]:
    """Measure how long a message takes to a waiting consumer."""
    program = compiled("end_to_end", folder)
    server, _ = start_cometmq(folder / "e2e", "async")
    try:
        for rate in END_TO_END_RATES:
            machine_memory.had(WRITTEN_MIB)
            command = [program, server.port, "EndToEnd", 4, rate, END_TO_END_SECONDS, 1024]
            ended = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=True
            )
            us = dict(re.findall(r"(\w+_p\d\d)=(\d+)", ended.stdout))
            yield (
                f"| end to end at {rate:,} msg/s, by a generator in C"
                f" | send to its answer p50 {us['accepted_p50']}, p99 {us['accepted_p99']} µs;"
                f" to the consumer p50 {us['received_p50']}, p99 {us['received_p99']} µs"
                " | p50 150 µs, p99 1 ms |"
            )
    finally:
        server.stop()


PARTS: Final[dict[str, Callable[[Path], Iterator[str]]]] = {
    "start": starts,
    "e2e": end_to_end,
    "topics": topics,
    "memory": memory,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the parts that were asked for, and print the table of docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("part", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    lines = ["| what | measured | wanted |", "|---|---|---|"]
    print("\n".join(lines))
    for name in options.part:
        with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
            for line in PARTS[name](Path(folder).absolute()):
                print(line, flush=True)
                lines.append(line)
    text = "\n".join(lines)
    said = circumstances("python -m bench.scale")
    print(f"\n{said}")
    if options.write:
        write("bench.scale", f"{said}\n\n{text}")


if __name__ == "__main__":
    main()
