"""The header codec of a client: MessagePack with CometMQ's servers, JSON with Apache's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.client.consuming import take
from tests.client.relay import ANNOUNCED, Relay
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK

if TYPE_CHECKING:
    from pathlib import Path


async def use(mq: Client) -> None:
    """Send, pull, consume and administer."""
    await mq.admin.create_topic("orders", queues=2)
    receipt = await mq.send("orders", b"one", key="o-17", tag="paid")
    await mq.send_batch("orders", [b"two", b"three"])
    await mq.send_oneway("orders", b"four")
    async with mq.transaction("orders", b"five"):
        pass
    assert (await mq.pull(receipt.queue, receipt.offset, wait=10)).messages
    async with mq.consume("orders", group="billing", start="first") as consumer:
        assert sorted(await take(consumer, 5)) == [b"five", b"four", b"one", b"three", b"two"]


@on_every_loop
@pytest.mark.parametrize("offers", [True, False])
def test_with_our_servers_each_connection_goes_over_to_messagepack_if_that_is_wanted(
    loop: str, offers: bool, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        with (
            Relay(servers.port_of("nameserver"), at="127.0.0.1") as names,
            Relay(servers.port_of("broker")) as broker,
        ):
            async with Client(names.address, ClientConfig(offer_messagepack=offers)) as mq:
                await use(mq)
            kind = MESSAGEPACK if offers else JSON
            for connections in (names.headers, broker.headers):
                spoken = [each for headers in connections for each in headers]
                assert set(spoken) == {JSON.serialize_type, kind.serialize_type}
                for headers in connections:
                    assert headers[:1] == [JSON.serialize_type]
                    assert headers == sorted(headers)  # JSON comes first, until the answer.

    play_on(loop, tmp_path, scenario, advertise_address=ANNOUNCED)
