"""Clients in their groups: heartbeats of both kinds, notifications, subscriptions, expiry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.captured import beat
from tests.broker.running import config_of, pull_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.proto.bodies import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from cometmq.proto.bodies.enums import MessageModel
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.consumer import (
    GetConsumerListByGroup,
    HeartBeatResponse,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911))
    yield wired
    wired.close()


def consumer(*topics: str, group: str = "g", version: int = 1, **fields: Any) -> ConsumerData:
    wanted = tuple(
        SubscriptionData(topic=topic, sub_string="*", sub_version=version) for topic in topics
    )
    return ConsumerData(group_name=group, subscription_data_set=wanted, **fields)


def notices(wired: Wired, peer: WiredPeer) -> list[str]:
    """Return the groups whose queues the broker told a client to redistribute."""
    return [
        event.read(NotifyConsumerIdsChanged).consumer_group
        for event in wired.events(peer)
        if isinstance(event, Command) and event.code == Code.NOTIFY_CONSUMER_IDS_CHANGED
    ]


def say_nothing_new(wired: Wired, peer: WiredPeer, *data: ConsumerData, **fields: Any) -> bool:
    """Send a heartbeat; return whether the broker asks for a whole one."""
    heartbeat = HeartbeatData(client_id="c", consumer_data_set=data, **fields)
    answer = wired.ask(peer, Command.request(Code.HEART_BEAT, body=heartbeat.encode()))
    said = answer.read(HeartBeatResponse)
    assert said.heart_beat_v2 is True
    assert said.sub_changed is not None
    return said.sub_changed


def wanted_topics(wired: Wired, group: str = "g") -> set[str]:
    found = wired.broker.state.consumers.find(group)
    return set() if found is None else set(found.subscriptions)


def members(wired: Wired, peer: WiredPeer, group: str = "g") -> set[str] | str | None:
    request = Command.request(Code.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroup(group))
    answer = wired.ask(peer, request)
    if answer.code:
        return answer.remark
    return set(ConsumerList.decode(answer.body).consumer_id_list)


def test_a_heartbeat_of_old_is_always_sent_whole(wired: Wired) -> None:
    peer = wired.connect()
    assert say_nothing_new(wired, peer, consumer("T")) is True
    assert say_nothing_new(wired, peer, consumer("T")) is True


def test_a_short_heartbeat_keeps_what_the_whole_one_said(wired: Wired) -> None:
    peer = wired.connect()
    assert not say_nothing_new(wired, peer, consumer("T"), heartbeat_fingerprint=7)
    assert not say_nothing_new(wired, peer, consumer(), heartbeat_fingerprint=7, without_sub=True)
    assert wanted_topics(wired) == {"T"}


def test_another_fingerprint_is_a_change(wired: Wired) -> None:
    peer = wired.connect()
    say_nothing_new(wired, peer, consumer("T"), heartbeat_fingerprint=7)
    assert say_nothing_new(wired, peer, consumer("T", "U"), heartbeat_fingerprint=8)
    assert wanted_topics(wired) == {"T", "U"}
    assert not say_nothing_new(wired, peer, consumer("T", "U"), heartbeat_fingerprint=8)


def test_a_short_heartbeat_of_a_stranger_asks_for_the_whole_one(wired: Wired) -> None:
    """After a restart or a reconnection the broker does not know the client's subscriptions."""
    peer = wired.connect()
    assert say_nothing_new(wired, peer, consumer(), heartbeat_fingerprint=7, without_sub=True)
    assert not say_nothing_new(wired, peer, consumer("T"), heartbeat_fingerprint=7)
    assert wanted_topics(wired) == {"T"}


def test_a_fingerprint_is_the_same_for_the_same_wishes(wired: Wired) -> None:
    one = HeartbeatData(client_id="a", consumer_data_set=(consumer("T", version=1),))
    two = HeartbeatData(
        client_id="b", consumer_data_set=(consumer("T", version=2),), without_sub=True
    )
    other = HeartbeatData(client_id="a", consumer_data_set=(consumer("U", version=1),))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()


def test_members_hear_of_who_comes_and_goes(wired: Wired) -> None:
    one, two, three = (wired.connect() for _ in range(3))
    beat(wired, one, "c1", (consumer("T"),))
    wired.events(one)
    beat(wired, two, "c2", (consumer("T"),))
    assert notices(wired, one) == ["g"]
    wired.events(two)
    beat(wired, two, "c2", (consumer("T"),))
    assert notices(wired, one) == []
    beat(wired, three, "c3", (consumer("T"),))
    for each in (one, two, three):
        wired.events(each)
    three.gone("reset")
    wired.turn()
    assert (notices(wired, one), notices(wired, two)) == (["g"], ["g"])
    header = UnregisterClient(client_id="c2", consumer_group="g")
    wired.ask(two, Command.request(Code.UNREGISTER_CLIENT, header))
    assert (notices(wired, one), members(wired, one)) == (["g"], {"c1"})


def test_members_hear_of_a_topic_that_comes_or_goes(wired: Wired) -> None:
    one, two = wired.connect(), wired.connect()
    for peer, name in ((one, "c1"), (two, "c2")):
        beat(wired, peer, name, (consumer("T"),))
    wired.events(one)
    for topics, told in ((("T", "U"), ["g"]), (("T", "U"), []), (("U",), ["g"])):
        beat(wired, two, "c2", (consumer(*topics),))
        assert notices(wired, one) == told
    assert wanted_topics(wired) == {"U"}


