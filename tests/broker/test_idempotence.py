"""A message that is sent again because its answer was lost is stored once."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, send_request
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.proto.batch import BatchItem, encode_batch, unwrap_batch
from cometmq.proto.bodies import TopicConfig
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.commands.topic import DeleteTopicInBroker
from cometmq.proto.properties import decode_properties
from cometmq.store.config import Flush

PRODUCER = "0123456789ABCDEF0123"


def unique_id(number: int, producer: str = PRODUCER) -> str:
    return f"{producer}{number:012X}"


def once(
    number: int,
    body: bytes = b"paid",
    *,
    more: str = "",
    producer: str = PRODUCER,
    topic: str = TOPIC,
) -> Command:
    properties = f"UNIQ_KEY\x01{unique_id(number, producer)}\x02IDEMPOTENT\x011\x02WAIT\x01true\x02"
    return send_request(topic, body, properties=properties + more, sys_flag=0)


class Once(Clocked):
    """A broker, and a producer whose messages are to be stored once."""

    def send(self, request: Command) -> SendMessageResponse:
        answer = self.ask(request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.read(SendMessageResponse)

    def make_anew(self, topic: str) -> None:
        """Delete a topic, if it exists, and make it."""
        request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic))
        assert self.wired.ask(self.peer, request).code == ResponseCode.SUCCESS
        self.wired.broker.state.topics.put(TopicConfig(topic_name=topic), 0)
        self.wired.save()


@pytest.fixture
def broker() -> Once:
    return Once(SimulatedFileSystem())


def test_a_repeat_is_answered_as_the_first_and_not_stored(broker: Once) -> None:
    first = broker.send(once(1))
    broker.send(once(2, b"next"))
    for _ in range(3):
        assert broker.send(once(1)) == first
    assert broker.bodies() == [b"paid", b"next"]


def test_what_is_stored_does_not_ask_to_be_stored_once(broker: Once) -> None:
    """A client that sends a message on would otherwise repeat the first producer's wish."""
    broker.send(once(1))
    (message,) = broker.messages()
    properties = decode_properties(message.properties_raw)
    assert "IDEMPOTENT" not in properties
    assert properties["SENT_ONCE"] == "1"
    on = send_request(TOPIC, b"on", properties=message.properties_raw.decode())
    for _ in range(2):
        broker.send(on)
    assert broker.bodies() == [b"paid", b"on", b"on"]


def test_a_repeat_of_what_is_synced_waits_for_no_sync() -> None:
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    for synced in (False, True):
        broker.wired.give(broker.peer, broker.wired.frame(broker.peer, once(1)))
        if not synced:
            assert broker.wired.answers(broker.peer) == []
            broker.wired.sync()
        (answer,) = broker.wired.answers(broker.peer)
        assert answer.code == ResponseCode.SUCCESS
    assert broker.bodies() == [b"paid"]


def test_nobody_else_is_kept_from_sending_twice(broker: Once) -> None:
    twice = send_request(TOPIC, b"twice", properties=f"UNIQ_KEY\x01{unique_id(1)}\x02")
    for _ in range(2):
        broker.send(twice)
    for producer in ("A" * 20, "B" * 20):
        broker.send(once(1, producer=producer))
    assert len(broker.bodies()) == 4
    assert broker.wired.broker.idempotence.tail_offset >= 0


def test_a_repeat_in_the_same_turn_waits_for_the_first() -> None:
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    frames = [broker.wired.frame(broker.peer, once(1)) for _ in range(2)]
    broker.wired.give(broker.peer, *frames)
    broker.wired.give(broker.peer, broker.wired.frame(broker.peer, once(1)))
    assert broker.wired.answers(broker.peer) == []
    broker.wired.sync()
    answers = [each.read(SendMessageResponse) for each in broker.wired.answers(broker.peer)]
    assert len(answers) == 3
    assert len({each.msg_id for each in answers}) == 1
    assert broker.bodies() == [b"paid"]


def test_messages_that_come_in_another_order_are_new(broker: Once) -> None:
    for number in (5, 3, 9, 1):
        broker.send(once(number, b"%d" % number))
    for number in (1, 3, 5, 9):
        broker.send(once(number))
    assert broker.bodies() == [b"5", b"3", b"9", b"1"]


