"""The SDK against a live Apache RocketMQ 5.5.0: sends, pulls, groups, retries, delays, filters."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
import pytest
from tests.client.consuming import take, take_in_order
from tests.client.running import LOOPS, on_loop
from tests.interop.apache_broker import PATIENT, ApacheBroker

from cometmq.client import (
    Client,
    ClientConfig,
    Message,
    NewMessage,
    NotFoundError,
    ReceivedMessage,
    Sql,
    SyncClient,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from cometmq.client import Consumer

pytestmark = pytest.mark.slow

QUICK_CHECKS = {"transactionTimeOut": "2000", "transactionCheckInterval": "2000"}


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with ApacheBroker(tmp_path_factory.mktemp("apache"), QUICK_CHECKS) as broker:
        yield broker.nameserver


def play(loop: str, scenario: Callable[[], Awaitable[None]]) -> None:
    on_loop(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_sends_pulls_and_offsets(nameserver: str, loop: str) -> None:
    async def scenario() -> None:
        topic = f"sent-on-{loop}"
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic(topic, queues=4)
            receipt = await mq.send(
                topic, b"o-17" * 2000, key="o-17", tag="paid", properties={"country": "AT"}
            )
            queue, offset = receipt.queue, receipt.offset
            (message,) = (await mq.pull(queue, offset, wait=5, group="reports")).messages
            assert message.body == b"o-17" * 2000
            assert (message.id, message.offset_id) == (receipt.id, receipt.offset_id)
            assert (message.key, message.tag) == ("o-17", "paid")
            assert message.user_properties["country"] == "AT"
            batch = await mq.send_batch(topic, [b"a", NewMessage(body=b"b", key="k")])
            assert [each.offset for each in batch] == [batch[0].offset, batch[0].offset + 1]
            await mq.send_oneway(topic, b"one-way")
            await mq.commit(queue, "reports", 1)
            assert await mq.committed(queue, "reports") == 1
            an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
            assert await mq.offset_at(queue, an_hour_ago) == await mq.first_offset(queue) == 0

            many = [b"%d" % number for number in range(100)]
            await mq.send_batch(topic, many)
            reader = mq.reader(topic)
            await reader.assign(start="first")
            # The client asks CometMQ's brokers in bulk; Apache's refuse that and give 32 at a time.
            read = [each.body for each in await reader.pull(count=1000)]
            assert [body for body in read if body in many] == many

    play(loop, scenario)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_topic_is_made_by_its_first_send_and_a_group_consumes_it(
    nameserver: str, loop: str
) -> None:
    async def scenario() -> None:
        topic = f"made-on-{loop}"
        async with Client(nameserver, PATIENT) as mq:
            bodies = [b"%d" % number for number in range(40)]
            async with anyio.create_task_group() as tasks:
                for body in bodies:
                    tasks.start_soon(mq.send, topic, body)
            async with mq.consume(topic, group=f"billing-{loop}", start="first") as consumer:
                assert sorted(await take(consumer, 40)) == sorted(bodies)
            await mq.send(topic, b"more")
            async with mq.consume(topic, group=f"billing-{loop}") as consumer:
                assert await take(consumer, 1) == [b"more"]

    play(loop, scenario)


def test_what_fails_comes_again_by_the_broker_and_at_last_to_the_dead_letters(
    nameserver: str,
) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic("failing", queues=1)
            await mq.send("failing", b"x", key="o-17")
            attempts: list[int] = []
            consumer = mq.consume("failing", group="unlucky", start="first", max_retries=1)
            async with consumer:
                async for message in consumer:
                    attempts.append(message.attempt)
                    assert (message.topic, message.key) == ("failing", "o-17")
                    await message.retry(delay_level=1)
                    if len(attempts) == 2:
                        break
            assert attempts == [1, 2]
            dead = mq.reader("%DLQ%unlucky", group="undertaker")
            with anyio.fail_after(20):
                while not await is_there(mq, "%DLQ%unlucky"):
                    await anyio.lowlevel.checkpoint()
            await dead.assign()
            (letter,) = await dead.pull(wait=10)
            assert letter.body == b"x"

    play("asyncio", scenario)


def test_delays_by_level_and_by_time(nameserver: str) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic("delayed", queues=1)
            await mq.send("delayed", b"level", delay_level=1)
            await mq.send("delayed", b"time", delay=2.0)
            at = datetime.now(UTC) + timedelta(seconds=3)
            await mq.send("delayed", b"at", deliver_at=at)
            await mq.send("delayed", b"now")
            async with mq.consume("delayed", group="late", start="first") as consumer:
                taken = [await anext(consumer) for _ in range(4)]
                for message in taken:
                    message.ack()
            assert taken[0].body == b"now"
            late = {m.body: (m.stored_at - m.sent_at).total_seconds() for m in taken}
            assert late[b"level"] >= 0.9
            assert late[b"time"] >= 0.9  # The broker cuts it down to whole seconds.
            assert taken[-1].body == b"at"

    play("asyncio", scenario)


def test_filters_by_tag_and_by_sql(nameserver: str) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic("filtered", queues=2)
            for number, tag in enumerate(["Aa", "BB", "C"] * 4):
                await mq.send("filtered", tag.encode(), tag=tag, properties={"n": str(number)})
            async with mq.consume(
                "filtered", group="by-tag", filter="BB || C", start="first"
            ) as consumer:
                assert Counter(await take(consumer, 8)) == {b"BB": 4, b"C": 4}
            async with mq.consume(
                "filtered", group="by-sql", filter=Sql("n > 9 OR TAGS = 'C'"), start="first"
            ) as consumer:
                assert Counter(await take(consumer, 5)) == {b"C": 4, b"BB": 1}

    play("asyncio", scenario)


def test_transactions_are_delivered_when_they_are_committed(nameserver: str) -> None:
    async def scenario() -> None:
        config = ClientConfig(timeout=15, producer_group="shop")
        async with Client(nameserver, config) as mq:
            await mq.admin.create_topic("bought", queues=1)
            async with mq.transaction("bought", b"paid", key="o-1") as paid:
                pass
            with pytest.raises(KeyError):
                await fail_in(mq)
            by_hand = mq.transaction("bought", b"by hand")
            async with by_hand:
                await by_hand.commit()
                with pytest.raises(UsageError, match="already"):
                    await by_hand.rollback()
            async with mq.consume("bought", group="warehouse", start="first") as consumer:
                first = await anext(consumer)
                first.ack()
                assert (first.body, first.id) == (b"paid", paid.id)
                assert await take(consumer, 1) == [b"by hand"]

    play("asyncio", scenario)


async def fail_in(mq: Client) -> None:
    async with mq.transaction("bought", b"not paid"):
        raise KeyError


def test_a_broker_asks_what_became_of_a_transaction(nameserver: str) -> None:
    async def scenario() -> None:
        config = ClientConfig(timeout=15, producer_group="forgetful-shop")
        asked: list[str] = []

        async def check(message: ReceivedMessage) -> Literal["commit", "rollback", "unknown"]:
            asked.append(message.id)
            assert message.body == b"forgotten"
            return "commit"

        async with Client(nameserver, config) as mq:
            await mq.admin.create_topic("remembered", queues=1)
            mq.on_transaction_check(check)
            forgotten = mq.transaction("remembered", b"forgotten")
            await forgotten.__aenter__()
            async with mq.consume("remembered", group="memory", start="first") as consumer:
                assert await take(consumer, 1) == [b"forgotten"]
            assert forgotten.id in asked

    play("asyncio", scenario)


def test_an_ordered_consumer_keeps_the_order_also_of_what_fails(nameserver: str) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic("ordered", queues=2)
            for number in range(20):
                await mq.send("ordered", b"%d" % number, sharding_key=str(number % 2))
            consumer = mq.consume("ordered", group="in-order", start="first", ordered=True)
            seen = await take_in_order(consumer)
            assert seen == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}
            # The locks are released: another member gets the queues at once.
            async with Client(nameserver, PATIENT) as other:
                await mq.send("ordered", b"after", sharding_key="0")
                next_one = other.consume("ordered", group="in-order", ordered=True)
                async with next_one:
                    assert await take(next_one, 1) == [b"after"]

    play("asyncio", scenario)


def test_members_share_queues_and_take_over(nameserver: str) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq, Client(nameserver, PATIENT) as other:
            await mq.admin.create_topic("shared", queues=5)
            first = mq.consume("shared", group="team", start="first")
            second = other.consume("shared", group="team", start="first")
            async with first:
                async with second:
                    await until(lambda: sorted([count_of(first), count_of(second)]) == [2, 3])
                await until(lambda: count_of(first) == 5)

    play("asyncio", scenario)


async def is_there(mq: Client, topic: str) -> bool:
    return topic in [each.name for each in await mq.admin.topics()]


def count_of(consumer: Consumer) -> int:
    return len([queue for queue in consumer.queues if queue.topic == "shared"])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # Nobody tells of what is waited for.
        await anyio.sleep(0.01)


def test_the_sync_client(nameserver: str) -> None:
    with SyncClient(nameserver, PATIENT) as mq:
        mq.admin.create_topic("synchronous", queues=1)
        receipt = mq.send("synchronous", b"x")
        assert mq.pull(receipt.queue, receipt.offset, wait=5).messages[0].body == b"x"
        status = mq.admin.topic_status("synchronous")
        assert [each.message_count for each in status] == [1]
        mq.admin.delete_topic("synchronous")
        assert "synchronous" not in [each.name for each in mq.admin.topics()]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_gets_the_reply_of_its_consumer(nameserver: str, loop: str) -> None:
    async def scenario() -> None:
        topic = f"quotes-on-{loop}"
        async with Client(nameserver, PATIENT) as bank, Client(nameserver, PATIENT) as mq:
            await mq.admin.create_topic(topic, queues=2)
            consumer = bank.consume(topic, group=f"bank-{loop}", start="first")

            async def answer(message: Message) -> None:
                assert message.wants_reply
                await message.reply(message.body * 2000, properties={"of": "today"})

            replies: dict[bytes, bytes] = {}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, answer)

                async def ask(body: bytes) -> None:
                    reply = await mq.request(topic, body, timeout=15)
                    assert reply.user_properties["of"] == "today"
                    replies[body] = reply.body

                async with anyio.create_task_group() as asking:
                    for number in range(10):
                        asking.start_soon(ask, b"%d" % number)
                await consumer.drain()
            assert replies == {b"%d" % each: b"%d" % each * 2000 for each in range(10)}

    play(loop, scenario)


def test_groups_offsets_and_messages_are_administered(nameserver: str) -> None:
    async def scenario() -> None:
        async with Client(nameserver, PATIENT) as mq:
            admin = mq.admin
            await admin.create_topic("administered", queues=1)
            await admin.create_group("administrated", max_retries=5)
            kept = await admin.create_topic("administered")
            assert set(kept.values()) == {"kept"}
            changed = await admin.create_group("administrated", ordered=True)
            assert set(changed.values()) == {"changed"}
            for asked in (admin.group_members, admin.group_progress, admin.delete_group):
                with pytest.raises(NotFoundError, match="no broker knows the group 'nobody'"):
                    await asked("nobody")
            listed = {each.name: each for each in await admin.groups()}
            assert listed["administrated"].max_retries == 5
            receipt = await mq.send("administered", b"one", key="o-17")
            await mq.send("administered", b"two", key="o-18")
            async with mq.consume("administered", group="administrated", start="first") as consumer:
                assert await take(consumer, 2) == [b"one", b"two"]
                (member,) = await admin.group_members("administrated")
                assert (member.client_id, member.subscriptions["administered"]) == (mq.id, "*")
            (progress,) = await admin.group_progress("administrated", "administered")
            assert (progress.offset, progress.lag) == (2, 0)
            assert await admin.reset_offsets("administrated", "administered", "first") == {
                receipt.queue: 0
            }
            async with mq.consume("administered", group="administrated") as consumer:
                assert await take(consumer, 2) == [b"one", b"two"]
            await admin.set_offset("administrated", receipt.queue, 1)
            async with mq.consume("administered", group="administrated") as consumer:
                assert await take(consumer, 1) == [b"two"]
            assert (await admin.message(receipt.offset_id)).body == b"one"
            assert (await admin.message(receipt.id)).body == b"one"
            for key in ("o-17", receipt.id):
                with anyio.fail_after(30):
                    while not (found := await admin.find_messages("administered", key)):
                        await anyio.lowlevel.checkpoint()
                assert [each.id for each in found] == [receipt.id]
            with anyio.fail_after(30):
                while not (found := await admin.find_messages("administered", "o-18")):
                    await anyio.lowlevel.checkpoint()
            # The index counts whole seconds from its first message, so there this one is earlier.
            since = found[0].stored_at
            assert len(await admin.find_messages("administered", "o-18", since=since)) == 1
            await admin.delete_group("administrated")
            assert "administrated" not in {each.name for each in await admin.groups()}

    play("asyncio", scenario)


def test_names_in_a_namespace_are_javas(nameserver: str) -> None:
    async def scenario() -> None:
        config = ClientConfig(timeout=15, namespace="vienna")
        async with Client(nameserver, config) as mq:
            await mq.admin.create_topic("vienna%named", queues=1)
            await mq.send("named", b"x")
            consumer = mq.consume("named", group="namers", start="first")
            async with await anext(consumer) as message:
                assert (message.topic, message.queue.topic) == ("named", "vienna%named")
            await consumer.drain()
            assert "vienna%namers" in {each.name for each in await mq.admin.groups()}

    play("asyncio", scenario)
