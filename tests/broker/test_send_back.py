"""Messages that a consumer could not consume."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired, WiredPeer
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.bodies import MessageQueue, SubscriptionGroupConfig
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.host import PACKED_IPV4_SIZE, PACKED_IPV6_SIZE, pack_host
from cometmq.proto.message import StoredMessage
from cometmq.proto.message_id import decode_offset_id, encode_offset_id
from cometmq.proto.message_list import MessageList
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush
from cometmq.store.log.turn import Origin
from cometmq.store.message_store import MessageStore

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911))
    yield wired
    wired.close()


@pytest.fixture
def peer(wired: Wired) -> WiredPeer:
    return wired.connect()


def send(wired: Wired, peer: WiredPeer, **fields: Any) -> SendMessageResponse:
    answer = wired.ask(
        peer, send_request("T", b"hello", flag=7, properties="TAGS\x01a\x02", **fields)
    )
    return answer.read(SendMessageResponse)


def back(
    wired: Wired, peer: WiredPeer, msg_id: str, *, version: int = 513, **fields: Any
) -> Command:
    header: dict[str, Any] = {"group": "g", "delay_level": 0, "origin_topic": "T", **fields}
    offset = decode_offset_id(msg_id).physical_offset
    request = Command.request(
        Code.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBack(offset=offset, **header)
    )
    return wired.ask(peer, replace(request, version=version))


def stored(wired: Wired, peer: WiredPeer, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    answer = wired.ask(peer, pull_request(topic, queue_id=queue_id))
    return list(MessageList(bytes(answer.body or b""))) if answer.code == 0 else []


@pytest.mark.parametrize(("level", "kept_at"), [(0, 3), (1, 1), (18, 18), (99, 18)])
def test_a_message_comes_back_with_a_delay(
    wired: Wired, peer: WiredPeer, level: int, kept_at: int
) -> None:
    sent = send(wired, peer)
    assert back(wired, peer, sent.msg_id, delay_level=level).code == 0
    (message,) = stored(wired, peer, SCHEDULE, kept_at - 1)
    assert (message.body, message.flag, message.reconsume_times) == (b"hello", 7, 1)
    assert message.properties | {"CLUSTER": "", "MSG_REGION": "", "TRACE_ON": ""} == {
        "UNIQ_KEY": sent.transaction_id, "TAGS": "a", "WAIT": "false", "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": sent.msg_id, "DELAY": str(kept_at), "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0", "CLUSTER": "", "MSG_REGION": "", "TRACE_ON": "",
    }  # fmt: skip
    assert wired.broker.state.topics.find("%RETRY%g") is not None


def test_a_committed_message_comes_back_as_one_of_no_transaction(
    wired: Wired, peer: WiredPeer
) -> None:
    host = b"\x7f\0\0\x01\0\0\x2a\x9f"
    send(wired, peer)
    committed = int(SysFlag.TRANSACTION_COMMITTED)
    put = wired.broker.state.store.put("T", 0, b"paid", b"", Origin(1, 1, host, committed))
    send(wired, peer)  # It waits until the disk has both.
    sent = encode_offset_id(wired.broker.state.store_host, put.physical_offset)
    assert back(wired, peer, sent, delay_level=1).code == 0
    (message,) = stored(wired, peer, SCHEDULE, 0)
    assert (message.body, message.sys_flag) == (b"paid", 0)


@pytest.mark.parametrize(("level", "topic"), [(1, SCHEDULE), (-1, "%DLQ%g")])
def test_one_that_has_a_longer_address_is_written_with_the_shorter_one_of_the_broker(
    tmp_path: Path, level: int, topic: str
) -> None:
    """Apache's broker keeps the flag of the longer one, so that nobody can read the record."""
    config, host = config_of(tmp_path), pack_host("::1", 10911)
    longer = dataclasses.replace(config.store, store_host=host)
    before = MessageStore.open(config.store_path, longer, now_ms=1)
    put = before.put("T", 0, b"hello", b"", Origin(1, 1, host), 7)
    before.commit()
    assert before.close(1)
    wired = Wired(config)
    peer = wired.connect()
    send(wired, peer)  # This makes the topic.
    assert len(stored(wired, peer, "T")[0].store_host) == PACKED_IPV6_SIZE
    sent = encode_offset_id(host, put.physical_offset)
    assert back(wired, peer, sent, delay_level=level).code == 0
    (message,) = stored(wired, peer, topic)
    assert (message.body, message.flag) == (b"hello", 7)
    assert (message.born_host, message.sys_flag) == (host, SysFlag.BORN_HOST_IPV6)
    assert len(message.store_host) == PACKED_IPV4_SIZE
    wired.close()


