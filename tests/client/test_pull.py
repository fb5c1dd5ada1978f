"""Pulling, offsets, and the progress of groups."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on

from cometmq.client import (
    Client,
    NewMessage,
    NotFoundError,
    Pulled,
    Queue,
    ReceivedMessage,
    Sql,
    UsageError,
)
from cometmq.client._reading import tell_moved
from cometmq.proto.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client._connections import Connections
    from cometmq.proto.command import Command


@on_every_loop
def test_offsets_say_where_a_queue_begins_and_ends_and_a_group_is(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send_batch("orders", [b"a", b"b", b"c"]))[0].queue
            assert queue in await mq.queues("orders")
            assert (await mq.first_offset(queue), await mq.end_offset(queue)) == (0, 3)
            found = await mq.pull(queue, 1, group="billing")
            assert [message.body for message in found.messages] == [b"b", b"c"]
            assert (found.next_offset, found.first_offset, found.end_offset) == (3, 0, 3)
            await mq.commit(queue, "billing", 2)
            assert await mq.committed(queue, "billing") == 2
            future = datetime.now(UTC) + timedelta(hours=1)
            assert await mq.offset_at(queue, future) == 3
            assert await mq.offset_at(queue, datetime.fromtimestamp(0, UTC)) == 0

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_pull_waits_for_a_message(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"first")).queue
            assert (await mq.pull(queue, 1)).is_empty
            assert (await mq.pull(queue, 1, wait=0.1)).next_offset == 1
            await mq.send_oneway("orders", b"second", queue=queue)
            found = await mq.pull(queue, 1, wait=20)
            assert [message.body for message in found.messages] == [b"second"]

    play_on(loop, tmp_path, scenario)


def test_a_pull_gets_what_its_filter_lets_through(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"1", tag="Aa")).queue
            # `Aa` and `BB` have the same hash, so only the client can tell them apart.
            await mq.send("orders", b"2", tag="BB", queue=queue)
            await mq.send("orders", b"3", tag="C", queue=queue)
            for tags, bodies in [
                ("Aa", [b"1"]),
                ("BB || C", [b"2", b"3"]),
                ("*", [b"1", b"2", b"3"]),
            ]:
                found = await mq.pull(queue, 0, filter=tags)
                assert [message.body for message in found.messages] == bodies
            assert (await mq.pull(queue, 0, filter="D")).next_offset == 3

    play_on("asyncio", tmp_path, scenario)


def connections_of(mq: Client) -> Connections:
    return mq._open_parts().connections  # pyright: ignore[reportPrivateUsage]  # What waits there.


async def numbered(mq: Client, count: int) -> Queue:
    """Fill one queue with messages 0, 1 and so on; every third is tagged."""
    await mq.admin.create_topic("orders", queues=1)
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        await mq.send_batch(
            "orders",
            [NewMessage(body=b"%d" % each, tag=None if each % 3 else "third") for each in numbers],
        )
    return (await mq.queues("orders"))[0]


@on_every_loop
def test_a_pull_of_many_gets_more_than_apaches_brokers_give(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = await numbered(mq, 300)
            # The first pull makes the group known. Bulk pulls are not limited to 32 messages.
            assert len((await mq.pull(queue, 0, count=250)).messages) == 32
            found = await mq.pull(queue, 7, count=250)
            assert [each.body for each in found.messages] == [b"%d" % n for n in range(7, 257)]
            assert (found.next_offset, found.first_offset, found.end_offset) == (257, 0, 300)
            assert [each.offset for each in found.messages] == list(range(7, 257))
            third = (await mq.pull(queue, 0, count=250, filter="third")).messages
            assert [each.body for each in third] == [b"%d" % n for n in range(0, 250, 3)]
            await mq.commit(queue, "cometmq-reader", found.next_offset)
            assert await mq.committed(queue, "cometmq-reader") == 257

    play_on(loop, tmp_path, scenario)


def test_a_pull_of_many_waits_at_the_end_and_says_where_a_queue_goes_on(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = await numbered(mq, 40)
            await mq.pull(queue, 0, count=100)
            assert (await mq.pull(queue, 40, count=100)).is_empty
            link = connections_of(mq).open_link(servers.broker)
            assert link is not None

            async def send_when_it_waits() -> None:
                pending = link.connection.pending.values()
                while all(each.code != RequestCode.PULL_MESSAGE for each in pending):  # noqa: ASYNC110  # Untold.
                    await anyio.sleep(0.01)
                await mq.send("orders", b"late")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_when_it_waits)
                found = await mq.pull(queue, 40, count=100, wait=20)
                assert [each.body for each in found.messages] == [b"late"]
            moved = await mq.pull(queue, 1000, count=100)
            assert (moved.moved, moved.next_offset, moved.is_empty) == (True, 41, True)

    play_on("asyncio", tmp_path, scenario)


def test_a_broker_that_knows_no_pull_of_many_is_pulled_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await numbered(mq, 300)
            asked: list[int] = []
            connections = connections_of(mq)
            call = connections.call

            async def call_of_apache(address: str, request: Command, **how: Any) -> Command:
                asked.append(request.code)
                if request.code == RequestCode.BULK_PULL_MESSAGE:
                    remark = f" request type {request.code} not supported"
                    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    return request.answer(code, remark=remark)
                return await call(address, request, **how)

            monkeypatch.setattr(connections, "call", call_of_apache)
            reader = mq.reader("orders")
            await reader.assign(start="first")
            bodies = [each.body for each in await reader.pull(count=250)]
            assert bodies == [b"%d" % number for number in range(250)]
            assert asked.count(RequestCode.BULK_PULL_MESSAGE) == 1  # Not asked a second time.

    play_on("asyncio", tmp_path, scenario)


def test_a_pull_beyond_the_end_says_where_to_go_on(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"1")).queue
            found = await mq.pull(queue, 100)
            assert (found.moved, found.next_offset, found.is_empty) == (True, 1, True)

    play_on("asyncio", tmp_path, scenario)


def test_a_topic_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            with pytest.raises(NotFoundError, match="no broker serves the topic 'nothing'"):
                await mq.queues("nothing")
            with pytest.raises(NotFoundError):
                await mq.pull(Queue("nothing", "broker-a", 0), 0)

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("a || ", "a tag is empty"),
        ("a = 'b'", "if this is SQL92"),
        (Sql(" "), "empty"),
        ("paid refunded", "'paid refunded' is not a tag"),
        ("paid, refunded", "join tags by ||"),
        ("paid | refunded", "the only operator"),
        ("paid || !refunded", "'!refunded' is not a tag"),
        ("paid*", r"Sql\(\"TAGS = 'paid\*'\"\)"),
        (cast("str", 5), "filter=5: must be tags, like"),
        (Sql(cast("str", 5)), "must be a str"),
    ],
)
def test_a_filter_that_is_none_is_refused(wanted: str | Sql, said: str) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1") as mq:
            with pytest.raises(UsageError, match=said):
                await mq.pull(Queue("orders", "broker-a", 0), 0, filter=wanted)

    on_loop("asyncio", scenario)


def test_a_tag_that_looks_like_none_is_found_by_sql_as_the_error_says(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            queue = (await mq.send("orders", b"x", tag="paid late")).queue
            await mq.send("orders", b"y", tag="paid", queue=queue)
            found = await mq.pull(queue, 0, filter=Sql("TAGS = 'paid late'"))
            assert [each.body for each in found.messages] == [b"x"]

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        {"wait": 21.0},
        {"wait": -1.0},
        {"wait": "1"},
        {"count": 0},
        {"count": "9"},
        {"offset": -1},
        {"offset": "first"},
        {"queue": "orders"},
    ],
)
def test_limits_of_a_pull_are_said(arguments: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1") as mq:
            queue = Queue("orders", "broker-a", 0)
            with pytest.raises(UsageError, match=next(iter(arguments))):
                await mq.pull(**cast("Any", {"queue": queue, "offset": 0, **arguments}))

    on_loop("asyncio", scenario)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            3,
            "WARNING orders@broker-a:0: offset 3 expired before it was consumed",
        ),
        (99, "WARNING orders@broker-a:0: offset 99 is beyond the end, as after a loss of data"),
        (8, "INFO orders@broker-a:0: reset: continuing at 7 instead of 8"),
    ],
)
def test_why_a_queue_goes_on_elsewhere_is_told(
    asked: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cometmq.client")
    found: Pulled[ReceivedMessage] = Pulled([], 7, 5, 10, moved=True)
    tell_moved(Queue("orders", "broker-a", 0), asked, found)
    (record,) = caplog.records
    assert f"{record.levelname} {record.getMessage()}".startswith(said)
