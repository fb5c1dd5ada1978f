"""How a figure is measured: the least of many rounds, and a yardstick at the same moment."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 60
ROUND_SECONDS = 0.004

# The header of a SEND_MESSAGE_V2, as the Java client writes it.
YARDSTICK = (
    b'{"code":310,"extFields":{"a":"pg1","b":"T_norm","c":"TBW102","d":"4","e":"0","f":"0",'
    b'"g":"1795253435806","h":"7","i":"KEYS\\u0001K1\\u0002UNIQ_KEY\\u0001FD00000000000000000000'
    b'000000000238A330946E096909959C0000\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002",'
    b'"j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":4,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)


class Figure(NamedTuple):
    """One measured line."""

    name: str
    microseconds: float
    yardsticks: float  # The same, as a multiple of `json.loads` of YARDSTICK.


def microseconds_each(once: Callable[[], object], count: int = 1) -> float:
    """Time a call that does `count` things, in the best of the rounds, as noise only adds."""
    clock = time.perf_counter_ns
    once()
    started = clock()
    once()
    calls = max(1, int(ROUND_SECONDS * 1e9 / max(clock() - started, 1)))
    least = float("inf")
    for _ in range(ROUNDS):
        started = clock()
        for _ in range(calls):
            once()
        least = min(least, clock() - started)
    return least / calls / count / 1000


def figures(cases: dict[str, tuple[Callable[[], object], int]]) -> list[Figure]:
    """Measure named cases; each is a call and the number of things that it does."""
    found: list[Figure] = []
    for name, (once, count) in cases.items():
        yardstick = microseconds_each(lambda: json.loads(YARDSTICK))
        each = microseconds_each(once, count)
        found.append(Figure(name, each, each / yardstick))
    return found


def table(found: list[Figure]) -> str:
    """Return figures as the table for docs/performance.md."""
    lines = ["| what | µs | times `json.loads` of a send header |", "|---|---|---|"]
    lines += [f"| {name} | {each:.2f} | {times:.2f} |" for name, each, times in found]
    return "\n".join(lines)


def show(
    cases: dict[str, tuple[Callable[[], object], int]], prog: str, arguments: Sequence[str]
) -> None:
    """Measure cases and print their table: the `main` of a part that only has cases."""
    argparse.ArgumentParser(prog=prog).parse_args(arguments)  # It has no settings.
    print(table(figures(cases)))
