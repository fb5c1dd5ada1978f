"""Reading queues by hand, while simulated brokers and their network do what they may do.

Whatever happens, a reader gets the messages of each queue in order, each once, and none is left
out; one that takes up where the group's offsets are gets at least those that were not committed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio
import pytest
from tests.client.simulated_cluster import NAMESERVER, TOPIC, Cluster
from tests.client.simulated_network import Machine, Network
from tests.client.simulated_run import played, seeds_of
from tests.client.simulated_trouble import Trouble

from cometmq.client import Client, ClientConfig, ClientError, Queue

if TYPE_CHECKING:
    from cometmq.client import Reader

GROUP: Final = "reports"
TROUBLE_SECONDS: Final = 60.0


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed, (0.0, 0.02, 0.1, 0.3)[seed % 4])
        self.random = self.network.random
        self.choose = self.random.choice
        self.cluster: Cluster
        self.is_troubled = True
        self.problems: list[str] = []
        self._filter = self.choose(("*", "paid"))
        self.machine = Machine("m")
        self._next: dict[Queue, int] = {}
        self._tried: dict[Queue, int] = {}
        """The largest offset of each queue of which a commit was tried."""

        self._disasters = self.choose((3, 12)) if seed % 4 else 0

    async def play(self) -> None:
        """Read through trouble, and then to the end."""
        names = ["a", "b"][: self.random.randrange(1, 3)]
        self.cluster = Cluster(self.network, names, is_apache=self.random.random() < 0.5)
        trouble = Trouble(self.network, self.cluster)
        async with anyio.create_task_group() as self.network.tasks:
            for broker in self.cluster.brokers.values():
                broker.have(TOPIC, self.random.randrange(1, 4))
            self.cluster.publish()
            self.network.machines["m"] = self.machine
            self.network.tasks.start_soon(self._produce)
            async with anyio.create_task_group() as reading:
                reading.start_soon(self._read)
                await trouble.befall(self._disasters, TROUBLE_SECONDS)
                await trouble.end()
                self.cluster.publish()
                await anyio.sleep(40)  # By then the client has asked for routes again.
                self.is_troubled = False
            self.network.tasks.cancel_scope.cancel()

    async def _produce(self) -> None:
        while self.is_troubled:
            for _ in range(self.choose((1, 5, 40))):
                queue, tag = self.choose([*self.cluster.logs()]), self.choose(("paid", "refunded"))
                broker = self.cluster.brokers[queue.broker]
                broker.store(queue, b"body", f"TAGS\x01{tag}\x02".encode())
            await anyio.sleep(self.random.uniform(0, 3))

    async def _read(self) -> None:
        async with Client(NAMESERVER, ClientConfig(instance="m")) as mq:
            while self.is_troubled:
                await self._read_as_one(mq.reader(TOPIC, group=GROUP, filter=self._filter))
            reader = mq.reader(TOPIC, group=GROUP, filter=self._filter)
            await reader.assign()
            self._take_up(reader)
            while await self._pull(reader):
                await reader.commit()
            for queue, log in self.cluster.logs().items():
                if self._next[queue] != log.end:
                    self.problems.append(f"{queue}: read to {self._next[queue]} of {log.end}")

    async def _read_as_one(self, reader: Reader) -> None:
        """Read as one program does, until it ends."""
        try:
            await reader.assign()
        except ClientError:
            self.network.count("not assigned")
            await anyio.sleep(0.1)
            return
        self._take_up(reader)
        for _ in range(self.random.randrange(40)):
            try:
                await self._pull(reader)
                if self.random.random() < 0.3:
                    for queue in reader.queues:
                        at = reader.position(queue)
                        self._tried[queue] = max(self._tried.get(queue, 0), at)
                    await reader.commit()
            except ClientError as error:
                self.network.count(type(error).__name__)
                await anyio.sleep(0.1)

    def _take_up(self, reader: Reader) -> None:
        """Have the reader begin where the group's offsets say, which may be older ones."""
        self._next = {queue: reader.position(queue) for queue in reader.queues}
        for queue, offset in self._next.items():
            least = max(self._tried.get(queue, 0), self.cluster.log(queue).lowest)
            if offset > least:
                self.problems.append(f"{queue}: begins at {offset} instead of {least}")

    async def _pull(self, reader: Reader) -> bool:
        """Pull once, and check what came; return whether something did."""
        before = dict(self._next)
        count = self.choose((1, 20, 32, 100, 1000))
        wait = self.choose((0.0, 0.0, 5.0))
        found: dict[Queue, list[int]] = {}
        messages = await reader.pull(count=count, wait=wait)
        for message in messages:
            found.setdefault(message.queue, []).append(message.offset)
        self._next = {queue: reader.position(queue) for queue in reader.queues}
        for queue, to in self._next.items():
            log = self.cluster.log(queue)
            wanted = [
                each
                for each in range(before[queue], to)
                if self._filter in ("*", log.messages[each].tag)
            ]
            got = found.get(queue, [])
            if got != [each for each in wanted if each in got or each >= log.lowest]:
                self.problems.append(f"{queue}: of {before[queue]} to {to} came {got}")
        self.network.count("read" if messages else "nothing to read")
        return bool(messages)


def play(seed: int, loop: str) -> Counter[str]:
    """Play one history, and return what happened."""
    world = World(seed)
    return played(world, seed, loop, lambda: world.machine)


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 30), ("trio", 6)])
def test_each_message_comes_once_and_in_order(loop: str, seeds: int) -> None:
    counts = sum((play(seed, loop) for seed in seeds_of(seeds)), Counter[str]())
    assert counts["read"] > 30 * seeds, counts
    if seeds >= 30:
        assert counts.keys() >= {
            "nothing to read", "DeadlineError", "UnreachableError", "RefusedError", "expire",
            "crash", "cut",
        }, counts  # fmt: skip
