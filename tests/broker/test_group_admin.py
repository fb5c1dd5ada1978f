"""Making, changing, deleting and reading groups, and the topics forbidden to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.captured import beat
from tests.broker.running import config_of, pull_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.broker.groups import OWN_GROUPS
from cometmq.proto.bodies import (
    ConsumerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
)
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands.group import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    UpdateAndGetGroupForbidden,
)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911, groups_max=20))
    yield wired
    wired.close()


@pytest.fixture
def peer(wired: Wired) -> WiredPeer:
    return wired.connect()


def group_request(name: str, **fields: Any) -> Command:
    body = SubscriptionGroupConfig(group_name=name, **fields).encode()
    return Command.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def delete(wired: Wired, peer: WiredPeer, name: str, **fields: Any) -> Command:
    header = DeleteSubscriptionGroup(name, **fields)
    return wired.ask(peer, Command.request(Code.DELETE_SUBSCRIPTIONGROUP, header))


def test_a_broker_has_its_own_groups(wired: Wired) -> None:
    assert set(wired.broker.state.groups.configs()) == set(OWN_GROUPS)


def test_a_group_is_answered_when_it_is_saved(wired: Wired, peer: WiredPeer) -> None:
    wired.give(peer, wired.frame(peer, group_request("g", retry_max_times=3)))
    assert wired.answers(peer) == []
    wired.save()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    text = (
        Path(wired.broker.state.config.store_path) / "config/subscriptionGroup.json"
    ).read_text()
    saved = SubscriptionGroupTable.decode(text.encode()).subscription_group_table["g"]
    assert saved.retry_max_times == 3


def test_a_group_with_an_unknown_attribute_is_refused(wired: Wired, peer: WiredPeer) -> None:
    answer = wired.ask(peer, group_request("g", attributes={"+odd": "1"}))
    assert (answer.code, answer.remark) == (1, "unsupported key: odd")


def test_of_a_list_with_an_illegal_group_none_is_made(wired: Wired, peer: WiredPeer) -> None:
    configs = tuple(SubscriptionGroupConfig(group_name=name) for name in ("good", "bad!"))
    body = SubscriptionGroupList(group_config_list=configs).encode()
    request = Command.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)
    assert wired.ask(peer, request).code == 29
    assert wired.broker.state.groups.find("good") is None


def test_more_groups_than_groups_max_are_refused(wired: Wired, peer: WiredPeer) -> None:
    for number in range(20 - len(OWN_GROUPS)):
        assert wired.ask(peer, group_request(f"g{number}")).code == 0
    answer = wired.ask(peer, group_request("one-more"))
    assert (answer.code, answer.remark) == (1, "this broker's groups_max is 20")
    assert wired.ask(peer, group_request("g0", consume_enable=False)).code == 0


def test_a_group_with_too_many_retry_queues_is_refused(wired: Wired, peer: WiredPeer) -> None:
    answer = wired.ask(peer, group_request("g", retry_queue_nums=8_193))
    assert answer.code == 1
    assert "topic_queues_max" in (answer.remark or "")


def test_an_illegal_name_cannot_be_forbidden(wired: Wired, peer: WiredPeer) -> None:
    header = UpdateAndGetGroupForbidden("g!", "T", readable=False)
    request = Command.request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    assert wired.ask(peer, request).code == 29


def test_a_body_without_a_group_is_refused(wired: Wired, peer: WiredPeer) -> None:
    request = Command.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{}")
    answer = wired.ask(peer, request)
    assert answer.code == 1
    assert "groupName" in (answer.remark or "")
    request = Command.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert wired.ask(peer, request).code == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_leaves_its_offsets_unless_told(
    wired: Wired, peer: WiredPeer, clean: bool
) -> None:
    state = wired.broker.state
    wired.ask(peer, group_request("g"))
    for group in ("g", "other"):
        state.offsets.commit(group, "T", 0, 5)
    state.offsets.flush()
    wired.save()
    assert delete(wired, peer, "g", clean_offset=clean).code == 0
    assert state.groups.find("g") is None
    assert state.offsets.find("g", "T", 0) == (None if clean else 5)
    assert state.offsets.find("other", "T", 0) == 5
    text = (Path(state.config.store_path) / "config/consumerOffset.json").read_text()
    assert ("T@g" in text) is not clean


def test_a_group_is_not_made_by_its_use_when_that_is_off(tmp_path: Path) -> None:
    config = config_of(tmp_path, listen_port=21911, auto_create_subscription_group=False)
    wired = Wired(config)
    request = Command.request(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfig("g"))
    answer = wired.ask(wired.connect(), request)
    assert (answer.code, answer.remark) == (26, "No group in this broker")
    wired.close()


def all_groups(wired: Wired, peer: WiredPeer, **fields: Any) -> SubscriptionGroupTable:
    header = GetAllSubscriptionGroupConfig(**fields)
    request = Command.request(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
    return SubscriptionGroupTable.decode(wired.ask(peer, request).body)


def test_the_pages_of_all_groups_fit_together(wired: Wired, peer: WiredPeer) -> None:
    version = all_groups(wired, peer).data_version.encode().decode()
    found: list[str] = []
    while len(found) < len(OWN_GROUPS):
        page = all_groups(wired, peer, group_seq=len(found), max_group_num=3, data_version=version)
        assert 0 < len(page.subscription_group_table) <= 3
        found += page.subscription_group_table
    assert sorted(found) == sorted(OWN_GROUPS)


def forbidden(wired: Wired, peer: WiredPeer, readable: bool | None) -> bytes:
    header = UpdateAndGetGroupForbidden("g", "BenchmarkTest", readable)
    request = Command.request(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    answer = wired.ask(peer, request)
    assert (answer.code, answer.remark) == (0, "")
    return bytes(answer.body or b"")


def test_a_group_may_not_read_what_it_is_forbidden(wired: Wired, peer: WiredPeer) -> None:
    wanted = SubscriptionData(topic="BenchmarkTest", sub_string="*")
    data = ConsumerData(group_name="g", subscription_data_set=(wanted,))
    beat(wired, peer, "c", (data,))
    wired.events(peer)
    pull = pull_request("BenchmarkTest", sys_flag=0, subscription=None)
    assert wired.ask(peer, pull).code == 19
    assert b'"readable":false' in forbidden(wired, peer, readable=False)
    answer = wired.ask(peer, pull)
    assert (answer.code, answer.remark) == (
        16, "the consumer group[g] is forbidden for topic[BenchmarkTest]"
    )  # fmt: skip
    assert b'"readable":false' in forbidden(wired, peer, readable=None)
    assert b'"readable":true' in forbidden(wired, peer, readable=True)
    assert wired.ask(peer, pull).code == 19


def test_a_group_that_is_switched_off_gets_nothing(wired: Wired, peer: WiredPeer) -> None:
    wired.broker.state.groups.put(
        SubscriptionGroupConfig(group_name="off", consume_enable=False), 0
    )
    answer = wired.ask(peer, pull_request("BenchmarkTest", consumer_group="off"))
    assert (answer.code, answer.remark) == (16, "subscription group no permission, off")


def test_what_is_forbidden_survives_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path, listen_port=21911)
    wired = Wired(config)
    forbidden(wired, wired.connect(), readable=False)
    wired.broker.state.topics.put(TopicConfig(topic_name="T"), 0)
    wired.close()
    wired = Wired(config)
    groups = wired.broker.state.groups
    assert not groups.may_read("g", "BenchmarkTest")
    assert groups.may_read("g", "T")
    wired.close()
