"""The SDK against a live Apache RocketMQ 5.5.0: where groups begin, and what headers it is sent."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from tests.client.relay import ANNOUNCED, Relay
from tests.client.running import on_loop
from tests.client.starting import TOPICS, check_starts
from tests.client.test_header_kinds import use
from tests.interop.apache_broker import PATIENT, ApacheBroker

from cometmq.client import Client, SyncClient
from cometmq.proto.header_json import JSON
from cometmq.proto.header_rocketmq import ROCKETMQ

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client import Queue

pytestmark = pytest.mark.slow

EXPIRES_SOON = {
    "mappedFileSizeCommitLog": "1048576",
    "maxMessageSize": "262144",
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}
EXPIRED_SECONDS = 180
"""Apache's broker looks for expired segments from its second minute on."""


def check(broker: ApacheBroker, *, is_young: bool) -> None:
    async def scenario() -> None:
        async with Client(broker.nameserver, PATIENT) as mq:
            await check_starts(mq, is_young=is_young)

    on_loop("asyncio", scenario)


@pytest.mark.long
def test_a_new_group_begins_in_a_young_queue_where_apache_has_it_begin(tmp_path: Path) -> None:
    with ApacheBroker(tmp_path, {}) as broker:
        check(broker, is_young=True)


@pytest.mark.long
def test_a_new_group_begins_in_an_old_queue_where_it_is_told_to(tmp_path: Path) -> None:
    with ApacheBroker(tmp_path, EXPIRES_SOON) as broker:
        with SyncClient(broker.nameserver, PATIENT) as mq:
            deadline = time.monotonic() + EXPIRED_SECONDS
            queues: list[Queue] = []
            for topic in TOPICS:
                mq.admin.create_topic(topic, queues=1)
                queues.append(mq.send(topic, b"gone").queue)
            for _ in range(20):
                mq.send("filler", os.urandom(200_000))
            while not all(map(mq.first_offset, queues)):
                assert time.monotonic() < deadline
                time.sleep(0.2)
        check(broker, is_young=False)


def test_no_header_is_sent_that_apaches_servers_do_not_know(tmp_path: Path) -> None:
    with (
        ApacheBroker(tmp_path, {"brokerIP1": ANNOUNCED}) as broker,
        Relay(broker.port) as relay,
        Relay(broker.name_server_port, at="127.0.0.1") as names,
    ):

        async def scenario() -> None:
            async with Client(names.address, PATIENT) as mq:
                await use(mq)

        on_loop("asyncio", scenario)
        known = {JSON.serialize_type, ROCKETMQ.serialize_type}
        for connections in (names.headers, relay.headers):
            assert connections
            for sent in connections:
                assert len(sent) >= 2
                assert set(sent) <= known
