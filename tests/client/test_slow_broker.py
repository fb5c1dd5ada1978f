"""One of two brokers is slow: sends go to the other, and return when the first has recovered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.client.relay import ANNOUNCED, Relay
from tests.client.running import Servers, play_on

from cometmq.client import Client, ClientConfig

if TYPE_CHECKING:
    from pathlib import Path

SLOW_SECONDS, LEFT_ALONE_SECONDS = 0.6, 2.0
"""After a send of 0.55 s or more, a broker is left alone for 2 s, as by Apache's clients."""


class Sends:
    """The sends of one client, with the brokers that they went to."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self.is_disturbed = False
        """Whether the quick broker was slow, too, as when the whole machine stalls."""

    async def one(self) -> tuple[str, float, float]:
        """Send once; return the broker, and when the send began and ended."""
        began = time.monotonic()
        receipt = await self._mq.send("orders", b"x", timeout=20)
        ended, broker = time.monotonic(), receipt.queue.broker
        if broker == "quick" and ended - began >= SLOW_SECONDS / 2:
            self.is_disturbed = True
        return broker, began, ended

    async def until(self, broker: str) -> tuple[float, float]:
        """Send until one goes to that broker; return when this send began and ended."""
        with anyio.fail_after(30):
            while True:
                found, began, ended = await self.one()
                if found == broker:
                    return began, ended

    async def until_time(self, end: float) -> list[str]:
        """Send until that time; return the brokers."""
        brokers: list[str] = []
        while True:
            broker, _, ended = await self.one()
            if ended >= end:
                return brokers
            brokers.append(broker)


async def after_a_slow_send(sends: Sends, relay: Relay) -> set[str]:
    """Make one send slow; return the brokers of the sends in the two seconds after it."""
    for _ in range(10):
        await sends.until("quick")
        sends.is_disturbed = False
        relay.slow_down(SLOW_SECONDS)
        began, ended = await sends.until("slow")
        relay.speed_up()
        assert ended - began >= SLOW_SECONDS
        brokers = await sends.until_time(began + SLOW_SECONDS + LEFT_ALONE_SECONDS)
        if len(brokers) >= 10 and not sends.is_disturbed:
            return set(brokers)
    raise AssertionError("this machine stands still all the time")


@pytest.mark.parametrize("avoids", [True, False])
def test_a_slow_broker_is_left_alone_for_a_while_if_that_is_wanted(
    avoids: bool, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        servers.add("slow", tmp_path / "slow", broker_name="slow", advertise_address=ANNOUNCED)
        config = ClientConfig(avoid_slow_brokers=avoids)
        with Relay(servers.port_of("slow")) as relay:
            async with Client(servers.nameserver, config) as mq:
                await mq.admin.create_topic("orders", queues=2)
                sends = Sends(mq)
                both = {"quick", "slow"}
                assert await after_a_slow_send(sends, relay) == ({"quick"} if avoids else both)
                await sends.until("slow")

    play_on("asyncio", tmp_path, scenario, broker_name="quick")
