"""`python -m bench.broker`: sends, batches and pulls, CometMQ compared with Apache RocketMQ.

Both run on this machine at the same time as the load generator `mqload.c`, and are loaded in turn:
each case has the requested number of pairs of runs, and the median counts. Bodies have 1 KiB,
topics have 4 queues, and every message has its own unique key. Apache's broker has its recommended
flags and a heap of 4 GiB, and is warmed up before anything is measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench import memory, mqload
from bench.compiled import compiled
from bench.mqload import Load
from bench.servers import Server, start_apache, start_cometmq

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE: Final = Path(__file__).parent.parent / "docs" / "performance.md"
PULLED_SECONDS: Final = 3.0
P99_WANTED: Final = 0.5
_WRITTEN_MIB: Final = 3072
"""More than a run writes."""


class Case(NamedTuple):
    """One line of the table."""

    name: str
    flush: str
    load: Load
    rate_wanted: float = 0.0
    """The wanted minimum, as a multiple of Apache's messages per second."""
    core_wanted: float = 0.0
    """The wanted minimum, as a multiple of Apache's messages per second of server CPU."""
    p50_wanted: float = 0.0
    """The wanted maximum, as a fraction of Apache's."""
    p99_wanted: float = 0.0


CASES: Final = {
    "send-64": Case("send 64 x 1", "async", Load("send", 64, 1), 1.6, 2.4, 0, P99_WANTED),
    "send-8": Case("send 8 x 32", "async", Load("send", 8, 32), 1.9, 3.2, 0, P99_WANTED),
    "send-1": Case("send 1 x 1", "async", Load("send", 1, 1), 0, 0, 0.7, P99_WANTED),
    "batch": Case("batches of 32, 8 x 4", "async", Load("batch", 8, 4), 1.1, 1.6),
    "pull": Case("pulls of 32, 4 x 1", "async", Load("pull", 4, 1), 1.5, 2.5),
    "sync-64": Case("send 64 x 1", "sync", Load("send", 64, 1), 1.5, 2.2, 0, P99_WANTED),
    "sync-8": Case("send 8 x 32", "sync", Load("send", 8, 32), 1.8, 3.0, 0, P99_WANTED),
    "sync-1": Case("send 1 x 1", "sync", Load("send", 1, 1), 0, 0, 0.6, P99_WANTED),
}
WARM_UP: Final = (Load("send", 64, 1), Load("send", 8, 32), Load("batch", 8, 4))


class Run(NamedTuple):
    """The figures of one server in one run."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float
    """The server's CPU time per message."""
    refused: float
    """Requests that the server refused because it was busy."""


class Medians(NamedTuple):
    """The medians of both servers over all pairs; ratios are computed per pair."""

    ours: Run
    theirs: Run | None
    ratios: Run | None
    """Ours divided by Apache's; for CPU the inverse, so that more is better, as with the rate."""


def measure(program: Path, server: Server, load: Load, topic: str, seconds: float) -> Run:
    """Load a server once."""
    memory.had(_WRITTEN_MIB)
    before = server.cpu_us()
    shown = mqload.run(program, load, server.port, topic, seconds)
    cpu_us = (server.cpu_us() - before) / shown.messages
    return Run(shown.rate, shown.p50_us, shown.p99_us, cpu_us, shown.refused)


def medians_of(pairs: Sequence[dict[str, Run]]) -> Medians:
    """Take the median of each figure, and of each pair's ratio."""
    ours = _median([pair["CometMQ"] for pair in pairs])
    if "Apache" not in pairs[0]:
        return Medians(ours, None, None)
    ratios = [
        Run(
            mine.rate / theirs.rate,
            mine.p50_us / theirs.p50_us,
            mine.p99_us / theirs.p99_us,
            theirs.cpu_us / mine.cpu_us if mine.cpu_us else 0.0,
            mine.refused - theirs.refused,
        )
        for pair in pairs
        for mine, theirs in [(pair["CometMQ"], pair["Apache"])]
    ]
    return Medians(ours, _median([pair["Apache"] for pair in pairs]), _median(ratios))


def _median(runs: Sequence[Run]) -> Run:
    return Run(*(statistics.median(column) for column in zip(*runs, strict=True)))


def judged(case: Case, ratios: Run) -> Iterator[tuple[str, bool]]:
    """Yield each wanted value as text, and whether it is reached."""
    for name, ratio, wanted in (
        ("rate", ratios.rate, case.rate_wanted),
        ("per core-second", ratios.cpu_us, case.core_wanted),
    ):
        if wanted:
            yield f"{name} {ratio:.2f} of {wanted}", ratio >= wanted
    for name, ratio, wanted in (
        ("p50", ratios.p50_us, case.p50_wanted),
        ("p99", ratios.p99_us, case.p99_wanted),
    ):
        if wanted:
            yield f"{name} {ratio:.2f} of {wanted}", ratio <= wanted


