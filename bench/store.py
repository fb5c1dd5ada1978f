"""`python -m bench.store [DIR]`: the store's speed, without sockets.

Every figure stands beside the cost of `os.pwrite` of 1.2 KiB into an allocated file, measured in
the same moment, and is given as a multiple of it: absolute times are of the machine. "Everything"
includes the ConsumeQueue entry on its way to its file, and both index entries (a distinct unique
key and the tags) built. The least of many rounds counts, for noise only adds.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.store.config import Flush, StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BODY = bytes(range(256)) * 4
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
ORIGIN = Origin(1_700_000_000_000, 1_700_000_000_000, HOST)
RECORD_SIZE = 1230
ASYNC = StoreConfig(flush=Flush.ASYNC, segment_size=1 << 28, unsynced_size_max=1 << 40)
SYNC = StoreConfig(segment_size=1 << 28)
ROUNDS = 40


def properties(number: int) -> bytes:
    """Sixty bytes with a key of their own."""
    return b"UNIQ_KEY\x017F000001000055B5%016X\x02TAGS\x01TagA\x02WAIT\x01true\x02" % number


PROPERTIES = [properties(number) for number in range(100_000)]


def least(once: Callable[[int], object], count: int, rounds: int = ROUNDS) -> float:
    """Microseconds of one of the `count` things that a round does, in the best round."""
    best = float("inf")
    for number in range(rounds):
        started = time.perf_counter_ns()
        once(number)
        best = min(best, time.perf_counter_ns() - started)
    return best / count / 1000


class Bench:
    """The folder, the yardstick, and the lines printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.descriptor = os.open(folder / "yardstick", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self.descriptor, 0, ROUNDS * 500 * RECORD_SIZE)

    def pwrite(self) -> float:
        """Microseconds of the yardstick, now."""
        data = b"x" * RECORD_SIZE

        def write(number: int) -> None:
            for index in range(number * 500, number * 500 + 500):
                os.pwrite(self.descriptor, data, index * RECORD_SIZE)

        return least(write, 500)

    def line(self, name: str, microseconds: float) -> None:
        """Print one figure as a multiple of the yardstick."""
        yardstick = self.pwrite()
        print(f"| {name} | {microseconds:.2f} | {microseconds / yardstick:.2f} | {yardstick:.2f} |")

    def open(self, name: str, config: StoreConfig) -> MessageStore:
        """Open a store of this bench."""
        return MessageStore.open(str(self.folder / name), config, now_ms=1)


def drain(store: MessageStore, now_ms: int) -> None:
    """Do what waits: queues written, keys indexed."""
    while store.tick(now_ms):
        pass