def test_of_what_is_too_old_nobody_says_that_it_is_new() -> None:
    broker = Once(SimulatedFileSystem(), replace(config_of(FOLDER), idempotent_window_max=10))
    for number in range(35):
        broker.send(once(number))
    for number in range(20, 35):
        broker.send(once(number))
    assert len(broker.wired.broker.idempotence) <= 20
    answer = broker.ask(once(3))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert len(broker.bodies()) == 35


def test_memory_is_bounded_and_the_silent_are_forgotten_first() -> None:
    config = replace(config_of(FOLDER), idempotent_messages_max=50)
    broker = Once(SimulatedFileSystem(), config)
    for number in range(200):
        broker.send(once(1, producer=f"{number:020X}"))
        broker.send(once(number, producer="F" * 20))
        broker.pass_time(1)
        assert len(broker.wired.broker.idempotence) <= 50
    assert broker.send(once(199, producer="F" * 20)).queue_offset == 399
    assert broker.send(once(1, producer=f"{199:020X}")).queue_offset == 398
    broker.pass_time(config.idempotent_expiry_ms)
    broker.wired.broker.expire_clients(broker.now_ms)
    broker.pass_time(1)
    broker.wired.broker.expire_clients(broker.now_ms)
    assert len(broker.wired.broker.idempotence) == 0


@pytest.mark.parametrize("producers", [1, 3, 10])
def test_memory_is_bounded_also_when_nobody_is_new_or_has_sent_a_whole_window(
    producers: int,
) -> None:
    config = replace(config_of(FOLDER), idempotent_messages_max=50, idempotent_window_max=1000)
    broker = Once(SimulatedFileSystem(), config)
    names = [f"{number:020X}" for number in range(producers)]
    for number in range(100):
        for name in names:  # All send in the same millisecond.
            first = broker.send(once(number, producer=name))
            assert len(broker.wired.broker.idempotence) <= 50
            assert broker.send(once(number, producer=name)) == first
    if producers == 1:
        for number in range(75, 100):
            assert broker.send(once(number, producer=names[0])).queue_offset == number


def test_the_silent_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting all at once would hold up the loop."""
    monkeypatch.setattr("cometmq.broker.idempotence.EXPIRED_MAX", 10)
    broker = Once(SimulatedFileSystem())
    for number in range(25):
        broker.send(once(1, producer=f"{number:020X}"))
    broker.pass_time(broker.config.idempotent_expiry_ms)
    broker.send(once(2, producer=f"{0:020X}"))
    broker.pass_time(1)
    left: list[int] = []
    for _ in range(4):
        broker.wired.broker.expire_clients(broker.now_ms)
        left.append(len(broker.wired.broker.idempotence))
    assert left == [16, 6, 2, 2]  # A producer that is heard again is not forgotten.


@pytest.mark.parametrize("by", [-1, 1])
def test_who_sets_the_clock_makes_nobody_silent(broker: Once, by: int) -> None:
    """Producers that a start finds in the log count as heard at the start."""
    first = broker.send(once(1))
    for is_last in (False, True):
        broker.wired.set_by_ms += by * broker.config.idempotent_expiry_ms * 2
        broker.wired.broker.expire_clients(broker.now_ms)
        assert broker.send(once(1)) == first
        broker.send(once(2 + is_last))
        broker.start(broker.disk.kill())
    broker.wired.broker.expire_clients(broker.now_ms)
    assert broker.send(once(1)) == first
    assert broker.send(once(3)).queue_offset == 2


@pytest.mark.parametrize("id_", ["", "short", "x" * 31, "x" * 65])
def test_an_id_that_does_not_count_is_refused(broker: Once, id_: str) -> None:
    properties = f"UNIQ_KEY\x01{id_}\x02IDEMPOTENT\x011\x02"
    answer = broker.ask(send_request(TOPIC, b"x", properties=properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.bodies() == []


@pytest.mark.parametrize("more", ["DELAY\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"])
def test_delayed_and_half_messages_are_put_aside_once(broker: Once, more: str) -> None:
    first = broker.send(once(1, more=more))
    assert broker.send(once(1, more=more)) == first
    broker.start(broker.disk.kill())
    assert broker.send(once(1, more=more)) == first
    broker.pass_time(1_000)
    assert broker.send(once(1, more=more)) == first
    assert broker.bodies() == ([b"paid"] if "DELAY" in more else [])


@pytest.fixture
def dead_letters(broker: Once) -> Once:
    """A broker with a retry topic and a topic of dead letters."""
    plain = send_request("%RETRY%group", b"plain", properties="", reconsume_times=100)
    assert broker.wired.ask(broker.peer, plain).code == ResponseCode.SUCCESS
    return broker


def dead(number: int, body: bytes = b"dead") -> Command:
    """A send to a group's retry topic of a message that has come back too often."""
    properties = f"UNIQ_KEY\x01{unique_id(number)}\x02IDEMPOTENT\x011\x02"
    return send_request("%RETRY%group", body, properties=properties, reconsume_times=100)


