"""Consuming as a member of a group."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.client.consuming import take, take_in_order
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import (
    ByNearbyRoom,
    Client,
    ClientConfig,
    Message,
    NotFoundError,
    Queue,
    SettledError,
    Sql,
    UsageError,
)
from cometmq.client.errors import RefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Consumer

QUICK = ClientConfig(redelivery_delay=0.05)


async def send_numbers(mq: Client, first: int, end: int, topic: str = "orders") -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, end)]
    for body in bodies:
        await mq.send(topic, body)
    return bodies


@on_every_loop
def test_what_was_sent_is_consumed_once_in_each_group(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            bodies = await send_numbers(mq, 0, 40)
            for group in ("billing", "shipping"):
                async with mq.consume("orders", group=group) as consumer:
                    assert sorted(await take(consumer, 40)) == sorted(bodies)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_group_goes_on_where_it_was(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            bodies = await send_numbers(mq, 0, 10)
            async with mq.consume("orders", group="billing") as consumer:
                assert sorted(await take(consumer, 10)) == sorted(bodies)
            more = await send_numbers(mq, 10, 20)
        async with (
            Client(servers.nameserver) as other,
            other.consume("orders", group="billing") as consumer,
        ):
            assert sorted(await take(consumer, 10)) == sorted(more)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_message_that_comes_later_is_delivered_at_once(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"first")
            async with mq.consume("orders", group="billing") as consumer:
                assert await take(consumer, 1) == [b"first"]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send_numbers, mq, 0, 1)
                    assert await take(consumer, 1) == [b"0"]

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_topic_may_be_consumed_before_it_exists(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with (
            Client(servers.nameserver) as mq,
            mq.consume("orders", group="billing") as consumer,
        ):
            await mq.send("orders", b"first")
            assert await take(consumer, 1) == [b"first"]

    play_on(loop, tmp_path, scenario)


def test_a_group_of_which_nothing_failed_yet_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="fresh") as consumer:
                await take(consumer, 1)

    play_on("asyncio", tmp_path, scenario)
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == []


def test_a_topic_that_is_not_there_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, mq.consume("ordesr", group="fresh"):
            await until(lambda: "ordesr" in caplog.text)

    play_on("asyncio", tmp_path, scenario)
    (warning,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "topic 'ordesr'" in warning.message


def test_a_room_that_was_not_to_be_had_is_warned_of_and_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_known = False

    def room(_: object) -> str:
        if not is_known:
            raise LookupError("no such rack")
        return "vienna"

    async def scenario(servers: Servers) -> None:
        nonlocal is_known
        strategy = ByNearbyRoom(room, room)
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="near", strategy=strategy) as consumer:
                await until(lambda: "no such rack" in caplog.text)
                is_known = True
                assert await take(consumer, 1) == [b"x"]

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_what_is_not_acknowledged_comes_again_to_the_next(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await send_numbers(mq, 0, 8)
            async with mq.consume("orders", group="billing") as consumer:
                taken = [await anext(consumer) for _ in range(8)]
                for message in taken[1:]:
                    message.ack()
                assert consumer.in_hand == 1
                await consumer.drain(timeout=0.01)
            async with mq.consume("orders", group="billing") as consumer:
                # Later messages of its queue come again, too, although they were acknowledged.
                assert taken[0].body in await take(consumer, 1)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_message_that_fails_comes_again(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, QUICK) as mq:
            await mq.send("orders", b"x")
            attempts: list[int] = []
            async with mq.consume("orders", group="billing") as consumer:
                async for message in consumer:
                    async with message:
                        attempts.append(message.attempt)
                        if len(attempts) < 3:
                            raise KeyError
                    if len(attempts) == 3:
                        break
            assert attempts == [1, 2, 3]

    play_on(loop, tmp_path, scenario)


def test_an_exception_goes_on_if_that_is_wanted(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, QUICK) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="billing", on_error="raise") as consumer:
                with pytest.raises(KeyError):
                    await fail(await anext(consumer))
                async with await anext(consumer) as message:
                    assert message.attempt == 2

    play_on("asyncio", tmp_path, scenario)


async def fail(message: Message) -> None:
    async with message:
        raise KeyError


@on_every_loop
def test_a_message_whose_task_is_cancelled_comes_again_at_once(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="billing") as consumer:
                message = await anext(consumer)
                with anyio.CancelScope() as scope:
                    async with message:
                        scope.cancel()
                        await anyio.sleep_forever()
                async with await anext(consumer) as again:
                    assert again is message

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_members_share_the_queues_and_take_over_from_one_who_leaves(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queues = {(await mq.send("orders", b"x")).queue for _ in range(8)}
            assert len(queues) == 4
            first = mq.consume("orders", group="billing")
            await take(first, 8)
            assert set(orders_of(first)) == queues
            async with Client(servers.nameserver) as other:
                second = other.consume("orders", group="billing")
                async with second:
                    await until(lambda: len(orders_of(second)) == len(orders_of(first)) == 2)
                    assert set(orders_of(first)) | set(orders_of(second)) == queues
                await until(lambda: len(orders_of(first)) == 4)

    play_on(loop, tmp_path, scenario)


def orders_of(consumer: Consumer) -> list[Any]:
    return [queue for queue in consumer.queues if queue.topic == "orders"]


async def until(condition: Any) -> None:
    """Wait for a condition that other tasks fulfil, up to the scenario's deadline."""
    while not condition():  # noqa: ASYNC110  # Nobody tells of what is waited for.
        await anyio.sleep(0.005)


