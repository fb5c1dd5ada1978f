"""`python -m bench.store_queues [--queues N] [--items N] ...`: ConsumeQueues and index.

Figures are absolute, and multiples of one `os.pwrite` of 1.2 KiB into an allocated file on the same
disk, measured in the same minute. With the default numbers it needs some 1.5 GB there.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import microseconds_each
from cometmq.store.config import StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.index.index import Index
from cometmq.store.queues.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVERYTHING = 1 << 62
RECORD_SIZE = 1229
BATCH = 4096
QUEUES_PER_TOPIC = 8
TOPIC = b"TopicTest"
CONFIG = StoreConfig()


def pwrite_microseconds(directory: str) -> float:
    """Return the microseconds of the yardstick: consecutive `os.pwrite` calls of 1.2 KiB."""
    path = f"{directory}/yardstick"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 64 << 20)
    record = bytes(RECORD_SIZE)
    position = 0

    def write() -> None:
        nonlocal position
        os.pwrite(descriptor, record, position)
        position = (position + RECORD_SIZE) % (63 << 20)

    each = microseconds_each(write)
    os.close(descriptor)
    Path(path).unlink()
    return each


class Report:
    """Prints each figure, also as a multiple of the yardstick."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def line(self, name: str, microseconds: float) -> None:
        """Print one figure."""
        yardstick = pwrite_microseconds(self._directory)
        times = microseconds / yardstick
        print(f"{name:58} {microseconds:9.3f} µs {times:8.2f} times pwrite ({yardstick:.2f} µs)")

    def once(self, name: str, count: int, run: Callable[[], object]) -> None:
        """Time something that can only be done once."""
        started = time.perf_counter_ns()
        run()
        self.line(name, (time.perf_counter_ns() - started) / count / 1000)


def resident_bytes() -> int:
    """Return the resident memory of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    """Return how many files the process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def one_queue(report: Report, directory: str) -> None:
    """Append to and read from one queue."""
    queues = ConsumeQueues(RealFileSystem(), directory, CONFIG, clean=True)
    queue = queues.simple.get("t", 0)
    append = queue.append
    at = 0

    def append_many() -> None:
        nonlocal at
        for offset in range(at, at + 100_000 * RECORD_SIZE, RECORD_SIZE):
            append(offset, RECORD_SIZE, 2598919)
        at += 100_000 * RECORD_SIZE

    report.line("append of an entry", microseconds_each(append_many, 100_000))
    last = queue.max_offset - 32
    report.line("read of the last 32 entries", microseconds_each(lambda: queue.read(last, 32)))
    queues.write_behind(EVERYTHING, EVERYTHING)
    report.line("read of 32 entries from a file", microseconds_each(lambda: queue.read(64, 32)))
    queues.close()


def many_queues(report: Report, directory: str, count: int) -> None:
    """Open, fill, write and load as many queues as the largest brokers have."""
    gc.collect()
    before = resident_bytes()
    queues = ConsumeQueues(RealFileSystem(), directory, CONFIG, clean=True)
    get = queues.simple.get
    names = [(f"topic-{n // QUEUES_PER_TOPIC}", n % QUEUES_PER_TOPIC) for n in range(count)]

    def touch() -> None:
        for n, (topic, queue_id) in enumerate(names):
            get(topic, queue_id).append(n * RECORD_SIZE, RECORD_SIZE, 0)

    report.once(f"first entry of each of {count} queues", count, touch)
    gc.collect()
    print(f"{'':58} {(resident_bytes() - before) / count:9.0f} bytes a queue")
    report.once(
        "write-behind, a new file each", count, lambda: queues.write_behind(EVERYTHING, EVERYTHING)
    )
    report.once("append and find, round robin", count, touch)
    report.once(
        "write-behind, a file each", count, lambda: queues.write_behind(EVERYTHING, EVERYTHING)
    )
    print(f"{'':58} {descriptors():9} descriptors")
    unsynced = queues.take_unsynced()
    report.once(f"sync of {len(unsynced)} files and folders", len(unsynced), unsynced.sync)
    queues.close()
    again = ConsumeQueues(RealFileSystem(), directory, CONFIG, clean=True)
    report.once("load of a queue", count, lambda: sum(1 for _ in again.simple.walk()))
    again.close()
    unclean = ConsumeQueues(RealFileSystem(), directory, CONFIG, clean=False)
    unclean.truncate(EVERYTHING)
    report.once("load of a queue after an unclean stop", count, lambda: list(unclean.settle()))
    unclean.close()


def index(report: Report, directory: str, items: int) -> None:
    """Build a full index file and query it."""
    from cometmq.store.index.index_hash import record_hashes

    properties = [b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % n for n in range(BATCH)]
    topics = [TOPIC] * BATCH
    report.line(
        "hash of a record's key",
        microseconds_each(lambda: record_hashes(topics, properties), BATCH),
    )
    made = Index(RealFileSystem(), directory, CONFIG, clean=True)
    number = 0

    def add(count: int) -> None:
        nonlocal number
        for _ in range(count):
            made.add(
                TOPIC, b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02" % number, number * 1229, number
            )
            number += 1

    for batch in (512, BATCH):
        least = float("inf")
        for _ in range(40):
            add(batch)
            started = time.perf_counter_ns()
            made.build(batch, 0)
            least = min(least, (time.perf_counter_ns() - started) / batch / 1000)
        report.line(f"key into the index, {batch} a batch, extraction included", least)
    while number < items:
        add(BATCH)
        made.build(BATCH, 0)
    asked = 0

    def query() -> None:
        nonlocal asked
        asked = (asked + 7919 * 31) % number
        assert asked * 1229 in made.search("TopicTest", f"{asked:032X}", 64).run()

    report.line(f"query of a key in {items} items", microseconds_each(query))
    report.once("writing of the slots", 1, lambda: made.finish(0))
    made.close()
    unclean = Index(RealFileSystem(), directory, CONFIG, clean=False)
    report.once(
        "recovery of the file, synced before", 1, lambda: unclean.recover(EVERYTHING, synced=True)
    )
    unclean.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="python -m bench.store_queues", description=__doc__)
    parser.add_argument("--queues", type=int, default=80_000)
    parser.add_argument("--items", type=int, default=19_900_000)
    parser.add_argument("--directory", help="on the disk to measure")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        report = Report(directory)
        one_queue(report, f"{directory}/one")
        many_queues(report, f"{directory}/many", options.queues)
        index(report, f"{directory}/index", options.items)


if __name__ == "__main__":
    main()
