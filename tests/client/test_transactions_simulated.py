"""Transactions, while simulated brokers, their network and the programs do what they may do.

What was decided comes true, whoever dies and whichever request is lost: the broker asks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from tests.client.simulated_broker import HOST, Broker
from tests.client.simulated_cluster import NAMESERVER, TOPIC, Cluster
from tests.client.simulated_network import Machine, Network, now
from tests.client.simulated_run import played, seeds_of
from tests.client.simulated_trouble import Trouble

from cometmq.client import Client, ClientConfig, ClientError, Queue
from cometmq.proto.bodies import HeartbeatData
from cometmq.proto.codes import RequestCode as Request, ResponseCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    CheckTransactionState,
    EndTransaction,
    SendMessageResponse,
    SendMessageV2,
)
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.message_id import encode_offset_id
from cometmq.proto.properties import find_property
from cometmq.proto.record import encode_record
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from tests.client.simulated_network import Link

    from cometmq.client import ReceivedMessage
    from cometmq.client.transaction import Decision

SHOP: Final = "shop"
TROUBLE_SECONDS: Final = 120.0
ASKED_EVERY: Final = 6.0
PATIENCE_SECONDS: Final = 150.0


class TransactionBroker(Broker):
    """A broker that keeps undecided messages, and asks about them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.undecided: dict[int, tuple[Queue, bytes, bytes]] = {}
        self.begun: set[bytes] = set()
        self._keys: dict[bytes | None, int] = {}
        self._producers: dict[str, Link] = {}
        self._answers[Request.END_TRANSACTION] = self._end_transaction
        self.network.later(ASKED_EVERY, self._ask)

    def crash(self) -> None:
        """Forget who can be asked."""
        self._producers.clear()
        super().crash()

    def gone(self, link: Link) -> None:
        """Forget that it can be asked."""
        self._producers = {name: its for name, its in self._producers.items() if its is not link}
        super().gone(link)

    def _heartbeat(self, request: Command) -> Command:
        data = HeartbeatData.decode(request.body)
        if any(each.group_name == SHOP for each in data.producer_data_set):
            self._producers[data.client_id] = self._from
        return super()._heartbeat(request)

    def _send(self, request: Command) -> Command:
        header = request.read(SendMessageV2)
        if not header.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return super()._send(request)
        properties = (header.properties or "").encode()
        key = find_property(properties, b"UNIQ_KEY")
        number = self._keys.get(key)
        if number is None:
            number = self._keys[key] = len(self._keys)
            queue = Queue(header.topic, self.name, header.queue_id)
            self.begun.add(bytes(request.body or b""))
            self.undecided[number] = queue, bytes(request.body or b""), properties
        fields = SendMessageResponse(encode_offset_id(HOST, number), header.queue_id, number)
        return request.answer(0, fields)

    def _end_transaction(self, request: Command) -> Command:
        header = request.read(EndTransaction)
        found = self.undecided.pop(header.commit_log_offset, None)
        if found is None:
            return request.answer(Code.SYSTEM_ERROR, remark="it is over")
        if header.commit_or_rollback == TransactionEnd.COMMIT:
            self.store(*found)
        how = "decided when asked" if header.from_transaction_check else "decided"
        self.network.count(how)
        return request.answer(0)

    def _ask(self) -> None:
        self.network.later(ASKED_EVERY, self._ask)
        if not self.is_up or not self._producers:
            return
        for number, (queue, body, properties) in self.undecided.items():
            record = encode_record(
                topic=queue.topic.encode(), body=body, properties=properties, queue_id=queue.id,
                queue_offset=number, physical_offset=number, born_timestamp=0, born_host=HOST,
                store_timestamp=0, store_host=HOST, reconsume_times=0,
            )  # fmt: skip
            fields = CheckTransactionState(number, number)
            link = self.network.random.choice([*self._producers.values()])
            link.push(
                Command.request(Request.CHECK_TRANSACTION_STATE, fields, body=record, oneway=True)
            )


