"""A message that is sent again because its answer was lost is stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Receipt

EAGER = ClientConfig(reconnect_delay=0.01, reconnect_delay_max=0.05)
WORKERS, EACH = 16, 40


class Orders:
    """Many concurrent senders, whose connections are cut now and then."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self.sent: dict[bytes, Receipt] = {}

    async def work(self, worker: int) -> None:
        for number in range(EACH):
            body = b"%d-%d" % (worker, number)
            key = str(number) if number % 2 else None
            self.sent[body] = await self._mq.send("orders", body, sharding_key=key, timeout=50)

    async def cut(self) -> None:
        known = 0
        while len(self.sent) < WORKERS * EACH:
            await anyio.lowlevel.checkpoint()
            if len(self.sent) >= known + 25:
                known = len(self.sent)
                connections = self._mq._open_parts().connections  # pyright: ignore[reportPrivateUsage]  # The network is cut.
                for _, link in connections:
                    link.drop("a test cuts it")

    async def stored(self) -> dict[bytes, list[tuple[int, int]]]:
        found: dict[bytes, list[tuple[int, int]]] = {}
        for queue in await self._mq.queues("orders"):
            offset = 0
            while messages := (await self._mq.pull(queue, offset)).messages:
                for message in messages:
                    found.setdefault(message.body, []).append((queue.id, message.offset))
                offset = messages[-1].offset + 1
        return found


@on_every_loop
def test_whatever_is_cut_each_message_is_stored_once(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, EAGER) as mq:
            await mq.admin.create_topic("orders", queues=4)
            orders = Orders(mq)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(orders.cut)
                for worker in range(WORKERS):
                    tasks.start_soon(orders.work, worker)
            answered = {body: [(r.queue.id, r.offset)] for body, r in orders.sent.items()}
            assert await orders.stored() == answered

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize("is_asked", [True, False])
def test_only_who_wants_it_asks_for_it(is_asked: bool, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(idempotent=is_asked)
        async with Client(servers.nameserver, config) as mq:
            receipt = await mq.send("orders", b"x")
            (message,) = (await mq.pull(receipt.queue, receipt.offset)).messages
            assert ("SENT_ONCE" in message.properties) is is_asked
            assert "SENT_ONCE" not in message.user_properties
            assert "IDEMPOTENT" not in message.properties

    play_on("asyncio", tmp_path, scenario)
