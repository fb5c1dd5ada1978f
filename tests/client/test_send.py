"""Sending messages, and reading them back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on

from cometmq.client import (
    Client,
    ClientConfig,
    NewMessage,
    Queue,
    Receipt,
    ReceivedMessage,
    RefusedError,
    UsageError,
)
from cometmq.client._core.outgoing import Timing, timing_properties
from cometmq.proto.version import version_ordinal

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Pulled


async def everything(mq: Client, queue: Queue) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    offset, end = await mq.first_offset(queue), await mq.end_offset(queue)
    while offset < end:
        found = await mq.pull(queue, offset)
        messages += found.messages
        offset = found.next_offset
    return messages


async def pull_of(mq: Client, receipt: Receipt) -> Pulled[ReceivedMessage]:
    return await mq.pull(receipt.queue, receipt.offset, count=1)


@on_every_loop
def test_a_message_comes_back_as_it_was_sent(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            receipt = await mq.send(
                "orders",
                b"o-17 paid",
                key="o-17",
                keys=["c-4"],
                tag="paid",
                properties={"country": "AT"},
                flag=7,
            )
            (message,) = (await pull_of(mq, receipt)).messages
        assert receipt.is_durable
        assert receipt.status == "ok"
        assert message.body == b"o-17 paid"
        assert (message.topic, message.queue, message.offset) == (
            "orders",
            receipt.queue,
            receipt.offset,
        )
        assert (message.id, message.offset_id) == (receipt.id, receipt.offset_id)
        assert (message.key, message.keys, message.tag) == ("o-17", ["o-17", "c-4"], "paid")
        assert message.user_properties == {"country": "AT"}
        assert (message.flag, message.attempt) == (7, 1)
        assert message.sent_at <= message.stored_at

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_many_sends_at_once_each_get_their_receipt(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        receipts: dict[int, Receipt] = {}
        async with Client(servers.nameserver) as mq:

            async def send(number: int) -> None:
                receipts[number] = await mq.send("orders", b"%d" % number, timeout=30)

            async with anyio.create_task_group() as tasks:
                for number in range(500):
                    tasks.start_soon(send, number)
            found = {
                message.id: message.body
                for queue in await mq.queues("orders")
                for message in await everything(mq, queue)
            }
        assert found == {receipts[number].id: b"%d" % number for number in range(500)}
        assert len({receipt.queue for receipt in receipts.values()}) == 4

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_batch_is_split_at_the_limit_and_keeps_its_order(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(body_size_max=4096)
        async with Client(servers.nameserver, config) as mq:
            bodies = [b"%03d" % number * 300 for number in range(20)]
            last = NewMessage(body=b"last", key="k", tag="t", properties={"a": "b"})
            receipts = await mq.send_batch("orders", [*bodies, last])
            queue = receipts[0].queue
            found = await everything(mq, queue)
        assert [message.body for message in found] == [*bodies, b"last"]
        assert [(r.queue, r.offset) for r in receipts] == [(queue, each) for each in range(21)]
        assert [message.id for message in found] == [receipt.id for receipt in receipts]
        assert [message.offset_id for message in found] == [r.offset_id for r in receipts]
        assert (found[-1].key, found[-1].tag) == ("k", "t")
        assert found[-1].user_properties == {"a": "b"}

    play_on(loop, tmp_path, scenario)


def test_a_large_body_travels_compressed(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            small = await mq.send("orders", b"a" * 4095)
            large = await mq.send("orders", b"a" * 4096)
            (one,) = (await pull_of(mq, small)).messages
            (other,) = (await pull_of(mq, large)).messages
        assert one.size > 4095
        assert other.size < 400
        assert other.body == b"a" * 4096

    play_on("asyncio", tmp_path, scenario)


def test_a_sharding_key_has_one_queue_and_a_chosen_queue_is_kept(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first = await mq.send("orders", b"1", sharding_key="c-4")
            for _ in range(5):
                assert (await mq.send("orders", b"2", sharding_key="c-4")).queue == first.queue
            chosen = Queue("orders", first.queue.broker, 2)
            assert (await mq.send("orders", b"3", queue=chosen)).queue == chosen
            (message,) = (await pull_of(mq, first)).messages
            assert message.properties["__SHARDINGKEY"] == "c-4"

    play_on("asyncio", tmp_path, scenario)


def test_a_delay_that_is_a_level_is_sent_as_that_and_another_as_a_time() -> None:
    assert timing_properties(Timing(delay=5.0)) == {"DELAY": "2"}
    assert timing_properties(Timing(delay_level=18)) == {"DELAY": "18"}
    assert timing_properties(Timing(delay=5.5)) == {"TIMER_DELAY_MS": "5500"}
    assert timing_properties(Timing(deliver_at_ms=7)) == {"TIMER_DELIVER_MS": "7"}
    assert timing_properties(Timing(delay=0)) == {}


@on_every_loop
def test_a_delayed_message_comes_late(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"late", delay=1.0)
            await mq.send("orders", b"now")
            async with mq.consume("orders", group="billing") as consumer:
                taken = [await anext(consumer) for _ in range(2)]
                for message in taken:
                    message.ack()
            assert [message.body for message in taken] == [b"now", b"late"]
            assert [message.user_properties for message in taken] == [{}, {}]
            assert (taken[1].stored_at - taken[1].sent_at).total_seconds() >= 1

    play_on(loop, tmp_path, scenario)


def test_an_old_broker_gets_no_message_for_a_time_that_it_cannot_keep(tmp_path: Path) -> None:
    """It would deliver the message at once."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"at once")
            membership = mq._open_parts().membership  # pyright: ignore[reportPrivateUsage]  # Ours is new.
            membership.broker_version[servers.broker] = version_ordinal(4, 9, 9)
            at = datetime.now(UTC) + timedelta(seconds=60)
            told = "is of version V4_9_9, which knows only delay levels"
            with pytest.raises(UsageError, match=told):
                await mq.send("orders", b"late", deliver_at=at)
            with pytest.raises(UsageError, match=told):
                await mq.send("orders", b"late", delay=5.5)
            await mq.send("orders", b"late", delay=5)
            await mq.send("orders", b"late", delay_level=3)

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_a_one_way_send_arrives(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first = await mq.send("orders", b"first")
            await mq.send_oneway("orders", b"second", queue=first.queue)
            found = await mq.pull(first.queue, 1, wait=10)
        assert [message.body for message in found.messages] == [b"second"]

    play_on(loop, tmp_path, scenario)


def test_who_sends_one_way_only_learns_the_route_of_the_topic_that_it_made(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(template_queue_count=1, route_interval=0.05)
        nameserver = servers.nameserver
        async with Client(nameserver, config) as mq, Client(nameserver, config) as other:
            await mq.send_oneway("orders", b"makes it")
            await other.send("orders", b"makes it, if that has not come yet")
            await other.admin.create_topic("orders", queues=3)
            queues = await other.queues("orders")
            with anyio.fail_after(30):
                while not all([await other.end_offset(queue) for queue in queues]):
                    await mq.send_oneway("orders", b"x")
            assert len(queues) == 3

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "a b"}, "letters, digits"),
        ({"topic": "a" * 128}, "at most 127"),
        ({"topic": ""}, "empty; give its name"),
        ({"topic": b"orders"}, "a str, not bytes"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "only the broker"),
        ({"body": "text"}, "encode it first"),
        ({"body": b""}, "empty"),
        ({"body": None}, "not NoneType"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body_size_max 4194304: send it in parts"),
        ({"tag": "a||b"}, "must be a str other than *"),
        ({"tag": "a "}, "a blank at an end"),
        ({"key": "a b"}, "without blanks that is not empty; for several, use keys="),
        ({"keys": "ab"}, "must be a list of str"),
        ({"properties": {"TAGS": "x"}}, "use the argument tag"),
        ({"properties": {"CLUSTER": "x"}}, "'CLUSTER' is reserved"),
        ({"properties": {"a": 1}}, "not a pair of str; convert with str()"),
        ({"properties": {"a": ""}}, "empty"),
        ({"properties": {"a": "\x02"}}, "separator"),
        ({"properties": {"a": "x" * 40000}}, "over 32767"),
        ({"delay": 1, "delay_level": 1}, "delay and delay_level"),
        ({"delay": -1}, "0 or more"),
        ({"delay_level": 19}, "1 to 18"),
        ({"timeout": 0}, "more than 0"),
        ({"sharding_key": ""}, "empty"),
        ({"sharding_key": 5}, "sharding_key=5: must be a str, such as '5'"),
        ({"delay": "5"}, "delay='5': must be a number of seconds, such as 5 or 0.5"),
        ({"delay": float("nan")}, "0 or more"),
        ({"delay": True}, "a number of seconds"),
        ({"delay_level": "3"}, "delay_level='3': must be a whole number, from 1 to 18"),
        ({"deliver_at": 7}, "deliver_at=7: must be a datetime, such as datetime.now(UTC) + ..."),
        ({"deliver_at": datetime(2026, 1, 1)}, "must be a datetime with a time zone"),  # As a test.
        ({"timeout": "5"}, "timeout='5': must be a number of seconds"),
        ({"queue": "orders"}, "queue='orders': must be a Queue"),
        ({"keys": 5}, "must be a list of str"),
        ({"properties": [("a", "b")]}, "must be a dict of str"),
        ({"flag": "x"}, "flag='x': must be a whole number"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        # Nobody listens there, so any request to a server would be another error.
        async with Client("127.0.0.1:1") as mq:
            with pytest.raises(UsageError, match=re.escape(said)) as refused:
                await mq.send(**cast("Any", {"topic": "orders", "body": b"x", **arguments}))
        assert refused.value.whose == "ours"
        assert not refused.value.can_retry

    on_loop("asyncio", scenario)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"messages": 5}, "messages: must be a list"),
        ({"messages": b"x"}, "for a single one, use `send`"),
        ({"messages": []}, "messages: must not be empty"),
        ({"messages": [b"x", "y"]}, "encode it first"),
        ({"messages": [b"x"], "sharding_key": 5}, "such as '5'"),
        ({"messages": [NewMessage(body=b"x", flag=1 << 31)]}, "flag=2147483648"),
        # Otherwise a part of the batch would be delayed, or not waited for.
        ({"messages": [NewMessage(body=b"x", properties={"DELAY": "3"})]}, "'DELAY' is reserved"),
        ({"messages": [NewMessage(body=b"x", properties={"WAIT": "false"})]}, "'WAIT' is reserved"),
    ],
)
def test_a_batch_that_cannot_be_sent_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1") as mq:
            with pytest.raises(UsageError, match=re.escape(said)):
                await mq.send_batch(**cast("Any", {"topic": "orders", **arguments}))

    on_loop("asyncio", scenario)


def test_a_queue_of_another_topic_is_refused(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            with pytest.raises(UsageError, match="is not a queue of topic 'orders'"):
                await mq.send("orders", b"x", queue=Queue("bills", "broker-a", 0))

    play_on("asyncio", tmp_path, scenario)


def test_what_the_broker_refuses_says_who_and_why(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first = await mq.send("orders", b"x")
            with pytest.raises(RefusedError) as refused:
                await mq.send("orders", b"x", queue=Queue("orders", first.queue.broker, 99))
        assert refused.value.whose == "theirs"
        assert not refused.value.can_retry
        assert refused.value.name == "INVALID_PARAMETER"
        assert servers.broker in str(refused.value)
        assert "queueId[99]" in refused.value.remark

    play_on("asyncio", tmp_path, scenario)
