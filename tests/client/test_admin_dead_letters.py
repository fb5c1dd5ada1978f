"""Dead letters are shown, redriven once each, and deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import (
    Client,
    DeadLetterFilter,
    NotFoundError,
    Redriven,
    Sql,
    SyncClient,
    UsageError,
)
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from pathlib import Path

RETRY = "%RETRY%billing"


async def give_up(mq: Client, count: int, *, ordered: bool = False) -> None:
    """Send so many orders, and let the group billing reject all of them."""
    for number in range(count):
        tag = "paid" if number % 2 else "refunded"
        await mq.send(
            "orders", b"o-%d" % number, key=f"o-{number}", tag=tag, properties={"n": str(number)}
        )
    async with mq.consume("orders", group="billing", start="first", ordered=ordered) as consumer:
        for _ in range(count):
            await (await anext(consumer)).reject()


async def stored(mq: Client, topic: str) -> list[bytes]:
    found: list[bytes] = []
    for status in await mq.admin.topic_status(topic):
        offset = status.first_offset
        while offset < status.end_offset:
            pulled = await mq.pull(status.queue, offset)
            found += [each.body for each in pulled.messages]
            offset = pulled.next_offset
    return sorted(found)


@on_every_loop
def test_a_redrive_gives_them_to_the_group_again_and_to_no_other(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 3)
            (listed,) = await mq.admin.dead_letters.groups()
            assert (listed.group, listed.broker, listed.count) == ("billing", "broker-a", 3)
            letters = await mq.admin.dead_letters.show("billing")
            assert {each.topic for each in letters} == {"orders"}
            dry = await mq.admin.dead_letters.redrive("billing", dry_run=True)
            assert (dry.sent, dry.earlier, await stored(mq, RETRY)) == (3, 0, [])
            redriven = await mq.admin.dead_letters.redrive("billing")
            assert (redriven.sent, redriven.failed) == (3, [])
            async with mq.consume("orders", group="billing") as consumer:
                for _ in range(3):
                    async with await anext(consumer) as message:
                        assert (message.topic, message.attempt) == ("orders", 1)
                        letter = next(each for each in letters if each.body == message.body)
                        assert (message.key, message.tag) == (letter.key, letter.tag)
                        assert message.user_properties == letter.user_properties
                        assert message.properties["REDRIVEN_FROM"] == letter.id
            assert len(await stored(mq, "orders")) == 3

    play_on(loop, tmp_path, scenario)


def test_dead_letters_can_be_chosen_by_where_they_are(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 3)
            letters = await mq.admin.dead_letters.show("billing")
            place = (letters[1].queue, letters[1].offset)
            wanted = DeadLetterFilter(places=frozenset({place}))
            redriven = await mq.admin.dead_letters.redrive("billing", wanted)
            assert redriven.sent_places == [place]
            assert redriven.sent_ids == [letters[1].id]
            assert await stored(mq, RETRY) == [letters[1].body]

    play_on("asyncio", tmp_path, scenario)


async def until_indexed(mq: Client, count: int) -> None:
    """Wait until the index has this many redriven messages."""
    while (await mq.admin.dead_letters.redrive("billing", dry_run=True)).earlier < count:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("restarts", [False, True])
def test_an_interrupted_redrive_goes_on_where_it_was(restarts: bool, tmp_path: Path) -> None:
    class InterruptedHereError(Exception):
        pass

    def interrupt(redriven: Redriven) -> None:
        if redriven.sent == 40:
            raise InterruptedHereError

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 70)
            redrive = mq.admin.dead_letters.redrive
            # Some in the middle first, so that later ones come before them in the queue.
            some = {f"o-{number}" for number in range(20, 40)}
            ids = {
                each.id for each in await mq.admin.dead_letters.show("billing") if each.key in some
            }
            assert (await redrive("billing", DeadLetterFilter(ids=frozenset(ids)))).sent == 20
            await until_indexed(mq, 20)
            if restarts:
                servers.stop("broker")
                servers.start("broker")
            with pytest.raises(InterruptedHereError):
                await redrive("billing", watch=interrupt)
            for _ in range(2):  # At once, while the index may not have them yet.
                assert not (await redrive("billing")).failed
            assert len(set(await stored(mq, RETRY))) == len(await stored(mq, RETRY)) == 70
            await until_indexed(mq, 70)
            again = await redrive("billing")
            assert (again.sent, again.earlier) == (0, 70)
            assert len(set(again.earlier_places)) == 70
            otherwise = await redrive("billing", to="topic")
            assert (otherwise.sent, otherwise.earlier, otherwise.earlier_places) == (0, 70, [])
            assert len(await stored(mq, RETRY)) == 70

    play_on("asyncio", tmp_path, scenario)


def test_what_is_given_up_again_is_another_dead_letter(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 1)
            await mq.admin.dead_letters.redrive("billing")
            await until_indexed(mq, 1)
            async with mq.consume("orders", group="billing") as consumer:
                await (await anext(consumer)).reject()
            redriven = await mq.admin.dead_letters.redrive("billing")
            assert (redriven.sent, redriven.earlier) == (1, 1)
            assert await stored(mq, RETRY) == [b"o-0"] * 2

    play_on("asyncio", tmp_path, scenario)


def test_a_group_that_consumes_in_order_gets_them_by_their_topic(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 4)
            async with mq.consume("orders", group="billing", ordered=True) as consumer:
                with anyio.move_on_after(0.01):
                    await anext(consumer)  # It holds its locks from now on.
                with pytest.raises(UsageError, match="to='topic'"):
                    await mq.admin.dead_letters.redrive("billing")
                redriven = await mq.admin.dead_letters.redrive("billing", to="topic")
                assert (redriven.sent, redriven.failed) == (4, [])
                bodies: list[bytes] = []
                for _ in range(4):
                    async with await anext(consumer) as message:
                        bodies.append(message.body)
                        assert "RETRY_TOPIC" not in message.properties
                assert sorted(bodies) == [b"o-0", b"o-1", b"o-2", b"o-3"]
            assert await stored(mq, RETRY) == []

    play_on("asyncio", tmp_path, scenario)


def test_only_those_that_are_wanted_are_shown_and_sent(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 6)
            letters = mq.admin.dead_letters
            now = datetime.now(UTC)
            for wanted, bodies in (
                (DeadLetterFilter(filter="paid"), [1, 3, 5]),
                (DeadLetterFilter(filter=Sql("n > 3")), [4, 5]),
                (DeadLetterFilter(key="o-2"), [2]),
                (DeadLetterFilter(topic="refunds"), []),
                (DeadLetterFilter(until=now - timedelta(hours=1)), []),
                (DeadLetterFilter(since=now + timedelta(hours=1)), []),
                (DeadLetterFilter(since=now - timedelta(hours=1), filter="refunded"), [0, 2, 4]),
            ):
                found = sorted(each.body for each in await letters.show("billing", wanted))
                assert found == [b"o-%d" % number for number in bodies]
            assert len(await letters.show("billing", count=4)) == 4
            redriven = await letters.redrive("billing", DeadLetterFilter(filter="paid"))
            assert redriven.sent == 3
            assert await stored(mq, RETRY) == [b"o-1", b"o-3", b"o-5"]

    play_on("asyncio", tmp_path, scenario)


def test_a_group_that_nobody_knows_is_an_error_and_one_without_dead_letters_is_none(
    tmp_path: Path,
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_group("billing")
            letters = mq.admin.dead_letters
            for misspelt in (letters.show, letters.redrive, letters.purge):
                with pytest.raises(NotFoundError, match="did you mean 'billing'"):
                    await misspelt("biling")
            assert await letters.show("billing") == []
            assert (await letters.redrive("billing")).count == 0
            assert await letters.purge("billing") == 0
            await give_up(mq, 1)
            await mq.admin.delete_group("billing")
            assert len(await letters.show("billing")) == 1, "they stay when their group goes"

    play_on("asyncio", tmp_path, scenario)


def test_what_a_broker_refuses_keeps_nothing_else_back(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("gone", b"x")
            async with mq.consume("gone", group="billing", start="first") as consumer:
                await (await anext(consumer)).reject()
            await mq.admin.delete_topic("gone")
            await give_up(mq, 2)
            redriven = await mq.admin.dead_letters.redrive("billing", to="topic")
            ((_, reason),) = redriven.failed
            assert (redriven.sent, redriven.count) == (2, 3)
            assert "gone" in reason
            with pytest.raises(NotFoundError):
                await mq.admin.route("gone")

    play_on("asyncio", tmp_path, scenario)


def test_no_more_than_the_rate_are_sent_in_a_second(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 5)
            began = anyio.current_time()
            assert (await mq.admin.dead_letters.redrive("billing", rate=50)).sent == 5
            assert anyio.current_time() - began >= 4 / 50
            with pytest.raises(UsageError, match="rate"):
                await mq.admin.dead_letters.redrive("billing", rate=0)
            with pytest.raises(UsageError, match="'group' or 'topic'"):
                await mq.admin.dead_letters.redrive("billing", to="nowhere")  # type: ignore[arg-type]  # That is the point.
            with pytest.raises(UsageError, match="zone"):
                DeadLetterFilter(since=datetime(2026, 1, 1))  # That is the point.

    play_on("asyncio", tmp_path, scenario)


def test_purged_dead_letters_are_gone_and_new_ones_come() -> None:
    with Cluster() as rocketmq, SyncClient(rocketmq.nameserver) as mq:

        def reject_one() -> None:
            for message in mq.consume("orders", group="billing", start="first"):
                message.reject()
                break

        mq.send("orders", b"o-1")
        reject_one()
        assert mq.admin.dead_letters.purge("billing") == 1
        assert mq.admin.dead_letters.groups() == []
        assert mq.admin.dead_letters.purge("billing") == 0
        assert mq.admin.dead_letters.redrive("billing").count == 0
        mq.send("orders", b"o-2")
        reject_one()
        (letter,) = mq.admin.dead_letters.show("billing")
        assert letter.body == b"o-2"


def test_what_went_one_way_does_not_go_the_other(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await give_up(mq, 3)
            assert (await mq.admin.dead_letters.redrive("billing")).sent == 3
            await until_indexed(mq, 3)
            again = await mq.admin.dead_letters.redrive("billing", to="topic")
            assert (again.sent, again.earlier) == (0, 3)
            assert len(await stored(mq, "orders")) == 3

    play_on("asyncio", tmp_path, scenario)
