"""`python -m bench.store_appends [--directory]`: appends by the calls that a broker makes.

A single send is one `put_quick`, which the send handler calls with the properties cut after the
unique id, as it has looked at them; a batch is one `put_raw_batch` of the body as received. The end
of a turn is one `commit`. `tick` does the work that turns leave, in a broker every few
milliseconds, here once per round. So "everything" is: the record with its checksum, its share of
the write, the ConsumeQueue entry on its way into its file, and both index entries (a distinct
unique key and the tags) in their files. The rest of the handler is measured by `bench.path`.

Bodies and properties are made right before a round is timed, as by the read of a socket, so nothing
is colder than there. The time is the thread's CPU time. So is that of the yardstick, one
`os.pwrite` of 1.2 KiB into new pages of an allocated file, timed between the rounds. The least of
many rounds counts, as noise only adds.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from bench import memory
from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOST: Final = b"\x7f\0\0\x01\0\0\x2a\x9f"
BORN_MS: Final = 1_700_000_000_000
ORIGIN: Final = Origin(BORN_MS, BORN_MS, HOST)
MORE: Final = b"WAIT\x01true\x02"
"""A stand-in for what a broker adds to each message."""
TAIL: Final = b"TAGS\x01TagA\x02" + MORE
RECORD_SIZE: Final = 1230
ROUND: Final = 1024
"""Messages of a round: as many as the index takes at once if a broker is busy."""
ROUNDS: Final = 40
QUEUES: Final = 8
BATCH: Final = 32
CONFIG: Final = StoreConfig(flush=Flush.ASYNC, segment_size=1 << 28, unsynced_size_max=1 << 40)
WRITTEN_MIB: Final = 1024
"""More than a case writes."""
WANTED_PWRITE: Final = 1.8
"""Microseconds of the yardstick on the machine for which the wanted figures are."""


class Case(NamedTuple):
    """A way of appending: it is prepared for `count` messages from a number on, and then called."""

    name: str
    turn_size: int
    ready: Callable[[MessageStore, int, int], Callable[[], None]]
    wanted: float


def unique_id(number: int) -> bytes:
    """Return a unique id's pair of properties."""
    return b"UNIQ_KEY\x017F000001000055B5%016X\x02" % number


def bodies(count: int) -> list[bytes]:
    """Make bodies of 1 KiB, each in separate memory."""
    return [bytes([number & 0xFF]) + bytes(range(1, 256)) * 4 + b"end" for number in range(count)]


def singles(size: int) -> Callable[[MessageStore, int, int], Callable[[], None]]:
    """Return a function that prepares turns of `size` single sends."""

    def ready(store: MessageStore, first: int, count: int) -> Callable[[], None]:
        put_quick, commit = store.put_quick, store.commit
        sends = [
            (number % QUEUES, body, unique_id(number) + TAIL)
            for number, body in enumerate(bodies(count), first)
        ]
        turns = [sends[begin : begin + size] for begin in range(0, count, size)]

        def run() -> None:
            for turn in turns:
                for queue_id, body, properties in turn:
                    put = put_quick(
                        "T", queue_id, body, properties, TAIL, BORN_MS, BORN_MS, HOST, 0, 0, 0, 0
                    )
                    if put is None:
                        raise _unlike(properties)
                commit()

        return run

    return ready


def batches(store: MessageStore, first: int, count: int) -> Callable[[], None]:
    """Prepare turns of one batch each."""
    tags = TAIL[: -len(MORE)]
    items = [
        BatchItem(body, unique_id(number) + tags)
        for number, body in enumerate(bodies(count), first)
    ]
    raw = [encode_batch("T", items[begin : begin + BATCH]) for begin in range(0, count, BATCH)]

    def run() -> None:
        for number, batch in enumerate(raw):
            if store.put_raw_batch("T", number % QUEUES, batch, MORE, ORIGIN) is None:
                raise _unlike(batch)
            store.commit()

    return run


def _unlike(what: bytes) -> AssertionError:
    return AssertionError(f"not taken the quick way: {what[:100]!r}")


CASES: Final = (
    Case("append of 1 KiB, one a turn", 1, singles(1), 4.5),
    Case("append of 1 KiB, 32 a turn", BATCH, singles(BATCH), 2.3),
    Case("append of 1 KiB, batches of 32, one a turn", BATCH, batches, 2.3),
)


