"""Scanning a store with Spark: rows per second by columns, and checksums in MB per second.

    python -m bench.spark_store [--mib 512] [--master 'local[2]'] [--rounds 3]

The store is created in a temporary folder: bodies of 200 to 1,800 random bytes, seven properties,
four topics. Each scan ends in Spark's `noop`, which takes every column of every row and drops it.
The best round is shown; the first round of a session warms it up and does not count. Memory is
touched before each round (`bench/memory.py`), so that the host of a virtual machine is not
measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from random import Random
from typing import TYPE_CHECKING, Final

from bench import memory
from cometmq.proto.host import pack_host
from cometmq.proto.properties import encode_properties
from cometmq.store.config import StoreConfig
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = ("orders", "payments", "shipments", "clicks")
BODIES: Final = 1 << 22
"""The number of random bytes from which bodies are cut."""
COMMIT_SIZE: Final = 1 << 20
WRITTEN_MIB: Final = 1024
"""More than the memory that a scan uses."""
NOW_MS: Final = 1_700_000_000_000
TEXTS: Final = ("message_id", "unique_key", "offset_id", "key", "tag", "born_host", "store_host")
"""Columns that are cut from the properties, or are formatted as text."""

_MIB: Final = 1 << 20


def fill(folder: str, size: int) -> tuple[int, int]:
    """Make a store of this size; return how many messages and bytes its log has."""
    random = Random(1)
    noise = random.randbytes(BODIES)
    host = pack_host("127.0.0.1", 10911)
    store = MessageStore.open(folder, StoreConfig(), now_ms=NOW_MS)
    count = 0
    while store.end_offset < size:
        begin, length = random.randrange(BODIES - 1800), random.randrange(200, 1800)
        properties = encode_properties(
            {
                "KEYS": f"order-{count}",
                "TAGS": ("paid", "sent", "refused")[count % 3],
                "UNIQ_KEY": f"{count:032X}",
                "CLUSTER": "DefaultCluster",
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "customer": str(count % 1000),
            }
        )
        origin = Origin(NOW_MS + count // 100, NOW_MS + count // 100, host)
        body = noise[begin : begin + length]
        store.put(TOPICS[count % 4], count // 4 % 4, body, properties, origin)
        count += 1
        if store.pending_size > COMMIT_SIZE:
            store.commit()
    store.commit()
    end = store.end_offset
    store.close(NOW_MS)
    return count, end


def best(rounds: int, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round."""
    seconds: list[float] = []
    for _ in range(rounds):
        memory.had(WRITTEN_MIB)
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def frame(spark: SparkSession, folder: str, columns: str, **options: object) -> DataFrame:
    """Return a store's messages with some of the columns."""
    reading = spark.read.format("cometmq-store").option("columns", columns)
    for name, value in options.items():
        reading = reading.option(name, value)
    found: DataFrame = reading.load(folder)
    return found


def drop(frame: DataFrame) -> None:
    """Read a frame to its end."""
    frame.write.format("noop").mode("overwrite").save()


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a store, scan it in several ways, and print how fast that was."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mib", type=int, default=512, help="size of the store")
    parser.add_argument("--master", default="local[2]", help="of Spark")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    from cometmq.pipeline import session
    from cometmq.pipeline.columns import HEADER_COLUMNS
    from cometmq.pipeline.jobs.audit import AuditSettings, audit

    spark = session(master=asked.master)
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
        rows, size = fill(folder, asked.mib * _MIB)
        print(f"{rows:,} messages, {size / 1e6:,.0f} MB of log, {asked.master}\n")
        header = ", ".join(HEADER_COLUMNS)
        plain = ", ".join(name for name in HEADER_COLUMNS if name not in TEXTS)
        drop(frame(spark, folder, "topic"))
        for name, columns, options in (
            ("default columns", "", {}),
            ("all columns", "*", {}),
            ("all columns, no checksums", "*", {"checksums": "false"}),
            ("all but properties and body", header, {"checksums": "false"}),
            ("what the head alone says", plain, {"checksums": "false"}),
            ("topic, queue, offset, body", "topic, queue_id, queue_offset, body", {}),
        ):
            seconds = best(asked.rounds, lambda: drop(frame(spark, folder, columns, **options)))  # noqa: B023  # called at once
            print(f"{name:<30} {rows / seconds:>10,.0f} rows/s {size / seconds / 1e6:>7,.0f} MB/s")
        settings = AuditSettings(store=folder, check="log")
        seconds = best(asked.rounds, lambda: audit(spark, settings))
        print(f"{'audit of checksums':<30} {rows / seconds:>10,.0f} rows/s", end=" ")
        print(f"{size / seconds / 1e6:>7,.0f} MB/s")
    spark.stop()


if __name__ == "__main__":
    main()
