"""Making, changing, deleting and reading topics."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired, WiredPeer
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import refuse

from cometmq.broker.topic_names import pop_retry_topics
from cometmq.proto.bodies import (
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicFilterType,
    TopicStats,
)
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetMaxOffset,
    GetTopicStatsInfo,
    OffsetResponse,
    UpdateAndCreateTopic,
)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911, topics_max=30))
    yield wired
    wired.close()


@pytest.fixture
def peer(wired: Wired) -> WiredPeer:
    return wired.connect()


def topic_request(topic: str, attributes: str | None = None, **fields: Any) -> Command:
    header: dict[str, Any] = {
        "default_topic": "TBW102",
        "read_queue_nums": 2,
        "write_queue_nums": 2,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        **fields,
    }
    request = UpdateAndCreateTopic(topic=topic, attributes=attributes, **header)
    return Command.request(Code.UPDATE_AND_CREATE_TOPIC, request)


def make(wired: Wired, peer: WiredPeer, topic: str, attributes: str | None = None) -> None:
    answer = wired.ask(peer, topic_request(topic, attributes))
    assert answer.code == 0, answer.remark


def delete(wired: Wired, peer: WiredPeer, topic: str) -> Command:
    return wired.ask(peer, Command.request(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic)))


def test_a_topic_is_answered_when_it_is_saved_and_registered(
    wired: Wired, peer: WiredPeer, tmp_path: Path
) -> None:
    wired.give(peer, wired.frame(peer, topic_request("T", order=True)))
    assert wired.answers(peer) == []
    assert wired.changed[-1:] == ["T"]
    table = wired.broker.state.topics.file
    version, snapshot = table.begin_save()
    table.write(snapshot)
    wired.broker.saved(table, version)
    wired.turn()
    assert wired.answers(peer) == []
    wired.broker.told(version)
    wired.turn()
    (answer,) = wired.answers(peer)
    assert answer.code == 0
    text = (tmp_path / "data/config/topics.json").read_text()
    saved = TopicConfigTable.decode(text.encode()).topic_config_table["T"]
    assert (saved.order, saved.read_queue_nums) == (True, 2)


def test_a_name_server_that_does_not_answer_holds_no_change_up_for_long(
    wired: Wired, peer: WiredPeer
) -> None:
    wired.give(peer, wired.frame(peer, topic_request("T")))
    table = wired.broker.state.topics.file
    version, _ = table.begin_save()
    wired.broker.saved(table, version)
    wired.now_ms += 3_000
    wired.broker.tick(wired.now_ms)
    wired.turn()
    assert [answer.code for answer in wired.answers(peer)] == [0]


def test_a_change_that_cannot_be_saved_is_not_called_a_success(
    wired: Wired, peer: WiredPeer
) -> None:
    wired.give(peer, wired.frame(peer, topic_request("T")))
    wired.broker.told(wired.broker.state.topics.file.version)
    wired.now_ms += 3_000
    wired.broker.tick(wired.now_ms)
    wired.turn()
    (answer,) = wired.answers(peer)
    assert answer.code == 1
    assert "topics.json" in (answer.remark or "")


def test_what_is_already_so_changes_nothing(wired: Wired, peer: WiredPeer) -> None:
    make(wired, peer, "T")
    before = wired.broker.state.topics.data_version
    make(wired, peer, "T")
    assert wired.broker.state.topics.data_version == before


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+queue.type=Odd", "value is not in set: [BatchCQ, SimpleCQ]"),
        ("+reserve.time=soon", 'For input string: "soon"'),
        ("+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        ("+message.type=MIXED", "MIXED message type is not supported."),
    ],
)
def test_an_attribute_that_may_not_be_is_refused(
    wired: Wired, peer: WiredPeer, attributes: str, remark: str
) -> None:
    answer = wired.ask(peer, topic_request("T", attributes))
    assert (answer.code, answer.remark) == (29 if "MIXED" in attributes else 1, remark)
    assert wired.broker.state.topics.find("T") is None


def test_attributes_that_may_change_are_set_and_deleted(wired: Wired, peer: WiredPeer) -> None:
    def attributes() -> dict[str, str]:
        topic = wired.broker.state.topics.find("T")
        assert topic is not None
        return topic.config.attributes

    make(wired, peer, "T", "+message.type=FIFO,+queue.type=SimpleCQ")
    make(wired, peer, "T", "+message.type=DELAY,+reserve.time=1000")
    assert attributes() == {
        "message.type": "DELAY", "queue.type": "SimpleCQ", "reserve.time": "1000"
    }  # fmt: skip
    make(wired, peer, "T", "-reserve.time")
    assert attributes() == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
    answer = wired.ask(peer, topic_request("T", "-reserve.time"))
    assert answer.remark == "attempt to delete a nonexistent key: reserve.time"


@pytest.mark.parametrize("count", [-1, 8_193])
def test_a_number_of_queues_out_of_reason_is_refused(
    wired: Wired, peer: WiredPeer, count: int
) -> None:
    answer = wired.ask(peer, topic_request("T", read_queue_nums=count))
    assert answer.code == 1
    assert str(count) in (answer.remark or "")


def test_an_unknown_filter_type_is_refused(wired: Wired, peer: WiredPeer) -> None:
    answer = wired.ask(peer, topic_request("T", topic_filter_type="NO_TAG"))
    assert (answer.code, answer.remark) == (
        1, "topicFilterType: 'NO_TAG' is none of SINGLE_TAG, MULTI_TAG"
    )  # fmt: skip


def list_request(*topics: TopicConfig) -> Command:
    body = TopicConfigList(topic_config_list=topics).encode()
    return Command.request(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)


def test_of_a_list_with_an_illegal_topic_none_is_made(wired: Wired, peer: WiredPeer) -> None:
    request = list_request(TopicConfig(topic_name="good"), TopicConfig(topic_name="bad!"))
    assert wired.ask(peer, request).code == 29
    assert wired.broker.state.topics.find("good") is None


def test_more_topics_than_topics_max_are_refused(wired: Wired, peer: WiredPeer) -> None:
    request = list_request(*(TopicConfig(topic_name=f"T{n}") for n in range(15)))
    answer = wired.ask(peer, request)
    assert (answer.code, answer.remark) == (1, "this broker's topics_max is 30")
    request = list_request(*(TopicConfig(topic_name=f"T{n}") for n in range(14)))
    assert wired.ask(peer, request).code == 0
    assert wired.ask(peer, topic_request("T0", perm=4)).code == 0


def test_a_deleted_topic_leaves_nothing_behind(
    wired: Wired, peer: WiredPeer, tmp_path: Path
) -> None:
    state = wired.broker.state
    popped, _ = pop_retry_topics("T", "g")
    make(wired, peer, "T")
    state.topics.put(TopicConfig(topic_name=popped), 0)
    for topic in ("T", "other"):
        wired.ask(peer, send_request(topic, b"x"))
        state.offsets.commit("g", topic, 0, 1)
    state.offsets.flush()
    wired.save()
    assert delete(wired, peer, "T").code == 0
    assert state.topics.find("T") is None
    assert state.topics.find(popped) is None
    assert state.offsets.topics_of("g") == ("other",)
    assert state.store.queues.topics() == {"other"}
    for name in ("topics.json", "consumerOffset.json"):
        text = (tmp_path / "data/config" / name).read_text()
        assert '"T"' not in text
        assert f'"{popped}' not in text
        assert '"T@g"' not in text
        assert "other" in text
    answer = wired.ask(peer, Command.request(Code.GET_MAX_OFFSET, GetMaxOffset("T", 0)))
    assert answer.read(OffsetResponse).offset == 0
    wired.ask(peer, send_request("T", b"new"))
    answer = wired.ask(peer, Command.request(Code.GET_MAX_OFFSET, GetMaxOffset("T", 0)))
    assert answer.read(OffsetResponse).offset == 1


def test_a_topic_that_there_is_not_is_deleted(wired: Wired, peer: WiredPeer) -> None:
    assert delete(wired, peer, "unknown").code == 0


def test_queues_without_a_topic_are_cleaned(wired: Wired, peer: WiredPeer) -> None:
    for topic in ("kept", "lost"):
        wired.ask(peer, send_request(topic, b"x"))
    wired.broker.state.topics.discard("lost", 0)
    assert wired.ask(peer, Command.request(Code.CLEAN_UNUSED_TOPIC)).code == 0
    assert wired.broker.state.store.queues.topics() == {"kept"}


def all_topics(wired: Wired, peer: WiredPeer, **fields: Any) -> TopicConfigTable:
    request = Command.request(Code.GET_ALL_TOPIC_CONFIG, GetAllTopicConfig(**fields))
    return TopicConfigTable.decode(wired.ask(peer, request).body)


def test_the_pages_of_all_topics_fit_together(wired: Wired, peer: WiredPeer) -> None:
    whole = all_topics(wired, peer)
    version = whole.data_version.encode().decode()
    found: list[str] = []
    while len(found) < len(whole.topic_config_table):
        page = all_topics(wired, peer, topic_seq=len(found), max_topic_num=5, data_version=version)
        assert 0 < len(page.topic_config_table) <= 5
        found += page.topic_config_table
    assert sorted(found) == sorted(whole.topic_config_table)
    assert len(set(found)) == len(found)


def test_a_page_of_a_table_that_has_changed_is_the_first_one(wired: Wired, peer: WiredPeer) -> None:
    version = all_topics(wired, peer).data_version.encode().decode()
    first = all_topics(wired, peer, topic_seq=0, max_topic_num=5, data_version=version)
    make(wired, peer, "zzz")
    again = all_topics(wired, peer, topic_seq=5, max_topic_num=5, data_version=version)
    assert again.topic_config_table == first.topic_config_table


@pytest.mark.parametrize(("asked", "queues"), [(4, 4), (8, 8), (100, 8), (-1, 0)])
def test_a_topic_that_a_send_makes_has_as_many_queues_as_it_asks_for_within_its_template(
    wired: Wired, peer: WiredPeer, asked: int, queues: int
) -> None:
    wired.ask(peer, send_request("fresh", b"x", default_topic_queue_nums=asked, queue_id=-1))
    topic = wired.broker.state.topics.find("fresh")
    assert topic is not None
    config = topic.config
    assert (config.read_queue_nums, config.write_queue_nums) == (queues, queues)
    assert (config.perm, config.topic_sys_flag, config.order) == (6, 0, False)


def test_a_topic_that_a_send_makes_is_like_its_template(wired: Wired, peer: WiredPeer) -> None:
    topics = wired.broker.state.topics
    template = TopicConfig(
        topic_name="like", perm=1 | 4, topic_filter_type=TopicFilterType.MULTI_TAG
    )
    topics.put(template, 0)
    wired.save()
    request = send_request("fresh", b"x", default_topic="like", unit_mode=True)
    assert wired.ask(peer, request).code == 0
    topic = topics.find("fresh")
    assert topic is not None
    assert (topic.config.perm, topic.config.topic_sys_flag) == (4, 1)
    assert topic.config.topic_filter_type is TopicFilterType.MULTI_TAG
    assert wired.ask(peer, pull_request("fresh")).code == 0


@pytest.mark.parametrize("template", ["plain", "nowhere"])
def test_a_topic_that_hands_nothing_on_is_no_template(
    wired: Wired, peer: WiredPeer, template: str
) -> None:
    wired.broker.state.topics.put(TopicConfig(topic_name="plain"), 0)
    wired.save()
    answer = wired.ask(peer, send_request("fresh", b"x", default_topic=template))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert wired.broker.state.topics.find("fresh") is None


def test_the_stats_of_a_new_topic_have_all_queues(wired: Wired, peer: WiredPeer) -> None:
    """Test suites and tools wait for a table that has rows, even rows of zeros."""
    make(wired, peer, "T")
    request = Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
    table = TopicStats.decode(wired.ask(peer, request).body).offset_table
    assert [queue.queue_id for queue in sorted(table)] == [0, 1]
    assert {(o.min_offset, o.max_offset, o.last_update_timestamp) for o in table.values()} == {
        (0, 0, 0)
    }


def test_the_stats_of_a_topic_say_when_its_last_message_was_stored(
    wired: Wired, peer: WiredPeer
) -> None:
    make(wired, peer, "T")
    wired.ask(peer, send_request("T", b"1"))
    wired.now_ms += 5_000
    wired.ask(peer, send_request("T", b"2"))
    request = Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
    table = TopicStats.decode(wired.ask(peer, request).body).offset_table
    first = table[min(table)]
    assert (first.max_offset, first.last_update_timestamp) == (2, wired.now_ms)


def test_the_stats_of_a_topic_begin_with_the_messages_that_are_left(
    wired: Wired, peer: WiredPeer
) -> None:
    make(wired, peer, "T")
    wired.broker.store.queues.simple.get("T", 1).restart_at(5)
    request = Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
    table = TopicStats.decode(wired.ask(peer, request).body).offset_table
    ends = {queue.queue_id: (o.min_offset, o.max_offset) for queue, o in table.items()}
    assert ends == {0: (0, 0), 1: (5, 5)}


def test_a_topic_that_may_not_be_read_is_refused_and_takes_messages(
    wired: Wired, peer: WiredPeer
) -> None:
    """Clients learn from the route that a topic is not writable, as with Apache's brokers."""
    for perm, readable in ((2, 16), (4, 0)):
        wired.broker.state.topics.put(TopicConfig(topic_name="T", perm=perm), 0)
        wired.save()
        assert wired.ask(peer, send_request("T", b"x")).code == 0
        assert wired.ask(peer, pull_request("T")).code == readable


