"""`python -m bench spark`: rows per second of Spark on topics, and the time of a micro-batch.

`cometmq up` with async flush runs beside a session of `local[2]`. A rate is that of the best round;
with it comes its CPU time, of all processes without the broker, and of the broker, which is also
valid on a busy machine. Memory is touched before each round (`bench/memory.py`), so that the host
of a virtual machine is not measured.

With `--kafka FOLDER`, the same session then writes and reads topics of a Kafka server with Spark's
own source, as a yardstick; `bench/kafka.py` says what that needs, and downloads it into the folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:  # As `python bench/spark.py`, with which Python only looks in this folder.
    sys.path[0] = str(Path(__file__).parent.parent)

from bench import memory
from bench.kafka import spark_jars, start_kafka
from bench.servers import cpu_seconds, start_cometmq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 1_000_000
"""The rows of reads and of streams to Parquet; writes have half, as they fill the disk."""
ROUNDS: Final = 3
FLOOR_BATCHES: Final = 30
WRITTEN_MIB: Final = 2048
"""More than broker and Spark write in a round."""


@dataclass(slots=True)
class Taken:
    """The times of one case in its best round."""

    seconds: float = float("inf")
    spark: float = 0.0
    broker: float = 0.0


class Bench:
    """One broker, one session, and the CPU time of both."""

    def __init__(
        self,
        spark: SparkSession,
        nameserver: str,
        broker_pid: int,
        rows: int,
        only: str = "",
        rounds: int = ROUNDS,
    ) -> None:
        """Prepare; with `only`, run only cases whose names contain it."""
        self.spark = spark
        self.nameserver = nameserver
        self.rows = rows
        self.only = only
        self.rounds = rounds
        self._broker_pid = broker_pid

    def used(self) -> tuple[float, float]:
        """Return the seconds of CPU time of Spark with its workers, and of the broker."""
        broker = _seconds_of(self._broker_pid)
        return sum(map(_seconds_of, _family(os.getpid()))) - broker, broker

    def measure(self, name: str, rows: int, once: Callable[[int], None]) -> None:
        """Run a case a few times, and print its line."""
        if self.only not in name:
            return
        best = Taken()
        for number in range(self.rounds):
            memory.had(WRITTEN_MIB)
            before, began = self.used(), time.monotonic()
            once(number)
            seconds, after = time.monotonic() - began, self.used()
            if seconds < best.seconds:
                best = Taken(seconds, after[0] - before[0], after[1] - before[1])
        each = 1e6 / rows
        print(
            f"| {name} | {rows / best.seconds:,.0f} | {best.spark * each:.2f} |"
            f" {best.broker * each:.2f} |",
            flush=True,
        )

    def read(self, topic: str, **options: object) -> DataFrame:
        """Return a topic as a table."""
        reader = self.spark.read.format("cometmq")
        frame: DataFrame = reader.options(nameserver=self.nameserver, topic=topic, **options).load()
        return frame

    def stream(self, topic: str, **options: object) -> DataFrame:
        """Return a topic as a stream."""
        reader = self.spark.readStream.format("cometmq").options(startingOffsets="earliest")
        frame: DataFrame = reader.options(nameserver=self.nameserver, topic=topic, **options).load()
        return frame

    def write(self, frame: DataFrame, topic: str, **options: object) -> None:
        """Write a frame to a topic."""
        writer = frame.write.format("cometmq").mode("append")
        writer.options(nameserver=self.nameserver, topic=topic, **options).save()

    def bodies(self, rows: int) -> DataFrame:
        """Return rows with distinct bodies of 1 KiB."""
        padding = os.urandom(64).hex()
        body = f"cast(rpad(cast(id AS string), 1024, '{padding}') AS binary) AS body"
        frame: DataFrame = self.spark.range(rows).selectExpr("id", body)
        return frame


def run(bench: Bench, folder: Path) -> None:
    """Measure every case."""
    rows, few = bench.rows, bench.rows // 2
    bodies = bench.bodies(few)
    plain = bodies.drop("id")
    bench.measure("write, in batches", few, lambda n: bench.write(plain, f"batches-{n}"))
    bench.measure(
        "write, each stored once (dedupKey)",
        few,
        lambda n: bench.write(bodies, f"once-{n}", dedupKey="id"),
    )
    topic, copied = "read", "copied"
    bench.write(bench.bodies(rows).drop("id"), topic)
    bench.write(plain, copied)
    for name, columns in (
        ("read, default columns", ""),
        ("read, all columns", "*"),
        ("read, four columns with the body", "topic,queue_id,queue_offset,body"),
        ("read, header columns only", "topic,queue_id,queue_offset,store_time"),
    ):
        frame = bench.read(topic, columns=columns)
        bench.measure(name, rows, partial(_noop, frame))

    for name, columns in (("default", ""), ("all", "*")):
        stream = bench.stream(topic, maxOffsetsPerTrigger=rows // 2, columns=columns)
        to_parquet = partial(_to_parquet, stream, folder / name)
        bench.measure(f"stream to Parquet, {name} columns", rows, to_parquet)

    def to_topic(number: int) -> None:
        query = (
            bench.stream(copied, maxOffsetsPerTrigger=few // 2)
            .writeStream.format("cometmq")
            .options(nameserver=bench.nameserver, topic=f"{copied}-{number}")
            .option("checkpointLocation", str(folder / f"copying-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    bench.measure("stream topic to topic, each stored once", few, to_topic)
    if bench.only:
        return
    print(f"\nA micro-batch of 100 rows, source and sink ours: {floor(bench, folder):.3f} s")


def floor(bench: Bench, folder: Path) -> float:
    """Return the least time of a small micro-batch, topic to topic."""
    bench.write(bench.bodies(FLOOR_BATCHES * 100).drop("id"), "floor")
    query = (
        bench.stream("floor", maxOffsetsPerTrigger=100)
        .writeStream.format("cometmq")
        .options(nameserver=bench.nameserver, topic="floor-out")
        .option("checkpointLocation", str(folder / "floor"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    times = sorted(each["durationMs"]["triggerExecution"] for each in query.recentProgress)
    return float(times[len(times) // 4]) / 1000


def run_kafka(bench: Bench, port: int, folder: Path) -> None:
    """Measure Spark's own source and sink with a Kafka server."""
    rows = bench.rows
    server = {"kafka.bootstrap.servers": f"127.0.0.1:{port}"}
    bodies = bench.bodies(rows).selectExpr("body AS value")

    def write(topic: str) -> None:
        bodies.write.format("kafka").options(**server, topic=topic).save()

    bench.measure("Kafka: write, in batches", rows, lambda n: write(f"batches-{n}"))
    write("read")
    given = {**server, "subscribe": "read", "startingOffsets": "earliest"}
    given["includeHeaders"] = "true"
    frame = bench.spark.read.format("kafka").options(**given).load()
    for name, columns in (
        ("all columns", "*"),
        ("four columns with the body", "topic,partition,offset,value"),
        ("header columns only", "topic,partition,offset,timestamp"),
    ):
        few = frame.selectExpr(*columns.split(","))
        bench.measure(f"Kafka: read, {name}", rows, partial(_noop, few))
    given["maxOffsetsPerTrigger"] = str(rows // 2)
    stream = bench.spark.readStream.format("kafka").options(**given).load()
    once = partial(_to_parquet, stream, folder)
    bench.measure("Kafka: stream to Parquet, all columns", rows, once)


def _to_parquet(stream: DataFrame, folder: Path, number: int) -> None:
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / f"parquet-{number}"))
        .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _noop(frame: DataFrame, _round: int) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    with suppress(OSError):  # It may have ended.
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found