@on_every_loop
def test_messages_in_hand_are_as_many_as_concurrency_says(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await send_numbers(mq, 0, 10)
            async with mq.consume("orders", group="billing", concurrency=3) as consumer:
                taken = [await anext(consumer) for _ in range(3)]
                with anyio.move_on_after(0.05) as scope:
                    await anext(consumer)
                assert scope.cancelled_caught
                taken[0].ack()
                taken.append(await anext(consumer))
                for message in taken[1:]:
                    message.ack()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_consumer_that_cannot_begin_raises_the_same_whether_it_runs_or_is_asked(
    loop: str, tmp_path: Path
) -> None:
    async def handle(_: Message) -> None:
        pytest.fail("there is no message")

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            wrong = {"orders": Sql("a >")}
            for begin in (
                lambda: anext(mq.consume(wrong, group="billing")),
                lambda: mq.consume(wrong, group="billing").run(handle),
            ):
                with pytest.raises(RefusedError):
                    await begin()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_handler_is_run_for_many_messages_at_a_time(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            bodies = await send_numbers(mq, 0, 100)
            consumer = mq.consume("orders", group="billing")
            seen: list[bytes] = []
            at_once: list[int] = []

            async def handle(message: Message) -> None:
                at_once.append(consumer.in_hand)
                await anyio.lowlevel.checkpoint()
                seen.append(message.body)
                if len(seen) == 100:
                    draining.start_soon(consumer.drain)

            async with anyio.create_task_group() as draining:
                await consumer.run(handle, concurrency=8)
            assert sorted(seen) == sorted(bodies)
            assert 1 < max(at_once) <= 64

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_handler_that_is_not_async_is_told_of_and_has_its_message_once(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"x")).queue
            consumer = mq.consume("orders", group="billing", start="first")
            seen: list[bytes] = []

            def bill(message: Message) -> None:
                seen.append(message.body)

            with pytest.raises(UsageError, match="async def"):
                await consumer.run(cast("Any", bill), concurrency=4)
            assert await consumer.drain()
            assert seen == [b"x"]
            assert await mq.committed(queue, "billing") == 1

    play_on(loop, tmp_path, scenario)


def test_little_is_fetched_ahead_if_that_is_wanted(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"first")).queue
            await mq.send_batch("orders", [b"%d" % n for n in range(200)], queue=queue)
            consumer = mq.consume("orders", group="billing", prefetch=10)
            async with consumer:
                assert len(await take(consumer, 201)) == 201

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_a_consumer_that_is_paused_fetches_nothing(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"first")).queue
            consumer = mq.consume("orders", group="billing")
            async with consumer:
                await take(consumer, 1)
                consumer.pause()
                # The pull held at the broker still brings one message.
                await mq.send("orders", b"second", queue=queue)
                await take(consumer, 1)
                await mq.send("orders", b"third", queue=queue)
                with anyio.move_on_after(0.1) as scope:
                    await anext(consumer)
                assert scope.cancelled_caught
                consumer.resume()
                assert await take(consumer, 1) == [b"third"]

    play_on(loop, tmp_path, scenario)


