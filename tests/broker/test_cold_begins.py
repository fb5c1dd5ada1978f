"""After a start on a cold disk the loop does not wait until it is found where queues begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.captured import STORED_MS
from tests.broker.running import config_of, pull_request
from tests.broker.test_reading import ask_patiently
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem
from tests.store.cold_watch import Watch

from cometmq.broker.survey import Survey
from cometmq.proto.bodies import (
    ConsumeQueueEntries,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueRanges,
    TopicConfig,
    TopicStats,
)
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    BulkPullMessage,
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetMinOffset,
    GetQueueRanges,
    GetRangeSize,
    GetRangeSizeResponse,
    GetTopicStatsInfo,
    OffsetResponse,
    PeekMessage,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
    SearchOffsetByTimestamp,
)
from cometmq.proto.commands.consumer import ResetOffset
from cometmq.proto.commands.group import GetConsumeStats
from cometmq.proto.message_list import MessageList
from cometmq.store.log.turn import Origin

COUNT = 2400
"""The number of messages of each topic. Their entries fill twelve pages."""
SEGMENT = 256 << 10
TOPICS = ("T", "Batches")
LEFT = {"g": 10, "h": 20}
"""How many messages of each topic a group has not consumed."""


@pytest.fixture
def disk() -> SimulatedFileSystem:
    return SimulatedFileSystem()


@pytest.fixture
def started(tmp_path: Path, disk: SimulatedFileSystem) -> Iterator[tuple[Wired, Mapping[str, int]]]:
    """A just started broker whose log has lost its first half, and where each queue begins."""
    config = config_of(tmp_path, listen_port=21911)
    store_config = replace(
        config.store,
        segment_size=SEGMENT,
        consume_queue_file_size=20 * 4000,
        batch_consume_queue_file_size=46 * 4000,
        checkpoint_bytes=SEGMENT,
        hot_size=0,
    )
    config = replace(config, store=store_config)
    wired = Wired(config, disk)
    state = wired.broker.state
    state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1), 0)
    attributes = {"queue.type": "BatchCQ"}
    batches = TopicConfig(
        topic_name="Batches", read_queue_nums=1, write_queue_nums=1, attributes=attributes
    )
    state.topics.put(batches, 0)
    for group in LEFT:
        state.groups.find_or_make(group, 0)
    store = wired.broker.store
    for number in range(COUNT):
        origin = Origin(STORED_MS + 1000 * number, STORED_MS + 1000 * number, bytes(8))
        for topic in TOPICS:
            store.put(topic, 0, b"%d" % number * 20, b"", origin, 0)
        if not number % 32:
            store.commit()
            store.advance()
    store.commit()
    for group, left in LEFT.items():
        for topic in TOPICS:
            state.offsets.commit(group, topic, 0, COUNT - left)
    wired.save()
    wired.close()
    wired = Wired(replace(config, store=replace(store_config, retention_size_max=SEGMENT)), disk)
    end = wired.broker.store.end_offset
    while wired.broker.store.first_offset < end // 2:
        wired.now_ms += 1000
        wired.broker.store.tick(wired.now_ms)
    begins = {topic: wired.broker.store.min_offset(topic, 0) for topic in TOPICS}
    assert all(COUNT // 3 < begin < COUNT - 600 for begin in begins.values())
    wired.close()
    wired = Wired(config, disk)
    for topic in TOPICS:  # So that loading the queues does not count.
        assert wired.broker.store.queues.find(topic, 0) is not None
    disk.is_cold = True
    yield wired, begins
    disk.is_cold = False
    wired.close()


Check = Callable[[Command, int], None]


def check_min(answer: Command, begin: int) -> None:
    assert answer.read(OffsetResponse).offset == begin


def check_ranges(answer: Command, begin: int) -> None:
    (queue,) = QueueRanges.decode(answer.body).queues
    assert (queue.min_offset, queue.max_offset) == (begin, COUNT)


def check_bodies(answer: Command, begin: int) -> None:
    messages = [*MessageList(bytes(answer.body or b""))]
    assert messages[0].body == b"%d" % begin * 20
    assert len(messages) > 1


def check_moved(answer: Command, begin: int) -> None:
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert (answer.ext_fields or {})["nextBeginOffset"] == str(begin)


def check_size(answer: Command, begin: int) -> None:
    size = answer.read(GetRangeSizeResponse)
    assert size.end_offset == begin + 5
    assert size.size > 500


def check_earliest(answer: Command, begin: int) -> None:
    timestamp = answer.read(GetEarliestMsgStoretimeResponse).timestamp
    assert timestamp == STORED_MS + 1000 * begin


def check_stats(answer: Command, begin: int) -> None:
    (found,) = TopicStats.decode(answer.body).offset_table.values()
    assert (found.min_offset, found.max_offset) == (begin, COUNT)
    assert found.last_update_timestamp == STORED_MS + 1000 * (COUNT - 1)


def check_progress(answer: Command, begin: int) -> None:
    (found,) = ConsumeStats.decode(answer.body).offset_table.values()
    assert found.broker_offset == COUNT
    assert found.last_timestamp == STORED_MS + 1000 * (COUNT - 11)


def check_span(answer: Command, begin: int) -> None:
    (found,) = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert found.min_time_stamp == STORED_MS + 1000 * begin
    assert found.max_time_stamp == STORED_MS + 1000 * (COUNT - 1)


def check_corrections(answer: Command, begin: int) -> None:
    assert CorrectionOffsets.decode(answer.body).correction_offsets == {0: COUNT - 20}


def check_entries(answer: Command, begin: int) -> None:
    found = ConsumeQueueEntries.decode(answer.body)
    assert (found.min_queue_index, found.max_queue_index) == (begin, COUNT)
    assert len(found.queue_data or ()) == 40


def check_reset(answer: Command, begin: int) -> None:
    assert b":%d" % begin in bytes(answer.body or b"")


def check_reset_there(answer: Command, begin: int) -> None:
    assert b":%d" % (COUNT - 5) in bytes(answer.body or b"")


def check_time(answer: Command, begin: int) -> None:
    assert answer.read(OffsetResponse).offset == COUNT - 100


LATE_MS = STORED_MS + 1000 * (COUNT - 100)
REQUESTS: dict[str, tuple[Callable[[str, int], Command], Check]] = {
    "first offset": (
        lambda topic, _: Command.request(Code.GET_MIN_OFFSET, GetMinOffset(topic, 0)),
        check_min,
    ),
    "ranges": (
        lambda topic, _: Command.request(Code.GET_QUEUE_RANGES, GetQueueRanges(topic)),
        check_ranges,
    ),
    "pull": (lambda topic, begin: pull_request(topic, begin), check_bodies),
    "pull of what is gone": (lambda topic, _: pull_request(topic, 3), check_moved),
    "bulk pull": (
        lambda topic, begin: Command.request(
            Code.BULK_PULL_MESSAGE, BulkPullMessage("g", topic, 0, begin, COUNT, 20_000)
        ),
        check_bodies,
    ),
    "size": (
        lambda topic, begin: Command.request(
            Code.GET_RANGE_SIZE, GetRangeSize(topic, 0, begin, begin + 5)
        ),
        check_size,
    ),
    "earliest": (
        lambda topic, _: Command.request(
            Code.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretime(topic, 0)
        ),
        check_earliest,
    ),
    "statistics": (
        lambda topic, _: Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo(topic)),
        check_stats,
    ),
    "progress": (
        lambda topic, _: Command.request(Code.GET_CONSUME_STATS, GetConsumeStats("g", topic=topic)),
        check_progress,
    ),
    "time span": (
        lambda topic, _: Command.request(
            Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan(topic, "g")
        ),
        check_span,
    ),
    "corrections": (
        lambda topic, _: Command.request(
            Code.QUERY_CORRECTION_OFFSET, QueryCorrectionOffset("g", topic)
        ),
        check_corrections,
    ),
    "entries": (
        lambda topic, begin: Command.request(
            Code.QUERY_CONSUME_QUEUE, QueryConsumeQueue(topic, 0, begin + 500, 40)
        ),
        check_entries,
    ),
    "reset to a time": (
        lambda topic, _: Command.request(
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffset(topic=topic, group="g", timestamp=0, is_force=True),
        ),
        check_reset,
    ),
    "reset to an offset": (
        lambda topic, _: Command.request(
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffset(
                topic=topic, group="g", timestamp=0, is_force=True, queue_id=0, offset=COUNT - 5
            ),
        ),
        check_reset_there,
    ),
    "time": (
        lambda topic, _: Command.request(
            Code.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetByTimestamp(topic, 0, LATE_MS)
        ),
        check_time,
    ),
    "peek": (
        lambda topic, _: Command.request(
            Code.PEEK_MESSAGE, PeekMessage(topic, 0, 32, consumer_group="new")
        ),
        check_bodies,
    ),
}


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_loop_does_not_wait_for_where_a_queue_begins(
    started: tuple[Wired, Mapping[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    topic: str,
) -> None:
    wired, begins = started
    make, check = REQUESTS[name]
    watch = Watch(monkeypatch)
    answer = ask_patiently(wired, make(topic, begins[topic]))
    assert watch.waited == []
    assert watch.pages
    check(answer, begins[topic])


async def test_a_survey_does_not_wait_either(
    started: tuple[Wired, Mapping[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wired, _ = started
    watch = Watch(monkeypatch)
    survey = Survey(wired.broker.state, 10)
    await survey.take()
    assert watch.waited == []
    behind = {key: lag.messages for key, lag in survey.lags}
    assert behind == {(group, topic): left for group, left in LEFT.items() for topic in TOPICS}