def test_a_dead_letter_is_stored_once(dead_letters: Once) -> None:
    broker = dead_letters
    first = broker.send(dead(1))
    assert broker.send(dead(1)) == first
    broker.start(broker.disk.kill())
    assert broker.send(dead(1)) == first
    assert broker.bodies("%DLQ%group") == [b"plain", b"dead"]


def test_a_dead_letter_is_not_taken_for_what_was_looked_for_before_it(dead_letters: Once) -> None:
    broker = dead_letters
    first = broker.send(once(1, b"first"))
    refuse_writes(broker)
    assert broker.ask(once(2)).code != ResponseCode.SUCCESS
    allow_writes(broker)
    broker.send(dead(77))
    broker.send(once(2))
    assert broker.send(once(1, b"first")) == first
    assert broker.bodies() == [b"first", b"paid"]


def asking_batch(body: bytes = b"batched") -> bytes:
    asks = f"UNIQ_KEY\x01{unique_id(5)}\x02IDEMPOTENT\x011\x02KEYS\x01k".encode()
    return encode_batch(TOPIC, [BatchItem(body, asks, 7), BatchItem(b"plain", b"KEYS\x01l", 8)])


def test_the_messages_of_a_batch_do_not_ask_in_the_store_for_what_no_batch_has(
    broker: Once,
) -> None:
    assert broker.ask(send_request(TOPIC, asking_batch(), code=320, batch=True)).code == 0
    first, second = broker.messages()
    properties = decode_properties(first.properties_raw)
    assert "IDEMPOTENT" not in properties
    assert "SENT_ONCE" not in properties
    assert (properties["UNIQ_KEY"], properties["KEYS"]) == (unique_id(5), "k")
    assert (first.body, first.flag, second.body, second.flag) == (b"batched", 7, b"plain", 8)


SENT_ON = f"UNIQ_KEY\x01{unique_id(9)}\x02SENT_ONCE\x011\x02TAGS\x01red\x02"
"""The properties of a stored message that another program sends on."""


@pytest.mark.parametrize(
    "request_",
    [
        send_request(TOPIC, b"sent on", properties=SENT_ON),
        send_request(TOPIC, b"sent on", properties=SENT_ON + "DELAY\x011\x02"),
        send_request(TOPIC, b"sent on", properties=SENT_ON + "TRAN_MSG\x01true\x02PGROUP\x01p"),
        send_request(
            TOPIC, encode_batch(TOPIC, [BatchItem(b"sent on", SENT_ON.encode())] * 2), code=320
        ),
    ],
    ids=["alone", "delayed", "half of a transaction", "in a batch"],
)
def test_what_is_sent_on_with_all_its_properties_says_nothing_of_its_first_producer(
    broker: Once, request_: Command
) -> None:
    for _ in range(2):  # A message like the one before takes another path.
        assert broker.ask(request_).code == ResponseCode.SUCCESS
    broker.pass_time(1_000)
    for message in broker.messages():
        properties = decode_properties(message.properties_raw)
        assert "SENT_ONCE" not in properties
        assert (properties["UNIQ_KEY"], properties["TAGS"]) == (unique_id(9), "red")
    broker.start(broker.disk.kill())
    assert len(broker.wired.broker.idempotence) == 0
    before = broker.bodies()
    broker.send(once(8))  # Nothing suggests that it is stored already.
    broker.send(once(9))
    assert broker.bodies() == [*before, b"paid", b"paid"]


def test_a_batch_that_is_one_record_is_neither_taken_nor_found_as_sent_once(broker: Once) -> None:
    attributes = {"queue.type": "BatchCQ"}
    broker.wired.broker.state.topics.put(TopicConfig(topic_name="B", attributes=attributes), 0)
    broker.wired.save()
    asks = f"UNIQ_KEY\x01{unique_id(5)}\x02IDEMPOTENT\x011\x02"
    batch = send_request("B", asking_batch(), code=320, batch=True, properties=asks)
    assert broker.ask(batch).code == 0
    message = broker.messages(topic="B")[0]
    assert b"SENT_ONCE" not in message.properties_raw
    inner = unwrap_batch(message, message.body)
    assert [each.item.properties for each in inner] == [
        f"UNIQ_KEY\x01{unique_id(5)}\x02KEYS\x01k".encode(),
        b"KEYS\x01l",
    ]
    broker.start(broker.disk.kill())
    assert len(broker.wired.broker.idempotence) == 0


