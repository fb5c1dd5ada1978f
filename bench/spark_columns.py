"""The time that a reader's Python takes per row to turn bytes into columns, without Spark.

    python -m bench.spark_columns [--mib 256] [--rounds 5]

It reads a log with checksums, whose messages are like those of `bench.spark_store`, and pull
answers of 4 MiB with messages of 1 KiB, with all columns. It prints µs of CPU time per row, least
and median of the rounds after the first. Run it in turn with another version of the code to compare
the two.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from bench.spark_store import BODIES, NOW_MS, TOPICS
from cometmq.pipeline.columns import ALL_COLUMNS
from cometmq.pipeline.records import Reading, layout_batches, record_batches
from cometmq.pipeline.store.scan import Damage, Part, scan
from cometmq.proto.host import pack_host
from cometmq.proto.record import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

ANSWERS: Final = 40
ANSWER_SIZE: Final = 4 << 20
BODY: Final = b"0123456789abcdef" * 64
HOST: Final = pack_host("127.0.0.1", 10911)


def record(number: int, at: int, topic: str, body: bytes, properties: bytes) -> bytes:
    """Make the record of a message."""
    return encode_record(
        topic=topic.encode(),
        queue_id=number // 4 % 4,
        queue_offset=number,
        physical_offset=at,
        born_timestamp=NOW_MS + number // 100,
        born_host=HOST,
        store_timestamp=NOW_MS + number // 100,
        store_host=HOST,
        body=body,
        properties=properties,
    )


def fill(path: Path, size: int) -> None:
    """Write a log of about this size."""
    random = Random(1)
    noise = random.randbytes(BODIES)
    number = at = 0
    with path.open("wb") as file:
        while at < size:
            begin, length = random.randrange(BODIES - 1800), random.randrange(200, 1800)
            properties = (
                b"KEYS\x01order-%d\x02TAGS\x01%b\x02UNIQ_KEY\x01%032X\x02CLUSTER\x01DefaultCluster\x02"
                b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02customer\x01%d\x02"
                % (number, (b"paid", b"sent", b"refused")[number % 3], number, number % 1000)
            )
            body = noise[begin : begin + length]
            at += file.write(record(number, at, TOPICS[number % 4], body, properties))
            number += 1


def log_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a log's messages."""
    size = path.stat().st_size
    for found in scan(Part(str(path.parent), str(path), 0, 0, size, size, size), checksums=True):
        if isinstance(found, Damage):
            raise SystemExit(f"damage: {found}")
        yield from layout_batches(found, ALL_COLUMNS, Reading())


def answers() -> list[bytes]:
    """Make answers to pulls, each of as many messages as fit."""
    made: list[bytes] = []
    number = 0
    for _ in range(ANSWERS):
        records: list[bytes] = []
        size = 0
        while size < ANSWER_SIZE:
            properties = b"UNIQ_KEY\x01%032X\x02" % number
            records.append(record(number, number * 1200, "read", BODY, properties))
            size += len(records[-1])
            number += 1
        made.append(b"".join(records))
    return made


def answer_batches(made: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of answers."""
    for answer in made:
        yield from record_batches(answer, broker="broker-a", queue_offsets=(0, 1 << 62))


def measure(name: str, rounds: int, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
    """Print the time of a row."""
    taken: list[float] = []
    rows = count = 0
    for _ in range(rounds + 1):
        gc.collect()
        rows = count = 0
        began = time.process_time()
        for batch in batches():
            rows += batch.num_rows
            count += 1
        taken.append((time.process_time() - began) / rows * 1e6)
    least, median = min(taken[1:]), sorted(taken[1:])[rounds // 2]
    print(f"{name:<8} {least:.3f} {median:.3f} µs a row, {rows / count:,.0f} rows a batch")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_columns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mib", type=int, default=256, help="size of the log")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
        path = Path(folder) / "00000000000000000000"
        fill(path, asked.mib << 20)
        measure("log", asked.rounds, lambda: log_batches(path))
    made = answers()
    measure("answers", asked.rounds, lambda: answer_batches(made))


if __name__ == "__main__":
    main()