def test_the_delay_grows_each_time(wired: Wired, peer: WiredPeer) -> None:
    sent = send(wired, peer, reconsume_times=4)
    assert back(wired, peer, sent.msg_id).code == 0
    (message,) = stored(wired, peer, SCHEDULE, 6)
    assert message.reconsume_times == 5


def test_the_id_and_topic_of_the_first_time_stay(wired: Wired, peer: WiredPeer) -> None:
    sent = send(wired, peer)
    back(wired, peer, sent.msg_id)
    (message,) = stored(wired, peer, SCHEDULE, 2)
    back(wired, peer, message.offset_id)
    (again,) = stored(wired, peer, SCHEDULE, 3)
    assert again.properties["ORIGIN_MESSAGE_ID"] == sent.msg_id
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.reconsume_times == 2


@pytest.mark.parametrize(
    ("times", "fields"),
    [
        (16, {}),
        (1, {"max_reconsume_times": 1}),
        (0, {"delay_level": -1}),
        (3, {"group": "strict"}),
        (3, {"group": "strict", "max_reconsume_times": 99, "version": 120}),
        (0, {"group": "direct", "max_reconsume_times": 16}),
    ],
    ids=[
        *("the group's default", "the client's", "at once", "the group's own", "an old client"),
        "of a group without retries",
    ],
)
def test_a_message_that_came_back_too_often_is_a_dead_letter(
    wired: Wired, peer: WiredPeer, times: int, fields: dict[str, Any]
) -> None:
    wired.broker.state.groups.put(
        SubscriptionGroupConfig(group_name="strict", retry_max_times=3), 0
    )
    wired.broker.state.groups.put(
        SubscriptionGroupConfig(group_name="direct", retry_max_times=0), 0
    )
    sent = send(wired, peer, reconsume_times=times)
    assert back(wired, peer, sent.msg_id, **fields).code == 0
    (message,) = stored(wired, peer, f"%DLQ%{fields.get('group', 'g')}")
    assert (message.body, message.reconsume_times) == (b"hello", times + 1)
    assert message.properties["RETRY_TOPIC"] == "T"
    assert message.properties["DELAY"] == "0"
    assert "REAL_TOPIC" not in message.properties
    assert stored(wired, peer, SCHEDULE, 2) == []


def test_a_message_that_says_it_came_back_less_than_never_waits_at_the_first_level(
    wired: Wired, peer: WiredPeer
) -> None:
    sent = send(wired, peer, reconsume_times=-100)
    assert back(wired, peer, sent.msg_id).code == 0
    (message,) = stored(wired, peer, SCHEDULE, 0)
    assert message.properties["DELAY"] == "1"


def test_a_message_whose_properties_are_no_text_comes_back_once(
    wired: Wired, peer: WiredPeer
) -> None:
    store = wired.broker.store
    properties = b"UNIQ_KEY\x01AB\x02RETRY_TOPIC\x01\xff\x02"
    put = store.put("T", 0, b"hello", properties, Origin(wired.now_ms, 1, bytes(8)))
    store.commit()
    msg_id = encode_offset_id(bytes(8), put.physical_offset)
    assert back(wired, peer, msg_id).code == 0
    assert len(stored(wired, peer, SCHEDULE, 2)) == 1


def test_a_message_is_taken_back_when_the_disk_and_the_topics_file_have_it(tmp_path: Path) -> None:
    config = config_of(tmp_path, flush=Flush.SYNC)
    wired = Wired(config, SimulatedFileSystem(), threads=False)
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, send_request("T", b"hello")))
    wired.save()
    wired.sync()
    (answer,) = wired.answers(peer)
    offset = decode_offset_id(answer.read(SendMessageResponse).msg_id).physical_offset
    header = ConsumerSendMsgBack(offset=offset, group="g", delay_level=0, origin_topic="T")
    request = Command.request(Code.CONSUMER_SEND_MSG_BACK, header)
    wired.give(peer, wired.frame(peer, request))
    assert wired.answers(peer) == []
    wired.sync()
    assert wired.answers(peer) == [], "a start would not know the retry topic"
    wired.save()
    assert [answer.code for answer in wired.answers(peer)] == [0]
    wired.close()


def test_a_group_without_retries_drops_what_comes_back(wired: Wired, peer: WiredPeer) -> None:
    wired.broker.state.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0), 0)
    sent = send(wired, peer)
    end = wired.broker.store.end_offset
    assert back(wired, peer, sent.msg_id).code == 0
    assert wired.broker.store.end_offset == end