def refuse_writes(broker: Once) -> None:
    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    broker.disk.hook = refuse


def allow_writes(broker: Once) -> None:
    broker.disk.hook = None
    broker.wired.broker.store.tick(broker.now_ms)


def test_a_turn_that_is_refused_leaves_nothing_behind(broker: Once) -> None:
    refuse_writes(broker)
    assert broker.ask(once(1)).code != ResponseCode.SUCCESS
    assert len(broker.wired.broker.idempotence) == 0
    allow_writes(broker)
    broker.send(once(1))
    broker.send(once(1))
    assert broker.bodies() == [b"paid"]


def test_a_turn_that_is_refused_takes_nothing_along_that_was_sent_before(broker: Once) -> None:
    broker.send(once(1))
    refuse_writes(broker)
    assert broker.ask(once(2)).code != ResponseCode.SUCCESS
    allow_writes(broker)
    broker.send(once(1))
    assert broker.bodies() == [b"paid"]


def test_who_is_forgotten_in_a_turn_that_is_refused_is_forgotten_once() -> None:
    config = replace(config_of(FOLDER), idempotent_messages_max=10)
    broker = Once(SimulatedFileSystem(), config)
    refuse_writes(broker)
    requests = [once(0, producer=f"{number:020X}") for number in range(40)]
    broker.wired.give(broker.peer, *[broker.wired.frame(broker.peer, each) for each in requests])
    assert all(each.code != ResponseCode.SUCCESS for each in broker.wired.answers(broker.peer))
    assert len(broker.wired.broker.idempotence) == 0
    allow_writes(broker)
    for number in range(40):
        broker.send(once(1, producer=f"{number:020X}"))
    assert len(broker.wired.broker.idempotence) == 10


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_a_restart_remembers(broker: Once, is_clean: bool, saved: bool) -> None:
    first = [broker.send(once(number)) for number in range(20)]
    if saved:
        broker.wired.broker.flush_offsets()
        broker.wired.save()
    for _ in range(2):
        if is_clean:
            broker.wired.close()
            broker.start(broker.disk)
        else:
            broker.start(broker.disk.kill())
        assert [broker.send(once(number)) for number in range(20)] == first
    assert len(broker.bodies()) == 20


