"""Consumers that filter by properties, on a broker without an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired, WiredPeer
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.bodies import CheckClientConfig, ConsumerData, HeartbeatData, SubscriptionData
from cometmq.proto.bodies.enums import ConsumeType, MessageModel
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import PullMessageResponse
from cometmq.proto.message_list import MessageList


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path), SimulatedFileSystem())
    yield wired
    wired.close()


def send(wired: Wired, *values: str) -> None:
    peer = wired.connect()
    for value in values:
        request = send_request("T", value.encode(), properties=f"a\x01{value}\x02TAGS\x01x\x02")
        assert wired.ask(peer, request).code == 0


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in MessageList(bytes(answer.body or b""))]


def sql(expression: str | None, **fields: Any) -> Command:
    return pull_request("T", subscription=expression, expression_type="SQL92", **fields)


def beat(wired: Wired, peer: WiredPeer, expression: str | None, **fields: Any) -> None:
    subscription: dict[str, Any] = {"topic": "T", "expression_type": "SQL92", "sub_version": 1}
    subscription |= fields
    data = HeartbeatData(
        client_id="c",
        consumer_data_set=(
            ConsumerData(
                group_name="g",
                subscription_data_set=(SubscriptionData(sub_string=expression, **subscription),),
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
            ),
        ),
    )
    answer = wired.ask(peer, Command.request(RequestCode.HEART_BEAT, body=data.encode()))
    assert answer.code == 0


def test_a_pull_with_an_expression_gets_what_matches(wired: Wired) -> None:
    send(wired, "1", "7", "x", "3")
    answer = wired.ask(wired.connect(), sql("a BETWEEN 2 AND 8 AND TAGS = 'x'"))
    assert bodies(answer) == [b"7", b"3"]
    assert answer.read(PullMessageResponse).next_begin_offset == 4


def test_a_pull_that_matches_nothing_goes_on_behind_it(wired: Wired) -> None:
    send(wired, "1", "2")
    answer = wired.ask(wired.connect(), sql("a > 5"))
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.read(PullMessageResponse).next_begin_offset == 2


def test_a_pull_looks_through_so_many_messages_at_a_time(wired: Wired) -> None:
    send(wired, *(["1"] * 300), "7")
    peer = wired.connect()
    answer = wired.ask(peer, sql("a > 5", max_msg_nums=1 << 30))
    assert answer.read(PullMessageResponse).next_begin_offset == 256
    assert bodies(wired.ask(peer, sql("a > 5", queue_offset=256))) == [b"7"]
    long = " OR ".join(f"a > {number}" for number in range(5, 205))
    answer = wired.ask(peer, sql(long))
    assert answer.read(PullMessageResponse).next_begin_offset == 8


def test_an_expression_from_a_heartbeat_counts(wired: Wired) -> None:
    send(wired, "1", "7")
    peer = wired.connect()
    beat(wired, peer, "a > 5")
    assert bodies(wired.ask(peer, pull_request("T", sys_flag=0, subscription=None))) == [b"7"]
    beat(wired, peer, "a < 5", sub_version=2)
    pull = pull_request("T", sys_flag=0, subscription=None, sub_version=2)
    assert bodies(wired.ask(peer, pull)) == [b"1"]


def test_a_subscription_may_change_its_type(wired: Wired) -> None:
    send(wired, "1", "7")
    peer = wired.connect()
    pull = pull_request("T", sys_flag=0, subscription=None)
    beat(wired, peer, "a > 5")
    assert len(bodies(wired.ask(peer, pull))) == 1
    beat(wired, peer, "x", sub_version=2, expression_type="TAG")
    assert len(bodies(wired.ask(peer, pull))) == 2


@pytest.mark.parametrize(
    ("expression", "why"),
    [("a >", "something is missing"), (None, "is empty"), ("a = 0.0", "0.0 is not between")],
)
def test_a_bad_expression_of_a_heartbeat_is_refused_at_the_pull(
    wired: Wired, expression: str | None, why: str
) -> None:
    send(wired, "1")
    peer = wired.connect()
    beat(wired, peer, expression)
    for _ in range(2):
        answer = wired.ask(peer, pull_request("T", sys_flag=0, subscription=None))
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("The broker's consumer filter data is not exist!")
        assert why in answer.remark


def test_a_bad_expression_of_a_pull_is_refused(wired: Wired) -> None:
    send(wired, "1")
    for expression in ("a >", "", None):
        answer = wired.ask(wired.connect(), sql(expression))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert (answer.remark or "").startswith("parse the consumer's subscription failed: the")


def test_types_that_nobody_serves_are_refused(wired: Wired) -> None:
    send(wired, "1")
    peer = wired.connect()
    answer = wired.ask(peer, pull_request("T", expression_type="FOO"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The broker does not support consumer to filter message by FOO",
    )
    pull = pull_request("T", sys_flag=0, subscription=None)
    beat(wired, peer, "x", expression_type="FOO")
    assert wired.ask(peer, pull).code == ResponseCode.FILTER_DATA_NOT_EXIST
    beat(wired, peer, "x", expression_type="TAG", class_filter_mode=True, sub_version=2)
    assert wired.ask(peer, pull).code == ResponseCode.SYSTEM_ERROR


def test_filters_by_property_can_be_turned_off(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, enable_property_filter=False), SimulatedFileSystem())
    send(wired, "7")
    peer = wired.connect()
    beat(wired, peer, "a > 5")
    for pull in (sql("a > 5"), pull_request("T", sys_flag=0, subscription=None)):
        answer = wired.ask(peer, pull)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        )
    assert check(wired, "SQL92", "a > 5").code == ResponseCode.SYSTEM_ERROR
    wired.close()


def test_the_limits_are_settings(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        filter_expression_length_max=20,
        filter_depth_max=3,
        tag_expression_length_max=23,
    )
    wired = Wired(config, SimulatedFileSystem())
    send(wired, "7")
    answer = wired.ask(wired.connect(), pull_request("T", subscription="TagA || " * 3))
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    for expression, setting in [
        ("a = 1" + " " * 20, "filter_expression_length_max"),
        ("NOT NOT NOT a", "filter_depth_max"),
    ]:
        assert setting in (wired.ask(wired.connect(), sql(expression)).remark or "")
        assert setting in (check(wired, "SQL92", expression).remark or "")
    wired.close()


def test_a_held_pull_waits_for_a_message_that_matches(wired: Wired) -> None:
    send(wired, "1")
    peer = wired.connect()
    pull = sql("a > 5", queue_offset=1, sys_flag=6, suspend_timeout_millis=10_000)
    wired.give(peer, wired.frame(peer, pull))
    for value in ("2", "x"):
        send(wired, value)
        assert wired.answers(peer) == []
    send(wired, "7")
    (answer,) = wired.answers(peer)
    assert bodies(answer) == [b"7"]
    assert answer.read(PullMessageResponse).next_begin_offset == 4


def check(wired: Wired, kind: str, expression: str | None) -> Command:
    subscription = SubscriptionData(topic="T", expression_type=kind, sub_string=expression)
    body = CheckClientConfig(client_id="c", group="g", subscription_data=subscription).encode()
    return wired.ask(wired.connect(), Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body))


def test_a_client_is_told_before_it_starts_whether_its_filter_can_be_compiled(wired: Wired) -> None:
    assert check(wired, "SQL92", "a > 5").code == 0
    assert check(wired, "TAG", "||").code == 0
    assert check(wired, "SQL92", "a >").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check(wired, "SQL92", None).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check(wired, "FOO", "x").code == ResponseCode.SYSTEM_ERROR
    without_body = Command.request(RequestCode.CHECK_CLIENT_CONFIG)
    assert wired.ask(wired.connect(), without_body).code == 0


def test_a_tag_may_be_as_long_as_one_can_be(wired: Wired) -> None:
    tag = "t" * 30_000
    answer = wired.ask(
        wired.connect(), send_request("T", b"x", properties=f"TAGS\x01{tag}\x02UNIQ_KEY\x01A\x02")
    )
    assert answer.code == 0
    found = wired.ask(wired.connect(), pull_request("T", subscription=tag))
    assert bodies(found) == [b"x"]