def table(found: dict[str, Medians]) -> str:
    """Return the table for docs/performance.md."""
    lines = [
        "| case | Apache: msg/s, p50, p99, CPU a message | CometMQ | ours ÷ Apache's, of wanted |",
        "|---|---|---|---|",
    ]
    for name, (ours, theirs, ratios) in found.items():
        case = CASES[name]
        verdict = ""
        if ratios is not None:
            verdict = "; ".join(
                text if met else f"**{text}: missed**" for text, met in judged(case, ratios)
            )
        lines.append(
            f"| {case.name}, {case.flush} | {_described(theirs)} | {_described(ours)} | {verdict} |"
        )
    return "\n".join(lines)


def _described(run: Run | None) -> str:
    if run is None:
        return ""
    refused = f" ({run.refused:.0f} refused)" if run.refused else ""
    times = f"{run.p50_us:,.0f} µs, {run.p99_us:,.0f} µs, {run.cpu_us:.2f} µs"
    return f"{run.rate:,.0f}{refused}, {times}"


def run_cases(options: argparse.Namespace, folder: Path) -> dict[str, Medians]:
    """Measure the chosen cases, one flush mode after the other."""
    program = compiled("mqload", folder)
    found: dict[str, list[dict[str, Run]]] = {name: [] for name in options.case}
    for flush in ("async", "sync"):
        names = [name for name in options.case if CASES[name].flush == flush]
        if not names:
            continue
        servers = [start_cometmq(folder / f"ours-{flush}", flush, python=options.python)[0]]
        try:
            if not options.alone:
                servers.append(start_apache(folder / f"apache-{flush}", flush)[0])
            _warm_up(program, servers, options.seconds, fill="pull" in names)
            for number in range(options.pairs):
                # The server that is first in one pair is second in the next.
                order = servers if number % 2 else servers[::-1]
                for name in names:
                    found[name].append(_pair(program, order, CASES[name].load, options.seconds))
                    _progress(name, found[name][-1])
        finally:
            for server in servers:
                server.stop()
            for each in ("ours", "apache"):
                shutil.rmtree(folder / f"{each}-{flush}", ignore_errors=True)
    return {name: medians_of(pairs) for name, pairs in found.items()}


def _warm_up(program: Path, servers: Sequence[Server], seconds: float, *, fill: bool) -> None:
    for server in servers:
        for load in WARM_UP:
            mqload.run(program, load, server.port, "Warm", seconds)
        if fill:
            mqload.run(program, Load("batch", 8, 4), server.port, "Pulled", PULLED_SECONDS)
            mqload.run(program, Load("pull", 4, 1), server.port, "Pulled", seconds)


def _pair(program: Path, servers: Sequence[Server], load: Load, seconds: float) -> dict[str, Run]:
    topic = "Pulled" if load.kind == "pull" else "Sent"
    return {server.name: measure(program, server, load, topic, seconds) for server in servers}


def _progress(name: str, pair: dict[str, Run]) -> None:
    shown = "   ".join(f"{who} {_described(run)}" for who, run in sorted(pair.items()))
    print(f"{name:<8} {shown}", file=sys.stderr, flush=True)


def circumstances(command: str) -> str:
    """Say on which machine and by which command a table was made."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(": ")[2]
            break
    day = datetime.now(UTC).date().isoformat()
    return (
        f"`{command}`, {day}: {os.cpu_count()} cores of {model}, Linux {platform.release()},"
        f" CPython {platform.python_version()}; load {os.getloadavg()[0]:.1f} at the end."
    )


def write(part: str, text: str) -> None:
    """Put the figures of a part into the page, between its marks."""
    begin, end = (f"<!-- {mark}: python -m {part} -->" for mark in ("begin", "end"))
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE} has no {begin} ... {end}")
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and put it into the page if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("case", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each server and case")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run")
    parser.add_argument("--alone", action="store_true", help="without Apache (no Java needed)")
    parser.add_argument("--python", default=sys.executable, help="what runs CometMQ")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.case if name not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
        found = run_cases(options, Path(folder).absolute())
    command = "python -m bench.broker " + " ".join(sys.argv[1:] if arguments is None else arguments)
    text = f"{circumstances(command.strip())}\n\n{table(found)}"
    print(text)
    if options.write:
        write("bench.broker", text)


if __name__ == "__main__":
    main()
