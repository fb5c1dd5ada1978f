"""Reading queues by hand."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.client.running import PATIENCE_SECONDS, Servers, on_every_loop, play_on

from cometmq.client import (
    Client,
    NotFoundError,
    ProtocolViolationError,
    Queue,
    ReceivedMessage,
    UsageError,
)

if TYPE_CHECKING:
    from pathlib import Path


@on_every_loop
def test_all_queues_are_read_and_the_group_goes_on_where_it_committed(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            bodies = [b"%d" % number for number in range(100)]
            for body in bodies:
                await mq.send("orders", body)
            reader = mq.reader("orders", group="reports")
            await reader.assign()
            assert reader.queues == await mq.queues("orders")
            first = await reader.pull(count=30)
            await reader.commit()
            dropped = await reader.pull(count=50)
            assert (len(first), len(dropped)) == (30, 50)

            again = mq.reader("orders", group="reports")
            await again.assign()
            rest = await again.pull(count=100)
            assert sorted(m.body for m in [*first, *rest]) == sorted(bodies)
            assert await again.pull() == []

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_pull_waits_at_all_queues(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"first")).queue
            reader = mq.reader("orders", group="reports")
            await reader.assign(start="last")
            assert await reader.pull(wait=0.05) == []
            await mq.send_oneway("orders", b"second")
            (message,) = await reader.pull(wait=20)
            assert message.body == b"second"
            assert reader.position(message.queue) == message.offset + 1
            assert await reader.seek(queue, "first") == 0
            assert b"first" in [m.body for m in await reader.pull()]

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_pulls_of_any_count_give_each_message_once_and_in_order(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            first = await mq.send("orders", b"0")
            other = next(q for q in await mq.queues("orders") if q != first.queue)
            for number in range(1, 10):
                await mq.send_batch("orders", [b"%d" % number] * 20, queue=first.queue)
            await mq.send_batch("orders", [b"other"] * 50, queue=other)
            reader = mq.reader("orders", group="reports")
            await reader.assign([first.queue, other])
            found: list[ReceivedMessage] = []
            for count in itertools.cycle([1, 40, 7, 100, 33]):
                more = await reader.pull(count=count)
                for queue in (first.queue, other):
                    places = [m.offset + 1 for m in [*found, *more] if m.queue == queue]
                    assert reader.position(queue) == max(places, default=0)
                if not more:
                    break
                found += more
            for queue, count in ((first.queue, 181), (other, 50)):
                assert [m.offset for m in found if m.queue == queue] == list(range(count))

            await reader.seek(first.queue, 0)
            await reader.pull(count=5)
            await reader.seek(first.queue, 100)
            (message,) = await reader.pull(count=1)
            assert (message.offset, message.body) == (100, b"5")
            await reader.assign([other], start="first")
            assert (await reader.pull(count=1))[0].offset == 0
            await reader.commit()
            assert await mq.committed(other, "reports") == 1

    play_on(loop, tmp_path, scenario)


def test_seeking_by_offset_and_time(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send_batch("orders", [b"a", b"b", b"c"]))[0].queue
            reader = mq.reader("orders", group="reports", filter="*")
            await reader.assign([queue])
            assert reader.position(queue) == 0
            await reader.seek(queue, 2)
            assert [m.body for m in await reader.pull()] == [b"c"]
            assert await reader.seek(queue, datetime.now(UTC) - timedelta(hours=1)) == 0
            assert await reader.seek(queue, datetime.now(UTC) + timedelta(hours=1)) == 3
            assert await reader.seek(queue, "committed") == 0

    play_on("asyncio", tmp_path, scenario)


def test_a_seek_is_committed_and_other_queues_take_the_place_of_those_before(
    tmp_path: Path,
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=2)
            first, second = await mq.queues("orders")
            for _ in range(3):
                await mq.send("orders", b"x", queue=first)
            reader = mq.reader("orders", group="reports")
            await reader.assign([first], start="last")
            assert await reader.pull() == []  # This makes the group.
            await reader.seek(first, 1)
            await reader.commit()
            again = mq.reader("orders", group="reports")
            await again.assign([first])
            assert again.position(first) == 1
            await reader.assign([second])
            assert reader.queues == [second]
            with pytest.raises(UsageError):
                reader.position(first)

    play_on("asyncio", tmp_path, scenario)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"x")).queue
            reader = mq.reader("orders", group="reports")
            with pytest.raises(UsageError, match="no queue is assigned"):
                await reader.pull()
            with pytest.raises(UsageError, match="is not a queue of topic"):
                await reader.assign([Queue("bills", "b", 0)])
            with pytest.raises(UsageError, match="not assigned"):
                await reader.seek(queue, 0)
            await reader.assign()
            wrong: list[tuple[Any, str]] = [
                (-1, "at least 0"),
                ("middle", "'first', 'last'"),
                (datetime(2026, 1, 1), "a datetime with a time zone"),  # The mistake.
            ]
            for place, said in wrong:
                with pytest.raises(UsageError, match=said):
                    await reader.seek(queue, place)
            with pytest.raises(UsageError, match="count=0"):
                await reader.pull(count=0)
            with pytest.raises(NotFoundError):
                await mq.reader("nothing", group="reports").assign()

    play_on("asyncio", tmp_path, scenario)


def damage(folder: Path, body: bytes) -> None:
    """Overwrite the length of that body in its record, while the broker runs.

    Of the records that it sends, the broker checks size, place and magic, but not this length.
    """
    (segment,) = folder.glob("**/commitlog/*")
    with segment.open("r+b") as log:
        log.seek(segment.read_bytes().index(body) - 4)
        log.write(b"\xff" * 4)


@on_every_loop
def test_a_message_that_the_disk_damaged_is_told_with_its_place_and_what_to_do(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"sound")).queue
            await mq.send_batch("orders", [b"is damaged below", b"behind it"], queue=queue)
            damage(tmp_path, b"is damaged below")
            reader = mq.reader("orders", group="reports")
            await reader.assign([queue])
            assert [each.body for each in await reader.pull(count=1)] == [b"sound"]
            for count in (1, 100, 100):  # One by one, and in bulk.
                with pytest.raises(ProtocolViolationError) as told:
                    await reader.pull(count=count)
                text = str(told.value)
                assert text.startswith(f"{queue}, from offset 1 on: {servers.broker} has no")
                assert "it runs past the end of the data" in text
                assert "`cometmq store verify DIR`" in text
                assert "refuses" not in text
                assert str(pickle.loads(pickle.dumps(told.value))) == text
            with anyio.fail_after(PATIENCE_SECONDS):  # The message before it comes.
                async for message in mq.consume("orders", group="billing", start="first"):
                    assert message.body == b"sound"
                    break

    play_on(loop, tmp_path, scenario)