def test_a_filter_by_tags_and_several_topics(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            for tag in ("Aa", "BB", "C"):  # The first two have the same hash.
                await mq.send("orders", b"o" + tag.encode(), tag=tag)
            await mq.send("bills", b"bill")
            consumer = mq.consume({"orders": "Aa || C", "bills": "*"}, group="billing")
            async with consumer:
                assert sorted(await take(consumer, 3)) == [b"bill", b"oAa", b"oC"]

    play_on("asyncio", tmp_path, scenario)


def test_a_message_is_settled_once(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="billing") as consumer:
                async with await anext(consumer) as message:
                    message.ack()
                with pytest.raises(SettledError):
                    message.ack()
                with pytest.raises(SettledError):
                    await message.retry()
                with pytest.raises(SettledError, match="already acknowledged or given back"):
                    async with message:
                        pytest.fail("a block is run for a message that is done with")
                with pytest.raises(UsageError, match="delay_level=19"):
                    await message.retry(delay_level=19)

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_a_loop_that_is_left_lets_go_of_its_queues(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await send_numbers(mq, 0, 2)
            async for message in mq.consume("orders", group="billing"):
                async with message:
                    break
            gc.collect()
            # The second consumer waits for the first, which has not left the group yet.
            consumer = mq.consume("orders", group="billing")
            assert await take(consumer, 1)
            with pytest.raises(UsageError, match="already consumed by this client"):
                mq.consume("orders", group="billing")
            del consumer
            gc.collect()
            mq.consume("orders", group="billing")  # One that never begins blocks nobody.
            gc.collect()
            await send_numbers(mq, 2, 3)
            async with mq.consume("orders", group="billing") as consumer:
                assert await take(consumer, 1) == [b"2"], "what the others have acknowledged came"

    play_on(loop, tmp_path, scenario)


def test_one_client_consumes_once_as_a_group(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first = mq.consume("orders", group="billing")
            with pytest.raises(UsageError, match="already consumed by this client"):
                mq.consume("bills", group="billing")
            await first.drain()
            with pytest.raises(StopAsyncIteration):
                await anext(first)

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"group": "a b"}, "group"),
        ({"topics": "a b"}, "topic"),
        ({"topics": {}}, "topics: must not be empty"),
        ({"topics": {"a": "*"}, "filter": "x"}, "give each its own"),
        ({"start": "yesterday"}, "'last', 'first' or a datetime"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": "5"}, "concurrency='5': must be a whole number"),
        ({"topics": ["orders"]}, "several with filters"),
        ({"topics": {5: "*"}}, "a str, not int"),
        ({"filter": "paid refunded"}, "'paid refunded' is not a tag"),
        ({"filter": 5}, "filter=5: must be tags"),
        ({"start": 7}, "'last', 'first' or a datetime"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"on_error": "ignore"}, "'retry' or 'raise'"),
    ],
)
def test_what_cannot_be_consumed_is_refused_at_once(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1") as mq:
            with pytest.raises(UsageError, match=said):
                mq.consume(**cast("Any", {"topics": "orders", "group": "g", **arguments}))

    anyio.run(scenario)


def test_sql_that_the_broker_cannot_filter_by_is_refused_at_the_start(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            consumer = mq.consume("orders", group="billing", filter=Sql("a >"))
            with pytest.raises(RefusedError):
                await anext(consumer)

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_broadcast_gives_everything_to_each_and_remembers_in_a_file(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            bodies = await send_numbers(mq, 0, 8)
            for name in ("one", "two", "one"):
                config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"), instance=name)
                async with Client(servers.nameserver, config) as member:
                    consumer = member.consume(
                        "orders", group="prices", broadcast=True, start="first"
                    )
                    async with consumer:
                        assert sorted(await take(consumer, 8)) == sorted(bodies)
                if name == "two":
                    bodies = await send_numbers(mq, 8, 16)

    play_on(loop, tmp_path, scenario)


async def new_queue(mq: Client, topic: str) -> Queue:
    """Wait until name servers know a topic that the broker has just made; return its queue."""
    while True:
        try:
            return (await mq.queues(topic))[0]
        except NotFoundError:
            await anyio.lowlevel.checkpoint()


@on_every_loop
def test_what_fails_too_often_goes_to_the_dead_letters(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x", key="o-17")
            attempts: list[int] = []
            async with mq.consume("orders", group="unlucky", max_retries=1) as consumer:
                for _ in range(2):
                    message = await anext(consumer)
                    attempts.append(message.attempt)
                    assert (message.topic, message.key) == ("orders", "o-17")
                    await message.retry()
            assert attempts == [1, 2]
            queue = await new_queue(mq, "%DLQ%unlucky")
            (letter,) = (await mq.pull(queue, 0, wait=10)).messages
            assert (letter.body, letter.key) == (b"x", "o-17")

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize("ordered", [False, True])
def test_without_retries_what_fails_is_a_dead_letter_at_once(tmp_path: Path, ordered: bool) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            consumer = mq.consume(
                "orders", group="strict", start="first", ordered=ordered, max_retries=0
            )
            async with consumer:
                await (await anext(consumer)).retry()
                queue = await new_queue(mq, "%DLQ%strict")
                (letter,) = (await mq.pull(queue, 0, wait=10)).messages
            assert letter.body == b"x"

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_a_message_that_is_rejected_is_a_dead_letter_at_once(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="picky") as consumer:
                await (await anext(consumer)).reject()
            queue = await new_queue(mq, "%DLQ%picky")
            assert (await mq.pull(queue, 0, wait=10)).messages[0].body == b"x"

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_an_ordered_consumer_keeps_the_order_also_of_what_fails(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            for number in range(20):
                await mq.send("orders", b"%d" % number, sharding_key=str(number % 2))
            consumer = mq.consume("orders", group="in-order", ordered=True)
            seen = await take_in_order(consumer)
            assert seen == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}
            # The locks are released, so another member gets the queues at once.
            async with Client(servers.nameserver) as other:
                await mq.send("orders", b"after", sharding_key="0")
                async with other.consume("orders", group="in-order", ordered=True) as following:
                    assert await take(following, 1) == [b"after"]

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_what_is_settled_is_committed_while_the_consumer_goes_on(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client._group.COMMIT_SECONDS", 0.01)

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"x")).queue
            async with mq.consume("orders", group="billing") as consumer:
                (await anext(consumer)).ack()
                while await mq.committed(queue, "billing") != 1:  # noqa: ASYNC110  # Nobody tells.
                    await anyio.sleep(0.005)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_message_of_a_queue_that_went_to_another_is_not_sent_back_too(
    loop: str, tmp_path: Path
) -> None:
    """The other member gets it anyway, so sending it back would make it come twice."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            async with mq.consume("orders", group="billing") as consumer:
                message = await anext(consumer)
                message.process_queue.is_dropped = True
                await message.retry(delay_level=3)
                assert consumer.in_hand == 0
                delayed = Queue("SCHEDULE_TOPIC_XXXX", message.queue.broker, 2)
                assert await mq.end_offset(delayed) == 0

    play_on(loop, tmp_path, scenario)
