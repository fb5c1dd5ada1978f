"""Members of a group must subscribe alike. A new member that differs is refused before it joins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig, Sql, UsageError
from cometmq.client._agreement import differing
from cometmq.client._core.filters import parse_filter

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.proto.bodies import SubscriptionData


def asked(**topics: str | Sql) -> dict[str, SubscriptionData]:
    return {topic: parse_filter(each).subscription(topic, 1) for topic, each in topics.items()}


def test_the_same_in_other_words_is_the_same() -> None:
    assert differing(asked(a="paid||refunded"), asked(a="refunded || paid")) is None
    assert differing(asked(a="*"), asked(a="*") | {"%RETRY%g": asked(r="*")["r"]}) is None
    assert differing(asked(a=Sql("x = 1")), asked(a=Sql("x = 1"))) is None


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (asked(a="paid"), "'a' with the filter 'paid', not '*'"),
        (asked(a=Sql("x = 1")), "'a' with the filter 'x = 1'"),
        (asked(a="*", b="*"), "'b' too"),
        (asked(b="*"), "topics other than 'a'"),
    ],
)
def test_what_differs_is_said(theirs: dict[str, SubscriptionData], told: str) -> None:
    assert told in (differing(asked(a="*"), theirs) or "")


def test_two_expressions_differ_though_neither_names_a_tag() -> None:
    told = differing(asked(a=Sql("x = 1")), asked(a=Sql("x = 2"))) or ""
    assert "'a' with the filter 'x = 2', not 'x = 1'" in told


@on_every_loop
def test_a_member_that_asks_for_something_else_is_refused(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as first, Client(servers.nameserver) as second:
            await first.send("orders", b"x", tag="paid")
            async with first.consume("orders", group="billing", filter="paid") as consumer:
                (await anext(consumer)).ack()
                with pytest.raises(
                    UsageError, match="all members of a group must ask for the same"
                ):
                    await anext(second.consume("orders", group="billing"))
                async with second.consume("orders", group="billing", filter="paid"):
                    pass
            async with second.consume("orders", group="billing"):
                pass

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize("broadcast", [False, True])
def test_a_member_that_shares_is_refused_beside_one_that_wants_everything(
    broadcast: bool, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(broadcast_folder=str(tmp_path / "offsets"))
        async with Client(servers.nameserver, config) as first, Client(servers.nameserver) as other:
            await first.send("orders", b"x")
            async with first.consume(
                "orders", group="billing", start="first", broadcast=broadcast
            ) as consumer:
                (await anext(consumer)).ack()
                said = "each message for every" if broadcast else "each message for one"
                with pytest.raises(UsageError, match=said):
                    await anext(other.consume("orders", group="billing", broadcast=not broadcast))

    play_on("asyncio", tmp_path, scenario)


@pytest.mark.parametrize("exists", [False, True])
@on_every_loop
def test_another_topic_in_a_live_group_is_refused_whether_it_exists_or_not(
    loop: str, exists: bool, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as first, Client(servers.nameserver) as second:
            await first.send("orders", b"x")
            if exists:
                await first.send("bills", b"y")
            async with first.consume("orders", group="billing") as consumer:
                (await anext(consumer)).ack()
                with pytest.raises(UsageError, match="topics other than 'bills'"):
                    await anext(second.consume("bills", group="billing"))
                with pytest.raises(UsageError, match="topics other than 'bills'"):
                    await anext(second.consume({"orders": "*", "bills": "*"}, group="billing"))

    play_on(loop, tmp_path, scenario)