class World:
    """One history."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed, (0.0, 0.02, 0.1, 0.3)[seed % 4])
        self.random = self.network.random
        self.choose = self.random.choice
        self.opening: Machine
        self.cluster: Cluster
        self.outcomes: dict[bytes, Decision] = {}
        self.problems: list[str] = []
        self._is_troubled = True
        self._disasters = self.choose((3, 12)) if seed % 4 else 0

    async def play(self) -> None:
        """Decide transactions through trouble, and see what becomes of them."""
        async with anyio.create_task_group() as self.network.tasks:
            names = ["a", "b"][: self.random.randrange(1, 3)]
            self.cluster = Cluster(self.network, names, is_apache=False, kind=TransactionBroker)
            for broker in self.cluster.brokers.values():
                broker.have(TOPIC, self.random.randrange(1, 4))
            self.cluster.publish()
            for number in range(3):
                self.network.tasks.start_soon(self._live, f"m{number}", bool(number))
            trouble = Trouble(self.network, self.cluster)
            await trouble.befall(self._disasters, TROUBLE_SECONDS)
            self._is_troubled = False
            await trouble.end()
            self.cluster.publish()
            await self._recover()
            self.network.tasks.cancel_scope.cancel()
        self._check()

    async def _live(self, name: str, is_mortal: bool) -> None:
        self.opening = machine = self.network.machines[name] = Machine(name)
        config = ClientConfig(instance=name, producer_group=SHOP)
        async with Client(NAMESERVER, config) as mq:
            mq.on_transaction_check(self._what_became_of)
            number = 0
            while self._is_troubled:
                number += 1
                await self._decide(mq, b"%s %d" % (name.encode(), number))
                if is_mortal and self.random.random() < 0.05:
                    machine.is_dead = True
                    for link in machine.links:
                        link.break_("killed")
                    self.network.count("killed")
                    return
                await anyio.sleep(self.random.uniform(0, 10))
            await anyio.sleep_forever()

    async def _decide(self, mq: Client, body: bytes) -> None:
        try:
            async with mq.transaction(TOPIC, body):
                await anyio.sleep(self.choose((0, 0.01, 1, 10)))
                self.outcomes[body] = self.choose(("commit", "commit", "rollback"))
                if self.outcomes[body] == "rollback":
                    raise ValueError("no money")
        except ValueError:
            self.network.count("rolled back")
        except ClientError as error:
            self.network.count(type(error).__name__)
            self.outcomes.setdefault(body, "rollback")  # It has not begun, as far as is known.
        else:
            self.network.count("committed")

    async def _what_became_of(self, message: ReceivedMessage) -> Decision:
        await anyio.sleep(self.choose((0, 0.1)))
        return self.outcomes.get(bytes(message.body), "unknown")

    def _brokers(self) -> list[TransactionBroker]:
        brokers = self.cluster.brokers.values()
        return [each for each in brokers if isinstance(each, TransactionBroker)]

    def _undecided(self) -> list[bytes]:
        return [body for each in self._brokers() for _, body, _ in each.undecided.values()]

    async def _recover(self) -> None:
        until = now() + PATIENCE_SECONDS
        while self._undecided() and now() < until:  # noqa: ASYNC110  # Nobody tells.
            await anyio.sleep(1)
        self.problems += [f"nobody was asked about {body!r}" for body in self._undecided()]

    def _check(self) -> None:
        logs = self.cluster.logs().values()
        copies = Counter(each.body for log in logs for each in log.messages)
        begun = set[bytes]().union(*(each.begun for each in self._brokers()))
        for body, outcome in self.outcomes.items():
            if copies[body] > (outcome == "commit"):
                self.problems.append(f"{body!r} of {outcome} is delivered {copies[body]} times")
            if outcome == "commit" and body in begun and not copies[body]:
                self.problems.append(f"{body!r} was committed, and is not delivered")


def play(seed: int, loop: str) -> Counter[str]:
    """Play one history, and return what happened."""
    world = World(seed)
    return played(world, seed, loop, lambda: world.opening)


@pytest.mark.parametrize(("loop", "seeds"), [("asyncio", 20), ("trio", 4)])
def test_what_was_decided_comes_true(loop: str, seeds: int) -> None:
    counts = sum((play(seed, loop) for seed in seeds_of(seeds)), Counter[str]())
    assert counts["committed"] > 5 * seeds, counts
    if seeds > 4:
        assert counts.keys() >= {
            "rolled back", "decided when asked", "killed", "crash", "DeadlineError",
        }, counts  # fmt: skip
