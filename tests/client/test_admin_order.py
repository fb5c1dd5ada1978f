"""The queues that producers of ordered topics may use, whatever the brokers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.lowlevel
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, NetworkError

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Receipt


async def used(mq: Client) -> set[int]:
    """Send some messages and return the ids of their queues."""
    return {(await mq.send("orders", b"x")).queue.id for _ in range(12)}


@on_every_loop
def test_an_ordered_topic_has_its_queues_at_the_name_server(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=2, ordered=True)
            assert await used(mq) == {0, 1}
            await mq.admin.create_topic("orders", queues=4)
            assert await used(mq) == {0, 1}, "the order is by the two it was made with"
            await mq.admin.create_topic("orders", ordered=True)
            assert await used(mq) == {0, 1, 2, 3}
            await mq.admin.create_topic("orders", queues=3, ordered=False)
            assert await used(mq) == {0, 1, 2}

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_topic_of_one_ordered_queue_keeps_all_messages_in_order(
    loop: str, tmp_path: Path
) -> None:
    """In strict order, all keys go to one queue, from which messages come one after another."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("strict", queues=1, ordered=True)
            bodies = [b"%d" % number for number in range(60)]
            for number, body in enumerate(bodies):
                sent = await mq.send("strict", body, sharding_key=f"key-{number % 7}")
                assert sent.queue.id == 0
            async with mq.consume("strict", group="g", start="first", ordered=True) as consumer:
                for body in bodies:
                    message = await anext(consumer)
                    assert message.body == body
                    message.ack()

    play_on(loop, tmp_path, scenario)


async def sent_in_the_end(mq: Client) -> Receipt | None:
    """Send, or return None while the client still takes the broker for away."""
    try:
        return await mq.send("orders", b"3", sharding_key="k")
    except NetworkError:
        return None


@on_every_loop
def test_no_other_queue_is_used_while_a_broker_of_the_order_is_away(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=2, ordered=True)
            first = await mq.send("orders", b"1", sharding_key="k")
            servers.stop("broker")
            with pytest.raises(NetworkError):
                await mq.send("orders", b"2", sharding_key="k", timeout=1)
            servers.start("broker")
            while (again := await sent_in_the_end(mq)) is None:
                await anyio.lowlevel.checkpoint()
            assert again.queue == first.queue

    play_on(loop, tmp_path, scenario)
