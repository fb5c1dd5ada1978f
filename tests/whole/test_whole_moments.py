"""Moments of whole clusters that a history has shown to matter."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.client.simulated_run import run
from tests.whole.pipes import Network
from tests.whole.servers import NAMESERVERS, BrokerHost, NameServerHost, piped

from cometmq.client import Client, ClientConfig, ClientError
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from cometmq.client import ReceivedMessage

TOPIC: Final = "orders"


class Whole:
    """A broker, a name server, and a topic of one queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        piped(monkeypatch)
        self.network = Network(Random(0))
        self.broker: BrokerHost
        self.asked: list[bytes] = []

    def client(self, name: str) -> Client:
        """Make a client of a program with transactions."""
        return Client(str(NAMESERVERS[0]), ClientConfig(instance=name, producer_group="shop"))

    async def start(self) -> None:
        """Start the servers, and create the topic."""
        NameServerHost(self.network, NAMESERVERS[0]).start()
        self.broker = BrokerHost(self.network, 0, Flush.SYNC, NAMESERVERS[:1])
        self.broker.start()
        await asyncio.sleep(0.5)
        async with self.client("admin") as mq:
            await mq.admin.create_topic(TOPIC, queues=1)

    async def commit(self, message: ReceivedMessage) -> Any:
        """Decide a transaction."""
        self.asked.append(message.body)
        return "commit"

    async def bodies(self) -> list[bytes]:
        """Return what is delivered."""
        async with self.client("reader") as mq:
            (queue,) = await mq.queues(TOPIC)
            return [each.body for each in (await mq.pull(queue, 0, count=32)).messages]

    def play(self, scenario: Any) -> None:
        """Play it, with time that jumps."""
        run("asyncio", 0, scenario, lambda: self.network.runtime("a host", object()))


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Whole:
    return Whole(monkeypatch)


def test_a_broker_that_was_away_when_a_transaction_was_decided_can_ask_a_silent_program(
    whole: Whole,
) -> None:
    async def scenario() -> None:
        await whole.start()
        async with whole.client("shop") as mq:
            mq.on_transaction_check(whole.commit)
            with pytest.raises(ClientError):
                async with mq.transaction(TOPIC, b"paid", timeout=1.0):
                    whole.broker.kill()
            await asyncio.sleep(20)
            whole.broker.start()
            await asyncio.sleep(60)
            assert (whole.asked, await whole.bodies()) == ([b"paid"], [b"paid"])

    whole.play(scenario)


def test_a_program_that_was_started_anew_is_asked_before_it_has_sent_anything(
    whole: Whole,
) -> None:
    async def scenario() -> None:
        await whole.start()
        async with whole.client("shop") as mq:
            await mq.transaction(TOPIC, b"paid").__aenter__()
        async with whole.client("shop again") as mq:
            mq.on_transaction_check(whole.commit)
            await asyncio.sleep(20)
            assert (whole.asked, await whole.bodies()) == ([b"paid"], [b"paid"])

    whole.play(scenario)


def test_a_program_without_a_check_and_without_sends_has_no_connections(whole: Whole) -> None:
    async def scenario() -> None:
        await whole.start()
        async with whole.client("shop"):
            await asyncio.sleep(70)
            address = (whole.broker.address.address, whole.broker.address.port)
            assert not [end for end in whole.network.ends if end.names["sockname"] == address]

    whole.play(scenario)
