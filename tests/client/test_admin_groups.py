"""Administrators' requests about groups, their offsets, kinds of topics, and messages to find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio.lowlevel
import pytest
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import (
    BusyError,
    Client,
    ClientConfig,
    NotFoundError,
    RefusedError,
    Sql,
    SyncClient,
    UsageError,
)
from cometmq.client._admin_topics import _kind  # pyright: ignore[reportPrivateUsage]  # Names of all kinds.
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.proto.command import Command


@on_every_loop
def test_groups_come_and_go(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            made = await mq.admin.create_group("billing", max_retries=5)
            assert made == {"broker-a": "made"}
            await mq.admin.create_group("idle", enabled=False)
            found = {each.name: each for each in await mq.admin.groups()}
            billing = found["billing"]
            assert (billing.max_retries, billing.is_enabled) == (5, True)
            assert billing.brokers == ("broker-a",)
            assert not found["idle"].is_enabled
            await mq.admin.delete_group("idle")
            assert "idle" not in {each.name for each in await mq.admin.groups()}
            with pytest.raises(UsageError, match="max_retries"):
                await mq.admin.create_group("billing", max_retries=-1)
            with pytest.raises(UsageError, match="group"):
                await mq.admin.create_group("bill ing")

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_group_keeps_the_settings_that_are_not_given(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            create = mq.admin.create_group
            assert await create("billing", max_retries=0) == {"broker-a": "made"}
            assert await create("billing", enabled=False) == {"broker-a": "changed"}
            assert await create("billing", ordered=True) == {"broker-a": "changed"}
            kept = await create("billing", ordered=True, enabled=False)
            assert kept == {"broker-a": "kept"}
            found = {each.name: each for each in await mq.admin.groups()}
            assert (found["billing"].max_retries, found["billing"].is_enabled) == (0, False)
            assert found["CID_RMQ_SYS_TRANS"].is_system
            assert not found["billing"].is_system

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_members_and_progress_of_a_group_are_shown(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(instance="python-1")
        async with Client(servers.nameserver, config) as mq:
            queue = (await mq.send("orders", b"0", sharding_key="c")).queue
            for number in range(1, 5):
                await mq.send("orders", b"%d" % number, queue=queue)
            await mq.admin.create_group("billing")
            assert await mq.admin.group_members("billing") == []
            filters = {"orders": Sql("a IS NULL")}
            async with mq.consume(filters, group="billing", start="first") as consumer:
                for _ in range(3):
                    (await anext(consumer)).ack()
                (member,) = await mq.admin.group_members("billing")
                assert member.client_id == mq.id
                assert member.address.startswith("127.0.0.1:")
                assert member.subscriptions == {"orders": "a IS NULL", "%RETRY%billing": "*"}
            found = await mq.admin.group_progress("billing", "orders")
            (here,) = [each for each in found if each.queue == queue]
            assert (here.offset, here.end_offset, here.lag) == (3, 5, 2)
            assert here.consumed_at is not None
            assert datetime.now(UTC) - here.consumed_at < timedelta(minutes=5)
            with pytest.raises(NotFoundError, match="no broker knows the group 'nobody'"):
                await mq.admin.group_progress("nobody")

    play_on(loop, tmp_path, scenario)


def test_progress_is_told_of_all_brokers_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lag of a group would look smaller while a broker is too busy to say."""

    async def scenario(servers: Servers) -> None:
        servers.add("busy", tmp_path / "busy", broker_name="busy")
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=1)
            await mq.admin.create_group("billing")
            for queue in await mq.queues("orders"):
                await mq.commit(queue, "billing", 0)
            admin = mq.admin
            ask = admin._ask  # pyright: ignore[reportPrivateUsage]  # No broker does this at will.
            problem: list[type[RefusedError]] = []

            async def refuse(address: str, code: RequestCode, *about: Any, **how: Any) -> Command:
                is_refused = address != servers.broker or len(problem) > 2
                if code == RequestCode.GET_CONSUME_STATS and is_refused:
                    raise problem[-1](ResponseCode.SYSTEM_BUSY, "flow control", address)
                return await ask(address, code, *about, **how)

            monkeypatch.setattr(admin, "_ask", refuse)
            problem.append(NotFoundError)
            found = await admin.group_progress("billing", "orders")
            assert {each.queue.broker for each in found} == {"broker-a"}
            problem.append(BusyError)
            with pytest.raises(BusyError, match="flow control"):
                await admin.group_progress("billing", "orders")
            problem.append(NotFoundError)  # From now on of all brokers.
            with pytest.raises(NotFoundError, match="flow control"):
                await admin.group_progress("billing", "orders")

    play_on("asyncio", tmp_path, scenario)


