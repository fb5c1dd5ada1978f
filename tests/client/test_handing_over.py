"""Queues change hands, fetching stops and continues, and consumers end at bad moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.relay import ANNOUNCED, Relay
from tests.client.running import Servers, on_every_loop, play_on
from tests.client.test_cancelled import at_each_await, is_cancelled_at
from tests.client.test_consume import new_queue
from tests.client.test_ordered import (
    GROUP,
    in_order,
    join_in_vain,
    nothing_more,
    owned,
    take,
    two_queues,
    until,
)

from cometmq.client import Client, ClientConfig, RefusedError
from cometmq.client._consumption import LEAVE_SECONDS
from cometmq.client._locks import QueueLocks
from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Consumer, Message, Queue
    from cometmq.client._group import GroupMember

SIZE = 10_000


def member_of(consumer: Consumer) -> GroupMember:
    return consumer._consumption.member  # pyright: ignore[reportPrivateUsage]  # A lock is lost.


@on_every_loop
def test_a_reset_queue_waits_for_the_message_that_is_in_hand(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await two_queues(mq)
            async with in_order(mq) as consumer:
                held = await take(consumer, 2)
                await mq.admin.reset_offsets(GROUP, "orders", to="first")
                await until(lambda: owned(consumer) == 0)
                await nothing_more(consumer)
                for message in held.values():
                    message.ack()
                assert (await take(consumer, 2)).keys() == {b"a0", b"b0"}
                await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_the_lock_of_a_queue_that_was_lost_is_not_kept_from_its_next_owner(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await two_queues(mq)
            consumer, following = in_order(mq), in_order(other)
            await take(consumer, 2)
            await join_in_vain(following)  # It gets its half once a message is settled.
            member = member_of(consumer)
            for process_queue in member.process_queues:
                member.lose(process_queue)
            await until(lambda: owned(following) == 1)
            await consumer.drain(timeout=0)
            await following.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_member_keeps_a_queue_for_as_long_as_its_lock_is_renewed(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client._group.RENEW_SECONDS", 0.01)

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await two_queues(mq)
            consumer = in_order(mq)
            held = await take(consumer, 2)
            member = member_of(consumer)
            assert member.locks is not None
            before = member.process_queues
            renewals: list[int] = []
            renew = member.locks.renew

            async def count() -> None:
                await renew()
                renewals.append(1)

            monkeypatch.setattr(member.locks, "renew", count)
            await until(lambda: len(renewals) > 2)
            assert not any(each.is_dropped for each in before)

            def holds_none(_: Queue) -> bool:
                return False

            monkeypatch.setattr(member.locks, "holds", holds_none)
            await until(lambda: all(each.is_dropped for each in before))
            for message in held.values():
                message.ack()
            await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_the_messages_of_a_queue_that_is_lost_during_a_commit_are_not_committed(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queues = await two_queues(mq)
            consumer = in_order(mq)
            held = await take(consumer, 2)
            member = member_of(consumer)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member._commit, member._owned.values())  # pyright: ignore[reportPrivateUsage]  # As at intervals.
                await anyio.lowlevel.checkpoint()
                for process_queue in member.process_queues:
                    member.lose(process_queue)
                    assert process_queue.is_dropped
            for queue in queues:
                assert not await mq.committed(queue, GROUP)
            for message in held.values():
                message.ack()
            await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_lock_that_is_given_back_while_it_is_renewed_stays_given_back(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            queue, _ = await two_queues(mq)
            ours, theirs = [
                QueueLocks(each._open_parts(), GROUP)  # pyright: ignore[reportPrivateUsage]  # Its locks.
                for each in (mq, other)
            ]
            for awaits in range(1, 8):
                assert await ours.acquire(queue)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ours.renew)
                    for _ in range(awaits):
                        await anyio.lowlevel.checkpoint()
                    await ours.release([queue])
                await ours.renew()
                assert await theirs.acquire(queue)
                await theirs.release([queue])

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_lock_is_given_back_also_when_nobody_heard_that_it_was_granted(
    loop: str, tmp_path: Path
) -> None:
    """Otherwise, if a member left at that moment, nobody would get its queue for a minute."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            queue, _ = await two_queues(mq)
            ours, theirs = [
                QueueLocks(each._open_parts(), GROUP)  # pyright: ignore[reportPrivateUsage]  # Its locks.
                for each in (mq, other)
            ]

            async def one(at: int) -> bool:
                is_cancelled = await is_cancelled_at(at, ours.acquire(queue))
                await ours.release_all()
                assert await theirs.acquire(queue), at
                await theirs.release_all()
                return is_cancelled

            assert await at_each_await(one) > 0

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_member_with_many_queues_waits_for_a_slow_broker_but_once_to_leave(
    loop: str, tmp_path: Path
) -> None:
    """One by one, commits would outlast a consumer's time to leave, and its locks would remain."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as other:
            servers.add("slow", tmp_path / "slow", broker_name="slow", advertise_address=ANNOUNCED)
            with Relay(servers.port_of("slow")) as relay:
                async with Client(servers.nameserver) as mq:
                    await mq.admin.create_topic("orders", queues=16, broker="slow")
                    queues = await mq.queues("orders")
                    for queue in queues:
                        await mq.send("orders", b"x", queue=queue)
                    consumer = in_order(mq)
                    for _ in queues:
                        (await anext(consumer)).ack()
                    relay.slow_down(LEAVE_SECONDS / 8)
                    await mq.close()
                    relay.speed_up()
                theirs = QueueLocks(other._open_parts(), GROUP)  # pyright: ignore[reportPrivateUsage]  # As above.
                for queue in queues:
                    assert await other.committed(queue, GROUP) == 1
                    assert await theirs.acquire(queue)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_queue_that_another_has_in_hand_holds_up_no_other(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await mq.admin.create_topic("orders", queues=4)
            queues = await mq.queues("orders")
            for first_of_a_half in (queues[0], queues[2]):
                await mq.send("orders", b"x", queue=first_of_a_half)
            consumer, following = in_order(mq), in_order(other)
            held = [await anext(consumer) for _ in range(2)]
            async with following:
                await until(lambda: (owned(consumer), owned(following)) == (3, 1))
                for message in held:
                    message.ack()
                await until(lambda: (owned(consumer), owned(following)) == (2, 2))
            await consumer.drain()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_queue_that_cannot_be_begun_holds_up_no_other(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            damaged, whole = await two_queues(mq)
            reading = mq._open_parts().reading  # pyright: ignore[reportPrivateUsage]  # No broker does this.
            committed = reading.committed

            async def refuse(queue: Queue, *about: Any, **how: Any) -> int | None:
                if queue == damaged:
                    raise RefusedError(ResponseCode.SYSTEM_ERROR, "damaged", "broker:1")
                return await committed(queue, *about, **how)

            monkeypatch.setattr(reading, "committed", refuse)
            async with mq.consume("orders", group="billing", start="first") as consumer:
                for message in (await take(consumer, 3)).values():
                    assert message.queue == whole
                    message.ack()
                monkeypatch.undo()
                message = await anext(consumer)
                assert message.queue == damaged
                message.ack()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_an_ordered_message_that_fails_too_often_makes_room_for_the_next(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first, _ = await two_queues(mq)
            consumer = mq.consume("orders", group=GROUP, start="first", ordered=True, max_retries=1)
            seen: list[tuple[bytes, int]] = []
            async with consumer:
                while len(seen) < 4:
                    message = await anext(consumer)
                    if message.queue != first:
                        message.ack()
                        continue
                    seen.append((message.body, message.attempt))
                    if message.body == b"a0":
                        await message.retry()
                    elif message.body == b"a1":
                        await message.reject()
                    else:
                        message.ack()
            assert seen == [(b"a0", 1), (b"a0", 2), (b"a1", 1), (b"a2", 1)]
            queue = await new_queue(mq, f"%DLQ%{GROUP}")
            await until_end(mq, queue, 2)
            letters = (await mq.pull(queue, 0)).messages
            assert [letter.body for letter in letters] == [b"a0", b"a1"]

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_message_that_fails_during_a_pause_comes_again_during_it(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await two_queues(mq)
            async with in_order(mq) as consumer:
                held = await take(consumer, 2)
                consumer.pause()
                await held[b"a0"].retry()
                again = await anext(consumer)
                assert (again.body, again.attempt) == (b"a0", 2)
                again.ack()
                held[b"b0"].ack()
                # Messages already fetched are still handed out.
                assert (await take(consumer, 2)).keys() == {b"a1", b"b1"}
                await consumer.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_drain_that_is_cancelled_leaves_the_group_nevertheless(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq, Client(servers.nameserver) as other:
            await two_queues(mq)
            consumer = mq.consume("orders", group=GROUP, start="first")
            held = await take(consumer, 1)
            with anyio.move_on_after(0.05) as scope:
                await consumer.drain(timeout=None)
            assert scope.cancelled_caught
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
            async with other.consume("orders", group=GROUP, start="first") as following:
                await until(lambda: owned(following) == 2)
                assert (await take(following, 6)).keys() > held.keys()
                await following.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_two_drains_at_once_both_wait_for_the_hand(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await two_queues(mq)
            consumer = in_order(mq)
            held = await take(consumer, 2)
            finished: list[bool] = []

            async def drain() -> None:
                finished.append(await consumer.drain())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain)
                tasks.start_soon(drain)
                held[b"a0"].ack()
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert finished == []
                held[b"b0"].ack()
            assert finished == [True, True]
            async with in_order(mq) as following:
                assert (await take(following, 2)).keys() == {b"a1", b"b1"}
                await following.drain(timeout=0)

    play_on(loop, tmp_path, scenario)


async def until_end(mq: Client, queue: Queue, end: int) -> None:
    while await mq.end_offset(queue) < end:
        await anyio.lowlevel.checkpoint()


async def take_all(consumer: Consumer) -> list[Message]:
    """Take messages, without settling them, until none comes for a moment."""
    taken: list[Message] = []
    while True:
        with anyio.move_on_after(0.2) as scope:
            taken.append(await anext(consumer))
        if scope.cancelled_caught:
            return taken


@on_every_loop
def test_no_more_bytes_are_fetched_ahead_than_is_wanted(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=2)
            for queue in await mq.queues("orders"):
                await mq.send_batch("orders", [b"x" * SIZE] * 100, queue=queue)
            consumer = mq.consume(
                "orders", group=GROUP, start="first", prefetch_bytes=5 * SIZE, concurrency=200
            )
            async with consumer:
                taken = await take_all(consumer)
                # A queue without fetched messages fetches once, 32 messages at most.
                assert 5 <= len(taken) <= 2 * 32
                rest = 200 - len(taken)
                for message in taken:
                    message.ack()
                for _ in range(rest):
                    (await anext(consumer)).ack()

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_queue_with_a_message_in_hand_fetches_when_others_have_made_room(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=2)
            full, empty = await mq.queues("orders")
            await mq.send_batch("orders", [b"x" * SIZE] * 10, queue=full)
            consumer = mq.consume("orders", group=GROUP, start="first", prefetch_bytes=SIZE)
            async with consumer:
                filling = [await anext(consumer) for _ in range(10)]
                await mq.send("orders", b"held", queue=empty)
                held = await anext(consumer)
                assert held.body == b"held"
                for _ in range(20):  # Its queue looks for room, and there is none.
                    await anyio.lowlevel.checkpoint()
                for message in filling:
                    message.ack()
                await mq.send("orders", b"next", queue=empty)
                async with await anext(consumer) as message:
                    assert message.body == b"next"
                held.ack()

    play_on(loop, tmp_path, scenario)


def test_offsets_that_cannot_be_written_to_their_file_do_not_keep_a_consumer_from_leaving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(servers: Servers) -> None:
        folder = tmp_path / "offsets"
        async with Client(servers.nameserver, ClientConfig(broadcast_folder=str(folder))) as mq:
            await two_queues(mq)
            consumer = mq.consume("orders", group=GROUP, start="first", broadcast=True)
            async with consumer:
                for _ in range(6):
                    (await anext(consumer)).ack()
                folder.rename(tmp_path / "away")
                folder.write_text("in the way")
            mq.consume("orders", group=GROUP)  # The group is free again.

    play_on("asyncio", tmp_path, scenario)
    assert "the offsets cannot be written" in caplog.text
