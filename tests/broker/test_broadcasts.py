"""The record of how far each member of a broadcasting group has pulled, as in Apache's broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.captured import beat
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.broker.broadcasts import SCAN_INTERVAL_MS
from cometmq.proto.bodies import ConsumerData, SubscriptionData
from cometmq.proto.bodies.enums import ConsumeType, MessageModel
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import DeleteTopicInBroker, PullMessageResponse
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.tables import CONSUMER_OFFSETS, TableFile

TOPIC = "Orders"
SHORT_MS, LONG_MS = 120_000, 300_000


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    for number in range(30):
        assert wired.ask(peer, send_request(TOPIC, b"%d" % number)).code == 0
    yield wired
    wired.close()


def join(
    wired: Wired,
    name: str,
    *,
    model: MessageModel = MessageModel.BROADCASTING,
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
) -> WiredPeer:
    peer = wired.connect()
    wanted = (SubscriptionData(topic=TOPIC, sub_string="*", sub_version=1),)
    data = ConsumerData(
        group_name="g",
        subscription_data_set=wanted,
        message_model=model,
        consume_type=consume_type,
    )
    beat(wired, peer, name, (data,))
    return peer


def pull(wired: Wired, peer: WiredPeer, offset: int, proxied: str | None = None) -> int | None:
    """Pull as a client, or as a proxy for one; return the offset to which the answer moves it."""
    request = pull_request(
        TOPIC,
        offset,
        request_source=None if proxied is None else 1,
        proxy_forward_client_id=proxied,
    )
    answer = wired.ask(peer, request)
    if answer.code != ResponseCode.PULL_OFFSET_MOVED or answer.remark != "OFFSET_RESET":
        return None
    return answer.read(PullMessageResponse).next_begin_offset


def scan(wired: Wired) -> int | None:
    """Let some seconds pass; return the committed offset of the group's slowest member."""
    wired.now_ms += SCAN_INTERVAL_MS
    wired.broker.tick(wired.now_ms)
    return wired.broker.state.offsets.find("g@broadcast", TOPIC, 0)


def test_a_client_goes_on_where_it_was_when_it_comes_by_a_proxy_and_back(wired: Wired) -> None:
    """The steps are those of Apache's test."""
    client, proxy = join(wired, "c1"), wired.connect()
    assert pull(wired, client, 0) is None
    assert pull(wired, client, 10) is None
    assert pull(wired, client, 11) is None

    assert pull(wired, proxy, -1, "c1") == 11
    assert pull(wired, proxy, 11, "c1") is None
    assert pull(wired, proxy, 12, "c1") is None
    assert scan(wired) == 12

    second = join(wired, "c2")
    assert pull(wired, proxy, -1, "c2") == 12
    assert pull(wired, proxy, 11, "c2") is None
    assert pull(wired, proxy, 13, "c2") is None
    assert scan(wired) == 12, "the slowest counts"

    assert pull(wired, client, 20) == 12
    assert pull(wired, client, 12) is None

    client.gone("reset")
    second.gone("reset")
    third = join(wired, "c3")
    assert pull(wired, third, 30) is None
    assert scan(wired) == 12
    wired.now_ms += SHORT_MS
    assert scan(wired) == 30, "those who are gone do not hold it up for longer"


def test_the_record_of_a_client_that_is_gone_is_forgotten_after_two_minutes(wired: Wired) -> None:
    client = join(wired, "c1")
    pull(wired, client, 10)
    client.gone("reset")
    wired.now_ms += SHORT_MS - 2 * SCAN_INTERVAL_MS
    assert scan(wired) == 10
    assert len(wired.broker.state.broadcasts) == 2
    scan(wired)
    assert len(wired.broker.state.broadcasts) == 0


def test_that_of_one_that_is_there_but_does_not_pull_after_five(wired: Wired) -> None:
    client = join(wired, "c1")
    pull(wired, client, 10)
    wired.now_ms += LONG_MS - 2 * SCAN_INTERVAL_MS
    scan(wired)
    assert len(wired.broker.state.broadcasts) == 2
    scan(wired)
    assert len(wired.broker.state.broadcasts) == 0


def test_a_client_that_a_proxy_brings_first_begins_where_apache_has_it_begin(wired: Wired) -> None:
    proxy = wired.connect()
    assert pull(wired, proxy, -1, "new") == 0, "a young queue's first message"
    wired.broker.state.offsets.commit("g@broadcast", TOPIC, 0, 7)
    assert pull(wired, proxy, -1, "other") == 7
    assert pull(wired, proxy, 3, "third") is None, "who says where is not asked"


