"""A queue with damaged files affects no other, even in requests about all queues of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import FOLDER, Clocked
from tests.broker.running import pull_request, send_request
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.survey import Survey
from cometmq.proto.bodies import (
    BrokerConsumeStats,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueRanges,
    TopicConfig,
    TopicStats,
    decode_reset_offsets,
)
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset, GetTopicStatsInfo, PeekMessage
from cometmq.proto.commands.bulk import GetQueueRanges
from cometmq.proto.commands.consumer import ResetOffset
from cometmq.proto.commands.group import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryCorrectionOffset,
)
from cometmq.proto.commands.offset import UpdateConsumerOffset
from cometmq.proto.commands.topic import QueryConsumeTimeSpan
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from cometmq.proto.header import Header

COUNT = 12
QUEUES = f"{FOLDER}/data/consumequeue"
LEFT_OUT = "left out, because files are damaged (the broker's log says which): T/1"


def blank(disk: SimulatedFileSystem, queue: str, first: int = 3, count: int = 5) -> None:
    """Zero some entries of a queue."""
    file = disk.open(f"{QUEUES}/{queue}/{0:020d}")
    file.write(bytes(20 * count), 20 * first)
    file.sync()


def put(broker: Clocked, request: Command) -> None:
    """Send a message, and save its topic if that is new."""
    broker.wired.give(broker.peer, broker.wired.frame(broker.peer, request))
    broker.wired.sync()
    broker.wired.save()
    (answer,) = broker.wired.answers(broker.peer)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.fixture
def broker() -> Clocked:
    """A broker with a group that has read from two queues, the second of which is damaged."""
    broker = Clocked(SimulatedFileSystem())
    for number in range(COUNT):
        for queue_id in range(2):
            put(broker, send_request("T", b"%d" % number, queue_id=queue_id))
    for queue_id in range(2):
        broker.wired.ask(broker.peer, pull_request("T", queue_id=queue_id))  # This makes the group.
        header = UpdateConsumerOffset("g", "T", queue_id, 4)
        assert broker.ask(Command.request(Code.UPDATE_CONSUMER_OFFSET, header)).code == 0
    broker.wired.close()
    blank(broker.disk, "T/1")
    broker.start(broker.disk)
    return broker


def ask(broker: Clocked, code: Code, header: Header) -> Command:
    answer = broker.wired.ask(broker.peer, Command.request(code, header))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def test_what_is_in_the_queues_of_a_topic(broker: Clocked) -> None:
    answer = ask(broker, Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T"))
    table = TopicStats.decode(answer.body).offset_table
    ends = {queue.queue_id: (each.min_offset, each.max_offset) for queue, each in table.items()}
    assert ends == {0: (0, COUNT), **dict.fromkeys(ends.keys() - {0}, (0, 0))}
    assert 1 not in ends
    assert answer.remark == LEFT_OUT
    refused = broker.wired.ask(
        broker.peer, Command.request(Code.GET_MAX_OFFSET, GetMaxOffset("T", 1))
    )
    assert "`cometmq store rebuild` rebuilds the queue" in (refused.remark or "")


def test_in_bulk_a_damaged_queue_is_left_out_if_it_cannot_be_read_anyway(broker: Clocked) -> None:
    asked = Command.request(Code.GET_QUEUE_RANGES, GetQueueRanges("T"))
    refused = broker.wired.ask(broker.peer, asked)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "`cometmq store rebuild` rebuilds the queue" in (refused.remark or "")
    broker.wired.broker.state.topics.put(TopicConfig(topic_name="T", read_queue_nums=1), 0)
    ranges = QueueRanges.decode(ask(broker, Code.GET_QUEUE_RANGES, GetQueueRanges("T")).body)
    assert [(each.queue_id, each.max_offset) for each in ranges.queues] == [(0, COUNT)]
    assert ranges.unread == ()


def test_how_far_a_group_is(broker: Clocked) -> None:
    answer = ask(broker, Code.GET_CONSUME_STATS, GetConsumeStats("g", "T"))
    table = ConsumeStats.decode(answer.body).offset_table
    reached = {queue.queue_id: each.broker_offset for queue, each in table.items()}
    assert reached[0] == COUNT
    assert 1 not in reached
    assert answer.remark == LEFT_OUT


def test_how_far_all_groups_are(broker: Clocked) -> None:
    answer = ask(broker, Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(is_order=False))
    assert BrokerConsumeStats.decode(answer.body).total_diff == COUNT - 4
    assert answer.remark == LEFT_OUT


def test_how_far_a_group_is_in_time(broker: Clocked) -> None:
    answer = ask(broker, Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("T", "g"))
    spans = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    queue_ids = [each.message_queue.queue_id for each in spans if each.message_queue is not None]
    assert 0 in queue_ids
    assert 1 not in queue_ids
    assert answer.remark == LEFT_OUT


def test_the_least_offsets_of_groups(broker: Clocked) -> None:
    answer = ask(broker, Code.QUERY_CORRECTION_OFFSET, QueryCorrectionOffset("other", "T"))
    assert CorrectionOffsets.decode(answer.body).correction_offsets == {0: 4}


@pytest.mark.parametrize("timestamp", [-1, 0])
def test_a_group_is_reset_in_the_other_queues(broker: Clocked, timestamp: int) -> None:
    header = ResetOffset("T", "g", timestamp, is_force=True)
    answer = ask(broker, Code.INVOKE_BROKER_TO_RESET_OFFSET, header)
    table = decode_reset_offsets(answer.body).offset_table
    reset = {queue.queue_id: offset for queue, offset in table.items()}
    assert reset[0] == (0 if timestamp == 0 else COUNT)
    assert 1 not in reset
    assert broker.wired.broker.state.offsets.of("g", "T") == {**reset, 1: 4}
    one = ResetOffset("T", "g", timestamp, is_force=True, queue_id=1)
    request = Command.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, one)
    assert "store rebuild" in (broker.wired.ask(broker.peer, request).remark or "")


def test_a_peek_gets_what_the_other_queues_have(broker: Clocked) -> None:
    for _ in range(20):  # Each peek begins with another queue.
        answer = ask(broker, Code.PEEK_MESSAGE, PeekMessage("T", -1, 32, "g"))
        queue_ids = {message.queue_id for message in MessageList(bytes(answer.body or b""))}
        assert queue_ids == {0}
    request = Command.request(Code.PEEK_MESSAGE, PeekMessage("T", 1, 32, "g"))
    answer = broker.wired.ask(broker.peer, request)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "T/1: its files are damaged")


async def test_a_survey_goes_on(broker: Clocked) -> None:
    survey = Survey(broker.wired.broker.state, 10)
    await survey.take()
    assert [(key, lag.messages) for key, lag in survey.lags] == [(("g", "T"), COUNT - 4)]
    assert broker.wired.broker.store.queues.damaged == [("T", 1)]
