"""`python -m bench.transactions`: pairs of half message and commit, compared with Apache RocketMQ.

Each connection sends a half message, waits for its answer, sends its commit, waits for that answer,
and starts over. The generator is `pairs.c` for both servers, with async flush and bodies of 1 KiB.
Apache's broker is started as in `bench.broker`, and warmed up.

With `--apache-program`, the load comes from Apache's own benchmark program, `TransactionProducer`,
with as many threads on one connection, ROCKETMQ headers, and no questions. Each run restarts both
servers, and the rate is the program's for its last ten seconds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.interop.apache_java import class_path, required

from bench import memory
from bench.broker import circumstances, write
from bench.compiled import compiled
from bench.java_client import RELEASE
from bench.servers import Server, start_apache, start_cometmq
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands import EndTransaction, SendMessageV2
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.connection import Connection
from cometmq.proto.frame import HEAD_SIZE, frame_head
from cometmq.proto.header_json import JSON
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP: Final = "cometmq-bench"
TOPIC: Final = "Paid"
BODY: Final = b"x" * 1024
CONNECTIONS: Final = 64
RATE_WANTED: Final = 15_000
RATIO_WANTED: Final = 2.0
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_KEY_MARK: Final = "7F0000014D2C18B4AAC2_PAIR_NO_XXX"
_NUMBER_MARKS: Final = (1_111_111_111, 2_222_222_222)
_OFFSET_ID: Final = b'"msgId":"'
_OFFSET_DIGITS: Final = 16
"""The number of digits after the host in an offset id."""
_QUEUE_OFFSET: Final = b'"queueOffset":"'
_WRITTEN_MIB: Final = 2048
"""More than a run writes."""
PROGRAM: Final = "org.apache.rocketmq.example.benchmark.TransactionProducer"
PROGRAM_REPORTS: Final = 3
_PROGRAM_RATE: Final = re.compile(
    r"Send TPS: *(\d+) .*AVG RT\(ms\): *([\d.]+) .*Send Failed: (\d+)"
)
_SHOWN: Final = re.compile(r"pairs=(\d+) refused=(\d+) p50=([\d.]+) p99=([\d.]+)")


class Done(NamedTuple):
    """The figures of one server in one run."""

    rate: float
    """Pairs per second."""
    p50_us: float
    p99_us: float
    """The p99 of pairs."""
    cpu_us: float
    """The server's CPU time per pair."""
    refused: int


def half_frame() -> bytes:
    """Make a half message's frame, with a mark in place of its key."""
    properties = f"UNIQ_KEY\x01{_KEY_MARK}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    header = SendMessageV2(
        producer_group=GROUP,
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=_PREPARED,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=f"{properties}WAIT\x01true\x02",
    )
    request = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=BODY)
    frame = b"".join(Connection().send(request))
    assert frame.count(_KEY_MARK.encode()) == 1
    return frame


def half_form() -> bytes:
    """Make a template of the same, with a hole for its key."""
    return half_frame().replace(b"%", b"%%").replace(_KEY_MARK.encode(), b"%032X")


def commit_form() -> bytes:
    """Make the template of a commit's header, with holes for its half message's places and key."""
    header = EndTransaction(
        GROUP, *_NUMBER_MARKS, int(TransactionEnd.COMMIT), _KEY_MARK, topic=TOPIC
    )
    request = Command.request(RequestCode.END_TRANSACTION, header)
    form = b"".join(Connection().send(request))[HEAD_SIZE:].replace(b"%", b"%%")
    for mark, how in zip((*_NUMBER_MARKS, _KEY_MARK), (b"%d", b"%d", b"%032X"), strict=True):
        assert form.count(str(mark).encode()) == 1, mark
        form = form.replace(str(mark).encode(), how)
    return form


def commit_frame(form: bytes, answer: bytes, key: int) -> bytes:
    """Make the commit for a half message from the answer to it."""
    place = int(_value(answer, _OFFSET_ID)[-_OFFSET_DIGITS:], 16)
    header = form % (int(_value(answer, _QUEUE_OFFSET)), place, key)
    return frame_head(JSON.serialize_type, len(header), 0) + header


def _value(answer: bytes, name: bytes) -> bytes:
    """Find a field without reading the others: a generator must be faster than the server."""
    begin = answer.index(name) + len(name)
    return answer[begin : answer.index(b'"', begin)]


