"""Groups that read a topic while it is deleted and recreated, so that its numbers begin anew."""

from __future__ import annotations

import pytest
from tests.broker.captured import beat
from tests.broker.clocked import Clocked
from tests.broker.running import pull_request, send_request
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.offsets import DELETION_PENDING_MS
from cometmq.proto.bodies import ConsumerData, SubscriptionData
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    DeleteTopicInBroker,
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from cometmq.proto.commands.bulk import BulkPullMessage
from cometmq.proto.message_list import MessageList

MOVED = 21


@pytest.fixture
def broker() -> Clocked:
    """A broker with a topic of three messages, all of which a group has read."""
    broker = Clocked(SimulatedFileSystem())
    put(broker, b"old", 3)
    broker.ask(pull_request("T", 0))
    assert commit(broker, 3).remark is None
    return broker


def put(broker: Clocked, body: bytes, count: int) -> None:
    for _ in range(count):
        request = send_request("T", body, queue_id=0)
        broker.wired.give(broker.peer, broker.wired.frame(broker.peer, request))
        broker.wired.sync()
        broker.wired.save()
        assert [answer.code for answer in broker.wired.answers(broker.peer)] == [0]


def commit(broker: Clocked, offset: int) -> Command:
    header = UpdateConsumerOffset("g", "T", 0, offset)
    return broker.ask(Command.request(Code.UPDATE_CONSUMER_OFFSET, header))


def begin_of(broker: Clocked) -> int | None:
    header = QueryConsumerOffset("g", "T", 0)
    answer = broker.ask(Command.request(Code.QUERY_CONSUMER_OFFSET, header))
    return answer.read(OffsetResponse).offset if answer.code == 0 else None


def delete(broker: Clocked) -> None:
    request = Command.request(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("T"))
    assert broker.wired.ask(broker.peer, request).code == 0


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_member_is_told_to_begin_anew_however_many_messages_came(
    broker: Clocked, count: int
) -> None:
    """With fewer than before its place is beyond the end, and with more it is that of another."""
    delete(broker)
    put(broker, b"new", count)
    answer = broker.ask(pull_request("T", 3))
    assert (answer.code, answer.read(PullMessageResponse).next_begin_offset) == (MOVED, 0)
    answer = broker.ask(pull_request("T", 0))
    assert [each.body for each in MessageList(answer.body)] == [b"new"] * count
    assert commit(broker, count).remark is None
    assert broker.ask(pull_request("T", count)).code != MOVED, "it is told once"


def test_a_pull_that_waits_is_told_at_once(broker: Clocked) -> None:
    peer = broker.wired.connect()
    held = pull_request("T", 3, sys_flag=6, suspend_timeout_millis=15_000)
    broker.wired.give(peer, broker.wired.frame(peer, held))
    assert broker.wired.answers(peer) == []
    delete(broker)
    (answer,) = broker.wired.answers(peer)
    assert (answer.code, answer.read(PullMessageResponse).next_begin_offset) == (MOVED, 0)


def test_what_is_committed_of_the_old_topic_does_not_count(broker: Clocked) -> None:
    delete(broker)
    put(broker, b"new", 5)
    assert commit(broker, 3).remark == "Offset has been previously reset"
    assert begin_of(broker) == 0


@pytest.mark.parametrize("is_bulk", [False, True])
def test_who_begins_anew_by_itself_need_not_be_told(broker: Clocked, is_bulk: bool) -> None:
    delete(broker)
    put(broker, b"new", 5)
    pull = pull_request("T", 0)
    if is_bulk:
        header = BulkPullMessage("g", "T", 0, 0, 5, 1 << 20)
        pull = Command.request(Code.BULK_PULL_MESSAGE, header)
    assert broker.ask(pull).code == 0
    assert commit(broker, 5).remark is None
    assert begin_of(broker) == 5


def test_a_group_that_has_not_committed_is_told_too(broker: Clocked) -> None:
    """For example one whose members began at the end."""
    wants = SubscriptionData(topic="T", sub_string="*")
    member = ConsumerData(group_name="late", subscription_data_set=(wants,))
    beat(broker.wired, broker.peer, "c", (member,))
    broker.wired.events(broker.peer)
    delete(broker)
    put(broker, b"new", 1)
    assert broker.ask(pull_request("T", 3, consumer_group="late")).code == MOVED
    assert broker.ask(pull_request("T", 0, consumer_group="late")).code == 0


def test_who_comes_much_later_is_a_group_like_any_other(broker: Clocked) -> None:
    delete(broker)
    resets = broker.wired.broker.state.offsets.resets
    assert set(resets) == {("g", "T", queue_id) for queue_id in range(4)}
    for elapsed_ms in (DELETION_PENDING_MS - 1, DELETION_PENDING_MS):
        assert resets
        broker.wired.broker.state.offsets.expire(
            broker.wired.broker.state.elapsed_ms() + elapsed_ms
        )
    assert not resets
    put(broker, b"new", 4)
    assert broker.ask(pull_request("T", 3)).code == 0


def test_a_deleted_group_has_nothing_to_be_told(broker: Clocked) -> None:
    delete(broker)
    broker.wired.broker.state.offsets.forget_group("g")
    assert not broker.wired.broker.state.offsets.resets
