"""Names in a namespace have a prefix at the broker, which clients in it do not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig, UsageError
from cometmq.client._core.names import in_namespace, without_namespace

if TYPE_CHECKING:
    from pathlib import Path

VIENNA = ClientConfig(namespace="vienna", redelivery_delay=0.05)


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("orders", "vienna%orders"),
        ("vienna%orders", "vienna%orders"),
        ("graz%orders", "vienna%graz%orders"),
        ("%RETRY%billing", "%RETRY%vienna%billing"),
        ("%DLQ%vienna%billing", "%DLQ%vienna%billing"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
    ],
)
def test_names_get_the_prefix_where_java_puts_it(name: str, known_as: str) -> None:
    assert in_namespace("vienna", name) == known_as
    assert in_namespace("", name) == name
    assert in_namespace("vienna", without_namespace("vienna", known_as)) == known_as


@pytest.mark.parametrize("namespace", ["a%b", "a b", "ä", "a|b"])
def test_what_cannot_be_a_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(UsageError, match="namespace"):
        ClientConfig(namespace=namespace)


@on_every_loop
def test_members_of_a_namespace_say_bare_names(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, VIENNA) as mq, Client(servers.nameserver) as other:
            receipt = await mq.send("orders", b"x")
            await mq.send_batch("orders", [b"y"], queue=receipt.queue)
            assert receipt.queue.topic == "vienna%orders"
            assert await mq.queues("orders") == await other.queues("vienna%orders")
            found = await mq.pull(receipt.queue, 0)
            assert [each.topic for each in found.messages] == ["orders", "orders"]
            seen = await other.pull(receipt.queue, 0)
            assert seen.messages[0].topic == "vienna%orders"
            assert seen.messages[0].properties["INSTANCE_ID"] == "vienna"
            async with mq.consume("orders", group="billing", start="first") as consumer:
                first = await anext(consumer)
                await first.retry(delay_level=3)
                again = None
                while again is None:
                    message = await anext(consumer)
                    again = message if message.attempt == 2 else None
                    message.ack()
                assert again.topic == "orders"
                assert again.queue.topic == "%RETRY%vienna%billing"
            topics = {each.name for each in await other.admin.topics()}
            assert {"vienna%orders", "%RETRY%vienna%billing"} <= topics
            await mq.commit(receipt.queue, "billing", 1)
            assert await other.committed(receipt.queue, "vienna%billing") == 1

    play_on(loop, tmp_path, scenario)
