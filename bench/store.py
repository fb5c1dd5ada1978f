"""`python -m bench.store [--directory DIR] [PART...]`: the store's speed, without sockets.

Every figure is also given as a multiple of the cost of `os.pwrite` of 1.2 KiB into an allocated
file, measured at the same moment, as absolute times depend on the machine. The least of many rounds
counts, as noise only adds. Appends are measured by `bench.store_appends`.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # As `python bench/store.py`, with which Python only looks in this folder.
    sys.path[0] = str(Path(__file__).parent.parent)

from bench import memory, store_appends, store_queues
from bench.store_appends import per_mille
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.cold import Cold
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore
from cometmq.store.upkeep.checkpoint import CheckpointFile, Claims, Longs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BODY = bytes(range(256)) * 4
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
ORIGIN = Origin(1_700_000_000_000, 1_700_000_000_000, HOST)
ORIGIN_PARTS = (ORIGIN.now_ms, ORIGIN.born_timestamp, HOST)
RECORD_SIZE = 1230
ASYNC = StoreConfig(flush=Flush.ASYNC, segment_size=1 << 28, unsynced_size_max=1 << 40)
SYNC = StoreConfig(segment_size=1 << 28)
ROUNDS = 40
TOPICS = 10_000
WANTED_PWRITE = 1.8
GIB = 1 << 30
WRITTEN_MIB = 3072
"""More than nearly all parts write."""


def properties(number: int) -> bytes:
    """Return sixty bytes of properties with a distinct key."""
    return b"UNIQ_KEY\x017F000001000055B5%016X\x02TAGS\x01TagA\x02WAIT\x01true\x02" % number


PROPERTIES = [properties(number) for number in range(100_000)]


def least(
    once: Callable[[int], object],
    count: int,
    rounds: int = ROUNDS,
    clock: Callable[[], int] = time.perf_counter_ns,
    after: Callable[[], None] = lambda: None,
) -> float:
    """Return the microseconds of one of the `count` things that a round does, in the best round.

    `after` is called after each round and not timed.
    """
    best = float("inf")
    for number in range(rounds):
        started = clock()
        once(number)
        best = min(best, clock() - started)
        after()
    return best / count / 1000


class Bench:
    """The folder, the yardstick, and the lines printed."""

    def __init__(self, folder: Path, cold_gib: float, items: int) -> None:
        self.folder = folder
        self.cold_gib = cold_gib
        self.items = items
        self.descriptor = os.open(folder / "yardstick", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self.descriptor, 0, ROUNDS * 500 * RECORD_SIZE)

    def pwrite(self) -> float:
        """Return the microseconds of the yardstick now."""
        data = b"x" * RECORD_SIZE

        def write(number: int) -> None:
            for index in range(number * 500, number * 500 + 500):
                os.pwrite(self.descriptor, data, index * RECORD_SIZE)

        return least(write, 500)

    def line(self, name: str, microseconds: float, wanted: float | None = None) -> None:
        """Print one figure as a multiple of the yardstick, with the wanted value.

        The wanted value is for a machine on which the yardstick takes 1.8 µs.
        """
        yardstick = self.pwrite()
        target = "" if wanted is None else f"{wanted / WANTED_PWRITE:.2f}"
        print(
            f"| {name} | {microseconds:.2f} | {microseconds / yardstick:.2f} | {target}"
            f" | {yardstick:.2f} |",
            flush=True,
        )

    def open(self, name: str, config: StoreConfig) -> MessageStore:
        """Open a store of this bench."""
        return MessageStore.open(str(self.folder / name), config, now_ms=1)


def drain(store: MessageStore, now_ms: int) -> None:
    """Do pending work: write queues, index keys."""
    while store.tick(now_ms):
        pass


def append(bench: Bench) -> None:
    """Measure appends: one per turn, 32 per turn, and batches, by the calls that a broker makes."""
    store_appends.run(str(bench.folder))


def put_32(store: MessageStore, number: int) -> None:
    """Put a batch of 32, starting with message `number`, and commit."""
    batch = [(0, BODY, PROPERTIES[i % 100_000]) for i in range(number, number + 32)]
    store.put_batch("T", number >> 5 & 7, batch, ORIGIN)
    store.commit()


def sync(bench: Bench) -> None:
    """Compare sync flush with async: turns of 64 and of 32, one waiting while the next is put."""
    stores = [
        (config, bench.open(f"sync-{config.flush.value}", config)) for config in (ASYNC, SYNC)
    ]
    for size in (64, 32):
        rates = [turns_of(size, store, config.flush) for config, store in stores]
        bench.line(f"async, {size} a turn, a message", rates[0])
        bench.line(f"sync, {size} waiting while the next {size} are put, a message", rates[1])
        print(f"\nsync flush has {rates[0] / rates[1]:.0%} of async throughput; wanted: 60%\n")
    for _, store in stores:
        store.close(1)


def turns_of(size: int, store: MessageStore, flush: Flush) -> float:
    """Return the microseconds per message if a turn may be put while the previous one waits."""

    def once(number: int) -> None:
        waiting = 0
        for index in range(number * 2048, number * 2048 + 2048, size):
            for each in range(index, index + size):
                store.put("T", each & 7, BODY, PROPERTIES[each % 100_000], ORIGIN)
            end = store.commit()
            while flush is Flush.SYNC and store.advance() < waiting:
                time.sleep(0)
            waiting = end

    return least(once, 2048)


def read(bench: Bench) -> None:
    """Measure reads of thirty-two neighbours at a time."""
    store = bench.open("read", ASYNC)
    for index in range(0, 32_000, 32):
        batch = [(0, BODY, PROPERTIES[i]) for i in range(index, index + 32)]
        store.put_batch("T", 0, batch, ORIGIN)
        store.commit()

    def reads(number: int) -> None:
        for index in range(50):
            result = store.read("T", 0, (number * 50 + index) % 1000 * 32, 32)
            assert result.record_count == 32

    bench.line("read of 32 neighbours", least(reads, 50), 8)
    store.close(1)


def recover(bench: Bench) -> None:
    """Measure an unclean start that must read 256 MiB, with nothing known to be synced."""
    config = StoreConfig(flush=Flush.ASYNC, segment_size=1 << 28, unsynced_size_max=1 << 40)
    store = bench.open("recover", config)
    count = (200 << 20) // RECORD_SIZE
    for index in range(0, count, 32):
        put_32(store, index)
    size = store.end_offset
    copy = bench.folder / "recovered"
    # What a kill leaves: the files as they are, including `abort`.
    shutil.copytree(bench.folder / "recover", copy)
    store.close(1)
    started = time.perf_counter()
    store = bench.open("recovered", config)
    seconds = time.perf_counter() - started
    assert store.end_offset == size
    per_gib = seconds * (1 << 30) / size
    print(f"\nunclean start: {seconds:.2f} s for {size >> 20} MiB, {per_gib:.2f} s per GiB")
    print("wanted: 4 s per GiB\n")
    store.close(1)


def quick_put(store: MessageStore) -> Callable[[str, int, bytes], None]:
    """Return a function that puts a message as the send handler does."""
    tail = PROPERTIES[0].partition(b"\x02")[2]

    def send(topic: str, queue_id: int, properties: bytes) -> None:
        put = store.put_quick(topic, queue_id, BODY, properties, tail, *ORIGIN_PARTS, 0, 0, 0, 0)
        assert put is not None, properties

    return send


def many_queues(bench: Bench) -> None:
    """Compare ten thousand topics of eight queues with one topic, in this thread's CPU time.

    It measures puts, as a broker's send handler makes them, and commits; pending keys are indexed
    between the rounds.
    """
    store = bench.open("many", ASYNC)
    store.note_alike(PROPERTIES[0])
    topics = [f"topic-{number:05d}" for number in range(TOPICS)]
    gc.collect()
    before = store_queues.resident_bytes()
    for topic in topics:
        for queue_id in range(8):
            store.put(topic, queue_id, b"", PROPERTIES[0], ORIGIN)
        store.commit()
    for queue_id in range(8):
        store.put("T", queue_id, b"", PROPERTIES[0], ORIGIN)
    store.commit()
    drain(store, 10**9)
    drain(store, 10**9 + 5000)  # The entries are now old enough to be written to their files.
    written = sum(1 for _ in (bench.folder / "many" / "consumequeue").glob("*/*/*"))
    assert written == 8 * TOPICS + 8, written
    gc.collect()
    grown = (store_queues.resident_bytes() - before) >> 20
    one, spread = ["T"] * TOPICS, [topics[n * 7919 % TOPICS] for n in range(TOPICS)]
    shares: list[float] = []
    for name, rounds in (("32 a turn", puts), ("in batches of 32", batches)):
        alone, over_all = (
            least(
                rounds(store, names),
                1024,
                clock=time.thread_time_ns,
                after=lambda: drain(store, 10**9 + 5000),
            )
            for names in (one, spread)
        )
        bench.line(f"append, {name}, one topic", alone)
        bench.line(f"append, {name}, over 80,000 queues", over_all)
        shares.append(alone / over_all)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    print(f"\n{shares[0]:.0%} of one topic's throughput, {shares[1]:.0%} in batches,")
    print(f"{grown} MiB, {descriptors} files; wanted: 90%, 150 MiB, 2,000 files\n")
    store.close(1)


def puts(store: MessageStore, names: Sequence[str]) -> Callable[[int], None]:
    """Return a round of 1,024 puts, 32 per turn, each to the next topic."""
    send = quick_put(store)

    def once(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024, 32):
            for each in range(index, index + 32):
                send(names[each % TOPICS], each & 7, PROPERTIES[each])
            store.commit()

    return once


def batches(store: MessageStore, names: Sequence[str]) -> Callable[[int], None]:
    """Return a round of 1,024 messages in batches, each to the next topic."""

    def once(number: int) -> None:
        for index in range(number * 1024, number * 1024 + 1024, 32):
            batch = [(0, BODY, PROPERTIES[each]) for each in range(index, index + 32)]
            store.put_batch(names[(index >> 5) % TOPICS], index >> 5 & 7, batch, ORIGIN)
            store.commit()

    return once


def in_a_process_of_its_own(bench: Bench) -> None:
    """Measure the memory of many queues in a process that has used no other."""
    command = [sys.executable, "-m", "bench.store", "--directory", str(bench.folder)]
    subprocess.run([*command, "_queues"], check=True)


def large_start(bench: Bench) -> None:
    """Measure an unclean start of 100 GiB, with 64 MiB written since the last checkpoint."""
    root = bench.folder / "large"
    config = StoreConfig(flush=Flush.ASYNC, unsynced_size_max=1 << 40)
    for folder in ("commitlog", "consumequeue", "index"):
        (root / folder).mkdir(parents=True)
    for number in range(100):
        with (root / "commitlog" / f"{number * GIB:020d}").open("wb") as file:
            file.truncate(GIB)
    end = 100 * GIB
    claims = Claims(recover_from=end, verify_from=end, synced_offset=end, segment_size=GIB)
    checkpoint = CheckpointFile(RealFileSystem(), str(root / "checkpoint"))
    checkpoint.write(Longs(), claims)
    checkpoint.close()
    if (child := os.fork()) == 0:
        store = bench.open("large", config)
        for index in range(0, (64 << 20) // RECORD_SIZE, 32):
            put_32(store, index)
        os._exit(0)
    os.waitpid(child, 0)
    started = time.perf_counter()
    store = bench.open("large", config)
    print(f"\nunclean start of 100 GiB: {time.perf_counter() - started:.2f} s; wanted: 3 s\n")
    assert store.end_offset > end + (60 << 20)
    store.close(1)


def cold_reader(bench: Bench) -> None:
    """Measure appends, alone and while a thread reads what is not in the page cache."""
    store = bench.open("cold", ASYNC)
    size = int(bench.cold_gib * GIB)
    number = 0
    while store.end_offset < size:
        put_32(store, number := number + 32)
        if number % 8192 == 0:
            drain(store, number)
    paths = sorted((bench.folder / "cold" / "commitlog").iterdir())
    for path in paths:
        descriptor = os.open(path, os.O_RDWR)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

    def read() -> None:
        for offset in range(0, size, 1 << 16):
            position = offset % ASYNC.segment_size
            path = str(paths[offset // ASYNC.segment_size])
            store.fetch(Cold(path, position, 1 << 16, offset))

    def calls_while(busy: Callable[[], bool]) -> list[int]:
        nonlocal number
        calls: list[int] = []
        while busy():
            started = time.perf_counter_ns()
            put_32(store, number := number + 32)
            calls.append(time.perf_counter_ns() - started)
            time.sleep(0.001)
        return calls

    until = time.monotonic() + 5
    alone = calls_while(lambda: time.monotonic() < until)
    reader = threading.Thread(target=read)
    reader.start()
    beside = calls_while(reader.is_alive)
    bench.line("append of 32, p99 of a call, alone", per_mille(alone, 990))
    bench.line(f"the same beside {bench.cold_gib} GiB read cold", per_mille(beside, 990))
    print(f"\nwanted: at most twice; {per_mille(beside, 990) / per_mille(alone, 990):.1f} times\n")
    store.close(1)


def key_lookup(bench: Bench) -> None:
    """Measure the lookup of a key in a full index file; wanted: 100 µs."""
    report = store_queues.Report(str(bench.folder))
    store_queues.index(report, str(bench.folder / "keys"), bench.items)


PARTS: dict[str, Callable[[Bench], None]] = {
    "append": append,
    "sync": sync,
    "read": read,
    "recover": recover,
    "queues": in_a_process_of_its_own,
    "large": large_start,
    "cold": cold_reader,
    "keys": key_lookup,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all parts, or the named ones, in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--cold-gib", type=float, default=4, help="read by the cold reader")
    parser.add_argument("--items", type=int, default=19_900_000, help="keys in the index")
    chosen = parser.parse_args(arguments)
    if unknown := [part for part in chosen.part if part not in {*PARTS, "_queues"}]:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    directory: str | None = chosen.directory
    folder = Path(tempfile.mkdtemp(dir=directory))
    gc.collect()
    gc.freeze()  # As the broker does after its start.
    gc.set_threshold(100_000, 50, 50)
    try:
        cold_gib: float = chosen.cold_gib
        items: int = chosen.items
        bench = Bench(folder, cold_gib, items)
        if chosen.part == ["_queues"]:
            many_queues(bench)
            return
        crc = least(lambda _: [zlib.crc32(BODY) for _ in range(500)], 500)
        print(f"zlib.crc32 of 1 KiB: {crc:.2f} µs\n")
        print("| what | µs | times `pwrite` of 1.2 KiB | wanted | that `pwrite`, µs |")
        print("|---|---|---|---|---|", flush=True)
        for name in chosen.part or PARTS:
            memory.had(WRITTEN_MIB)
            PARTS[name](bench)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
