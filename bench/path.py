"""`python -m bench.path`: the cost of a send and a pull in the broker's thread, without sockets.

Frames go into connections whose transport drops what is written; everything else is real, including
the store on the disk. The time is the thread's CPU time, the least of many rounds, so that other
programs disturb it little: compare it before and after a change. It does not contain the kernel's
work for sockets, which is half of the cost of a lone send: see `python -m bench.broker`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final, cast

from bench.measure import YARDSTICK
from bench.transactions import commit_form, commit_frame, half_form
from cometmq.admin.bench_frames import BatchForm, SendForm, pull_frame
from cometmq.broker.broker import DAILY_BREAD, Broker
from cometmq.broker.clock import elapsed_ms, now_ms
from cometmq.broker.config import BrokerConfig
from cometmq.net import LoopPeer, Peers
from cometmq.proto.host import Host
from cometmq.store.config import Flush, StoreConfig
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

ROUNDS: Final = 15
MESSAGES: Final = 4096
"""The number of messages of a round."""
QUEUES: Final = 4
BODY_SIZE: Final = 1024
COUNT: Final = 32
"""The number of messages of a batch, and of a pull."""
SEGMENT_SIZE: Final = 1 << 28
TRANSACTION_ROUNDS: Final = 30


class _Transport:
    """Accepts what is written, and keeps the last piece."""

    written = b""

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "127.0.0.1", 40_000

    def write(self, data: bytes) -> None:
        self.written = data

    def writelines(self, data: object) -> None: ...

    def set_write_buffer_limits(self, high: int) -> None: ...

    def abort(self) -> None: ...

    close = abort


class Wired:
    """A broker and its connections; the turns of the loop are made by hand."""

    def __init__(self, folder: str, **settings: Any) -> None:
        self._soon: list[Callable[[], None]] = []
        store = StoreConfig(flush=Flush.ASYNC, segment_size=SEGMENT_SIZE, **settings)
        config = BrokerConfig(store_path=f"{folder}/store", store=store)
        self.broker = Broker(
            config,
            RealFileSystem(),
            address=Host("127.0.0.1", config.listen_port),
            call_soon_threadsafe=self._soon.append,
            topic_changed=lambda _: None,
            unsaved=lambda: None,
            store_changed=lambda: None,
            now_ms=now_ms,
            elapsed_ms=elapsed_ms,
        )
        self._peers = Peers(self.broker, call_soon=self._soon.append, request_reader=DAILY_BREAD)

    def connect(self, count: int) -> list[LoopPeer]:
        """Open connections."""
        return [peer for peer, _ in self.connect_kept(count)]

    def connect_kept(self, count: int) -> list[tuple[LoopPeer, _Transport]]:
        """Open connections, each with the transport that has its last answer."""
        found = [(LoopPeer(self._peers), _Transport()) for _ in range(count)]
        for peer, transport in found:
            peer.connection_made(cast("asyncio.Transport", transport))
        return found

    def turn(self) -> None:
        """End the turn of the loop."""
        for call in self._soon:
            call()
        self._soon.clear()

    def save(self) -> None:
        """Save pending tables, so that sends to a new topic are answered."""
        for table in self.broker.tables:
            if table.is_changed:
                version, snapshot = table.begin_save()
                table.write(snapshot)
                self.broker.saved(table, version)

    def keep(self) -> None:
        """Do all of the store's upkeep."""
        while self.broker.store.tick(now_ms()):
            pass


def least_us(once: Callable[[], int], after: Callable[[], None]) -> tuple[float, float]:
    """Time a function that handles messages and returns how many: per message, and with upkeep."""
    alone = together = float("inf")
    for _ in range(ROUNDS):
        done = 0
        begun = time.thread_time_ns()
        while done < MESSAGES:
            done += once()
        between = time.thread_time_ns()
        after()
        ended = time.thread_time_ns()
        alone = min(alone, (between - begun) / done / 1000)
        together = min(together, (ended - begun) / done / 1000)
    return alone, together


def sends(wired: Wired, connections: int, in_flight: int, *, batch: bool = False) -> Any:
    """Measure sends: `connections` reads of `in_flight` requests in each turn."""
    peers = wired.connect(connections)
    form: list[SendForm] | list[BatchForm] = (
        [BatchForm("Path", queue, QUEUES, BODY_SIZE, COUNT) for queue in range(QUEUES)]
        if batch
        else [SendForm("Path", queue, QUEUES, BODY_SIZE) for queue in range(QUEUES)]
    )
    frames = [form[number % QUEUES].frame(1_000_000 + number, 0, 0) for number in range(in_flight)]
    read = b"".join(frames)
    messages = connections * in_flight * form[0].count

    def once() -> int:
        for peer in peers:
            peer.data_received(read)
        wired.turn()
        return messages

    for _ in range(3):
        once()
        wired.save()
    return least_us(once, wired.keep)


