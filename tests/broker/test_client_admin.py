"""Administrators' requests to a client through its broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.captured import beat
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.proto.bodies import ConsumerData, ConsumerStatus, MessageQueue
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.commands.consumer import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from cometmq.proto.message import read_message

GROUP = ConsumerData(group_name="g")
INFO = Command.request(Code.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfo("g", "c"))
STATUS = Command.request(
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatus(topic="T", group="g")
)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911))
    yield wired
    wired.close()


def consumer(wired: Wired, client_id: str = "c") -> WiredPeer:
    peer = wired.connect()
    beat(wired, peer, client_id, (GROUP,))
    wired.events(peer)
    return peer


def asked(wired: Wired, peer: WiredPeer) -> Command:
    """Return the one request, notifications aside, that the broker has sent to a client."""
    (request,) = [
        event
        for event in wired.events(peer)
        if isinstance(event, Command) and event.code != Code.NOTIFY_CONSUMER_IDS_CHANGED
    ]
    return request


def give(wired: Wired, peer: WiredPeer, request: Command) -> None:
    wired.give(peer, wired.frame(peer, request))


def say(wired: Wired, peer: WiredPeer, answer: Command) -> None:
    wired.give(peer, b"".join(peer.client.send(answer)))


def test_the_answer_of_a_client_is_passed_on(wired: Wired) -> None:
    client, admin = consumer(wired), wired.connect()
    give(wired, admin, INFO)
    assert wired.answers(admin) == []
    request = asked(wired, client)
    assert request.read(GetConsumerRunningInfo).client_id == "c"
    say(wired, client, request.answer(1, remark="not now", body=b"{}"))
    (answer,) = wired.answers(admin)
    assert (answer.code, answer.remark, bytes(answer.body or b"")) == (1, "not now", b"{}")


def test_a_client_that_does_not_answer_is_waited_for_only_so_long(wired: Wired) -> None:
    consumer(wired)
    admin = wired.connect()
    give(wired, admin, INFO)
    wired.peers.tick(wired.peers.now_ms + 10_000)
    wired.turn()
    (answer,) = wired.answers(admin)
    assert answer.code == 207
    assert (answer.remark or "").startswith("consumer <g> <c> Timeout: ")


def test_a_client_that_leaves_in_the_middle_is_no_answer(wired: Wired) -> None:
    client, admin = consumer(wired), wired.connect()
    give(wired, admin, INFO)
    client.gone("reset")
    wired.turn()
    (answer,) = wired.answers(admin)
    assert answer.code == 1
    assert (answer.remark or "").startswith("invoke consumer <g> <c> Exception: ")


def test_a_client_that_is_too_old_is_not_asked(wired: Wired) -> None:
    client = consumer(wired)
    group = wired.broker.state.consumers.find("g")
    assert group is not None
    for member in group.members.values():
        member.version = 61
    answer = wired.ask(wired.connect(), INFO)
    assert (answer.code, answer.remark) == (
        1,
        "The Consumer <c> Version <V_61> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
    )
    assert wired.events(client) == []


def test_a_client_consumes_a_message_directly(wired: Wired) -> None:
    client, admin = consumer(wired), wired.connect()
    sent = wired.ask(admin, send_request("T", b"hello")).read(SendMessageResponse)
    header = ConsumeMessageDirectly("g", client_id="c", msg_id=sent.msg_id, topic="T")
    give(wired, admin, Command.request(Code.CONSUME_MESSAGE_DIRECTLY, header))
    request = asked(wired, client)
    assert read_message(bytes(request.body or b"")).body == b"hello"
    asked_of = request.read(ConsumeMessageDirectly)
    assert (asked_of.broker_name, asked_of.topic_sys_flag, asked_of.group_sys_flag) == (
        "broker-a", 0, 0
    )  # fmt: skip
    say(wired, client, request.answer(0, body=b'{"consumeResult":"CR_SUCCESS"}'))
    (answer,) = wired.answers(admin)
    assert (answer.code, bytes(answer.body or b"")) == (0, b'{"consumeResult":"CR_SUCCESS"}')


@pytest.mark.parametrize("msg_id", [None, "no id", "7F00000100002A9F0000000000FFFFFF"])
def test_a_message_that_there_is_not_cannot_be_consumed(wired: Wired, msg_id: str | None) -> None:
    client = consumer(wired)
    header = ConsumeMessageDirectly("g", client_id="c", msg_id=msg_id)
    answer = wired.ask(wired.connect(), Command.request(Code.CONSUME_MESSAGE_DIRECTLY, header))
    assert answer.code == 1
    assert answer.remark
    assert wired.events(client) == []


def test_all_members_say_how_far_they_are(wired: Wired) -> None:
    clients = {name: consumer(wired, name) for name in ("one", "two", "three", "four")}
    admin = wired.connect()
    give(wired, admin, STATUS)
    for number, name in enumerate(("one", "two")):
        queue = MessageQueue(broker_name="broker-a", queue_id=number, topic="T")
        body = ConsumerStatus(message_queue_table={queue: 7}).encode()
        say(wired, clients[name], asked(wired, clients[name]).answer(0, body=body))
    say(wired, clients["three"], asked(wired, clients["three"]).answer(0, body=b"nonsense"))
    assert wired.answers(admin) == []
    wired.peers.tick(wired.peers.now_ms + 5_000)
    wired.turn()
    (answer,) = wired.answers(admin)
    table = ConsumerStatus.decode(answer.body).consumer_table
    assert {name: list(offsets.values()) for name, offsets in table.items()} == {
        "one": [7], "two": [7]
    }  # fmt: skip


def test_one_member_says_how_far_it_is(wired: Wired) -> None:
    one, two = consumer(wired, "one"), consumer(wired, "two")
    wired.events(one)
    header = GetConsumerStatus(topic="T", group="g", client_addr="two")
    give(
        wired,
        wired.connect(),
        replace(STATUS, fields=header),
    )
    assert asked(wired, two).code == Code.GET_CONSUMER_STATUS_FROM_CLIENT
    assert wired.events(one) == []


def test_nobody_says_how_far_they_are_when_nobody_is_there(wired: Wired) -> None:
    answer = wired.ask(wired.connect(), STATUS)
    assert (answer.code, answer.remark) == (
        1, "No Any Consumer online in the consumer group: [g]"
    )  # fmt: skip