def test_a_group_that_may_not_be_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, listen_port=21911, auto_create_subscription_group=False)
    wired = Wired(config)
    peer = wired.connect()
    answer = back(wired, peer, send(wired, peer).msg_id)
    assert answer.code == 26
    assert (answer.remark or "").startswith("subscription group not exist, g ")
    wired.close()


def test_a_message_inside_of_another_is_not_found(wired: Wired, peer: WiredPeer) -> None:
    sent = send(wired, peer)
    place = decode_offset_id(sent.msg_id).physical_offset + 1
    header = ConsumerSendMsgBack(offset=place, group="g", delay_level=0)
    answer = wired.ask(peer, Command.request(Code.CONSUMER_SEND_MSG_BACK, header))
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {place}")


def test_only_its_property_makes_a_message_one_of_a_transaction(
    wired: Wired, peer: WiredPeer
) -> None:
    sent = send(wired, peer, sys_flag=4)  # "Prepared": such a record is in no queue.
    assert len(stored(wired, peer, "T")) == 1
    assert back(wired, peer, sent.msg_id).code == 0


def test_a_message_comes_back_when_its_delay_is_over(wired: Wired, peer: WiredPeer) -> None:
    sent = send(wired, peer)
    back(wired, peer, sent.msg_id, delay_level=1)
    wired.now_ms += 999
    wired.broker.delays.step(wired.now_ms)
    assert stored(wired, peer, "%RETRY%g") == []
    wired.now_ms += 1
    wired.broker.delays.step(wired.now_ms)
    (message,) = stored(wired, peer, "%RETRY%g")
    assert (message.body, message.reconsume_times) == (b"hello", 1)
    assert message.properties["RETRY_TOPIC"] == "T"


def resend(
    wired: Wired, peer: WiredPeer, times: int, *, version: int = 513, **fields: Any
) -> Command:
    """Send as a consumer does when it gives up a message, or when its send-back failed."""
    properties = "RETRY_TOPIC\x01T\x02DELAY\x011\x02"
    request = send_request(
        "%RETRY%g", b"hello", properties=properties, reconsume_times=times, **fields
    )
    return wired.ask(peer, replace(request, version=version))


@pytest.mark.parametrize(
    ("times", "fields", "is_dead"),
    [
        (16, {}, False),
        (17, {}, True),
        (3, {"max_reconsume_times": 3}, False),
        (4, {"max_reconsume_times": 3}, True),
        (4, {"max_reconsume_times": 3, "version": 120}, False),
    ],
)
def test_what_a_consumer_sends_to_its_retry_topic_too_often_is_a_dead_letter(
    wired: Wired, peer: WiredPeer, times: int, fields: dict[str, Any], is_dead: bool
) -> None:
    assert resend(wired, peer, times, **fields).code == 0
    letters = stored(wired, peer, "%DLQ%g")
    waiting = stored(wired, peer, SCHEDULE, 0)
    assert (len(letters), len(waiting)) == (int(is_dead), int(not is_dead))
    (message,) = letters + waiting
    assert (message.body, message.reconsume_times) == (b"hello", times)
    if is_dead:
        assert message.properties["DELAY"] == "-1"
        assert "REAL_TOPIC" not in message.properties


def test_what_a_group_that_consumes_in_order_gives_up_is_a_dead_letter_at_once(
    wired: Wired, peer: WiredPeer
) -> None:
    state = wired.broker.state
    queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="T")
    state.locks.lock("g", [queue], "c", peer, state.elapsed_ms())
    assert resend(wired, peer, 0).code == 0
    assert len(stored(wired, peer, "%DLQ%g")) == 1
    wired.now_ms += state.config.lock_lifetime_ms + 1  # All locks have expired.
    assert resend(wired, peer, 0).code == 0
    assert len(stored(wired, peer, "%DLQ%g")) == 1
    assert len(stored(wired, peer, SCHEDULE, 0)) == 1


def test_a_topic_of_dead_letters_that_is_closed_takes_none(wired: Wired, peer: WiredPeer) -> None:
    sent = send(wired, peer)
    assert back(wired, peer, sent.msg_id, delay_level=-1).code == 0
    topics = wired.broker.state.topics
    topic = topics.find("%DLQ%g")
    assert topic is not None
    topics.put(replace(topic.config, perm=4), wired.now_ms)
    refused = [back(wired, peer, sent.msg_id, delay_level=-1), resend(wired, peer, 17)]
    for answer in refused:
        assert (answer.code, answer.remark) == (
            16, "the topic[%DLQ%g] sending message is forbidden"
        )  # fmt: skip
    assert len(stored(wired, peer, "%DLQ%g")) == 1
