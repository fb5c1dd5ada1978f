"""Queues that have messages but cannot be read: who reads a topic is told what is left out."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from cometmq.pipeline import unread as unread_queues
from cometmq.pipeline.cluster import Bounds, Cluster as Asked, Queue
from cometmq.pipeline.routes import Route
from cometmq.pipeline.unread import left_out, unread
from cometmq.pipeline.wire import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.pipeline.wire import Answer
    from cometmq.testing import Cluster

pytestmark = pytest.mark.usefixtures("no_connection_is_kept")

UPDATE_TOPIC = 17
UNKNOWN_CODE = 31999


@pytest.fixture
def asked(rocketmq_session: Cluster) -> Asked:
    return Asked([rocketmq_session.nameserver], Settings(timeout=5.0))


@pytest.fixture(params=["ours", "Apache's"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the broker is taken for one that knows our request."""
    if request.param != "ours":
        monkeypatch.setattr(unread_queues, "GET_QUEUE_RANGES", UNKNOWN_CODE)
    return str(request.param)


def fill(cluster: Cluster, topic: str, queues: int, each: int = 2) -> None:
    cluster.admin.create_topic(topic, queues=queues)
    for queue in cluster.client.queues(topic):
        for _ in range(each):
            cluster.send(topic, b"x", queue=queue)


def resize(cluster: Cluster, topic: str, *, read: int, write: int) -> None:
    fields = {"topic": topic, "readQueueNums": str(read), "writeQueueNums": str(write)}
    fields |= {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    asked = Asked([cluster.nameserver], Settings(timeout=5.0))
    asked.ask(cluster.broker, UPDATE_TOPIC, fields).expect("the broker")


def of(topic: str, *numbers: int) -> dict[Queue, Bounds]:
    return {Queue(topic, "broker-a", number): Bounds(0, 2) for number in numbers}


def test_queues_that_a_topic_no_longer_has_are_named_by_our_broker_alone(
    rocketmq_session: Cluster, asked: Asked, kind: str
) -> None:
    topic = f"unread-fewer-{kind[0]}"
    fill(rocketmq_session, topic, 3)
    assert unread(asked, [topic]) == {}
    rocketmq_session.admin.create_topic(topic, queues=1)
    assert unread(asked, [topic]) == (of(topic, 1, 2) if kind == "ours" else {})
    rocketmq_session.admin.create_topic(topic, queues=3)
    assert unread(asked, [topic]) == {}


def test_queues_that_can_be_written_but_not_read_are_named(
    rocketmq_session: Cluster, asked: Asked, kind: str
) -> None:
    topic, other = f"unread-write-{kind[0]}", f"unread-other-{kind[0]}"
    fill(rocketmq_session, topic, 3)
    fill(rocketmq_session, other, 2)
    resize(rocketmq_session, topic, read=1, write=4)  # The fourth has no message.
    assert unread(asked, {topic, other, "no-such-topic"}) == of(topic, 1, 2)


def test_a_topic_that_forbids_reads_has_only_such_queues(
    rocketmq_session: Cluster, asked: Asked, kind: str
) -> None:
    topic = f"unread-forbidden-{kind[0]}"
    fill(rocketmq_session, topic, 2)
    rocketmq_session.admin.create_topic(topic, permission="w")
    assert unread(asked, [topic]) == of(topic, 0, 1)


def test_a_broker_of_before_that_does_not_name_them_is_asked_otherwise(
    rocketmq_session: Cluster,
) -> None:
    topic = "unread-before"
    fill(rocketmq_session, topic, 3)
    resize(rocketmq_session, topic, read=2, write=3)

    class Before(Asked):
        def ask_all(
            self, address: str, code: int, requests: Sequence[Mapping[str, str]]
        ) -> list[Answer]:
            answers = super().ask_all(address, code, requests)
            if code != unread_queues.GET_QUEUE_RANGES:
                return answers
            named = {"maxOffset": 2, "minOffset": 0, "queueId": 2}
            assert [json.loads(each.body).pop("unread") for each in answers] == [[named]]
            return [each._replace(body=b'{"queues":[]}') for each in answers]

    assert unread(Before([rocketmq_session.nameserver], Settings()), [topic]) == of(topic, 2)


def test_a_broker_that_is_away_is_not_waited_for(
    rocketmq_session: Cluster, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "unread-away"
    fill(rocketmq_session, topic, 2)
    rocketmq_session.admin.create_topic(topic, queues=1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"127.0.0.1:{closed.getsockname()[1]}"
    addresses = {"a-broker": away, "broker-a": rocketmq_session.broker}
    route = Route(addresses, {"a-broker": 4, "broker-a": 1})

    def routes(_: object) -> dict[str, Route]:
        return {topic: route}

    monkeypatch.setattr(asked, "routes", routes)
    assert unread(asked, [topic]) == of(topic, 1)


def test_what_is_left_out_is_counted_and_one_queue_is_named() -> None:
    hidden: dict[Queue, Any] = {Queue("T", "b", 7): Bounds(3, 5), Queue("T", "b", 4): Bounds(0, 9)}
    assert left_out(hidden).startswith(
        "11 messages are left out, because their queues, such as T/b/4,"
    )
