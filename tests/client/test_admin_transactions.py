"""Undecided transactions are listed and decided by hand; messages are traced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import anyio.lowlevel
import pytest
from tests.client.running import Servers, on_every_loop, play_on
from tests.client.test_admin_dead_letters import stored

from cometmq.client import Client, ClientConfig, NotFoundError, RefusedError, SyncClient, UsageError
from cometmq.client._admin_transactions import _over  # pyright: ignore[reportPrivateUsage]  # Apache's op messages.
from cometmq.client._core.trace_format import record, steps_of
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import ReceivedMessage, Transaction

SHOP = ClientConfig(producer_group="shop")


async def begun(mq: Client, body: bytes) -> Transaction:
    """Begin a transaction and leave it undecided."""
    transaction = mq.transaction("orders", body, key="k", tag="paid")
    await transaction.__aenter__()
    return transaction


@on_every_loop
def test_undecided_transactions_are_listed_and_decided(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, SHOP) as mq:
            admin = mq.admin.transactions
            assert await admin.pending() == []
            async with mq.transaction("orders", b"decided"):
                pass
            ids = [(await begun(mq, body)).id for body in (b"paid", b"failed", b"open")]
            found = await admin.pending("broker-a")
            assert [each.id for each in found] == ids
            assert {each.message.body for each in found} == {b"paid", b"failed", b"open"}
            paid = await admin.find(ids[0])
            assert (paid.topic, paid.producer_group, paid.checks) == ("orders", "shop", 0)
            assert paid.sent_at == paid.message.sent_at
            await admin.resolve(paid, "commit")
            await admin.resolve(await admin.find(ids[1]), "rollback")
            assert [each.id for each in await admin.pending()] == ids[2:]
            assert await stored(mq, "orders") == [b"decided", b"paid"]
            with pytest.raises(RefusedError, match="over"):
                await admin.resolve(paid, "rollback")
            with pytest.raises(NotFoundError, match="is over or never existed"):
                await admin.find(ids[0])
            with pytest.raises(UsageError, match="must be 'commit' or 'rollback'"):
                await admin.resolve(paid, "maybe")  # type: ignore[arg-type]  # That is the point.
            with pytest.raises(UsageError, match="broker"):
                await admin.pending("nowhere")

    play_on(loop, tmp_path, scenario)


def test_what_was_asked_about_shows_how_often_and_can_be_decided() -> None:
    with Cluster() as rocketmq, SyncClient(rocketmq.nameserver, SHOP) as other:
        with SyncClient(rocketmq.nameserver, SHOP) as mq:
            background = mq.background()
            begun_id = background.run(begun(background.client, b"paid")).id
            rocketmq.clock.jump(3600)
            while other.admin.transactions.find(begun_id).checks == 0:
                pass
        pending = other.admin.transactions.find(begun_id)
        assert pending.message.offset > 0  # It was put again.
        other.admin.transactions.resolve(pending, "commit")
        assert other.admin.transactions.pending() == []
        assert [each.body for each in rocketmq.sent("orders", count=1)] == [b"paid"]


@pytest.mark.parametrize(
    ("body", "letters", "over"),
    [
        (b"3,5,", "", {3, 5}),  # Apache's.
        (b"3,5,", "cr", {3, 5}),
        (b"3,5,", "mc", {5}),  # The half message at 3 was put again.
        (b"3,5,", "m", {3, 5}),
        (b"3,x,5", "mc", {5}),
        (b"", "", set[int]()),
    ],
)
def test_an_op_message_names_what_has_ended(body: bytes, letters: str, over: set[int]) -> None:
    op = SimpleNamespace(body=body, properties={"ENDS": letters} if letters else {})
    assert _over(cast("ReceivedMessage", op)) == over


def test_a_trace_says_who_sent_and_who_consumed(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(trace=True, producer_group="shop")
        async with Client(servers.nameserver, config) as mq:
            receipt = await mq.send("orders", b"body", key="o-17", tag="paid")
            other = await mq.send("orders", b"other", key="o-17")
            assert other.id != receipt.id
            async with mq.consume("orders", group="billing", start="first") as consumer:
                (await anext(consumer)).ack()
                (await anext(consumer)).ack()
        async with Client(servers.nameserver) as mq:
            while len(steps := await mq.admin.message_trace(receipt.id)) < 2:
                await anyio.lowlevel.checkpoint()  # The index comes a moment later.
            assert [(each.kind, each.group, each.result) for each in steps] == [
                ("sent", "shop", "ok"),
                ("consumed", "billing", "ok"),
            ]
            assert (steps[0].topic, steps[0].where) == ("orders", servers.broker)
            assert (steps[1].attempt, steps[0].attempt) == (1, 1)
            assert await mq.admin.message_trace("nobody") == []

    play_on("asyncio", tmp_path, scenario)


def test_traces_of_other_clients_are_read_as_far_as_they_say_something() -> None:
    texts = [
        record("Pub", 1000, "r", "shop", "orders", "A", "", "", "host", 4, 7, 0),
        record("Pub", 1001, "r", "shop", "orders", "A", "", "", "host", 4, 8, 0, "id", False, "c"),
        record("SubBefore", 3000, "r", "billing", "q1", "A", 2, ""),
        record("SubBefore", 4000, "r", "billing", "q2", "A", 3, "", "host"),
        record("SubAfter", "q2", "A", 9, False, "", 1),
        record("EndTransaction", 2000, "r", "shop", "orders", "A", "", "", "host", 2, "A",
               "COMMIT_MESSAGE", True),
        record("Pub", "nonsense"),
        record("Pub", "soon", "r", "shop", "orders", "B", "", "", "host", 4, 7, 0),
        record("Recall", 1, "r", "shop", "orders", "A"),
    ]  # fmt: skip
    steps = steps_of("A", texts)
    assert [(each.kind, each.result, each.took_ms, each.attempt) for each in steps] == [
        ("sent", "ok", 7, 1),
        ("sent", "failed", 8, 1),
        ("ended", "COMMIT_MESSAGE", None, 1),
        ("consumed", "began", None, 3),
        ("consumed", "failed", 9, 4),
    ]
    assert steps_of("B", texts)[0].at.timestamp() == 0
