"""The answers to pulls that found messages, for every form of the request."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.broker.captured import fill
from tests.broker.running import config_of, pull_request
from tests.broker.wired import Wired

from cometmq.proto.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.proto.command import Command
from cometmq.proto.commands.pull import PullMessageResponse
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.message_list import MessageList


@pytest.fixture
def wired(tmp_path: Path) -> Wired:
    wired = Wired(config_of(tmp_path))
    state = wired.broker.state
    state.topics.put(TopicConfig(topic_name="T", topic_sys_flag=3), 0)
    state.groups.put(SubscriptionGroupConfig(group_name="g", broker_id=7, group_sys_flag=5), 0)
    fill(wired, "T", 0, 5)
    return wired


def read(answer: Command) -> tuple[PullMessageResponse, list[int], str | None]:
    messages = MessageList(bytes(answer.body or b""))
    header = answer.expect().read(PullMessageResponse)
    return header, [message.queue_offset for message in messages], answer.remark


@pytest.mark.parametrize("codec", HEADER_CODECS)
def test_every_codec_is_told_the_same(wired: Wired, codec: int) -> None:
    peer = wired.connect()
    request = replace(pull_request("T", 2), codec=HEADER_CODECS[codec])
    # The codec makes a connection's first answer, which may have to accept an offer.
    general, of_form = wired.ask(peer, request), wired.ask(peer, request)
    assert read(general) == read(of_form)
    assert read(of_form) == (PullMessageResponse(7, 5, 0, 5, None, 3, 5), [2, 3, 4], "FOUND")
    assert list(of_form.ext_fields) == list(general.ext_fields)
    wired.close()


def test_a_pull_that_waited_is_answered_alike(wired: Wired) -> None:
    peer = wired.connect()
    held = pull_request("T", 5, sys_flag=6, suspend_timeout_millis=10_000)
    wired.ask(peer, pull_request("T", 0))
    wired.give(peer, wired.frame(peer, held))
    assert wired.answers(peer) == []
    fill(wired, "T", 0, 1)
    wired.sync()
    (answer,) = wired.answers(peer)
    assert read(answer) == (PullMessageResponse(7, 6, 0, 6, None, 3, 5), [5], "FOUND")
    wired.close()


def test_who_wants_no_answer_gets_none(wired: Wired) -> None:
    peer = wired.connect()
    wired.ask(peer, pull_request("T", 0))
    wired.give(peer, wired.frame(peer, replace(pull_request("T", 0), flag=2)))
    assert wired.answers(peer) == []
    assert peer.in_flight == 0
    wired.close()
