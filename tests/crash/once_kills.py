"""Sends that are repeated until they are answered: `python -m tests.crash.once_kills --sends N`.

`cometmq up` runs in its own process. A client sends N messages, many at a time. Meanwhile its
connections are cut at random moments, with answers on their way, and the process is killed
(SIGKILL) and restarted on what it left. The client repeats each send with the same id until an
answer comes. In the end each message must be stored once, at the place that its answer said.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
import tempfile
from array import array
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.broker.test_up import play, running

from cometmq.client import Client, ClientConfig
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

    from cometmq.client import Receipt

TOPIC: Final = "orders"
QUEUES: Final = 4
WORKERS: Final = 64
TIMEOUT_SECONDS: Final = 300.0
SENDS_A_CUT: Final = 500
CUTS_A_KILL: Final = 5
PATIENT: Final = ClientConfig(reconnect_delay=0.01, reconnect_delay_max=0.1, connect_timeout=60)
_QUEUE_BITS: Final = 40
_NOWHERE: Final = -1


class Orders:
    """The messages of one run, and what was answered for each."""

    def __init__(self, count: int, rng: Random) -> None:
        self._numbers = iter(range(count))
        self._rng = rng
        self.count = count
        self.answered = 0
        self.kills = self.cuts = 0
        self._places = array("q", [_NOWHERE]) * count
        self._has_come = asyncio.Event()
        self._goal = count

    async def work(self, mq: Client) -> None:
        """Send one message after the other until none are left."""
        for number in self._numbers:
            self.note(number, await mq.send(TOPIC, b"%d" % number, timeout=TIMEOUT_SECONDS))

    def note(self, number: int, receipt: Receipt) -> None:
        """Note where a message is, by its answer."""
        self._places[number] = place_of(receipt.queue.id, receipt.offset)
        self.answered += 1
        if self.answered >= self._goal:
            self._has_come.set()

    async def some(self) -> None:
        """Wait for a random number of further answers."""
        self._goal = min(self.count, self.answered + self._rng.randrange(1, 2 * SENDS_A_CUT))
        self._has_come.clear()
        if self.answered < self._goal:
            await self._has_come.wait()

    def check(self, found: Iterator[tuple[int, int]]) -> None:
        """Check what is stored, places and numbers, against the answers."""
        seen = bytearray(self.count)
        for place, number in found:
            assert not seen[number], f"message {number} is stored twice"
            seen[number] = 1
            assert self._places[number] == place, f"message {number} is not where its answer says"
        assert seen.count(1) == self.count, f"message {seen.index(0)} is lost"


def place_of(queue_id: int, offset: int) -> int:
    """Write a place as one number."""
    return queue_id << _QUEUE_BITS | offset


class Lives:
    """One broker after the other, on the same ports and the same store."""

    def __init__(self, folder: Path, flush: Flush) -> None:
        self._folder = folder
        ports = free_ports()
        self._options = [
            *("--broker-port", str(ports[0]), "--nameserver-port", str(ports[1])),
            *("--flush", flush.value),
        ]
        self._stack = ExitStack()
        self.process: Popen[str]

    async def begin(self) -> str:
        """Start a broker; return its name server's address."""
        entered = await asyncio.to_thread(
            self._stack.enter_context, running(self._folder, *self._options)
        )
        self.process = entered[0]
        return f"127.0.0.1:{entered[1][1]}"

    async def end(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._stack.close)


def free_ports() -> tuple[int, int]:
    """Find two ports that nobody listens on."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


async def disturb(mq: Client, orders: Orders, lives: Lives) -> None:
    """Cut connections and kill brokers until all is answered."""
    for number in itertools.count(1):
        await orders.some()
        if orders.answered == orders.count:
            return
        if number % CUTS_A_KILL == 0:
            await lives.end()
            await lives.begin()
            orders.kills += 1
            continue
        for _, link in list(mq._open_parts().connections):  # pyright: ignore[reportPrivateUsage]  # The network is cut.
            link.drop("a test cuts it")
            orders.cuts += 1


async def stored(mq: Client) -> list[tuple[int, int]]:
    """Read all queues; return the places and the numbers of the messages there."""
    found: list[tuple[int, int]] = []
    for queue in await mq.queues(TOPIC):
        offset = 0
        while messages := (await mq.pull(queue, offset)).messages:
            found += [(place_of(queue.id, each.offset), int(each.body)) for each in messages]
            offset = messages[-1].offset + 1
    return found


async def send_all(folder: Path, count: int, flush: Flush, rng: Random) -> Orders:
    """Send `count` messages, whatever happens, and check what is stored."""
    lives, orders = Lives(folder, flush), Orders(count, rng)
    nameserver = await lives.begin()
    try:
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic(TOPIC, queues=QUEUES)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(disturb(mq, orders, lives))
                for _ in range(WORKERS):
                    tasks.create_task(orders.work(mq))
            orders.check(iter(await stored(mq)))
            await lives.end()
            await lives.begin()
            orders.check(iter(await stored(mq)))
    finally:
        await lives.end()
    return orders


def run(count: int, flush: Flush, rng: Random) -> str:
    """Send `count` messages; return what was seen."""
    with tempfile.TemporaryDirectory(prefix="cometmq-once-") as folder:
        orders = play(send_all(Path(folder), count, flush, rng))
    assert orders.kills, "so few sends that nothing was killed"
    return (
        f"{flush.value}: {count} sends, {orders.cuts} cuts, {orders.kills} kills,"
        f" exactly {count} messages, each where its answer says"
    )


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.once_kills", description=__doc__)
    parser.add_argument("--sends", type=int, default=30_000, help="for each way of flushing")
    parser.add_argument("--flush", choices=[each.value for each in Flush], help="only this way")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    logging.getLogger("cometmq").setLevel(logging.ERROR)  # It reports each cut.
    for flush in [Flush(arguments.flush)] if arguments.flush else list(Flush):
        said = run(arguments.sends, flush, Random(arguments.seed))
        sys.stdout.write(f"seed {arguments.seed}, {said}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
