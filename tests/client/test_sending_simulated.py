"""Sending, while simulated brokers and their network do what they may do.

Whatever happens, what a send says is so: stored there, in order, not stored, or not known.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import anyio
import pytest
from tests.client.simulated_cluster import NAMESERVER, TOPIC, Cluster
from tests.client.simulated_network import Machine, Network, now
from tests.client.simulated_run import played, seeds_of
from tests.client.simulated_trouble import Trouble

from cometmq.client import Client, ClientConfig, ClientError, OutcomeUnknownError, Queue
from cometmq.client.errors import ProtocolViolationError

if TYPE_CHECKING:
    from cometmq.client import Receipt

TROUBLE_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 0.2
"""How much longer than its timeout a send may take."""


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed, (0.0, 0.02, 0.1, 0.3)[seed % 4])
        self.random = self.network.random
        self.choose = self.random.choice
        self.cluster: Cluster
        self.is_apache = self.random.random() < 0.5
        self.is_troubled = True
        self.opening: Machine
        self.receipts: dict[str, list[tuple[Queue, int]]] = {}
        """Where the messages of each sender were stored, in the order of its sends."""

        self.problems: list[str] = []
        self.stored: dict[bytes, tuple[Queue, int]] = {}
        self.not_stored: list[bytes] = []
        self.batched: set[bytes] = set()
        self._disasters = self.choose((3, 12)) if seed % 4 else 0

    async def play(self) -> None:
        """Send through trouble, and check what became of it."""
        names = ["a", "b"][: self.random.randrange(1, 3)]
        self.cluster = Cluster(self.network, names, is_apache=self.is_apache)
        trouble = Trouble(self.network, self.cluster)
        async with anyio.create_task_group() as self.network.tasks:
            for broker in self.cluster.brokers.values():
                broker.have(TOPIC, self.random.randrange(1, 4))
            self.cluster.publish()
            async with anyio.create_task_group() as clients:
                for number in range(self.random.randrange(1, 3)):
                    clients.start_soon(self._live, f"m{number}")
                await trouble.befall(self._disasters, TROUBLE_SECONDS, (self._lose_a_queue,))
                await trouble.end()
                self.cluster.publish()
                await anyio.sleep(20)
                self.is_troubled = False
            self.network.tasks.cancel_scope.cancel()
        self._check()

    async def _lose_a_queue(self) -> None:
        """A topic loses a queue, of which the name server learns later."""
        broker = self.choose([*self.cluster.brokers.values()])
        broker.counts[TOPIC] = max(1, broker.counts[TOPIC] - 1)
        self.network.later(self.random.uniform(0, 5), self.cluster.publish)

    async def _live(self, name: str) -> None:
        self.opening = self.network.machines[name] = Machine(name)
        config = ClientConfig(instance=name)
        async with Client(NAMESERVER, config) as mq, anyio.create_task_group() as senders:
            for number in range(self.random.randrange(1, 4)):
                senders.start_soon(self._send_on, mq, f"{name}-{number}")

    async def _send_on(self, mq: Client, sender: str) -> None:
        number = 0
        while self.is_troubled:
            await anyio.sleep(self.choose((0.01, 0.1, 1)))
            size = self.choose((1, 1, 1, 5))
            bodies = [b"%s %d" % (sender.encode(), number + each) for each in range(size)]
            number += size
            timeout = self.choose((0.5, 3.0, 10.0))
            began = now()
            try:
                receipts = await self._send(mq, sender, bodies, timeout)
            except ClientError as error:
                self._failed(bodies, error)
            else:
                self._succeeded(sender, bodies, receipts)
            took = now() - began
            if took > timeout + GRACE_SECONDS:
                self.problems.append(f"a send with timeout={timeout} took {took:.2f} s")

    async def _send(
        self, mq: Client, sender: str, bodies: list[bytes], seconds: float
    ) -> list[Receipt]:
        key = sender if int(sender[-1]) % 3 else None
        if len(bodies) > 1:
            self.batched.update(bodies)
            return await mq.send_batch(TOPIC, bodies, sharding_key=key, timeout=seconds)
        queue = self.choose([*self.cluster.logs()]) if key is None and self.choose((0, 1)) else None
        return [await mq.send(TOPIC, bodies[0], sharding_key=key, queue=queue, timeout=seconds)]

    def _failed(self, bodies: list[bytes], error: ClientError) -> None:
        self.network.count(type(error).__name__)
        if not isinstance(error, OutcomeUnknownError | ProtocolViolationError):
            self.not_stored += bodies
        assert not error.stored, "a batch of one request was stored in part"

    def _succeeded(self, sender: str, bodies: list[bytes], receipts: list[Receipt]) -> None:
        self.network.count("sent")
        for body, receipt in zip(bodies, receipts, strict=True):
            self.stored[body] = receipt.queue, receipt.offset
            self.receipts.setdefault(sender, []).append((receipt.queue, receipt.offset))

    def _check(self) -> None:
        logs = self.cluster.logs()
        copies = Counter(each.body for log in logs.values() for each in log.messages)
        for body, (queue, offset) in self.stored.items():
            found = logs[queue].messages[offset].body
            if found != body:
                self.problems.append(f"{queue}, {offset} is not {body!r}, but {found!r}")
        self.problems += [f"{body!r} is stored" for body in self.not_stored if copies[body]]
        for places in self.receipts.values():
            for queue in {queue for queue, _ in places}:
                offsets = [offset for where, offset in places if where == queue]
                if offsets != sorted(offsets):
                    self.problems.append(f"{queue}: not in order: {offsets}")
        twice = {body for body, count in copies.items() if count > 1}
        self.network.count("twice" if twice else "once")
        if not self.is_apache:
            # Batches can come twice; see `Client.send`.
            twice -= {*self.batched}
            self.problems += [f"{body!r} is stored twice" for body in twice]


def play(seed: int, loop: str) -> Counter[str]:
    """Play one history, and return what happened."""
    world = World(seed)
    return played(world, seed, loop, lambda: world.opening)


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 30), ("trio", 6)])
def test_what_a_send_says_is_so(loop: str, seeds: int) -> None:
    counts = sum((play(seed, loop) for seed in seeds_of(seeds)), Counter[str]())
    assert counts["sent"] > 100 * seeds, counts
    if seeds >= 30:
        assert counts.keys() >= {
            "DeadlineError", "ConnectionEndedError", "UnreachableError", "stored once", "twice",
            "crash", "cut", "_lose_a_queue",
        }, counts  # fmt: skip
