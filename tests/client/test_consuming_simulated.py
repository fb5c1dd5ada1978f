"""Consuming as a group, while simulated brokers, their network and the members do what they may do.

Whatever happens, no message is skipped without a word, an ordered queue is handled in order and by
one member at a time, and once the trouble ends all is handled and committed soon.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from tests.client.simulated_broker import Broker
from tests.client.simulated_cluster import NAMESERVER, TOPIC, Cluster, Listener
from tests.client.simulated_network import Machine, Network, now, runtime_of
from tests.client.simulated_run import run
from tests.client.simulated_trouble import Trouble

from cometmq.client import Client, ClientConfig, ClientError, Queue

if TYPE_CHECKING:
    from tests.client.simulated_trouble import Disaster

    from cometmq.client import Consumer, Message

GROUP: Final = "billing"
RETRY: Final = f"%RETRY%{GROUP}"
TROUBLE_SECONDS: Final = 150.0
PATIENCE_SECONDS: Final = 200.0
"""How long everything may take after the trouble: dead members and locks expire within it."""

LEAVING_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 110.0
"""How long a message may be in hand: longer than a lock."""


class Watching(Listener):
    """Checks what members do against what they may do."""

    def __init__(self, world: World) -> None:
        self.done: dict[Queue, set[int]] = {}
        self.in_hand: dict[Queue, dict[str, tuple[int, float]]] = {}
        """The members that have a message of a queue in hand, which one, and since when."""

        self.expired: set[Queue] = set()
        """Queues of which messages expired before they were handled."""

        self.problems: list[str] = []
        self._world = world
        self._clean: dict[Queue, int] = {}

    def check(self, holds: bool, problem: str) -> None:
        """Note a problem: what is raised in a callback would end something else."""
        if not holds:
            self.problems.append(f"{self._world.case}, {now():.3f} s: {problem}")

    def unhandled(self, queue: Queue, until: int) -> list[int]:
        """Return which messages before an offset are neither handled nor gone."""
        if queue not in self._clean:
            return []  # The group has not begun there.
        done = self.done.setdefault(queue, set())
        first = max(self._clean[queue], self._world.cluster.log(queue).lowest)
        while first in done:
            first += 1
        self._clean[queue] = first
        return [each for each in range(first, until) if each not in done]

    def begun(self, queue: Queue, offset: int) -> None:
        """Note where the group begins to read a queue."""
        is_first = queue.topic == RETRY or self._world.start == "first"
        self._clean.setdefault(queue, 0 if is_first else offset)

    def committed(self, group: str, queue: Queue, offset: int) -> None:
        """No message is skipped."""
        log = self._world.cluster.log(queue)
        left = self.unhandled(queue, min(offset, log.end))
        self.check(not left, f"{queue}: {offset} is committed, without {left}")
        self.check(offset <= log.end, f"{queue}: {offset} is committed, which is not there yet")
        before = self._world.cluster.brokers[queue.broker].offsets.get((group, queue))
        if before is None:
            return
        if offset < before:
            self._world.network.count("committed less")
        if offset >= log.lowest and {*range(before, log.lowest)} - self.done.get(queue, set()):
            self.expired.add(queue)

    def taken_back(self, queue: Queue, offset: int) -> None:
        """It comes again in another queue, or is a dead letter."""
        self.done.setdefault(queue, set()).add(offset)

    def begins(self, member: str, client_id: str, message: Message) -> None:
        """In order, all before it is done, and nobody else is at it."""
        queue, offset = message.queue, message.offset
        is_again = offset in self.done.setdefault(queue, set())
        self._world.network.count("handled again" if is_again else "handled")
        others = self.in_hand.setdefault(queue, {})
        if self._world.is_ordered:
            left = self.unhandled(queue, offset)
            self.check(not left, f"{queue}: {offset} is delivered before {left}")
            holder = self._world.cluster.brokers[queue.broker].holder(GROUP, queue)
            its = f"{queue}: {offset} is delivered to {member}"
            self.check(holder in (None, client_id), f"{its}, while {holder} has the lock")
            for other, (_, since) in others.items():
                # One that was cut off can have lost its lock.
                was_cut_off = self._world.network.machines[other].disturbed_at >= since
                self.check(other != member and was_cut_off, f"{its}, with {others} in hand")
        others[member] = offset, now()

    def ends(self, member: str, message: Message, *, is_done: bool) -> None:
        """A message is no longer in hand."""
        self.in_hand[message.queue].pop(member, None)
        if is_done:
            self.done[message.queue].add(message.offset)


class Member:
    """A program that consumes."""

    def __init__(self, world: World, name: str) -> None:
        self.machine = Machine(name)
        self.consumer: Consumer | None = None
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()
        self._is_leaving = False
        self._world = world
        self._fails = world.choose((0.0, 0.02, 0.2))
        self._is_slow = world.choose((0.0, 0.01, 0.1))

    async def live(self) -> None:
        """Consume until it leaves or is killed."""
        world = self._world
        config = ClientConfig(instance=self.machine.name, redelivery_delay=1)
        world.opening = self.machine
        try:
            with self._scope:
                async with Client(NAMESERVER, config) as mq:
                    while not self._is_leaving:
                        await self._consume(mq)
        finally:
            self._over.set()

    async def _consume(self, mq: Client) -> None:
        self.consumer = consumer = mq.consume(
            TOPIC, group=GROUP, ordered=self._world.is_ordered, **self._world.options
        )
        while True:
            try:
                await consumer.run(partial(self._handle, mq.id))
                break
            except ClientError as error:
                self._world.watching.check(error.can_retry, f"it cannot begin: {error}")
                await anyio.sleep(1)
        await consumer.drain()

    async def _handle(self, client_id: str, message: Message) -> None:
        world, watching, name = self._world, self._world.watching, self.machine.name
        watching.begins(name, client_id, message)
        is_done = False
        try:
            seconds = world.choose((0, 0, 0.001, 0.01, 0.05))
            if world.is_troubled and world.random.random() < self._is_slow:
                seconds = world.random.uniform(0, SLOW_SECONDS)
            await anyio.sleep(seconds)
            if world.is_troubled and world.random.random() < self._fails:
                await self._fail(message)
            else:
                is_done = not self.machine.is_dead
        finally:
            if not self.machine.is_dead:
                watching.ends(name, message, is_done=is_done)

    async def _fail(self, message: Message) -> None:
        kind = self._world.choose(("raise", "retry", "retry soon", "reject"))
        if kind == "raise":
            raise ValueError("no such order")
        self._world.watching.in_hand[message.queue].pop(self.machine.name, None)
        if kind == "reject":
            await message.reject()
        else:
            await message.retry(delay_level=3 if kind == "retry" else 0)

    async def drain(self) -> None:
        """End the consumer; what is in hand after the time for that is for others."""
        timeout = self._world.choose((0.5, 5.0, 30.0, None))
        began = now()
        if timeout is not None:
            self._world.network.later(timeout, self._let_go)
        if self.consumer is not None:
            await self.consumer.drain(timeout=timeout)
        self._check_took("draining", began, timeout or SLOW_SECONDS)

    async def leave(self) -> None:
        """End in good order."""
        self._is_leaving = True
        await self.drain()
        began = now()
        self._scope.cancel()
        await self._over.wait()
        self._check_took("closing", began, 0)

    async def die(self) -> None:
        """Be killed, or be on a machine that is gone, of which nobody tells the brokers."""
        self.machine.is_dead = self._is_leaving = True
        self._let_go()
        if self._world.choose((False, True)):
            for link in self.machine.links:
                link.break_("killed")
        self._scope.cancel()
        await self._over.wait()

    def _let_go(self) -> None:
        for each in self._world.watching.in_hand.values():
            each.pop(self.machine.name, None)

    def _check_took(self, what: str, began: float, most: float) -> None:
        took = now() - began
        is_soon = took < most + LEAVING_SECONDS
        self._world.watching.check(is_soon, f"{self.machine.name}: {what} took {took:.1f} s")


class World:
    """One history."""

    broker_kind = Broker

    def __init__(self, seed: int, *, is_ordered: bool) -> None:
        self.network = Network(seed, (0.0, 0.0, 0.01, 0.05)[seed % 4])
        self.case = f"seed {seed}"
        self.random = self.network.random
        self.choose = self.random.choice
        self.is_ordered = is_ordered
        self.is_troubled = True
        self.is_apache = self.random.random() < 0.5
        self.start = self.choose(("first", "last"))
        self.is_filtered = self.random.random() < 0.3
        self.options: dict[str, Any] = {
            "start": self.start,
            "filter": "paid" if self.is_filtered else "*",
            "concurrency": self.choose((1, 3, 20)),
            "prefetch": self.choose((1, 7, 1000)),
            "prefetch_bytes": self.choose((1, 3000, 1 << 20)),
            "strategy": self.choose(("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")),
            "max_retries": 3,
        }
        self.watching = Watching(self)
        self.members: list[Member] = []
        self.opening: Machine
        self.cluster: Cluster
        self._disasters = self.choose((3, 12)) if seed % 4 else 0
        self._joined = 0

    async def play(self) -> None:
        """Live through trouble, and then wait until all is well."""
        names = ["a", "b"][: self.random.randrange(1, 3)]
        self.cluster = Cluster(self.network, names, is_apache=self.is_apache, kind=self.broker_kind)
        self.cluster.listener = self.watching
        trouble = Trouble(self.network, self.cluster)
        async with anyio.create_task_group() as self.network.tasks:
            self._make_queues()
            self.network.tasks.start_soon(self._produce)
            for _ in range(self.random.randrange(1, 4)):
                await self._join()
                if self.start == "last":
                    await anyio.sleep(2)  # Those that begin at once may disagree where that is.
            await trouble.befall(self._disasters, TROUBLE_SECONDS, self.disasters())
            await anyio.sleep(TROUBLE_SECONDS / 5)
            self.is_troubled = False
            await trouble.end()
            await self._recover()
            for member in self.members:
                await member.leave()
            self.network.tasks.cancel_scope.cancel()

    def disasters(self) -> tuple[Disaster, ...]:
        """Return what members do, besides what befalls brokers and the network."""
        return self._join, self._leave, self._kill, self._pause, self._restart

    def _make_queues(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.have(TOPIC, self.random.randrange(1, 4))
            for queue, log in broker.logs.items():
                for _ in range(self.choose((0, 50))):
                    broker.store(queue, b"before", b"TAGS\x01paid\x02")
                log.lowest = self.choose((0, log.end // 2))
        self.cluster.publish()

    async def _produce(self) -> None:
        while self.is_troubled:
            queues = [each for each in self.cluster.logs() if each.topic == TOPIC]
            for _ in range(self.choose((1, 1, 5, 20))):
                queue, tag = self.choose(queues), self.choose(("paid", "refunded"))
                broker = self.cluster.brokers[queue.broker]
                at = broker.store(queue, b"body", f"TAGS\x01{tag}\x02".encode())
                if self.is_filtered and tag != "paid":
                    self.watching.done.setdefault(queue, set()).add(at)
            await anyio.sleep(self.random.uniform(0, 4))

    async def _join(self) -> None:
        self._joined += 1
        member = Member(self, f"m{self._joined}")
        self.network.machines[member.machine.name] = member.machine
        self.members.append(member)
        self.network.tasks.start_soon(member.live)

    async def _leave(self) -> None:
        if len(self.members) > 1:
            await self.members.pop(self.random.randrange(len(self.members))).leave()

    async def _kill(self) -> None:
        if len(self.members) > 1:
            await self.members.pop(self.random.randrange(len(self.members))).die()

    async def _restart(self) -> None:
        """Have a member begin anew, under the same name."""
        await self.choose(self.members).drain()

    async def _pause(self) -> None:
        consumer = self.choose(self.members).consumer
        if consumer is not None:
            consumer.pause()
            await anyio.sleep(self.random.uniform(0, 30))
            consumer.resume()

    async def _recover(self) -> None:
        until = now() + PATIENCE_SECONDS
        while left := self._left():
            if now() > until:
                self.watching.check(False, f"all trouble is over, but {left}")
                return
            await anyio.sleep(1)

    def _left(self) -> str:
        """Say what is not as it has to be in the end."""
        queues = sorted(self.cluster.logs())
        read = sorted(q for m in self.members if m.consumer for q in m.consumer.queues)
        if read != queues:
            return f"of {queues} these are read: {read}"
        for queue, log in self.cluster.logs().items():
            offset = self.cluster.brokers[queue.broker].offsets.get((GROUP, queue), 0)
            unhandled = self.watching.unhandled(queue, log.end)
            if unhandled or offset != log.end:
                return f"{queue}: {offset} of {log.end} is committed, not handled: {unhandled}"
        return ""


def play(seed: int, loop: str, *, ordered: bool) -> Counter[str]:
    """Play one history, check that nothing went wrong in it, and return what happened."""
    world = World(seed, is_ordered=ordered)
    told = run(loop, seed, world.play, lambda: runtime_of(world.network, world.opening))
    assert not world.watching.problems, world.watching.problems[0]
    for queue in world.watching.expired:
        of_it = [each for each in told if each.startswith(f"{queue}: ") and "expired" in each]
        assert of_it, f"{world.case}: {queue}: nothing was said of expired messages"
        world.network.count("told of expired messages")
    return world.network.counts


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 30), ("trio", 6)])
@pytest.mark.parametrize("ordered", [False, True])
def test_nothing_is_skipped(ordered: bool, loop: str, seeds: int) -> None:
    counts = sum((play(seed, loop, ordered=ordered) for seed in range(seeds)), Counter[str]())
    assert counts["handled"] > 300 * seeds, counts
    if seeds >= 30:
        assert 0 < counts["handled again"] < counts["handled"] // 5, counts
        assert counts.keys() >= {
            "dead letter", "_kill", "_restart", "crash", "cut", "told of expired messages",
        }, counts  # fmt: skip


def test_a_long_drain_keeps_the_lock_of_what_is_in_hand() -> None:
    network = Network(0, 0.0)
    holders: list[str | None] = []

    async def scenario() -> None:
        broker = Cluster(network, ["a"], is_apache=True).brokers["a"]
        broker.have(TOPIC, 1)
        broker.cluster.publish()
        queue = Queue(TOPIC, "a", 0)
        broker.store(queue, b"body", b"")

        def note() -> None:
            holders.append(broker.holder(GROUP, queue))

        async with anyio.create_task_group() as network.tasks:
            async with Client(NAMESERVER) as mq:
                consumer = mq.consume(TOPIC, group=GROUP, ordered=True, start="first")
                message = await anext(consumer)
                network.later(2 * SLOW_SECONDS - 1, note)
                network.later(2 * SLOW_SECONDS, message.ack)
                assert await consumer.drain(timeout=None)
                note()
                assert holders == [mq.id, None]
                assert broker.offsets[GROUP, queue] == 1
            network.tasks.cancel_scope.cancel()

    run("asyncio", 0, scenario, lambda: runtime_of(network, Machine("m")))