def _seconds_of(pid: int) -> float:
    """Return the CPU time of a process, with its ended children."""
    with suppress(OSError):  # As above.
        return cpu_seconds(pid, with_ended_children=True)
    return 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the JVM is warm after six")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default="", help="cases that have this in their names")
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="Kafka, too; its jars")
    given = parser.parse_args(arguments)
    from cometmq.pipeline import session  # Needs packages that are not always installed.

    jars = {"spark.jars": spark_jars(given.kafka.absolute())} if given.kafka else {}
    # Before the broker, which would be left running if there is no Java.
    spark = session(master=f"local[{given.cores}]", spark_driver_memory="2g", **jars)
    with tempfile.TemporaryDirectory() as folder:
        broker, _ = start_cometmq(Path(folder) / "broker", "async")
        try:
            print("| case | rows/s | Spark, µs of CPU a row | broker, µs of CPU a row |")
            print("|---|---|---|---|")
            nameserver = f"127.0.0.1:{broker.nameserver_port}"
            asked = (given.rows, given.only, given.rounds)
            run(Bench(spark, nameserver, broker.pid, *asked), Path(folder))
            if given.kafka:
                kafka = start_kafka(given.kafka.absolute(), Path(folder) / "kafka")
                try:
                    bench = Bench(spark, nameserver, kafka.pid, *asked)
                    run_kafka(bench, kafka.port, Path(folder) / "of-kafka")
                finally:
                    kafka.stop()
        finally:
            spark.stop()
            broker.stop()


if __name__ == "__main__":
    main()
