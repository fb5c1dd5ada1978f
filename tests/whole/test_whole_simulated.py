"""Real clients, brokers and a name server, on simulated disks and connections, through disasters.

What a client was told is true in the end: what was sent is stored where its receipt says, and is
consumed; a transaction that was committed is delivered, one that was rolled back never; a delayed
message comes, and not too early; queues that are consumed in order are.
`SIMULATED_SEEDS=100..200 pytest tests/whole` plays these histories.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.client.simulated_network import now
from tests.client.simulated_run import run, seeds_of
from tests.whole.disasters import GROUPS, TOPIC, Disasters
from tests.whole.pipes import Network
from tests.whole.recreated import Recreated
from tests.whole.servers import NAMESERVERS, BrokerHost, NameServerHost, piped

from cometmq.client import Client, ClientConfig, ClientError, Queue
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cometmq.client import Consumer, Message, Receipt, ReceivedMessage

PATIENCE_SECONDS: Final = 400.0
RETRIES: Final = 3
UNSYNCED_SECONDS: Final = 12.0
"""How long something may not be on the disk yet, without sync flush."""


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.choose = self.random.choice
        self.network = Network(self.random)
        self.flush = self.choose((Flush.SYNC, Flush.SYNC, Flush.ASYNC))
        self.opening: tuple[str, object] = ("", None)
        self.brokers: list[BrokerHost] = []
        self.nameservers = NAMESERVERS[: self.choose((1, 2))]
        self.names = [NameServerHost(self.network, each) for each in self.nameservers]
        self.queues = self.choose((1, 3))
        self.is_troubled = True
        self.told: list[str] = []
        self.counts: Counter[str] = Counter()
        self.receipts: dict[bytes, Receipt] = {}
        self.tried: set[bytes] = set()
        self.in_batches: set[bytes] = set()
        self.due: dict[bytes, float] = {}
        self.decided: dict[bytes, str] = {}
        """What a transaction's program has decided, before the brokers are told."""
        self.committed: set[bytes] = set()
        self.done: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.dead: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.sent_at: dict[bytes, tuple[float, float]] = {}
        """When a send began, and when it ended."""
        self.cuts: list[float] = []
        """When the power was cut, and something was lost that is only synced now and then."""
        self.failures: Counter[bytes] = Counter()
        self.in_order: dict[Queue, dict[int, bytes]] = defaultdict(dict)
        """What was delivered of each queue that is consumed in order."""
        self.problems: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._members = 0
        self._sending = 2
        self.spare = Recreated(self)
        self.disasters = Disasters(self)

    def tell(self, text: str) -> None:
        """Note what happens."""
        self.told.append(f"{now():.1f} {text}")

    async def play(self) -> None:
        """Live through trouble, and check what has become of everything."""
        for names in self.names:
            names.start()
        for number in range(self.choose((1, 2))):
            host = BrokerHost(self.network, number, self.flush, self.nameservers)
            host.gave_up = partial(self.disasters.gave_up, host)
            host.start()
            self.brokers.append(host)
        await asyncio.sleep(0.5)
        async with self.client("admin") as mq:
            await mq.admin.create_topic(TOPIC, queues=self.queues)
            await self.spare.create(mq)
        for group in GROUPS:
            for _ in range(self.choose((1, 2, 3))):
                self.start(self.consume(group))
        for number in range(self._sending):
            self.start(self.produce(number))
        await self.disasters.befall()
        self.is_troubled = False
        while self._sending:  # noqa: ASYNC110  # Nobody tells.
            await asyncio.sleep(1)
        self.spare.is_sending = False
        await self.recover()
        await self.check()
        await self.spare.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Any) -> None:
        """Run a program."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def client(self, name: str, **more: Any) -> Client:
        """Make a client on a host."""
        self.opening = name, object()
        return Client(
            ";".join(map(str, self.nameservers)),
            ClientConfig(instance=name, redelivery_delay=1, **more),
        )

    # Programs.

    async def produce(self, number: int) -> None:
        """Send messages of all kinds, one after the other."""
        name = f"producer-{number}"
        sent = 0
        async with self.client(name, producer_group=name) as mq:
            mq.on_transaction_check(self.decide)
            while self.is_troubled:
                await asyncio.sleep(self.choose((0.01, 0.1, 1, 3)))
                body = b"%d-%d" % (number, sent)
                sent += 1
                self.tried.add(body)
                began = now()
                kind = self.choose(
                    (self.send, self.send, self.send_many, self.send_late, self.send_decided)
                )
                try:
                    await kind(mq, body)
                except ClientError as error:
                    self.counts[type(error).__name__] += 1
                else:
                    self.counts[kind.__name__] += 1
                self.sent_at[body] = began, now()
            self._sending -= 1
            await asyncio.Event().wait()  # It may still be asked.

    async def send(self, mq: Client, body: bytes) -> None:
        """Send one message, in the order of its producer."""
        key = self.choose((None, "all"))
        self.receipts[body] = await mq.send(TOPIC, body, sharding_key=key, timeout=5.0)

    async def send_many(self, mq: Client, body: bytes) -> None:
        """Send a batch, in which a message may be stored twice if an answer is lost."""
        bodies = [b"%s.%d" % (body, number) for number in range(self.choose((1, 3, 40)))]
        self.tried.update(bodies)
        self.in_batches.update(bodies)
        began = now()
        receipts: Sequence[Receipt] = ()
        try:
            receipts = await mq.send_batch(TOPIC, bodies, timeout=5.0)
        except ClientError as error:
            receipts = error.stored
            raise
        finally:
            for each, receipt in zip(bodies, receipts, strict=False):
                self.receipts[each] = receipt
                self.sent_at[each] = began, now()

    async def send_late(self, mq: Client, body: bytes) -> None:
        """Send one that comes later."""
        delay = self.choose((1.0, 5.0, 10.0, 30.0))
        self.due[body] = now() + delay
        await mq.send(TOPIC, body, delay=delay, timeout=5.0)
        self.committed.add(body)

    async def send_decided(self, mq: Client, body: bytes) -> None:
        """Send one that comes if that is decided."""
        try:
            async with mq.transaction(TOPIC, body, timeout=5.0) as transaction:
                await asyncio.sleep(self.choose((0, 0.1, 20)))
                self.decided[body] = self.choose(("commit", "commit", "rollback"))
                if self.decided[body] == "rollback":
                    await transaction.rollback()
        except ClientError:
            if self.decided.get(body) == "commit":  # It has begun, so the brokers will ask.
                self.committed.add(body)
            raise
        if self.decided[body] == "commit":
            self.committed.add(body)

    async def decide(self, message: ReceivedMessage) -> Any:
        """Tell a broker what was decided."""
        self.counts["asked"] += 1
        return self.decided.get(message.body, "unknown")

    async def consume(self, group: str) -> None:
        """Consume as a member of a group, for ever, in one life after the other."""
        while True:
            self._members += 1
            name = f"member-{self._members}"
            client = self.client(name)
            process = self.opening[1]
            async with client as mq:
                consumer = mq.consume(
                    TOPIC,
                    group=group,
                    start="first",
                    ordered=group == "in-order",
                    max_retries=RETRIES,
                    concurrency=self.choose((1, 5)),
                )
                life = asyncio.create_task(self._live(consumer, partial(self.handle, group)))
                seconds = self.random.uniform(5, 200) if self.is_troubled else 1e9
                await asyncio.wait({life}, timeout=seconds)
                if not life.done() and self.choose((True, False)):
                    self.counts["member killed"] += 1
                    self.network.die(process)
                    life.cancel()
                    await asyncio.wait({life})
                elif not life.done():
                    await consumer.drain(timeout=self.choose((0.1, 10)))
                    await life

    async def _live(self, consumer: Consumer, handle: Callable[[Message], Awaitable[None]]) -> None:
        while True:
            try:
                await consumer.run(handle)
                return
            except ClientError as error:
                if not error.can_retry:
                    self.problems.append(f"a member cannot begin: {error}")
                    return
                await asyncio.sleep(1)

    async def handle(self, group: str, message: Message) -> None:
        """Handle a message, or fail."""
        body = message.body
        if body not in self.tried:
            self.problems.append(f"{group}: {body!r} was never sent")
        if self.decided.get(body) == "rollback":
            self.problems.append(f"{group}: {body!r} was rolled back, but is delivered")
        if now() < self.due.get(body, 0) - 0.02:
            self.problems.append(f"{group}: {body!r} comes {self.due[body] - now():.3f} s early")
        if group == "in-order":
            self._check_order(message)
        await asyncio.sleep(self.choose((0, 0, 0.01, 0.3)))
        if self.is_troubled and self.random.random() < 0.1:
            self.counts["failed"] += 1
            self.failures[body] += 1
            raise ValueError("no such order")
        self.counts["handled"] += 1
        self.done[group].add(body)

    def _check_order(self, message: Message) -> None:
        """All before it is handled, or given up."""
        bodies = self.in_order[message.queue]
        bodies[message.offset] = message.body
        left = [
            at
            for at in range(message.offset)
            if (body := bodies.get(at)) not in self.done["in-order"]
            and (body is None or self.failures[body] <= RETRIES)
        ]
        if left and message.queue.topic == TOPIC and not self.cuts:
            self.problems.append(f"{message.queue}: {message.offset} comes before {left}")

    # The end.

    async def recover(self) -> None:
        """Wait until everything is handled."""
        until = now() + PATIENCE_SECONDS
        while now() < until:
            await asyncio.sleep(2)
            if not any(self.missing(group) for group in GROUPS):
                return
        for group in GROUPS:
            if missing := self.missing(group):
                await self.read_dead_letters()
                missing = self.missing(group)
                if missing:
                    self.problems.append(f"{group}: not delivered: {missing}")

    def missing(self, group: str) -> list[bytes]:
        """Return what was sent but not handled."""
        wanted = filter(self.is_safe, {*self.receipts, *self.committed})
        return sorted({*wanted} - self.done[group] - self.dead[group])

    def is_safe(self, body: bytes) -> bool:
        """Whether no power cut may have taken it."""
        return self.is_synced(*self.sent_at[body])

    def is_synced(self, began: float, ended: float) -> bool:
        """Whether no power cut may have taken what was done then."""
        return not any(began <= cut <= ended + UNSYNCED_SECONDS for cut in self.cuts)

    async def read_dead_letters(self) -> None:
        """Read what the groups gave up."""
        async with self.client("reader") as mq:
            for group in GROUPS:
                topic = f"%DLQ%{group}"
                try:
                    queues = await mq.queues(topic)
                except ClientError:
                    continue
                for queue in queues:
                    self.dead[group].update(each.body for each in await self._read(mq, queue))

    async def _read(self, mq: Client, queue: Queue) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        at, end = await mq.first_offset(queue), await mq.end_offset(queue)
        while at < end:
            batch = await mq.pull(queue, at, count=32)
            found += batch.messages
            at = batch.next_offset
        return found

    async def check(self) -> None:
        """Check what is in the queues."""
        async with self.client("checker") as mq:
            there: dict[Queue, dict[int, bytes]] = defaultdict(dict)
            for queue in await mq.queues(TOPIC):
                for message in await self._read(mq, queue):
                    there[queue][message.offset] = message.body
            for body, receipt in self.receipts.items():
                found = there[receipt.queue].get(receipt.offset)
                if found != body and receipt.is_durable and self.is_safe(body):
                    self.problems.append(f"{body!r}: at {receipt} there is {found!r}")
            count = Counter(body for each in there.values() for body in each.values())
            twice = [b for b, times in count.items() if times > 1 and b not in self.in_batches]
            if twice and not self.cuts:
                self.problems.append(f"stored more than once: {twice}")
        for host in self.brokers:
            self.problems += host.failed
        for names in self.names:
            self.problems += names.failed


@pytest.mark.parametrize("seed", seeds_of(4))
def test_what_clients_are_told_is_true(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch)
    world = World(seed)
    run("asyncio", seed, world.play, lambda: world.network.runtime(*world.opening))
    history = "\n".join(world.told)
    assert not world.problems, f"seed {seed}: {world.problems}\n{history}\n{world.counts}"
