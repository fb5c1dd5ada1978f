"""A broker on real sockets, from a send to the disk and back."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.broker.running import (
    PATIENCE_SECONDS,
    Client,
    Running,
    config_of,
    pull_request,
    run,
    send_request,
)

from cometmq.broker import daemon as broker_daemon
from cometmq.broker.clock import Clock
from cometmq.broker.daemon import Bell
from cometmq.net import guest, listen_on
from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import TopicRouteData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    GetMaxOffset,
    OffsetResponse,
    PullMessageResponse,
    SendMessageResponse,
)
from cometmq.proto.commands.route import GetRouteInfoByTopic
from cometmq.proto.host import Host
from cometmq.store.config import Flush
from cometmq.store.log.turn import Origin

FLUSHES = pytest.mark.parametrize("flush", list(Flush), ids=lambda flush: flush.value)


@FLUSHES
def test_what_is_sent_is_pulled(tmp_path: Path, flush: Flush) -> None:
    async def scenario(running: Running) -> None:
        sent = await running.client.send("T", b"hello", queue_id=2, properties="TAGS\x01a\x02")
        assert (sent.queue_id, sent.queue_offset, sent.region_id) == (2, 0, "DefaultRegion")
        (message,) = await running.client.pull("T", queue_id=2)
        assert (message.topic, message.body, message.queue_id) == ("T", b"hello", 2)
        assert message.offset_id == sent.msg_id
        assert message.properties["UNIQ_KEY"] == sent.transaction_id
        assert message.properties["CLUSTER"] == "DefaultCluster"
        assert message.properties["TAGS"] == "a"

    run(config_of(tmp_path, flush=flush), scenario)


def test_the_store_is_looked_after_less_often_while_nothing_is_put(tmp_path: Path) -> None:
    async def main(_: trio.Event) -> None:
        clock, loop = Clock(), asyncio.get_running_loop()
        sockets = listen_on([Host("127.0.0.1", 0)])
        daemon = broker_daemon.Daemon(config_of(tmp_path), sockets, loop, Bell(), clock)
        store = daemon.broker.store
        seconds: list[float] = []
        for wait_ms in (0, broker_daemon.STORE_QUIET_AFTER_MS):
            clock.jump(wait_ms)
            while (pause := daemon.keep_store()) == broker_daemon.STORE_BUSY_TICK_SECONDS:
                pass
            seconds.append(pause)
        store.put("T", 0, b"x", b"", Origin(clock.now_ms(), 0, bytes(8)))
        store.commit()
        while (pause := daemon.keep_store()) == broker_daemon.STORE_BUSY_TICK_SECONDS:
            pass
        seconds.append(pause)
        daemon.close()
        for each in sockets:
            each.close()
        usual, quiet = broker_daemon.STORE_TICK_SECONDS, broker_daemon.STORE_QUIET_TICK_SECONDS
        assert seconds == [usual, quiet, usual]

    guest.run(main)


@FLUSHES
def test_a_restart_finds_everything(tmp_path: Path, flush: Flush) -> None:
    async def before(running: Running) -> None:
        for number in range(50):
            await running.client.send("T", b"%d" % number, queue_id=number % 4)
        await running.client.pull("T", sys_flag=5, commit_offset=7)

    async def after(running: Running) -> None:
        bodies: list[bytes] = []
        for queue_id in range(4):
            bodies += [bytes(m.body) for m in await running.client.pull("T", queue_id=queue_id)]
        assert sorted(map(int, bodies)) == list(range(50))
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        response = await running.client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert response.read(OffsetResponse).offset == 7

    config = config_of(tmp_path, flush=flush)
    run(config, before)
    run(config, after)


def test_a_new_topic_has_a_route_at_the_name_server(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        await running.client.send("fresh", b"x")
        with trio.fail_after(20):
            while True:
                asked = GetRouteInfoByTopic(topic="fresh")
                response = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
                if response.code == ResponseCode.SUCCESS:
                    break
        route = TopicRouteData.decode(response.body or b"")
        assert [(q.broker_name, q.read_queue_nums) for q in route.queue_datas] == [("broker-a", 4)]
        assert route.broker_datas[0].broker_addrs == {0: str(running.address)}

    run(config_of(tmp_path), scenario)


@FLUSHES
def test_a_held_pull_is_answered_by_the_message_that_comes(tmp_path: Path, flush: Flush) -> None:
    async def scenario(running: Running) -> None:
        await running.client.send("T", b"first")
        waiting = pull_request("T", 1, sys_flag=6, suspend_timeout_millis=15_000)
        other = await running.new_client()
        async with trio.open_nursery() as nursery:

            async def hold() -> None:
                response = await other.call(waiting)
                assert (response.code, response.remark) == (0, "FOUND")
                assert response.read(PullMessageResponse).next_begin_offset == 2

            nursery.start_soon(hold)
            await other.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))  # Now it is held.
            await running.client.send("T", b"second")

    run(config_of(tmp_path, flush=flush), scenario)


def test_a_held_pull_with_a_filter_waits_for_its_tag(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        other = await running.new_client()
        fields: dict[str, Any] = {"sys_flag": 6, "suspend_timeout_millis": 15_000}
        async with trio.open_nursery() as nursery:

            async def hold() -> None:
                messages = await other.pull("BenchmarkTest", subscription="red || blue", **fields)
                assert [m.body for m in messages] == [b"wanted"]

            nursery.start_soon(hold)
            await other.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))
            await running.client.send("BenchmarkTest", b"not", properties="TAGS\x01green\x02")
            await running.client.send("BenchmarkTest", b"wanted", properties="TAGS\x01blue\x02")

    run(config_of(tmp_path), scenario)


def test_nobody_holds_a_pull_for_longer_than_the_broker_allows(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        request = pull_request("BenchmarkTest", sys_flag=6, suspend_timeout_millis=3_600_000)
        assert (await running.client.call(request)).code == ResponseCode.PULL_NOT_FOUND

    run(config_of(tmp_path, suspend_timeout_max_ms=50), scenario)


def test_a_held_pull_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        request = pull_request("BenchmarkTest", sys_flag=6, suspend_timeout_millis=1)
        response = await running.client.call(request)
        assert (response.code, response.remark) == (19, "NO_MESSAGE_IN_QUEUE")

    run(config_of(tmp_path), scenario)


def test_a_batch_becomes_messages_of_their_own(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        body = encode_batch("T", [BatchItem(b"%d" % n, b"k\x01v\x02") for n in range(5)])
        sent = await running.client.send("T", body, code=320, batch=True)
        assert len(set(sent.msg_id.split(","))) == 5
        messages = await running.client.pull("T")
        assert [m.body for m in messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert [m.queue_offset for m in messages] == [0, 1, 2, 3, 4]
        assert messages[0].properties["k"] == "v"

    run(config_of(tmp_path), scenario)


def test_a_one_way_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        request = send_request("T", b"quiet")
        running.client.peer.tell(request)
        response = await running.client.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))
        with trio.fail_after(20):
            while response.read(OffsetResponse).offset == 0:
                response = await running.client.ask(
                    RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0)
                )
        assert running.client.peer.connection.unmatched_count == 0

    run(config_of(tmp_path), scenario)


def test_an_unknown_request_is_answered_as_apache_does(tmp_path: Path) -> None:
    async def scenario(running: Running) -> None:
        response = await running.client.call(Command.request(7777))
        assert (response.code, response.remark) == (3, " request type 7777 not supported")

    run(config_of(tmp_path), scenario)


def test_a_send_to_a_new_topic_is_not_lost_with_the_topic(tmp_path: Path) -> None:
    """It is answered once the topic is in its file, so that a kill after the answer keeps both."""

    async def scenario(running: Running) -> None:
        await running.client.send("fresh", b"x")
        topics = (tmp_path / "data" / "config" / "topics.json").read_text()
        assert '"fresh"' in topics

    run(config_of(tmp_path), scenario)


def test_a_stop_answers_the_sends_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[SendMessageResponse] = []
    sync, is_awake = os.fdatasync, threading.Event()

    def slowly(descriptor: int) -> None:
        assert is_awake.wait(PATIENCE_SECONDS)
        sync(descriptor)

    async def wake() -> None:
        await trio.sleep(0.2)
        is_awake.set()

    async def main(_: trio.Event) -> None:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            config = config_of(tmp_path, flush=Flush.SYNC)
            address = await inner.start(broker_daemon.serve, config)
            client, other = await Client().connect(address), await Client().connect(address)
            await client.send("BenchmarkTest", b"before")
            monkeypatch.setattr(os, "fdatasync", slowly)

            async def send() -> None:
                answers.append(await client.send("BenchmarkTest", b"x"))

            outer.start_soon(send)
            await other.ask(RequestCode.GET_MAX_OFFSET, GetMaxOffset("BenchmarkTest", 0))
            assert answers == []
            outer.start_soon(wake)
            inner.cancel_scope.cancel()

    guest.run(main)
    assert [answer.queue_offset for answer in answers] == [1]