def transactions(wired: Wired, connections: int) -> tuple[float, float, float]:
    """Measure halves, their commits, and pairs with upkeep; one per connection and turn."""
    links = wired.connect_kept(connections)
    half, commit = half_form(), commit_form()
    keys = itertools.count(1 << 100)
    wired.connect(1)[0].data_received(half % next(keys))  # Creates the topic; it stays open.
    wired.turn()
    wired.save()
    halves = commits = pairs = float("inf")
    for number in range(3 + TRANSACTION_ROUNDS):
        spent = [0, 0, 0]
        for _ in range(MESSAGES // connections):
            used = [next(keys) for _ in links]
            _hand(wired, links, [half % key for key in used], spent, 0)
            ends = [
                commit_frame(commit, transport.written, key)
                for (_, transport), key in zip(links, used, strict=True)
            ]
            _hand(wired, links, ends, spent, 1)
        begun = time.thread_time_ns()
        wired.keep()
        spent[2] = time.thread_time_ns() - begun + spent[0] + spent[1]
        wired.save()
        if number >= 3:
            each = [ns / (MESSAGES // connections * connections) / 1000 for ns in spent]
            halves, commits = min(halves, each[0]), min(commits, each[1])
            pairs = min(pairs, each[2])
    return halves, commits, pairs


def _hand(
    wired: Wired,
    links: list[tuple[LoopPeer, _Transport]],
    frames: list[bytes],
    spent: list[int],
    which: int,
) -> None:
    begun = time.thread_time_ns()
    for (peer, _), frame in zip(links, frames, strict=True):
        peer.data_received(frame)
    wired.turn()
    spent[which] += time.thread_time_ns() - begun


def pulls(wired: Wired, topic: str) -> float:
    """Measure pulls of 32 of the last messages, one per turn."""
    peer = wired.connect(1)[0]
    frames = [pull_frame(topic, 0, COUNT * number, COUNT, 1_000_000) for number in range(12)]

    def once() -> int:
        for frame in frames:
            peer.data_received(frame)
            wired.turn()
        return len(frames) * COUNT

    once()
    wired.save()
    return least_us(once, lambda: None)[0] * COUNT


def fill(wired: Wired) -> None:
    """Fill two topics: one whose queues alternate in the log, and one with a single queue."""
    peer = wired.connect(1)[0]
    apart = [SendForm("Apart", queue, QUEUES, BODY_SIZE) for queue in range(QUEUES)]
    alone = SendForm("Neighbours", 0, 1, BODY_SIZE)
    for topic in ([alone], apart):
        for number in range(12 * COUNT):
            peer.data_received(b"".join([form.frame(1_000_000, number, 0) for form in topic]))
            wired.turn()
            wired.save()
    wired.keep()


def yardstick_us() -> float:
    """Time one `json.loads` of a send's header, at the same moment."""

    def once() -> int:
        for _ in range(500):
            json.loads(YARDSTICK)
        return 500

    return least_us(once, lambda: None)[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    argparse.ArgumentParser(prog="python -m bench.path", description=__doc__).parse_args(arguments)
    print("| what | µs | with the store's upkeep | times `json.loads` of a send header |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
        wired = Wired(folder, hot_size=0)
        _prepare(wired)
        _row("a pull of 32 neighbours, not hot and in memory", pulls(wired, "Neighbours"), "")
        _row("a pull of 32 apart, not hot and in memory", pulls(wired, "Apart"), "")
        wired.broker.close(now_ms())
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
        wired = Wired(folder)
        _prepare(wired)
        _row("a pull of 32 that stand one behind the other", pulls(wired, "Neighbours"), "")
        _row("a pull of 32 between those of three other queues", pulls(wired, "Apart"), "")
        for name, load, is_batch in (
            ("a send, 8 connections x 32 a turn", (8, 32), False),
            ("a send, 64 connections x 1 a turn", (64, 1), False),
            ("a send, alone in its turn", (1, 1), False),
            ("a message of a batch of 32, 8 x 4 a turn", (8, 4), True),
        ):
            alone, together = sends(wired, *load, batch=is_batch)
            _row(name, alone, f"{together:.2f}")
        half, commit, pair = transactions(wired, 64)
        _row("a half message, 64 connections x 1 a turn", half, "")
        _row("its commit, likewise", commit, f"{pair:.2f} the pair")
        wired.broker.close(now_ms())


def _prepare(wired: Wired) -> None:
    """Fill a store, and exempt existing objects from garbage collection, as a daemon does."""
    fill(wired)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _row(name: str, each_us: float, kept: str) -> None:
    print(f"| {name} | {each_us:.2f} | {kept} | {each_us / yardstick_us():.2f} |", flush=True)


if __name__ == "__main__":
    main()
