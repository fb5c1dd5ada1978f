"""Traces of sends and consumption, in Apache's format and in a topic for its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig, Queue, RefusedError
from cometmq.client._core.trace_format import TRACE_TOPIC, read_records, record
from cometmq.client._trace import RECORDS_MAX, Trace

if TYPE_CHECKING:
    from pathlib import Path

TRACED = ClientConfig(trace=True, producer_group="shop")


@on_every_loop
def test_sends_and_consumptions_are_traced_until_the_client_closes(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, TRACED) as mq:
            receipt = await mq.send("orders", b"body", key="o-17", tag="paid")
            consumer = mq.consume("orders", group="billing", start="first")
            async with await anext(consumer):
                raise ValueError("no such order")
            await consumer.drain()
        async with Client(servers.nameserver) as mq:
            records: list[list[str]] = []
            for queue in await mq.queues(TRACE_TOPIC):
                for message in (await mq.pull(queue, 0)).messages:
                    assert set(message.keys) == {receipt.id, "o-17"}
                    records += read_records(message.body.decode())
        by_type = {each[0]: each for each in records}
        assert len(records) == len(by_type) == 3
        sent, before, after = (by_type[name] for name in ("Pub", "SubBefore", "SubAfter"))
        assert sent[2:10] == [
            "DefaultRegion", "shop", "orders", receipt.id, "paid", "o-17", servers.broker, "4",
        ]  # fmt: skip
        assert sent[11:] == ["0", receipt.offset_id, "true"]
        assert before[3:5] == ["billing", after[1]]
        assert before[5:] == [receipt.id, "0", "o-17"]
        assert after[2] == receipt.id
        assert (after[4], after[5], after[6], after[8]) == ("false", "o-17", "4", "billing")

    play_on(loop, tmp_path, scenario)


def test_a_send_that_fails_is_traced_as_such(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, TRACED) as mq:
            await mq.admin.create_topic("orders", queues=1)
            with pytest.raises(RefusedError):
                await mq.send("orders", b"x", queue=Queue("orders", "broker-a", 9), key="o-17")
        async with Client(servers.nameserver) as mq:
            (trace,) = await mq.admin.find_messages(TRACE_TOPIC, "o-17")
            (fields,) = read_records(trace.body.decode())
            assert (fields[3:5], fields[-2:]) == (["shop", "orders"], ["", "false"])

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])  # On trio connections are cancelled, too.
def test_traces_are_sent_though_the_block_of_the_client_is_cancelled(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        with anyio.CancelScope() as scope:
            async with Client(servers.nameserver, TRACED) as mq:
                await mq.send("orders", b"x", key="o-17")
                scope.cancel()
        async with Client(servers.nameserver) as mq:
            found = await mq.admin.find_messages(TRACE_TOPIC, "o-17")
            assert len(found) == 1

    play_on(loop, tmp_path, scenario)


async def test_traces_beyond_the_limit_are_lost_not_kept() -> None:
    trace = Trace("shop")
    for _ in range(RECORDS_MAX + 5):
        trace.add("x", set())
    assert trace.lost == 5


def test_what_divides_fields_cannot_be_in_one() -> None:
    assert read_records(record("Pub", "a\x01b\x02", True)) == [["Pub", "a b ", "true"]]
