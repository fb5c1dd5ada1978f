"""Brokers' questions to the members of a group, on an operator's behalf, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import pytest
from tests.client.running import Servers, on_every_loop, play_on
from tests.interop.apache_client import BrokerClient

from cometmq.client import Client, ClientConfig
from cometmq.client._questions import Questions
from cometmq.proto.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
)
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatus

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Message
    from cometmq.client._parts import Parts
    from cometmq.net import Peer
    from cometmq.proto.header import Header

NAMED = ClientConfig(instance="python-1")


async def ask(servers: Servers, code: RequestCode, fields: Header) -> Command:
    """Ask the broker like an admin tool, in a thread, as the client's loop must keep running."""

    def ask() -> Command:
        with BrokerClient(int(servers.broker.rpartition(":")[2])) as tool:
            return tool.ask(code, fields)

    return await anyio.to_thread.run_sync(ask)


@on_every_loop
def test_a_consumer_tells_of_itself(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, NAMED) as mq:
            await mq.send("orders", b"x", tag="paid")
            async with mq.consume("orders", group="billing", filter="paid") as consumer:
                message = await anext(consumer)
                asked = GetConsumerRunningInfo("billing", mq.id, jstack_enable=True)
                response = await ask(servers, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
                assert response.code == ResponseCode.SUCCESS, response.remark
                info = ConsumerRunningInfo.decode(response.body)
                assert {each.topic: each.sub_string for each in info.subscription_set} == {
                    "orders": "paid",
                    "%RETRY%billing": "*",
                }
                held = {each.queue_id: info.mq_table[each] for each in info.mq_table
                        if each.topic == "orders"}  # fmt: skip
                assert held[message.queue.id].cached_msg_count == 1
                assert held[message.queue.id].last_pull_timestamp > 0
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
                assert info.properties["PROP_NAMESERVER_ADDR"] == servers.nameserver
                assert info.jstack is not None
                assert "MainThread" in info.jstack
                message.ack()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_consumer_tells_up_to_where_it_has_consumed(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            for _ in range(3):
                await mq.send("orders", b"x", sharding_key="k")
            async with mq.consume("orders", group="billing") as consumer:
                for _ in range(2):
                    async with await anext(consumer):
                        pass
                message = await anext(consumer)
                asked = GetConsumerStatus("orders", "billing")
                response = await ask(
                    servers, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked
                )
                (table,) = ConsumerStatus.decode(response.body).consumer_table.values()
                offsets = {queue.queue_id: offset for queue, offset in table.items()}
                assert offsets[message.queue.id] == 2
                message.ack()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_an_operator_has_a_message_consumed_now(loop: str, tmp_path: Path) -> None:
    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError("no such order")

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            good, bad = await mq.send("orders", b"good"), await mq.send("orders", b"bad")
            consumer = mq.consume("other", group="billing")
            await mq.send("other", b"x")
            results: dict[str, ConsumeMessageDirectlyResult] = {}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                while not consumer.queues:
                    await anyio.lowlevel.checkpoint()
                for receipt in (good, bad):
                    asked = ConsumeMessageDirectly(
                        "billing", mq.id, receipt.offset_id, receipt.queue.broker
                    )
                    response = await ask(servers, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
                    assert response.code == ResponseCode.SUCCESS, response.remark
                    results[receipt.id] = ConsumeMessageDirectlyResult.decode(response.body)
                await consumer.drain()
            assert results[good.id].consume_result == ConsumeResult.CR_SUCCESS
            assert results[bad.id].consume_result == ConsumeResult.CR_THROW_EXCEPTION
            assert results[bad.id].remark == "ValueError: no such order"

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize(
    "asked",
    [
        Command.request(307, GetConsumerRunningInfo("billing", "python-1")),
        Command.request(309, ConsumeMessageDirectly("billing", "python-1")),
    ],
)
def test_who_asks_for_a_group_that_is_not_here_is_told_so(asked: Command) -> None:
    response = Questions({}, nothing_is_open).answer(asked, cast("Peer", None))
    assert isinstance(response, Command)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "The Consumer Group <billing> not exist" in (response.remark or "")


def nothing_is_open() -> Parts:
    raise AssertionError("a group that is not here needs nothing")
