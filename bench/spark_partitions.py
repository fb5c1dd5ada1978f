"""The rate of reading a topic with Spark by the number of tasks: a table, and a picture of it.

    python -m bench.spark_partitions [--rows 400000] [--write docs/spark-partitions.svg]

A broker runs beside a session of `local[2]`; the best round counts. One task leaves a core idle;
more tasks than cores cost their starts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.servers import start_cometmq
from bench.spark import Bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TASKS: Final = (1, 2, 4, 8, 16, 32)
COLUMNS: Final = {
    "all columns": "*",
    "four columns with the body": "topic,queue_id,queue_offset,body",
    "header columns": "topic,queue_id,queue_offset,store_time",
}
_COLORS: Final = ("#b33", "#37a", "#383")
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 20, 520, 260


def measured(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Return the rows per second for each set of columns, by `TASKS`."""
    found: dict[str, list[float]] = {}
    print("| columns | " + " | ".join(f"{tasks} tasks" for tasks in TASKS) + " |")
    print("|---|" + "---|" * len(TASKS))
    for name, columns in COLUMNS.items():
        found[name] = [rate(bench, columns, tasks, rounds) for tasks in TASKS]
        print(
            f"| {name} | " + " | ".join(f"{each:,.0f}" for each in found[name]) + " |", flush=True
        )
    return found


def rate(bench: Bench, columns: str, tasks: int, rounds: int) -> float:
    """Return the rows per second of the best round."""
    frame = bench.read("T", columns=columns, minPartitions=tasks, parallelism=1)
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - began)
    return bench.rows / min(seconds)


def picture(found: Mapping[str, Sequence[float]]) -> str:
    """Draw the rates over the number of tasks."""
    top = max(map(max, found.values())) * 1.1
    step = 10 ** (len(str(int(top))) - 1)
    right = _LEFT + _WIDTH

    def x(index: int) -> float:
        return _LEFT + _WIDTH * index / (len(TASKS) - 1)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (1 - value / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 30} {_TOP + _HEIGHT + 100}"'
        ' font-family="sans-serif" font-size="12">',
        "<title>Rows a second that Spark reads, by the number of tasks</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for value in range(0, int(top) + 1, step):
        parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,}</text>'
        )
    for index, tasks in enumerate(TASKS):
        at = _TOP + _HEIGHT + 18
        parts.append(f'<text x="{x(index):.1f}" y="{at}" text-anchor="middle">{tasks}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 36}">tasks; rows/s, local[2]</text>')
    for number, (name, rates) in enumerate(found.items()):
        color = _COLORS[number]
        points = " ".join(f"{x(index):.1f},{y(each):.1f}" for index, each in enumerate(rates))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        at = _TOP + _HEIGHT + 54 + 16 * number
        parts.append(f'<text x="{_LEFT}" y="{at}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_partitions", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", metavar="FILE", help="the picture, as SVG")
    given = parser.parse_args(arguments)
    from cometmq.pipeline import session  # Needs packages that are not always installed.

    spark = session(master="local[2]", spark_driver_memory="2g")  # As in `bench.spark`.
    with tempfile.TemporaryDirectory() as folder:
        broker, _ = start_cometmq(Path(folder) / "broker", "async")
        try:
            nameserver = f"127.0.0.1:{broker.nameserver_port}"
            bench = Bench(spark, nameserver, broker.pid, given.rows)
            bench.write(bench.bodies(given.rows).drop("id"), "T")
            found = measured(bench, given.rounds)
        finally:
            spark.stop()
            broker.stop()
    if given.write:
        Path(given.write).write_text(picture(found))


if __name__ == "__main__":
    main()
