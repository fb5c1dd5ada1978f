"""Pulling, offsets, and what a group has consumed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on

from cometmq.client import (
    Client,
    NotFoundError,
    Pulled,
    Queue,
    ReceivedMessage,
    Sql,
    UsageError,
)
from cometmq.client._reading import tell_moved

if TYPE_CHECKING:
    from pathlib import Path


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
            # `Aa` and `BB` have one hash: the broker cannot tell them apart, the client must.
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
        ("a || ", "joined by"),
        ("a = 'b'", "if that is SQL92"),
        (Sql(" "), "empty"),
        ("paid refunded", "'paid refunded' is no tag"),
        ("paid, refunded", "joined by ||"),
        ("paid | refunded", "there is no other operator"),
        ("paid || !refunded", "'!refunded' is no tag"),
        ("paid*", r"Sql\(\"TAGS = 'paid\*'\"\)"),
        (cast("str", 5), "filter=5: tags, like"),
        (Sql(cast("str", 5)), "no str"),
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
            "WARNING orders@broker-a:0: 3 is gone, expired before it was consumed",
        ),
        (99, "WARNING orders@broker-a:0: 99 is beyond the end, as after a loss of data"),
        (8, "INFO orders@broker-a:0: reset: it goes on at 7 instead of 8"),
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
