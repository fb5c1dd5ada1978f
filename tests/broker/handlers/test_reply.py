"""Replies reach the client that asked, and the replier hears whether they did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as changed
from tests.broker.captured import ANSWERED, ASKED, command_of
from tests.broker.clocked import FOLDER
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.bodies import HeartbeatData, ProducerData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import PushReplyMessageToClient, SendMessageResponse
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import decode_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.broker.wired import WiredPeer

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKING = "192.0.2.2@14499#1"


@pytest.fixture
def wired() -> Iterator[Wired]:
    wired = Wired(config_of(FOLDER, listen_port=21911), SimulatedFileSystem())
    yield wired
    wired.close()


def join(wired: Wired, client_id: str = ASKING, group: str = "asking") -> WiredPeer:
    peer = wired.connect()
    beat(wired, peer, client_id, group)
    return peer


def beat(wired: Wired, peer: WiredPeer, client_id: str, group: str = "asking") -> None:
    data = HeartbeatData(client_id=client_id, producer_data_set=(ProducerData(group_name=group),))
    request = Command.request(RequestCode.HEART_BEAT, body=data.encode())
    assert wired.ask(peer, request).code == ResponseCode.SUCCESS


def reply(body: bytes, *, to: str | None = ASKING, code: int = 325) -> Command:
    properties = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02TTL\x013000\x02"
    if to is not None:
        properties += f"REPLY_TO_CLIENT\x01{to}\x02"
    return send_request(TOPIC, body, code=code, properties=properties, born_timestamp=5, flag=3)


def handed(wired: Wired, peer: WiredPeer) -> Command:
    (pushed,) = wired.events(peer)
    assert isinstance(pushed, Command)
    assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return pushed


def take(wired: Wired, peer: WiredPeer, pushed: Command, code: int = 0) -> None:
    wired.give(peer, b"".join(peer.client.send(pushed.answer(code))))


def give(wired: Wired, request: Command) -> WiredPeer:
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, request))
    return peer


def the_answer(wired: Wired, peer: WiredPeer) -> Command:
    (answer,) = wired.answers(peer)
    return answer


@pytest.mark.parametrize("body", [b"pong", b""])
def test_a_reply_is_handed_to_who_asked_and_answered_when_it_is_taken(
    wired: Wired, body: bytes
) -> None:
    asking = join(wired)
    replying = give(wired, reply(body))
    pushed = handed(wired, asking)
    assert wired.answers(replying) == []
    header = pushed.read(PushReplyMessageToClient)
    assert bytes(pushed.body or b"") == body
    assert (header.topic, header.queue_id, header.flag, header.born_timestamp) == (TOPIC, 0, 3, 5)
    assert header.store_host == "127.0.0.1:21911"
    assert header.born_host == str(replying.host)
    properties = decode_properties((header.properties or "").encode())
    assert (properties["CORRELATION_ID"], properties["REPLY_TO_CLIENT"]) == ("c-1", ASKING)
    assert properties["PUSH_REPLY_TIME"] == str(wired.now_ms)
    take(wired, asking, pushed)
    answer = the_answer(wired, replying)
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.read(SendMessageResponse).msg_id == "0") is (body == b"")


def test_replies_are_kept_unless_that_is_turned_off(wired: Wired) -> None:
    asking = join(wired)
    for is_kept in (True, False):
        wired.broker.configure(replace(wired.broker.state.config, store_replies=is_kept))
        replying = give(wired, reply(b"pong"))
        take(wired, asking, handed(wired, asking))
        said = the_answer(wired, replying).read(SendMessageResponse)
        assert (said.msg_id == "0") is not is_kept
    kept = wired.ask(wired.connect(), pull_request(TOPIC))
    assert [message.body for message in MessageList(kept.body)] == [b"pong"]


def test_a_reply_to_nobody_is_refused_in_apaches_words(wired: Wired) -> None:
    answer = the_answer(wired, give(wired, reply(b"pong", to="nobody@1")))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "push reply message fail, channel of <nobody@1> not found."
    answer = the_answer(wired, give(wired, reply(b"pong", to=None)))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert answer.ext_fields.keys() == {"MSG_REGION", "TRACE_ON"}


def test_who_replies_hears_that_the_reply_was_not_taken(wired: Wired) -> None:
    asking = join(wired)
    replying = give(wired, reply(b"pong"))
    take(wired, asking, handed(wired, asking), code=1)
    assert the_answer(wired, replying).remark == f"push reply message to {ASKING}fail."
    replying = give(wired, reply(b"pong"))
    asking.gone("it ended")
    wired.turn()
    assert the_answer(wired, replying).remark == f"push reply message to {ASKING}fail."
    assert replying.in_flight == 0


def test_a_client_that_says_nothing_is_not_waited_for_long(wired: Wired) -> None:
    join(wired)
    replying = give(wired, reply(b"pong"))
    for _ in range(3):
        wired.now_ms += 10_000
        wired.peers.tick(wired.now_ms)
        wired.turn()
    assert the_answer(wired, replying).code == ResponseCode.SYSTEM_ERROR


def test_a_client_is_found_over_its_newest_connection_and_in_any_group(wired: Wired) -> None:
    old, new = join(wired), join(wired, group="other")
    beat(wired, new, ASKING, "third")
    beat(wired, old, ASKING)
    for expected, other in ((new, old), (old, new)):
        replying = give(wired, reply(b"pong", code=325))
        take(wired, expected, handed(wired, expected))
        assert wired.events(other) == []
        assert the_answer(wired, replying).code == ResponseCode.SUCCESS
        if expected is new:
            new.gone("it ended")
    beat(wired, old, "another name")
    answer = the_answer(wired, give(wired, reply(b"pong")))
    assert answer.remark == f"push reply message fail, channel of <{ASKING}> not found."


@pytest.mark.parametrize("exchange", ["325-1", "325-2"])
def test_a_captured_reply_gets_apaches_answer(wired: Wired, exchange: str) -> None:
    wanted = ANSWERED[exchange]
    client_id = "192.0.2.2@14499#1008258708421"
    asking = join(wired, client_id if exchange == "325-1" else "somebody else")
    replying = wired.connect()
    replying.client.send(changed(command_of(ASKED[exchange]), flag=0))
    wired.give(replying, ASKED[exchange].frame)
    if exchange == "325-1":
        take(wired, asking, handed(wired, asking))
    answer = the_answer(wired, replying)
    assert (answer.code, answer.remark) == (
        wanted.said["responseCode"],
        wanted.header.get("remark"),
    )
    places = {"msgId", "queueOffset"}
    assert answer.ext_fields.keys() == wanted.ext_fields.keys()
    assert {k: v for k, v in answer.ext_fields.items() if k not in places} == {
        k: v for k, v in wanted.ext_fields.items() if k not in places
    }
