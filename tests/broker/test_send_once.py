"""Batches whose messages are each stored once, however often and in whichever batch they come."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, send_request
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.bodies import TopicConfig
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendBatchOnceResponse
from cometmq.proto.commands.topic import DeleteTopicInBroker
from cometmq.proto.properties import decode_properties
from cometmq.store.config import Flush

PRODUCER = "0123456789ABCDEF0123"


def unique_id(number: int, producer: str = PRODUCER) -> str:
    return f"{producer}{number:012X}"


def item(number: int, producer: str = PRODUCER, more: str = "") -> BatchItem:
    properties = f"UNIQ_KEY\x01{unique_id(number, producer)}\x02{more}"
    return BatchItem(b"%d" % number, properties.encode())


def batch(*items: BatchItem, topic: str = TOPIC, queue_id: int = 0) -> Command:
    code = RequestCode.SEND_BATCH_ONCE
    body = encode_batch("T", items)
    return send_request(topic, body, code=code, queue_id=queue_id, batch=True)


def numbered(*numbers: int, producer: str = PRODUCER) -> Command:
    return batch(*[item(number, producer) for number in numbers])


class Once(Clocked):
    """A broker, and a producer whose batches are stored once."""

    def send(self, request: Command) -> tuple[int, int]:
        """Send a batch; return how many of how many messages were new."""
        answer = self.ask(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        said = answer.read(SendBatchOnceResponse)
        return said.stored_count, said.count

    def make_anew(self, topic: str) -> None:
        """Delete a topic, if it exists, and make it."""
        request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic))
        assert self.wired.ask(self.peer, request).code == ResponseCode.SUCCESS
        self.wired.broker.state.topics.put(TopicConfig(topic_name=topic), 0)
        self.wired.save()

    def numbers(self) -> list[int]:
        return [int(body) for body in self.bodies()]


@pytest.fixture
def broker() -> Once:
    return Once(SimulatedFileSystem())


def test_a_batch_that_comes_again_stores_nothing(broker: Once) -> None:
    assert broker.send(numbered(1, 2, 3)) == (3, 3)
    assert broker.send(numbered(1, 2, 3)) == (0, 3)
    assert broker.numbers() == [1, 2, 3]


def test_of_a_batch_that_is_cut_otherwise_what_is_new_is_stored(broker: Once) -> None:
    broker.send(numbered(1, 2, 3))
    assert broker.send(numbered(2, 3, 4, 5)) == (2, 4)
    assert broker.send(numbered(0, 4)) == (1, 2)
    assert broker.numbers() == [1, 2, 3, 4, 5, 0]


def test_a_message_that_is_twice_in_a_batch_is_stored_once(broker: Once) -> None:
    assert broker.send(numbered(1, 2, 1)) == (2, 3)
    assert broker.numbers() == [1, 2]


def test_a_message_sent_alone_and_in_a_batch_is_stored_once(broker: Once) -> None:
    alone = f"UNIQ_KEY\x01{unique_id(1)}\x02IDEMPOTENT\x011\x02"
    assert broker.ask(send_request(TOPIC, b"1", properties=alone)).code == 0
    assert broker.send(numbered(1, 2)) == (1, 2)
    alone = f"UNIQ_KEY\x01{unique_id(2)}\x02IDEMPOTENT\x011\x02"
    assert broker.ask(send_request(TOPIC, b"2", properties=alone)).code == 0
    assert broker.numbers() == [1, 2]


@pytest.mark.parametrize("more", ["", "KEYS\x01k\x02TAGS\x01t\x02", "IDEMPOTENT\x011\x02"])
def test_what_is_stored_is_what_was_sent_and_says_that_it_was_sent_once(
    broker: Once, more: str
) -> None:
    for number in (1, 2):  # The second is like the first, and is put the quick way.
        broker.send(batch(item(number, more=more)))
        message = broker.messages()[-1]
        properties = decode_properties(message.properties_raw)
        assert properties.pop("SENT_ONCE") == "1"
        assert "IDEMPOTENT" not in properties
        assert properties["UNIQ_KEY"] == unique_id(number)
        assert properties.get("KEYS") == ("k" if "KEYS" in more else None)
        assert message.properties_raw.count(b"SENT_ONCE") == 1


def test_producers_in_one_batch_are_told_apart(broker: Once) -> None:
    names = [f"{number:020X}" for number in range(5)]
    items = [item(number, name) for name in names for number in (1, 2)]
    assert broker.send(batch(*items)) == (10, 10)
    assert broker.send(batch(*items)) == (0, 10)
    assert len(broker.wired.broker.idempotence) == 10


def test_memory_is_bounded_while_the_producers_of_a_batch_make_room_for_each_other() -> None:
    broker = Once(SimulatedFileSystem(), replace(config_of(FOLDER), idempotent_messages_max=8))
    names = [f"{number:020X}" for number in range(40)]
    for number in range(3):
        broker.send(batch(*[item(number, name) for name in names for _ in range(2)]))
        assert len(broker.wired.broker.idempotence) <= 8
    idempotence = broker.wired.broker.idempotence
    assert broker.send(batch(*[item(2, name) for name in names[-5:]])) == (0, 5)
    idempotence.expire(1 << 62)
    assert len(idempotence) == 0


@pytest.mark.parametrize(
    "properties", [b"", b"KEYS\x01k\x02", b"UNIQ_KEY\x01short\x02", b"UNIQ_KEY\x01" + b"x" * 65]
)
def test_a_batch_with_an_id_that_does_not_count_is_refused_whole(
    broker: Once, properties: bytes
) -> None:
    one, other = item(1), BatchItem(b"x", properties)
    for items in ((one, other), (other, one)):
        assert broker.ask(batch(*items)).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.bodies() == []
    assert broker.send(numbered(1)) == (1, 1)


def test_a_batch_with_a_message_that_is_too_old_is_refused_whole() -> None:
    broker = Once(SimulatedFileSystem(), replace(config_of(FOLDER), idempotent_window_max=10))
    for number in range(35):
        broker.send(numbered(number))
    assert broker.ask(numbered(35, 3)).code == ResponseCode.ILLEGAL_OPERATION
    assert broker.send(numbered(35)) == (1, 1)
    assert len(broker.bodies()) == 36


def untold(*numbers: int) -> Command:
    """Send these, of which the index has none, after nobody could tell whether they are stored."""
    body = encode_batch("T", [item(number) for number in numbers])
    code = RequestCode.SEND_BATCH_ONCE
    return send_request(TOPIC, body, code=code, batch=True, properties="NOT_STORED\x011\x02")


def test_what_the_index_does_not_have_is_stored_and_remembered() -> None:
    broker = Once(SimulatedFileSystem(), replace(config_of(FOLDER), idempotent_window_max=10))
    for number in range(10, 45):
        broker.send(numbered(number))
    assert broker.ask(numbered(3, 45)).code == ResponseCode.ILLEGAL_OPERATION
    assert broker.send(untold(3, 45)) == (2, 2)
    assert broker.send(untold(3, 44, 45, 46)) == (1, 4)
    assert broker.send(numbered(3, 45, 46)) == (0, 3)
    assert broker.numbers() == [*range(10, 45), 3, 45, 46]


def test_what_the_index_does_not_have_makes_nothing_else_new_at_a_start(
    broker: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.idempotence.TAIL_SIZE", 20_000)
    for number in range(100, 500):
        broker.send(numbered(number))
        if number == 490:
            assert broker.send(untold(3)) == (1, 1)
        if number % 10 == 0:
            broker.wired.broker.flush_offsets()
            broker.wired.save()
    broker.wired.close()
    broker.start(broker.disk)
    assert broker.send(numbered(499)) == (0, 1)
    assert broker.ask(numbered(150)).code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_sent_to_a_topic_that_was_deleted_is_new_when_it_comes_again(
    broker: Once, is_restarted: bool
) -> None:
    requests = [batch(*map(item, numbers), topic="Mine") for numbers in ((1, 2, 3), (3, 2, 5, 2))]
    broker.make_anew("Mine")
    assert broker.send(requests[0]) == (3, 3)
    broker.make_anew("Mine")
    if is_restarted:
        broker.start(broker.disk.kill())
    assert broker.send(requests[1]) == (3, 4)
    assert broker.send(requests[1]) == (0, 4)
    assert broker.send(requests[0]) == (1, 3)
    assert broker.bodies("Mine") == [b"3", b"2", b"5", b"1"]
    assert len(broker.wired.broker.idempotence) == 4


def test_a_topic_of_batches_is_refused_for_no_part_of_one_can_be_left_out(broker: Once) -> None:
    attributes = {"queue.type": "BatchCQ"}
    broker.wired.broker.state.topics.put(TopicConfig(topic_name="B", attributes=attributes), 0)
    broker.wired.save()
    assert broker.ask(batch(item(1), topic="B")).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_body_that_is_no_batch_is_refused(broker: Once) -> None:
    code = RequestCode.SEND_BATCH_ONCE
    answer = broker.ask(send_request(TOPIC, b"no batch", code=code, batch=True))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.bodies() == []


def test_a_repeat_waits_for_the_disk_as_the_first_does() -> None:
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    frames = [broker.wired.frame(broker.peer, numbered(1, 2)) for _ in range(2)]
    broker.wired.give(broker.peer, *frames)
    assert broker.wired.answers(broker.peer) == []
    broker.wired.sync()
    said = [each.read(SendBatchOnceResponse) for each in broker.wired.answers(broker.peer)]
    assert [each.stored_count for each in said] == [2, 0]


def test_a_batch_of_a_turn_that_is_refused_can_be_sent_again(broker: Once) -> None:
    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    broker.disk.hook = refuse
    assert broker.ask(numbered(1, 2)).code != ResponseCode.SUCCESS
    assert len(broker.wired.broker.idempotence) == 0
    broker.disk.hook = None
    broker.wired.broker.store.tick(broker.now_ms)
    assert broker.send(numbered(1, 2)) == (2, 2)
    assert broker.numbers() == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_ends_the_broker_what_was_answered_is_there_once(seed: int) -> None:
    rng = Random(seed)
    is_sync = bool(seed % 2)
    flush = Flush.SYNC if is_sync else Flush.ASYNC
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=flush))
    sent = 0
    for _ in range(60):
        first, sent = sent, sent + rng.randint(1, 5)
        again = rng.randint(0, first)
        request = numbered(*range(again, sent))
        broker.wired.give(broker.peer, broker.wired.frame(broker.peer, request))
        match rng.randint(0, 8):  # The answer is lost in one way or another.
            case 0:
                broker.start(broker.disk.kill())
            case 1 if is_sync:
                broker.start(broker.disk.power_cut(rng))
            case 2:
                broker.wired.close()
                broker.start(broker.disk)
            case 3:
                broker.wired.broker.flush_offsets()
                broker.wired.save()
            case _:
                pass
        broker.wired.sync()
        broker.wired.answers(broker.peer)
        broker.send(request)
        begin = rng.randint(0, sent)
        if begin < sent:
            assert broker.send(numbered(*range(begin, sent))) == (0, sent - begin)
    assert sorted(broker.numbers()) == list(range(sent))
