"""Our own requests for clients that read a broker in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.captured import STORED_MS, fill
from tests.broker.running import config_of, send_request
from tests.broker.test_reading import ask_patiently
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.proto.bodies import (
    FoundMessages,
    QueueRanges,
    SubscriptionGroupConfig,
    TopicConfig,
    UniqueKeys,
)
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.bulk import (
    BulkPullMessage,
    BulkPullMessageResponse,
    FindUniqueKeys,
    GetQueueRanges,
    GetRangeSize,
    GetRangeSizeResponse,
)
from cometmq.proto.commands.pull import ForbiddenType, PullMessageRefusal
from cometmq.proto.commands.topic import DeleteTopicInBroker
from cometmq.proto.message_list import MessageList
from cometmq.store.log.turn import Origin

WHOLE = 1 << 40
MIB = 1 << 20


@pytest.fixture
def disk() -> SimulatedFileSystem:
    return SimulatedFileSystem()


@pytest.fixture
def wired(tmp_path: Path, disk: SimulatedFileSystem) -> Iterator[Wired]:
    config = config_of(tmp_path, listen_port=21911, bulk_pull_bytes_max=3000, unique_keys_max=3)
    wired = Wired(replace(config, store=replace(config.store, hot_size=0)), disk)
    wired.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=3), 0)
    fill(wired, "T", 0, 100)
    fill(wired, "T", 2, 3)
    yield wired
    disk.is_cold = False
    wired.close()


def pull(
    wired: Wired, offset: int, *, queue_id: int = 0, end: int = WHOLE, size: int = MIB, **more: str
) -> Command:
    more = {"group": "g", "topic": "T", **more}
    header = BulkPullMessage(
        more["group"],
        more["topic"],
        queue_id,
        offset,
        end,
        size,
        more.get("subscription"),
        more.get("kind", "TAG"),
    )
    return ask_patiently(wired, Command.request(Code.BULK_PULL_MESSAGE, header))


def ask(wired: Wired, request: Command) -> Command:
    return wired.ask(wired.connect(), request)


def test_the_ends_of_all_queues_come_in_one_answer(wired: Wired) -> None:
    answer = ask(wired, Command.request(Code.GET_QUEUE_RANGES, GetQueueRanges("T")))
    assert answer.code == 0
    queues = QueueRanges.decode(answer.body).queues
    found = [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in queues]
    assert found == [(0, 0, 100), (1, 0, 0), (2, 0, 3)]


def test_queues_that_a_topic_no_longer_has_are_named_if_they_have_messages(wired: Wired) -> None:
    fill(wired, "T", 5, 7)
    topics = wired.broker.state.topics
    topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=6), wired.now_ms)
    answer = ask(wired, Command.request(Code.GET_QUEUE_RANGES, GetQueueRanges("T")))
    ranges = QueueRanges.decode(answer.body)
    assert [queue.queue_id for queue in ranges.queues] == [0, 1]
    found = [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in ranges.unread or ()]
    assert found == [(2, 0, 3), (5, 0, 7)]


def test_a_queue_begins_with_the_first_message_that_has_not_expired(wired: Wired) -> None:
    store = wired.broker.store
    for _ in range(40):
        store.put("T", 1, bytes(100_000), b"", Origin(STORED_MS, 1, bytes(8)), 0)
        store.commit()
    store.expiry.ask()
    for second in range(10):
        store.tick(wired.now_ms + 73 * 3_600_000 + second * 1000)
        store.run_jobs()
    answer = ask(wired, Command.request(Code.GET_QUEUE_RANGES, GetQueueRanges("T")))
    queue = QueueRanges.decode(answer.body).queues[1]
    assert 0 < queue.min_offset < queue.max_offset == 40
    assert pull(wired, queue.min_offset, queue_id=1).code == 0
    assert pull(wired, queue.min_offset - 1, queue_id=1).code != 0


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_queue_is_pulled_in_large_pieces(
    wired: Wired, disk: SimulatedFileSystem, is_cold: bool
) -> None:
    disk.is_cold = is_cold
    offset = 0
    bodies: list[bytes] = []
    counts: list[int] = []
    while (answer := pull(wired, offset)).code == 0:
        header = answer.read(BulkPullMessageResponse)
        assert (header.min_offset, header.max_offset) == (0, 100)
        assert len(answer.body or b"") <= 3000
        messages = list(MessageList(answer.body))
        assert header.record_count == len(messages)
        counts.append(len(messages))
        bodies += [message.body for message in messages]
        offset = header.next_begin_offset
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert bodies == [b"%d" % number for number in range(100)]
    assert len(counts) < 10


def test_a_pull_is_as_large_as_its_caller_says_and_one_message_at_least(wired: Wired) -> None:
    assert pull(wired, 5, size=-1).read(BulkPullMessageResponse).record_count == 1
    assert pull(wired, 5, size=400).read(BulkPullMessageResponse).record_count == 4
    assert pull(wired, 5, end=7).read(BulkPullMessageResponse).next_begin_offset == 7
    assert pull(wired, 5, end=2).read(BulkPullMessageResponse).next_begin_offset == 6


def test_a_pull_counts_as_what_its_group_got(wired: Wired) -> None:
    pull(wired, 0, end=4)
    assert wired.broker.state.traffic.got_flow("T", "g").messages == 4


def test_filters_are_the_brokers(wired: Wired) -> None:
    by_tag = list(MessageList(pull(wired, 0, subscription="TagA").body))
    assert by_tag
    assert {message.tags for message in by_tag} == {"TagA"}
    by_property = pull(wired, 0, subscription="TAGS = 'TagA'", kind="SQL92")
    assert [m.body for m in MessageList(by_property.body)] == [m.body for m in by_tag]
    nothing = pull(wired, 0, subscription="nobody")
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert nothing.read(BulkPullMessageResponse).next_begin_offset > 0


def test_an_offset_that_is_not_in_the_queue_is_told_as_by_a_pull(wired: Wired) -> None:
    assert pull(wired, 100).code == ResponseCode.PULL_NOT_FOUND
    moved = pull(wired, 101)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.read(BulkPullMessageResponse).next_begin_offset == 100
    assert pull(wired, 0, queue_id=1).code == ResponseCode.PULL_NOT_FOUND
    assert pull(wired, 5, queue_id=1).code == ResponseCode.PULL_OFFSET_MOVED


def test_what_may_not_be_read_is_refused(wired: Wired) -> None:
    state = wired.broker.state
    state.groups.put(SubscriptionGroupConfig(group_name="off", consume_enable=False), 0)
    state.topics.put(TopicConfig(topic_name="W", perm=2), 0)
    for answer, kind in (
        (pull(wired, 0, group="off"), ForbiddenType.GROUP),
        (pull(wired, 0, topic="W"), ForbiddenType.TOPIC),
    ):
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.read(PullMessageRefusal).forbidden_type == kind
    assert pull(wired, 0, topic="X").code == ResponseCode.TOPIC_NOT_EXIST
    assert pull(wired, 0, queue_id=3).code == ResponseCode.INVALID_PARAMETER
    bad = pull(wired, 0, subscription="a >", kind="SQL92")
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_entry_that_leads_to_no_record_is_told_of_with_its_place(wired: Wired) -> None:
    queue = wired.broker.store.queues.simple.find("T", 2)
    assert queue is not None
    queue.append(5, 100, 0)
    answer = pull(wired, 3, queue_id=2)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "names a record of 100 bytes here" in (answer.remark or "")


def test_a_disk_that_fails_is_told_of(wired: Wired, disk: SimulatedFileSystem) -> None:
    wired.broker.store.run_jobs()
    disk.make_unreadable(f"{wired.broker.store.root}/commitlog/{0:020d}", 0, 1 << 20)
    disk.is_cold = True
    answer = pull(wired, 0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("a read failed: ")


@pytest.mark.parametrize("is_cold", [False, True])
def test_the_bytes_of_a_range_are_told(
    wired: Wired, disk: SimulatedFileSystem, is_cold: bool
) -> None:
    sizes = [message.size for message in MessageList(pull(wired, 0, end=20).body)]
    disk.is_cold = is_cold

    def size_of(begin: int, end: int, most: int | None = None) -> tuple[int, int]:
        header = GetRangeSize("T", 0, begin, end, most)
        answer = ask_patiently(wired, Command.request(Code.GET_RANGE_SIZE, header))
        found = answer.read(GetRangeSizeResponse)
        return found.end_offset, found.size

    assert size_of(0, 20) == (20, sum(sizes))
    assert size_of(3, 20, sum(sizes[3:9])) == (9, sum(sizes[3:9]))
    assert size_of(90, WHOLE)[0] == 100


def unique(number: int) -> str:
    return f"{number:032X}"


@pytest.mark.parametrize("is_cold", [False, True])
def test_unique_keys_are_looked_for_together(
    wired: Wired, disk: SimulatedFileSystem, is_cold: bool
) -> None:
    peer = wired.connect()
    for number in (1, 2, 2):
        sent = send_request("T", b"x", properties=f"UNIQ_KEY\x01{unique(number)}\x02")
        assert wired.ask(peer, sent).code == 0
    disk.is_cold = is_cold
    body = UniqueKeys(keys=(unique(2), unique(3), unique(1))).encode()
    answer = ask_patiently(
        wired, Command.request(Code.FIND_UNIQUE_KEYS, FindUniqueKeys("T"), body=body)
    )
    found = FoundMessages.decode(answer.body).messages
    assert [message.key for message in found] == [unique(2), unique(1)]
    queue_offsets = [message.queue_offset for message in found]
    assert queue_offsets == [101, 100]  # Of two messages with one key, the first is found.
    assert {message.store_timestamp for message in found} == {wired.now_ms}


def test_unique_keys_of_a_topic_that_was_deleted_are_not_stored(wired: Wired) -> None:
    peer = wired.connect()
    body = UniqueKeys(keys=(unique(1),)).encode()
    look = Command.request(Code.FIND_UNIQUE_KEYS, FindUniqueKeys("Mine"), body=body)
    for _ in range(2):
        sent = send_request("Mine", b"x", properties=f"UNIQ_KEY\x01{unique(1)}\x02")
        assert wired.ask(peer, sent).code == 0
        found = FoundMessages.decode(wired.ask(peer, look).body).messages
        assert [message.queue_offset for message in found] == [0]
        delete = Command.request(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("Mine"))
        assert wired.ask(peer, delete).code == 0
        wired.broker.state.topics.put(TopicConfig(topic_name="Mine"), 0)
        assert not FoundMessages.decode(wired.ask(peer, look).body).messages


def test_more_unique_keys_than_the_limit_are_refused_with_its_name(wired: Wired) -> None:
    body = UniqueKeys(keys=("a", "b", "c", "d")).encode()
    header = FindUniqueKeys("T", STORED_MS)
    answer = ask(wired, Command.request(Code.FIND_UNIQUE_KEYS, header, body=body))
    assert answer.code == 1
    assert answer.remark == "4 keys are more than unique_keys_max, 3"