def test_members_of_a_broadcasting_group_share_nothing(wired: Wired) -> None:
    one, two = wired.connect(), wired.connect()
    data = consumer("T", message_model=MessageModel.BROADCASTING)
    for peer, name in ((one, "c1"), (two, "c2")):
        beat(wired, peer, name, (data,))
    two.gone("reset")
    wired.turn()
    assert notices(wired, one) == []


def test_a_group_may_not_broadcast_where_that_is_off(wired: Wired) -> None:
    group = SubscriptionGroupConfig(group_name="g", consume_broadcast_enable=False)
    wired.broker.state.groups.put(group, 0)
    peer = wired.connect()
    data = consumer("BenchmarkTest", message_model=MessageModel.BROADCASTING)
    beat(wired, peer, "c", (data,))
    answer = wired.ask(peer, pull_request("BenchmarkTest", sys_flag=0, subscription=None))
    assert (answer.code, answer.remark) == (
        16, "the consumer group[g] can not consume by broadcast way"
    )  # fmt: skip


def test_members_of_a_group_that_wants_no_notices_get_none(wired: Wired) -> None:
    group = SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
    wired.broker.state.groups.put(group, 0)
    one, two = wired.connect(), wired.connect()
    for peer, name in ((one, "c1"), (two, "c2")):
        beat(wired, peer, name, (consumer("T"),))
    assert notices(wired, one) == []


def test_the_newest_subscription_of_a_topic_counts(wired: Wired) -> None:
    peer, late = wired.connect(), wired.connect()

    def say(who: WiredPeer, expression: str, version: int) -> str | None:
        wanted = SubscriptionData(topic="T", sub_string=expression, sub_version=version)
        data = ConsumerData(group_name="g", subscription_data_set=(wanted,))
        beat(wired, who, "c", (data,))
        found = wired.broker.state.consumers.subscription("g", "T")
        return None if found is None else found.sub_string

    assert say(peer, "a", 5) == "a"
    assert say(late, "b", 4) == "a"
    assert say(late, "b", 5) == "a"
    assert say(late, "b", 6) == "b"


def test_a_pull_that_leaves_its_subscription_to_heartbeats_is_refused_without_one(
    wired: Wired,
) -> None:
    peer = wired.connect()
    pull = pull_request("BenchmarkTest", sys_flag=0, subscription=None)

    def refusal() -> str:
        answer = wired.ask(peer, pull)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        return (answer.remark or "").partition("\n")[0]

    assert refusal().startswith("the consumer's group info not exist")
    beat(wired, peer, "c", (consumer("TBW102"),))
    assert refusal().startswith("the consumer's subscription not exist")
    beat(wired, peer, "c", (consumer("BenchmarkTest"),))
    assert wired.ask(peer, pull).code == ResponseCode.PULL_NOT_FOUND


def test_a_pull_with_a_newer_subscription_than_is_known_waits_for_a_heartbeat(
    wired: Wired,
) -> None:
    peer = wired.connect()
    beat(wired, peer, "c", (consumer("BenchmarkTest", version=5),))

    def pulled(version: int) -> int:
        request = pull_request("BenchmarkTest", sys_flag=0, subscription=None, sub_version=version)
        return wired.ask(peer, request).code

    assert (pulled(6), pulled(5), pulled(4)) == (25, 19, 19)


def test_a_silent_client_leaves_its_groups(wired: Wired) -> None:
    silent, heard = wired.connect(), wired.connect()
    for peer, name in ((silent, "c1"), (heard, "c2")):
        beat(wired, peer, name, (consumer("T"),))
    wired.now_ms += 100_000
    beat(wired, heard, "c2", (consumer("T"),))
    wired.events(heard)
    wired.now_ms += 20_001
    wired.broker.expire_clients(wired.now_ms)
    wired.turn()
    assert notices(wired, heard) == ["g"]
    assert members(wired, heard) == {"c2"}


def test_a_group_without_members_is_an_error_to_its_clients(wired: Wired) -> None:
    assert members(wired, wired.connect()) == "no consumer for this group, g"


def test_a_client_with_two_connections_is_one_member(wired: Wired) -> None:
    one, again = wired.connect(), wired.connect()
    for peer in (one, again):
        beat(wired, peer, "c", (consumer("T"),))
    wired.events(one)
    assert members(wired, one) == {"c"}
    again.gone("reset")
    wired.turn()
    wired.events(one)
    assert members(wired, one) == {"c"}


def test_the_retry_topic_of_a_group_is_ordered_as_what_it_consumes(wired: Wired) -> None:
    topics = wired.broker.state.topics
    topics.put(TopicConfig(topic_name="ordered", order=True), 0)
    peer = wired.connect()

    def retry_is_ordered(*names: str) -> bool:
        beat(wired, peer, "c", (consumer(*names),))
        found = topics.find("%RETRY%g")
        assert found is not None
        return found.config.order

    assert retry_is_ordered("ordered", "T")
    assert not retry_is_ordered("T")
