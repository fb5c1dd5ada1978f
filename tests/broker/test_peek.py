"""Peeking, on a broker without an event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.topic_names import pop_retry_topics
from cometmq.proto.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import PeekMessage, PopMessageResponse
from cometmq.proto.message_list import MessageList


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    yield wired
    wired.close()


def send(wired: Wired, topic: str, *numbers: int, body: bytes = b"x") -> None:
    peer = wired.connect()
    for number in numbers:
        assert wired.ask(peer, send_request(topic, body, queue_id=number)).code == 0


def peek(wired: Wired, topic: str = "T", **fields: Any) -> Command:
    header: dict[str, Any] = {"queue_id": -1, "max_msg_nums": 32, "consumer_group": "g", **fields}
    request = Command.request(RequestCode.PEEK_MESSAGE, PeekMessage(topic=topic, **header))
    return wired.ask(wired.connect(), request)


def places(answer: Command) -> list[tuple[int, int]]:
    found = MessageList(bytes(answer.body or b""))
    return [(message.queue_id, message.queue_offset) for message in found]


def rest(answer: Command) -> int:
    return answer.read(PopMessageResponse).rest_num


def test_a_peek_gets_what_a_group_would_get_next_and_moves_nothing(wired: Wired) -> None:
    send(wired, "T", 0, 0, 0, 1)
    wired.broker.state.offsets.commit("g", "T", 0, 1)
    for _ in range(2):
        answer = peek(wired, queue_id=0, max_msg_nums=1)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        assert places(answer) == [(0, 1)]
        assert rest(answer) == 2


def test_a_peek_at_all_queues_begins_at_any(wired: Wired) -> None:
    send(wired, "T", 0, 1, 2, 3)
    firsts = Counter(places(peek(wired, max_msg_nums=1))[0][0] for _ in range(200))
    assert set(firsts) == {0, 1, 2, 3}
    assert sorted(places(peek(wired))) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_peek_that_finds_nothing_says_so(wired: Wired) -> None:
    send(wired, "T", 0)
    wired.broker.state.offsets.commit("g", "T", 0, 1)
    answer = peek(wired)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    assert rest(answer) == 0
    assert places(peek(wired, max_msg_nums=0)) == []


def test_an_offset_outside_the_queue_is_mended(wired: Wired) -> None:
    send(wired, "T", 0)
    wired.broker.state.offsets.commit("g", "T", 0, 100)
    answer = peek(wired, queue_id=0)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert rest(answer) == 0


def test_messages_to_consume_again_are_seen(wired: Wired) -> None:
    send(wired, "T", 0)
    retries = pop_retry_topics("T", "g")[1]
    wired.broker.state.topics.put(
        TopicConfig(topic_name=retries, read_queue_nums=1, write_queue_nums=1), 0
    )
    wired.save()
    send(wired, retries, 0, body=b"again")
    found = MessageList(bytes(peek(wired).body or b""))
    assert sorted(message.body for message in found) == [b"again", b"x"]


def test_a_peek_gets_no_more_than_a_pull(wired: Wired) -> None:
    send(wired, "T", *[0, 1, 2, 3] * 20)
    answer = peek(wired, max_msg_nums=1 << 30)
    assert len(places(answer)) == 32
    assert rest(answer) == 80
    send(wired, "Big", 0, 1, 2, 3, body=bytes(300_000))
    assert len(places(peek(wired, "Big"))) == 1


def test_a_peek_is_refused_as_apaches_is(wired: Wired) -> None:
    state = wired.broker.state
    send(wired, "T", 0)
    assert peek(wired, "Other").code == ResponseCode.TOPIC_NOT_EXIST
    assert peek(wired, queue_id=8).code == ResponseCode.INVALID_PARAMETER
    assert peek(wired, consumer_group="no group!").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    state.groups.put(SubscriptionGroupConfig(group_name="off", consume_enable=False), 0)
    assert peek(wired, consumer_group="off").remark == "subscription group no permission, off"
    topic = state.topics.find("T")
    assert topic is not None
    state.topics.put(replace(topic.config, perm=2), 0)
    assert peek(wired).remark == "the topic[T] peeking message is forbidden"


def test_what_is_on_the_disk_is_fetched(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config = dataclass_replace(config, store=dataclass_replace(config.store, hot_size=1))
    disk = SimulatedFileSystem()
    wired = Wired(config, disk)
    send(wired, "T", 0, 1, 2, 3, body=bytes(50_000))
    disk.is_cold = True
    peer = wired.connect()
    header = PeekMessage(topic="T", queue_id=-1, max_msg_nums=32, consumer_group="g")
    wired.give(peer, wired.frame(peer, Command.request(RequestCode.PEEK_MESSAGE, header)))
    (answer,) = wired.answers_of_threads(peer)
    assert sorted(places(answer)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    wired.close()


def test_a_disk_that_fails_the_read_is_told_of(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config = dataclass_replace(config, store=dataclass_replace(config.store, hot_size=1))
    disk = SimulatedFileSystem()
    wired = Wired(config, disk)
    send(wired, "T", 0, 1, body=bytes(50_000))
    disk.is_cold = True
    disk.make_unreadable(f"{wired.broker.store.root}/commitlog/{0:020d}", 0, 1 << 20)
    peer = wired.connect()
    header = PeekMessage(topic="T", queue_id=-1, max_msg_nums=32, consumer_group="g")
    wired.give(peer, wired.frame(peer, Command.request(RequestCode.PEEK_MESSAGE, header)))
    (answer,) = wired.answers_of_threads(peer)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("a read failed: ")
    wired.close()