def test_offsets_are_reset_to_the_ends_and_to_a_time() -> None:
    with Cluster() as cluster:
        queue = cluster.send("orders", b"0", sharding_key="c").queue
        cluster.clock.jump(3600)
        cluster.send("orders", b"1", queue=queue)
        with cluster.client.consume("orders", group="billing", start="first") as consumer:
            for _ in range(2):
                with next(consumer):
                    pass
        admin = cluster.admin
        half_an_hour_ago = cluster.clock.now() - timedelta(minutes=30)
        places = ("first", 0), (half_an_hour_ago, 1), ("last", 2)
        for place, offset in places:
            moved = admin.reset_offsets("billing", "orders", place)  # type: ignore[arg-type]  # A mix.
            assert moved[queue] == offset
            progress = {each.queue: each.offset for each in admin.group_progress("billing")}
            assert progress[queue] == offset
        admin.set_offset("billing", queue, 1)
        assert {each.queue: each.lag for each in admin.group_progress("billing")}[queue] == 1
        with pytest.raises(RefusedError):
            admin.set_offset("billing", queue, 99)
        with pytest.raises(UsageError, match="broker"):
            admin.set_offset("billing", queue._replace(broker="broker-z"), 1)
        with pytest.raises(UsageError, match="zone"):
            admin.reset_offsets("billing", "orders", datetime(2026, 1, 1))
        with pytest.raises(UsageError, match="'first', 'last'"):
            admin.reset_offsets("billing", "orders", "middle")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # The mistake.
        with pytest.raises(NotFoundError):
            admin.reset_offsets("billing", "nowhere", "first")


@on_every_loop
def test_messages_are_found_by_id_and_by_key(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            receipt = await mq.send("orders", b"one", keys=["o-17", "c-4"])
            await mq.send("orders", b"two", key="o-18")
            message = await mq.admin.message(receipt.offset_id)
            assert (message.body, message.id, message.queue) == (b"one", receipt.id, receipt.queue)
            with anyio.fail_after(20):  # The index comes a moment later.
                while not await mq.admin.find_messages("orders", receipt.id):
                    await anyio.lowlevel.checkpoint()
            message = await mq.admin.message(receipt.id)
            assert (message.body, message.offset_id) == (b"one", receipt.offset_id)
            assert (await mq.admin.message(receipt.id, topic="orders")).body == b"one"
            with anyio.fail_after(20):  # The index comes a moment later.
                while not await mq.admin.find_messages("orders", "o-18"):
                    await anyio.lowlevel.checkpoint()
            for key in ("o-17", "c-4", receipt.id):
                (found,) = await mq.admin.find_messages("orders", key)
                assert found.body == b"one"
            assert await mq.admin.find_messages("orders", "o-99") == []
            a_day_ago = datetime.now(UTC) - timedelta(days=1)
            assert await mq.admin.find_messages("orders", "o-17", until=a_day_ago) == []
            (one,) = await mq.admin.find_messages("orders", "o-17", since=found.stored_at)
            assert one.body == b"one"
            a_moment = timedelta(milliseconds=1)
            for since, until, many in (
                (found.stored_at + a_moment, None, 0),  # Though the index has only seconds.
                (found.stored_at, found.stored_at + a_moment, 1),
                (a_day_ago, found.stored_at, 0),
            ):
                among = await mq.admin.find_messages("orders", "o-17", since=since, until=until)
                assert len(among) == many
            with pytest.raises(UsageError, match="since: must be before until"):
                await mq.admin.find_messages("orders", "o-17", since=a_day_ago, until=a_day_ago)
            for wrong in (receipt.id[:31], "x" * 32, cast("str", 17)):
                with pytest.raises(UsageError, match="32 hexadecimal digits"):
                    await mq.admin.message(wrong)
            with pytest.raises(UsageError, match="must not be empty"):
                await mq.admin.find_messages("orders", "")
            while datetime.now(UTC) <= one.stored_at + a_moment:  # noqa: ASYNC110  # Nobody tells.
                await anyio.sleep(0.001)
            await mq.send("orders", b"newer", key="o-17")
            with anyio.fail_after(20):
                while len(both := await mq.admin.find_messages("orders", "o-17")) < 2:
                    await anyio.lowlevel.checkpoint()
            assert [each.body for each in both] == [b"newer", b"one"]
            elsewhere = receipt.offset_id.replace("7F000001", "0A000001")
            with pytest.raises(NotFoundError, match=r"^the cluster refuses .* in any of"):
                await mq.admin.message(elsewhere)

    play_on(loop, tmp_path, scenario)


def test_the_sync_admin_has_all_of_it() -> None:
    with Cluster() as cluster, SyncClient(cluster.nameserver) as mq:
        mq.admin.create_group("billing")
        assert "billing" in {each.name for each in mq.admin.groups()}
        assert mq.admin.message(mq.send("orders", b"x").offset_id).body == b"x"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("orders", "user"),
        ("%RETRY%billing", "retry"),
        ("%DLQ%billing", "dead letters"),
        ("TBW102", "system"),
        ("RMQ_SYS_TRACE_TOPIC", "system"),
        ("rmq_sys_SYNC_BROKER_MEMBER_broker-a", "system"),
        ("DefaultCluster_REPLY_TOPIC", "system"),
        ("broker-a", "system"),
    ],
)
def test_a_topic_belongs_to_a_user_a_group_or_the_system(name: str, kind: str) -> None:
    assert _kind(name, {"broker-a", "DefaultCluster"}) == kind