def test_a_first_message_that_nobody_has_in_memory_any_more_is_not_where_one_begins(
    tmp_path: Path,
) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    for number in range(3):
        wired.ask(peer, send_request(TOPIC, b"%d" % number))
    wired.broker.store.queues.simple.get(TOPIC, 0).restart_at(5)
    assert pull(wired, peer, -1, "new") == 5
    wired.close()


@pytest.mark.parametrize(
    ("model", "consume_type"),
    [
        (MessageModel.CLUSTERING, ConsumeType.CONSUME_PASSIVELY),
        (MessageModel.BROADCASTING, ConsumeType.CONSUME_ACTIVELY),
    ],
)
def test_only_members_of_a_broadcast_that_are_given_messages_are_noted(
    wired: Wired, model: MessageModel, consume_type: ConsumeType
) -> None:
    pull(wired, join(wired, "c1", model=model, consume_type=consume_type), 10)
    stranger = wired.connect()
    pull(wired, stranger, 10)
    assert len(wired.broker.state.broadcasts) == 0


def test_who_is_told_that_its_offset_is_gone_is_noted_where_it_is_told_to_go(wired: Wired) -> None:
    client = join(wired, "c1")
    answer = wired.ask(client, pull_request(TOPIC, 1_000))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    moved = answer.read(PullMessageResponse).next_begin_offset
    assert moved == 30
    wired.ask(client, pull_request(TOPIC, moved))
    assert scan(wired) == 1_000, "as Apache's, whose record never goes back"


def test_a_reset_by_an_operator_comes_first(wired: Wired) -> None:
    client = join(wired, "c1")
    pull(wired, client, 5)
    wired.broker.state.offsets.reset("g", TOPIC, 0, 20)
    assert pull(wired, client, 6) == 20
    assert scan(wired) == 20


def test_the_committed_offset_is_saved_and_no_group_of_its_own(wired: Wired) -> None:
    pull(wired, join(wired, "c1"), 10)
    scan(wired)
    wired.broker.flush_offsets()
    wired.save()
    state = wired.broker.state
    file = TableFile(RealFileSystem(), f"{state.config.store_path}/config", CONSUMER_OFFSETS)
    table = file.load().tree["offsetTable"]
    kept = {int(key): value for key, value in table[f"{TOPIC}@g@broadcast"].items()}
    assert kept == {0: 10}
    assert "g@broadcast" not in state.offsets.groups_of(TOPIC)


def test_nothing_is_noted_where_that_is_off(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, broadcast_offsets_enable=False))
    client = join(wired, "c1")
    wired.ask(client, send_request(TOPIC, b"x"))
    assert pull(wired, client, 1) is None
    assert pull(wired, client, -1, "c1") is None
    assert scan(wired) is None
    wired.close()


def test_peers_cannot_have_more_noted_than_the_limit(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path, broadcast_offsets_max=10))
    peer = wired.connect()
    wired.ask(peer, send_request(TOPIC, b"x"))
    for number in range(50):
        assert pull(wired, peer, 0, f"made up {number}") is None
    assert len(wired.broker.state.broadcasts) <= 10
    assert pull(wired, peer, -1, "one more") == 0, "who is not noted is answered all the same"
    wired.close()


def test_a_topic_that_is_deleted_leaves_nothing(wired: Wired) -> None:
    client = join(wired, "c1")
    pull(wired, client, 10)
    scan(wired)
    request = Command.request(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic=TOPIC))
    assert wired.ask(client, request).code == ResponseCode.SUCCESS
    assert len(wired.broker.state.broadcasts) == 0
    assert scan(wired) is None


def test_many_members_are_looked_through_in_slices(wired: Wired) -> None:
    state = wired.broker.state
    for number in range(3_000):
        name = f"T{number % 3}"
        state.broadcasts.update(
            name, "g", 0, number, f"c{number}", by_proxy=True, now_ms=wired.now_ms
        )
    wired.now_ms += SCAN_INTERVAL_MS
    wired.broker.tick(wired.now_ms)
    committed = [state.offsets.find("g@broadcast", f"T{n}", 0) for n in range(3)]
    assert committed.count(None) == 2, "all of it in one tick"
    wired.broker.tick(wired.now_ms + 1)
    wired.broker.tick(wired.now_ms + 2)
    assert [state.offsets.find("g@broadcast", f"T{n}", 0) for n in range(3)] == [0, 1, 2]