class Yardstick:
    """Consecutive calls of `os.pwrite`, into a new file whose blocks are reserved.

    That is how a log is written; if the pages were in the page cache, it would take two thirds.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(self._descriptor, 0, ROUNDS * ROUND * RECORD_SIZE)
        self._position = 0

    def nanoseconds(self) -> int:
        """Time a round of them."""
        data = bytes(RECORD_SIZE)
        first, self._position = self._position, self._position + ROUND * RECORD_SIZE
        begun = time.thread_time_ns()
        for position in range(first, self._position, RECORD_SIZE):
            os.pwrite(self._descriptor, data, position)
        return time.thread_time_ns() - begun

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Measured(NamedTuple):
    """Microseconds per message in the best round."""

    puts: float
    """Puts and commits."""
    everything: float
    pwrite: float
    """The yardstick, timed between the rounds."""


def measure(store: MessageStore, case: Case, yardstick: Yardstick) -> Measured:
    """Time rounds of a case, including the work that they leave."""
    store.note_alike(unique_id(0) + TAIL)
    for queue_id in range(QUEUES):
        store.put("T", queue_id, b"x", unique_id(queue_id) + TAIL, ORIGIN)
    store.commit()
    _drain(store, 1)
    _load_index(store)
    puts = everything = pwrite = float("inf")
    clock = time.thread_time_ns
    for number in range(1, ROUNDS + 1):
        puts_and_commits = case.ready(store, number * ROUND, ROUND)
        begun = clock()
        puts_and_commits()
        between = clock()
        _drain(store, number * 5000)
        ended = clock()
        puts, everything = min(puts, between - begun), min(everything, ended - begun)
        pwrite = min(pwrite, yardstick.nanoseconds())
    return Measured(*(each / ROUND / 1000 for each in (puts, everything, pwrite)))


def _load_index(store: MessageStore) -> None:
    """Wait until the index is ready, which a thread prepares; until then nothing is indexed.

    Otherwise, rounds without any index would be the best ones. A query first indexes pending keys.
    """
    first = unique_id(0)[9:-1].decode()
    if not store.query("T", first, 1, begin_ms=0, end_ms=1 << 62, now_ms=1):
        raise AssertionError("nothing is indexed")


class TurnTimes(NamedTuple):
    """Nanoseconds of each turn, and of the yardstick after each."""

    by_clock: list[int]
    computed: list[int]
    """The CPU time of the turn's thread."""
    counting: list[int]
    """The wall-clock time of a loop of similar length that only counts: the machine's noise."""


def turn_times(store: MessageStore, case: Case) -> TurnTimes:
    """Time each turn.

    This is separate from `measure`, as reading two clocks costs as much as a put.
    """
    times = TurnTimes([], [], [])
    steps = 0
    for number in range(ROUNDS + 1, 2 * ROUNDS + 1):
        for first in range(number * ROUND, (number + 1) * ROUND, case.turn_size):
            turn = case.ready(store, first, case.turn_size)
            begun, computing = time.perf_counter_ns(), time.thread_time_ns()
            turn()
            times.computed.append(time.thread_time_ns() - computing)
            times.by_clock.append(time.perf_counter_ns() - begun)
            if steps:
                times.counting.append(_count(steps))
        _drain(store, number * 5000)
        steps = steps or sorted(times.by_clock)[len(times.by_clock) // 2] * 1000 // _count(1000)
    return times


def _count(steps: int) -> int:
    """Return the wall-clock nanoseconds of a loop of `steps` steps."""
    begun = time.perf_counter_ns()
    for _ in range(steps):
        pass
    return time.perf_counter_ns() - begun


def _drain(store: MessageStore, now_ms: int) -> None:
    """Do pending work: write queues, index keys."""
    while store.tick(now_ms):
        pass


def per_mille(nanoseconds: list[int], rank: int) -> float:
    """Return the microseconds below which `rank` of a thousand are."""
    return sorted(nanoseconds)[len(nanoseconds) * rank // 1000] / 1000


def run(directory: str) -> None:
    """Measure all cases, each in a separate store, and print their table."""
    print(
        "| what | puts and commit, µs | everything, µs | times `pwrite` | wanted | that `pwrite` |"
    )
    print("|---|---|---|---|---|---|")
    slowest: list[str] = []
    for case in CASES:
        folder = f"{directory}/{case.name.replace(' ', '-')}"
        memory.had(WRITTEN_MIB)
        store = MessageStore.open(folder, CONFIG, now_ms=1)
        yardstick = Yardstick(f"{folder}/yardstick")
        found = measure(store, case, yardstick)
        times = turn_times(store, case)
        yardstick.close()
        store.close(1)
        print(
            f"| {case.name} | {found.puts:.2f} | {found.everything:.2f} |"
            f" {found.everything / found.pwrite:.2f} |"
            f" {case.wanted} µs, {case.wanted / WANTED_PWRITE:.2f} | {found.pwrite:.2f} |",
            flush=True,
        )
        slowest.append(
            f"{case.name}: p99.9 of a turn {per_mille(times.by_clock, 999):.0f} µs (half take"
            f" {per_mille(times.by_clock, 500):.0f}), computed"
            f" {per_mille(times.computed, 999):.0f} µs; of a loop that only counts"
            f" {per_mille(times.counting, 999):.0f} (half {per_mille(times.counting, 500):.0f})"
        )
    print("", *slowest, "wanted of 32 a turn: 300 µs", "", sep="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in a folder that is removed afterwards."""
    parser = argparse.ArgumentParser(prog="python -m bench.store_appends", description=__doc__)
    parser.add_argument("--directory", help="on the disk to measure")
    directory: str | None = parser.parse_args(arguments).directory
    gc.collect()
    gc.freeze()  # As the broker does after its start.
    gc.set_threshold(50_000, 20, 50)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        run(folder)


if __name__ == "__main__":
    main()
