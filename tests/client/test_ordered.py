"""Consuming in order: a queue's messages come one after another, whichever member has it."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client
from cometmq.client._locks import QueueLocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.client import Consumer, Message, Queue

GROUP = "in-order"


async def send_to(mq: Client, queue: Queue, *bodies: bytes) -> None:
    for body in bodies:
        await mq.send(queue.topic, body, queue=queue)


async def two_queues(mq: Client) -> tuple[Queue, Queue]:
    """Make a topic of two queues, with the messages a0, a1, a2 and b0, b1, b2."""
    await mq.admin.create_topic("orders", queues=2)
    first, second = await mq.queues("orders")
    await send_to(mq, first, b"a0", b"a1", b"a2")
    await send_to(mq, second, b"b0", b"b1", b"b2")
    return first, second


def in_order(mq: Client) -> Consumer:
    return mq.consume("orders", group=GROUP, start="first", ordered=True)


def owned(consumer: Consumer) -> int:
    """Return how many queues of the topic a member has."""
    return sum(queue.topic == "orders" for queue in consumer.queues)


async def take(consumer: Consumer, count: int) -> dict[bytes, Message]:
    """Take so many messages, without settling them, and return them by body."""
    taken = [await anext(consumer) for _ in range(count)]
    return {message.body: message for message in taken}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks fulfil, up to the scenario's deadline."""
    while not condition():  # noqa: ASYNC110  # Nobody tells of what is waited for.
        await anyio.sleep(0.005)


async def nothing_more(consumer: Consumer) -> None:
    """Check that nothing comes for a moment."""
    with anyio.move_on_after(0.1) as scope:
        await anext(consumer)
    assert scope.cancelled_caught


async def join_in_vain(consumer: Consumer) -> None:
    """Have a consumer join its group, however long that takes, while others have all messages."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, consumer, None)
        await until(lambda: "running" in repr(consumer))
        tasks.cancel_scope.cancel()
    await nothing_more(consumer)


@on_every_loop
def test_one_message_of_a_queue_is_in_hand_at_a_time(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first, _ = await two_queues(mq)
            async with in_order(mq) as consumer:
                held = await take(consumer, 2)
                assert held.keys() == {b"a0", b"b0"}
                await nothing_more(consumer)
                await send_to(mq, first, b"a3")  # What arrives meanwhile waits, too.
                await nothing_more(consumer)
                held[b"b0"].ack()
                assert (await take(consumer, 1)).keys() == {b"b1"}
                held[b"a0"].ack()
                assert (await take(consumer, 1)).keys() == {b"a1"}
                await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_message_that_fails_suspends_its_queue_and_no_other(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await two_queues(mq)
            async with in_order(mq) as consumer:
                held = await take(consumer, 2)
                failed_at = time.monotonic()
                await held[b"a0"].retry()
                held[b"b0"].ack()
                seen: list[tuple[bytes, int]] = []
                while len(seen) < 5:
                    async with await anext(consumer) as message:
                        seen.append((message.body, message.attempt))
                        if message.body == b"a0":
                            assert time.monotonic() - failed_at > 0.9
                assert seen == [(b"b1", 1), (b"b2", 1), (b"a0", 2), (b"a1", 1), (b"a2", 1)]

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_pause_holds_what_is_new_and_resuming_keeps_the_order(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first, _ = await two_queues(mq)
            async with in_order(mq) as consumer:
                for _ in range(6):
                    (await anext(consumer)).ack()
                consumer.pause()
                # The pull held at the broker still brings one message.
                await send_to(mq, first, b"a3")
                (await anext(consumer)).ack()
                await send_to(mq, first, b"a4", b"a5")
                await nothing_more(consumer)
                consumer.resume()
                for body in (b"a4", b"a5"):
                    async with await anext(consumer) as message:
                        assert message.body == body

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_drain_waits_for_the_hand_and_the_next_member_goes_on_behind_it(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await two_queues(mq)
            consumer = in_order(mq)
            held = await take(consumer, 2)
            await held[b"b0"].retry()  # No longer in hand, so a drain does not wait for it.
            following = in_order(other)
            finished: list[bool] = []

            async def drain() -> None:
                finished.append(await consumer.drain())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain)
                await nothing_more(following)
                assert finished == []
                held[b"a0"].ack()
            assert finished == [True]
            bodies: list[bytes] = []
            while len(bodies) < 5:
                async with await anext(following) as message:
                    bodies.append(message.body)
            assert [each for each in bodies if each.startswith(b"a")] == [b"a1", b"a2"]
            assert [each for each in bodies if each.startswith(b"b")] == [b"b0", b"b1", b"b2"]
            assert await consumer.drain()  # A second drain is harmless.

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_queue_goes_to_another_member_only_when_its_message_is_done_with(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with AsyncExitStack() as stack:
            mq, other = [
                await stack.enter_async_context(Client(servers.nameserver)) for _ in range(2)
            ]
            await two_queues(mq)
            consumer, following = in_order(mq), in_order(other)
            held = await take(consumer, 2)
            # Both queues have a message in hand when the other member comes for its half.
            await join_in_vain(following)
            assert owned(consumer) == 2
            for message in held.values():
                message.ack()
            await until(lambda: owned(consumer) == owned(following) == 1)
            bodies: list[bytes] = []
            for member in (consumer, following, consumer, following):
                async with await anext(member) as message:
                    bodies.append(message.body)
            assert sorted(bodies) == [b"a1", b"a2", b"b1", b"b2"]
            assert bodies.index(b"a1") < bodies.index(b"a2")
            assert bodies.index(b"b1") < bodies.index(b"b2")
            await following.drain()
            await consumer.drain()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_queue_that_comes_back_before_it_went_goes_on(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await two_queues(mq)
            consumer, following = in_order(mq), in_order(other)
            held = await take(consumer, 2)
            await join_in_vain(following)
            await following.drain()
            # The shares are computed again: both queues stay, and their next messages come.
            for message in held.values():
                message.ack()
            bodies: list[bytes] = []
            while len(bodies) < 4:
                async with await anext(consumer) as message:
                    bodies.append(message.body)
            assert sorted(bodies) == [b"a1", b"a2", b"b1", b"b2"]
            await consumer.drain()

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize(("committed", "following"), [(None, b"a1"), (2, b"a2")])
@on_every_loop
def test_a_message_is_handed_out_only_while_the_lock_of_its_queue_is_certain(
    loop: str,
    committed: int | None,
    following: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A minute without renewal ends a lock. Another may then have it, and the queue's messages.

    What was acknowledged comes again only if another member has gone on with the queue.
    """

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first, _ = await two_queues(mq)

            def holds_all_but_the_first(_: QueueLocks, queue: Queue) -> bool:
                return queue != first

            async def acquires_none(_: QueueLocks, queue: Queue) -> bool:
                return False

            async with in_order(mq) as consumer:
                held = await take(consumer, 2)
                with monkeypatch.context() as patch:
                    patch.setattr(QueueLocks, "holds", holds_all_but_the_first)
                    patch.setattr(QueueLocks, "acquire", acquires_none)
                    held[b"a0"].ack()
                    await nothing_more(consumer)
                    if committed is not None:
                        await mq.commit(first, GROUP, committed)
                assert (await take(consumer, 1)).keys() == {following}
                await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)