class Generator:
    """The compiled `pairs.c`, with what it is to send."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._program = compiled("pairs", folder)
        self._half, self._commit = folder / "half", folder / "commit"
        self._half.write_bytes(half_frame())
        form = commit_form().replace(b"%d", b"%lld").replace(b"%032X", b"%s")
        self._commit.write_bytes(form)

    def load(self, port: int, connections: int, seconds: float) -> tuple[int, int, float, float]:
        """Load a broker; return the pairs, the refused requests, and the median and p99 in us."""
        numbers = port, connections, seconds, time.time_ns()
        command = [*map(str, (self._program, *numbers, self._half, self._commit))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = _SHOWN.search(ended.stdout)
        if ended.returncode or found is None:
            raise RuntimeError(f"pairs: {ended.stdout}{ended.stderr}")
        return int(found[1]), int(found[2]), float(found[3]), float(found[4])


def measure(server: Server, options: argparse.Namespace, generator: Generator) -> Done:
    """Load a server once."""
    memory.had(_WRITTEN_MIB)
    before = server.cpu_us()
    found = generator.load(server.port, options.connections, options.seconds)
    pairs, refused, p50_us, p99_us = found
    cpu_us = (server.cpu_us() - before) / pairs
    return Done(pairs / options.seconds, p50_us, p99_us, cpu_us, refused)


def run_program(options: argparse.Namespace, folder: Path) -> None:
    """Load both servers in turn with Apache's own program."""
    folder.mkdir()
    classes = class_path(RELEASE, Path(__file__).with_name("apache_program.xml"))
    for number in range(options.pairs):
        for start in (start_cometmq, start_apache)[: 1 if options.alone else 2]:
            home = folder / f"{start.__name__}{number}"
            server, _ = start(home, "async")
            try:
                shown = load_with_program(
                    server, options.connections, classes, home.with_suffix(".home")
                )
            finally:
                server.stop()
                shutil.rmtree(home, ignore_errors=True)
            print(f"{server.name:<8} {shown}", flush=True)


def load_with_program(server: Server, threads: int, classes: str, home: Path) -> str:
    """Load a server once; return the rate, the mean time, and the server's CPU time."""
    options = (
        f"-n 127.0.0.1:{server.nameserver_port} -t {TOPIC} -w {threads} -s {len(BODY)} -ri 1000"
    )
    java = [required("java"), f"-Duser.home={home}", "-cp", classes, PROGRAM, *options.split()]
    reports: list[tuple[float, float, re.Match[str]]] = []
    with subprocess.Popen(java, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if report := _PROGRAM_RATE.search(line):
                reports.append((time.monotonic(), server.cpu_us(), report))
            if len(reports) > PROGRAM_REPORTS:
                break
        program.terminate()
    rate = statistics.mean(int(report[1]) for _, _, report in reports[1:])
    (begun, before, _), (ended, after, last) = reports[0], reports[-1]
    cpu_us = (after - before) / (rate * (ended - begun))
    return f"{rate:,.0f} a second, {last[2]} ms, {cpu_us:.1f} us of CPU each, {last[3]} failed"


def table(found: dict[str, list[Done]]) -> str:
    """Return the table for docs/performance.md."""
    lines = ["| broker | pairs/s, p50, p99, CPU a pair |", "|---|---|"]
    for name, runs in found.items():
        rate, p50, p99, cpu, refused = map(statistics.median, zip(*runs, strict=True))
        busy = f" ({refused:,.0f} refused)" if refused else ""
        lines.append(f"| {name} | {rate:,.0f}{busy}, {p50:,.0f} µs, {p99:,.0f} µs, {cpu:.1f} µs |")
    ours = statistics.median(each.rate for each in found["CometMQ"])
    told = f"{ours:,.0f} pairs/s of {RATE_WANTED:,}"
    verdicts = [told if ours >= RATE_WANTED else f"**{told}: missed**"]
    if "Apache" in found:
        pairs = list(zip(found["CometMQ"], found["Apache"], strict=True))
        ratio = statistics.median(mine.rate / theirs.rate for mine, theirs in pairs)
        per_core = statistics.median(theirs.cpu_us / mine.cpu_us for mine, theirs in pairs)
        told = f"{ratio:.2f} times Apache's rate of {RATIO_WANTED:g}"
        verdicts.append(told if ratio >= RATIO_WANTED else f"**{told}: missed**")
        verdicts.append(f"{per_core:.2f} times its pairs per core-second")
    return "\n".join([*lines, "", "; ".join(verdicts) + "."])


def run(options: argparse.Namespace, folder: Path) -> dict[str, list[Done]]:
    """Measure both servers in turn."""
    servers = [start_cometmq(folder / "ours", "async")[0]]
    found: dict[str, list[Done]] = {}
    try:
        if not options.alone:
            servers.append(start_apache(folder / "apache", "async")[0])
        generator = Generator(folder / "generator")
        for server in servers:  # Warm.
            measure(server, options, generator)
        for number in range(options.pairs):
            for server in servers if number % 2 else servers[::-1]:
                done = measure(server, options, generator)
                found.setdefault(server.name, []).append(done)
                print(f"{server.name:<8} {done}", file=sys.stderr, flush=True)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return dict(sorted(found.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and put it into the page if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each server")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="pairs in flight")
    parser.add_argument("--alone", action="store_true", help="without Apache (no Java needed)")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument(
        "--apache-program", action="store_true", help="load with Apache's TransactionProducer"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
        if options.apache_program:
            run_program(options, Path(folder).absolute() / "program")
            return
        found = run(options, Path(folder).absolute())
    command = " ".join(sys.argv[1:] if arguments is None else arguments)
    text = f"{circumstances(f'python -m bench.transactions {command}'.strip())}\n\n{table(found)}"
    print(text)
    if options.write:
        write("bench.transactions", text)


if __name__ == "__main__":
    main()