def append(bench: Bench) -> None:
    """One a call, and 32 a call, everything included."""
    store = bench.open("append", ASYNC)

    def one(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024):
            store.put("T", index & 7, BODY, PROPERTIES[index], ORIGIN)
            store.commit()
        drain(store, number * 5000)

    bench.line("append, one a call, everything", least(one, 1024))
    calls: list[int] = []

    def many(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024, 32):
            started = time.perf_counter_ns()
            batch = [(0, BODY, PROPERTIES[i]) for i in range(index, index + 32)]
            store.put_batch("T", index >> 5 & 7, batch, ORIGIN)
            store.commit()
            calls.append(time.perf_counter_ns() - started)
        drain(store, 10**6 + number * 5000)

    bench.line("append, 32 a call, everything, a message", least(many, 1024))
    calls.sort()
    bench.line("append, 32 a call, p99.9 of a call", calls[len(calls) * 999 // 1000] / 1000)
    store.close(1)


def sync(bench: Bench) -> None:
    """With 64 sends waiting at a time: sync flush beside async."""
    rates: list[float] = []
    for config in (ASYNC, SYNC):
        store = bench.open(f"sync-{config.flush.value}", config)

        def windows(number: int, store: MessageStore = store, config: StoreConfig = config) -> None:
            waiting = 0
            for index in range(number * 2048, number * 2048 + 2048, 32):
                for each in range(index, index + 32):
                    store.put("T", each & 7, BODY, PROPERTIES[each % 100_000], ORIGIN)
                end = store.commit()
                # Two turns of 32: while one waits for the disk, the next is written.
                while config.flush is Flush.SYNC and store.advance() < waiting:
                    time.sleep(0)
                waiting = end

        rates.append(least(windows, 2048))
        store.close(1)
    bench.line("async, 64 in flight, a message", rates[0])
    bench.line("sync, 64 in flight, a message", rates[1])
    print(f"\nsync flush has {rates[0] / rates[1]:.0%} of async throughput\n")


def read(bench: Bench) -> None:
    """Thirty-two neighbours at a time."""
    store = bench.open("read", ASYNC)
    for index in range(0, 32_000, 32):
        batch = [(0, BODY, PROPERTIES[i]) for i in range(index, index + 32)]
        store.put_batch("T", 0, batch, ORIGIN)
        store.commit()

    def reads(number: int) -> None:
        for index in range(50):
            result = store.read("T", 0, (number * 50 + index) % 1000 * 32, 32)
            assert result.record_count == 32

    bench.line("read of 32 neighbours", least(reads, 50))
    store.close(1)


def recover(bench: Bench) -> None:
    """An unclean start that must read 256 MiB back, with nothing known to be synced."""
    config = StoreConfig(flush=Flush.ASYNC, segment_size=1 << 28, unsynced_size_max=1 << 40)
    store = bench.open("recover", config)
    count = (200 << 20) // RECORD_SIZE
    for index in range(0, count, 32):
        batch = [(0, BODY, PROPERTIES[i % 100_000]) for i in range(index, index + 32)]
        store.put_batch("T", index >> 5 & 7, batch, ORIGIN)
        store.commit()
    size = store.end_offset
    copy = bench.folder / "recovered"
    # What a kill leaves: the files as they are, `abort` among them.
    shutil.copytree(bench.folder / "recover", copy)
    store.close(1)
    started = time.perf_counter()
    store = bench.open("recovered", config)
    seconds = time.perf_counter() - started
    assert store.end_offset == size
    per_gib = seconds * (1 << 30) / size
    print(f"\nunclean start: {seconds:.2f} s for {size >> 20} MiB, {per_gib:.2f} s per GiB\n")
    store.close(1)


def many_queues(bench: Bench) -> None:
    """Ten thousand topics of eight queues, beside one topic."""
    store = bench.open("many", ASYNC)
    topics = [f"topic-{number:05d}" for number in range(10_000)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for topic in topics:
        for queue_id in range(8):
            store.put(topic, queue_id, b"", b"", ORIGIN)
        store.commit()
    drain(store, 10**9)

    def one(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024, 32):
            for each in range(index, index + 32):
                store.put("T", each & 7, BODY, PROPERTIES[each], ORIGIN)
            store.commit()

    def all_of_them(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024, 32):
            for each in range(index, index + 32):
                topic = topics[each * 7919 % 10_000]
                store.put(topic, each & 7, BODY, PROPERTIES[each], ORIGIN)
            store.commit()

    alone, spread = least(one, 1024), least(all_of_them, 1024)
    bench.line("append, 32 a turn, one topic", alone)
    bench.line("append, 32 a turn, over 80,000 queues", spread)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    print(f"\n{alone / spread:.0%} of one topic's throughput, {grown} MiB, {descriptors} files\n")
    store.close(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all of it, in a folder that is removed again."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("directory", nargs="?", help="on the disk to measure")
    directory: str | None = parser.parse_args(arguments).directory
    folder = Path(tempfile.mkdtemp(dir=directory))
    gc.collect()
    gc.freeze()  # As the broker does after its start.
    gc.set_threshold(100_000, 50, 50)
    crc = least(lambda _: [zlib.crc32(BODY) for _ in range(500)], 500)
    print(f"zlib.crc32 of 1 KiB: {crc:.2f} µs\n")
    print("| what | µs | times `pwrite` of 1.2 KiB | that `pwrite`, µs |\n|---|---|---|---|")
    try:
        bench = Bench(folder)
        for part in (append, sync, read, recover, many_queues):
            part(bench)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