def test_a_start_reads_only_the_tail(broker: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.idempotence.TAIL_SIZE", 20_000)
    for number in range(400):
        broker.send(once(number))
        if number % 10 == 0:
            broker.wired.broker.flush_offsets()
            broker.wired.save()
    broker.wired.close()
    broker.start(broker.disk)
    known = len(broker.wired.broker.idempotence)
    assert 20 < known < 200
    for number in (399, 400 - known):
        assert broker.send(once(number)).queue_offset == number
    for number in (399 - known, 3):  # Either may be stored before the tail: nobody can tell.
        assert broker.ask(once(number)).code == ResponseCode.ILLEGAL_OPERATION
    assert len(broker.bodies()) == 400


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_a_start_reads_only_the_tail_however_little_came_between_starts(
    broker: Once, monkeypatch: pytest.MonkeyPatch, is_clean: bool, saved: bool
) -> None:
    monkeypatch.setattr("cometmq.broker.idempotence.TAIL_SIZE", 20_000)
    for number in range(400):
        broker.send(once(number))
        if number % 20 == 19:
            if saved:
                broker.wired.broker.flush_offsets()
                broker.wired.save()
            if is_clean:
                broker.wired.close()
            broker.start(broker.disk if is_clean else broker.disk.kill())
    assert 20 < len(broker.wired.broker.idempotence) < 200
    assert broker.send(once(399)).queue_offset == 399
    assert broker.ask(once(3)).code == ResponseCode.ILLEGAL_OPERATION
    assert len(broker.bodies()) == 400


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_that_takes_of_the_tail_makes_nothing_new(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Messages before the old tail stay unknown, though less than a tail is left after them."""
    monkeypatch.setattr("cometmq.broker.idempotence.TAIL_SIZE", 20_000)
    monkeypatch.setattr("cometmq.broker.delays.SAVE_EVERY_SIZE", 1000)
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.ASYNC))
    for number in range(340):
        broker.send(once(number))
        broker.wired.broker.flush_offsets()
        broker.wired.save_tables()
        if number < 300:
            broker.now_ms = broker.wired.now_ms = broker.now_ms + 1000
            broker.wired.broker.store.tick(broker.now_ms)
            broker.wired.sync()
    broker.start(broker.disk.power_cut(Random(seed)))
    count = len(broker.bodies())
    assert 300 <= count < 340
    assert broker.ask(once(3)).code == ResponseCode.ILLEGAL_OPERATION
    assert broker.send(once(299)).queue_offset == 299
    assert len(broker.bodies()) == count


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_that_has_read_all_knows_what_is_new(broker: Once, is_clean: bool) -> None:
    broker.ask(send_request(TOPIC, b"plain", properties=""))  # The log begins with another.
    broker.send(once(9))
    broker.wired.broker.flush_offsets()
    broker.wired.save()
    if is_clean:
        broker.wired.close()
    broker.start(broker.disk if is_clean else broker.disk.kill())
    broker.send(once(3))
    assert len(broker.bodies()) == 3


@pytest.mark.parametrize("ended", ["", "closed", "killed"])
def test_what_was_sent_to_a_topic_that_was_deleted_is_new_when_it_comes_again(
    broker: Once, ended: str
) -> None:
    broker.make_anew("Mine")
    for number in range(4):
        broker.send(once(number, b"%d" % number, topic="Mine"))
    elsewhere = broker.send(once(4, b"4"))
    broker.make_anew("Mine")
    if ended == "closed":
        broker.wired.close()
    if ended:
        broker.start(broker.disk if ended == "closed" else broker.disk.kill())
    for _ in range(2):
        for number in (2, 0):
            broker.send(once(number, b"%d" % number, topic="Mine"))
    assert broker.bodies("Mine") == [b"2", b"0"]
    assert broker.send(once(4, b"4")) == elsewhere
    broker.start(broker.disk.kill())
    broker.send(once(0, b"0", topic="Mine"))
    assert broker.bodies("Mine") == [b"2", b"0"]


def test_what_a_deleted_topic_took_along_is_counted_no_more(broker: Once) -> None:
    for _ in range(3):
        broker.make_anew("Mine")
        for number in range(5):
            broker.send(once(number, topic="Mine"))
        assert len(broker.wired.broker.idempotence) == 5


def test_a_delayed_message_for_a_topic_that_was_deleted_is_new_behind_a_start_too(
    broker: Once,
) -> None:
    delayed = once(1, more="DELAY\x011\x02", topic="Mine")
    broker.make_anew("Mine")
    broker.send(delayed)
    broker.pass_time(2000)
    assert broker.bodies("Mine") == [b"paid"]
    broker.make_anew("Mine")
    broker.start(broker.disk.kill())
    broker.send(delayed)
    broker.pass_time(2000)
    assert broker.bodies("Mine") == [b"paid"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_ends_the_broker_what_was_answered_is_there_once(seed: int) -> None:
    rng = Random(seed)
    is_sync = bool(seed % 2)
    flush = Flush.SYNC if is_sync else Flush.ASYNC
    broker = Once(SimulatedFileSystem(), config_of(FOLDER, flush=flush))
    places: dict[int, int] = {}
    for number in range(100):
        request = once(number, b"%d" % number)
        broker.wired.give(broker.peer, broker.wired.frame(broker.peer, request))
        match rng.randint(0, 12):  # The answer is lost in one way or another.
            case 0:
                broker.start(broker.disk.kill())
            case 1 if is_sync:
                broker.start(broker.disk.power_cut(rng))
            case 2:
                broker.wired.close()
                broker.start(broker.disk)
            case 3 | 4:
                broker.wired.broker.flush_offsets()
                broker.wired.save()
            case _:
                pass
        broker.wired.sync()
        broker.wired.answers(broker.peer)
        places[number] = broker.send(request).queue_offset
        for repeated in rng.sample(sorted(places), min(3, len(places))):
            again = broker.send(once(repeated, b"%d" % repeated)).queue_offset
            assert again == places[repeated]
    assert sorted(broker.bodies()) == sorted(b"%d" % number for number in range(100))