def test_topics_that_administrators_ask_routes_of_are_there(wired: Wired) -> None:
    """createTopic of every Java admin asks for the route of the cluster's or broker's name."""
    names = wired.broker.state.topics.configs()
    assert {
        "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "broker-a",
        "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a", "rmq_sys_wheel_timer",
    } == set(names)  # fmt: skip


def test_a_name_with_a_namespace_is_legal(wired: Wired, peer: WiredPeer) -> None:
    """A namespace is only a prefix, `ns%topic`."""
    make(wired, peer, "ns%topic")
    make(wired, peer, "a|b-c_d")


def test_a_deleted_topic_stays_deleted_whatever_ends_the_process(tmp_path: Path) -> None:
    config = config_of(tmp_path, listen_port=21911)
    wired = Wired(config)
    peer = wired.connect()
    for topic in ("T", "other"):
        for number in range(10):
            wired.ask(peer, send_request(topic, b"%d" % number))
        wired.broker.state.offsets.commit("g", topic, 0, 10)
    wired.broker.flush_offsets()
    wired.save()
    assert delete(wired, peer, "T").code == 0
    killed = tmp_path / "killed"
    shutil.copytree(config.store_path, killed / "data")  # As after a kill, nothing is closed.
    (killed / "data" / "lock").unlink(missing_ok=True)
    wired.close()
    wired = Wired(config_of(killed, listen_port=21911))
    state = wired.broker.state
    assert (state.topics.find("T"), state.offsets.topics_of("g")) == (None, ("other",))
    assert (state.store.max_offset("T", 0), state.store.max_offset("other", 0)) == (0, 10)
    wired.ask(wired.connect(), send_request("T", b"new"))
    assert state.store.max_offset("T", 0) == 1
    wired.close()


def test_a_disk_that_refuses_to_delete_is_told_of(tmp_path: Path) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(config_of(tmp_path, listen_port=21911), disk, threads=False)
    peer = wired.connect()
    wired.ask(peer, send_request("T", b"x"))
    wired.sync()
    disk.hook = refuse("rename")
    answer = delete(wired, peer, "T")
    assert answer.code == 1
    assert "try again" in (answer.remark or "")
    assert delete(wired, peer, "T").code == 0
    wired.close()
