"""Pending retries and delays are passed on, from a live Apache 5.5.0 to our broker and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from tests.broker.clocked import Clocked
from tests.broker.running import config_of, send_request
from tests.client.running import on_loop
from tests.interop.apache_broker import PATIENT, ApacheBroker
from tests.interop.store_content import APACHE_SETTINGS, store_config
from tests.interop.store_sessions import now_ms, opened

from cometmq.client import Client
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ConsumerSendMsgBack
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.disk import SimulatedFileSystem

    from cometmq.store.message_store import MessageStore

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOPIC, GROUP = "orders", "billing"
RETRY = f"%RETRY%{GROUP}"
SECOND, MINUTE = 1_000, 60_000
SOON, LATER, MUCH_LATER = 1, 4, 9  # 1 s, 30 s, 5 min.


def ours_on(folder: Path, at_ms: int) -> Clocked:
    """Return our broker on the store that Apache's uses too, with the test's own clock."""
    config = replace(config_of(folder), store_path=str(folder / "store"), store=store_config())
    # It uses only what a real disk has, too.
    ours = Clocked(cast("SimulatedFileSystem", RealFileSystem()), config)
    ours.now_ms = ours.wired.now_ms = at_ms
    return ours


def stored(store: MessageStore, topic: str) -> int:
    """Count the messages ever put into a topic."""
    queues = store.queues.simple.queues(topic)
    return sum(store.max_offset(topic, queue_id) for queue_id in queues)


def test_what_is_pending_in_apache_comes_here_when_it_is_due_and_once(tmp_path: Path) -> None:
    bodies = [b"a", b"b", b"c"]

    async def on_apache() -> None:
        async with Client(broker.nameserver, PATIENT) as mq:
            await mq.admin.create_topic(TOPIC, queues=1)
            for body in bodies:
                await mq.send(TOPIC, body)
            async with mq.consume(TOPIC, group=GROUP, start="first") as consumer:
                for _ in bodies:
                    await (await anext(consumer)).retry(delay_level=MUCH_LATER)
            await mq.send(TOPIC, b"delayed", delay_level=MUCH_LATER)

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        on_loop("asyncio", on_apache)
        stopped_ms = now_ms()
        broker.stop()
    ours = ours_on(tmp_path, stopped_ms)
    ours.pass_time(3 * MINUTE)
    assert ours.bodies(RETRY) == []
    assert ours.bodies(TOPIC) == bodies
    ours.pass_time(2 * MINUTE)
    for _ in range(2):
        retries = ours.messages(topic=RETRY)
        assert sorted(each.body for each in retries) == bodies
        assert {each.reconsume_times for each in retries} == {1}
        assert ours.bodies(TOPIC) == [*bodies, b"delayed"]
        ours.wired.close()
        at_ms = ours.now_ms
        ours = ours_on(tmp_path, at_ms)
        ours.pass_time(60 * MINUTE)
    ours.wired.close()


def test_what_is_pending_here_comes_in_apache_once_and_what_came_here_does_not(
    tmp_path: Path,
) -> None:
    ours = ours_on(tmp_path, now_ms() - 25 * SECOND)
    for body in (b"a", b"b", b"c", b"d"):
        assert ours.wired.ask(ours.peer, send_request(TOPIC, body)).code == ResponseCode.SUCCESS
    for message in ours.messages(topic=TOPIC):
        back = ConsumerSendMsgBack(
            offset=message.physical_offset,
            group=GROUP,
            delay_level=SOON if message.body in b"ab" else LATER,
            origin_topic=TOPIC,
        )
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert ours.wired.ask(ours.peer, request).code == ResponseCode.SUCCESS
    for body, level in ((b"came", SOON), (b"delayed", LATER)):
        request = send_request(TOPIC, body, properties=f"DELAY\x01{level}\x02")
        assert ours.wired.ask(ours.peer, request).code == ResponseCode.SUCCESS
    ours.pass_time(2 * SECOND)
    assert ours.bodies(RETRY) == [b"a", b"b"]
    assert ours.bodies(TOPIC) == [b"a", b"b", b"c", b"d", b"came"]
    ours.wired.close()
    wanted = Counter({(body, 1): 1 for body in (b"a", b"b", b"c", b"d", b"came", b"delayed")})
    wanted.update((body, 2) for body in (b"a", b"b", b"c", b"d"))
    found: Counter[tuple[bytes, int]] = Counter()

    async def on_apache() -> None:
        async with (
            Client(broker.nameserver, PATIENT) as mq,
            mq.consume(TOPIC, group=GROUP, start="first") as consumer,
        ):
            while found.total() < wanted.total():
                message = await anext(consumer)
                found[message.body, message.attempt] += 1
                message.ack()

    with ApacheBroker(tmp_path, APACHE_SETTINGS) as broker:
        on_loop("asyncio", on_apache)
        broker.stop()
    assert found == wanted
    with opened(tmp_path / "store") as store:
        assert (stored(store, TOPIC), stored(store, RETRY)) == (6, 4), "some came twice"
