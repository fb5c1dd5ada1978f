"""Transactions that are too large, forged or taken back hurt only themselves."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import FOLDER, TOPIC
from tests.broker.running import config_of, send_request
from tests.broker.test_transactions import (
    COMMIT,
    INTERVAL,
    ROLLBACK,
    SHOP,
    TIMEOUT,
    Half,
    Shop,
)
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.broker.transaction_records import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    half_properties,
)
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ResumeCheckHalfMessage, SendMessageResponse
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.commands.topic import DeleteTopicInBroker
from cometmq.proto.message_id import decode_offset_id, encode_offset_id
from cometmq.proto.record import encode_record
from cometmq.store.log.turn import Origin

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def shop() -> Shop:
    return Shop(SimulatedFileSystem())


@contextmanager
def full_disk(shop: Shop) -> Generator[None]:
    """Make the disk refuse all writes to the log."""

    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    shop.disk.hook = refuse
    yield
    shop.disk.hook = None
    shop.wired.broker.store.tick(shop.now_ms)


def save_all(shop: Shop) -> None:
    """Save all progress, once the disk has confirmed it."""
    shop.save()
    shop.wired.sync()
    shop.wired.broker.store.finish_log()
    shop.save()


def refuse_halves(shop: Shop, count: int, more: str = "") -> None:
    """Send half messages in one turn, which the disk refuses."""
    with full_disk(shop):
        frames = [shop.wired.frame(shop.peer, shop.half_request(b"no", more)) for _ in range(count)]
        shop.wired.give(shop.peer, *frames)
        assert all(answer.code for answer in shop.wired.answers(shop.peer))


def test_half_messages_that_a_turn_takes_back_hide_none_that_come_later(shop: Shop) -> None:
    shop.end(shop.half(b"before"), ROLLBACK)
    refuse_halves(shop, 3)
    save_all(shop)
    halves = [shop.half(b"a"), shop.half(b"b")]
    shop.start(shop.disk.kill())
    assert shop.open_count == 2
    assert [shop.end(half, COMMIT) for half in halves] == [0, 0]
    assert shop.bodies() == [b"a", b"b"]


def test_saved_progress_is_never_ahead_of_the_half_queue(shop: Shop) -> None:
    shop.end(shop.half(b"x"), ROLLBACK)
    shop.wired.broker.transactions.table.next_offset = 10
    save_all(shop)
    assert shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0) == 1


def test_who_stands_where_another_was_taken_back_waits_for_its_own_time(shop: Shop) -> None:
    refuse_halves(shop, 1, "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02")
    peer = shop.join()
    half = shop.half(b"paid")
    shop.pass_time(TIMEOUT - 1)
    assert shop.asked(peer) == []
    shop.pass_time(1)
    assert [asked.key for asked, _ in shop.asked(peer)] == [half.key]


# Too large.


def padding(size: int) -> str:
    return f"PAD\x01{'x' * size}\x02"


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_half_message_is_refused_whose_copy_would_be_too_long(record_crc: bool) -> None:
    config = config_of(FOLDER)
    config = replace(config, store=replace(config.store, record_crc=record_crc))
    shop = Shop(SimulatedFileSystem(), config)
    size, answer = 32_767, shop.ask(shop.half_request(b"large", padding(32_767)))
    while answer.code:
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        size -= 1
        answer = shop.ask(shop.half_request(b"large", padding(size)))
    peer = shop.join()
    shop.pass_time(TIMEOUT)
    shop.pass_time(INTERVAL)
    asked = shop.asked(peer)
    assert [message.body for _, message in asked] == [b"large"] * 2
    assert shop.end(asked[-1][0], COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"large"]


def put_half(shop: Shop, body: bytes, more: str) -> None:
    """Put a half message into the log as another broker might have, and start on that log."""
    store, broker = shop.wired.broker.store, shop.wired.broker
    raw = f"UNIQ_KEY\x01F1\x02TRAN_MSG\x01true\x02PGROUP\x01{SHOP}\x02{more}".encode()
    origin = Origin(shop.now_ms, shop.now_ms, broker.state.store_host)
    store.put(HALF_TOPIC, 0, body, half_properties(TOPIC, 0, raw, b"F1"), origin)
    store.commit()
    shop.restart()


def test_a_half_message_that_cannot_be_put_again_is_given_up_and_keeps_nobody_waiting(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    put_half(shop, b"large", padding(32_640))
    half = shop.half(b"good")
    peer = shop.join()
    shop.pass_time(TIMEOUT)
    assert [asked.key for asked, _ in shop.asked(peer)] == [half.key]
    assert "half message 0 cannot be asked about" in caplog.text
    assert shop.bodies(GIVEN_UP_TOPIC) == [b"large"]
    shop.restart()
    assert shop.open_count == 1


def test_half_messages_that_are_more_than_a_turn_are_asked_about_in_several() -> None:
    config = config_of(FOLDER)
    settings = replace(config.store, turn_size_max=512 << 10, message_size_max=64 << 10)
    shop = Shop(SimulatedFileSystem(), replace(config, store=settings))
    for _ in range(30):
        shop.half(b"x" * 60_000)
    peer = shop.join()
    shop.pass_time(TIMEOUT)
    assert len(shop.asked(peer)) == 30


def test_what_a_busy_disk_has_room_for_is_asked_about_and_the_others_later() -> None:
    config = config_of(FOLDER)
    settings = replace(config.store, unsynced_size_max=64 << 10, message_size_max=48 << 10)
    shop = Shop(SimulatedFileSystem(), replace(config, store=settings))
    for _ in range(9):
        shop.half(b"x" * 3_000)
    peer = shop.join()
    assert shop.wired.broker.store.finish_log()
    shop.wired.give(shop.peer, shop.wired.frame(shop.peer, send_request(TOPIC, b"y" * 45_000)))
    shop.now_ms += TIMEOUT
    step = shop.wired.broker.transactions.step(shop.now_ms)
    assert step.refused
    assert 0 < step.done < 9
    assert shop.wired.broker.store.finish_log()
    shop.pass_time(0)
    assert len(shop.asked(peer)) == 9


# Forged, or told twice.


def test_a_committed_message_that_is_sent_back_ends_no_other_transaction(shop: Shop) -> None:
    first, paid = shop.half(b"first ever"), shop.half(b"paid")
    assert first.physical_offset == 0
    assert shop.end(paid, COMMIT) == ResponseCode.SUCCESS
    (message,) = shop.messages()
    back = ConsumerSendMsgBack(
        offset=message.physical_offset, group="g", delay_level=0, origin_topic=TOPIC
    )
    request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    shop.wired.broker.state.topics.make_derived("%RETRY%g", 1, shop.now_ms)
    shop.wired.save()
    assert shop.ask(request).code == ResponseCode.SUCCESS
    shop.start(shop.disk.kill())
    assert shop.open_count == 1
    assert shop.end(first, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"paid", b"first ever"]


@pytest.mark.parametrize(
    ("key", "queue_id", "body"), [("K9", 0, b"paid"), ("K1", 1, b"paid"), ("K1", 0, b"other")]
)
def test_a_message_that_only_says_it_was_committed_ends_nothing(
    shop: Shop, key: str, queue_id: int, body: bytes
) -> None:
    half = shop.half(b"paid")
    origin = Origin(shop.now_ms, shop.now_ms, shop.wired.broker.state.store_host, sys_flag=8)
    store = shop.wired.broker.store
    store.put(TOPIC, queue_id, body, f"UNIQ_KEY\x01{key}\x02".encode(), origin)
    store.commit()
    shop.start(shop.disk.kill())
    assert shop.end(half, ROLLBACK) == ResponseCode.SUCCESS


def forge(shop: Shop, offset: int) -> Half:
    """Send a message whose body looks like the record of a half message in the half queue."""

    def send_record(record_at: int) -> int:
        body = encode_record(
            topic=HALF_TOPIC.encode(),
            body=b"forged",
            properties=half_properties(TOPIC, 0, b"PGROUP\x01evil\x02UNIQ_KEY\x01E\x02", b"E"),
            queue_id=0,
            queue_offset=offset,
            physical_offset=record_at,
            born_timestamp=1,
            born_host=bytes(8),
            store_timestamp=1,
            store_host=bytes(8),
        )
        said = shop.ask(send_request(TOPIC, body)).read(SendMessageResponse)
        physical_offset = decode_offset_id(said.msg_id).physical_offset
        record = shop.wired.broker.store.find_record(physical_offset)
        assert isinstance(record, bytes | bytearray | memoryview)
        return physical_offset + bytes(record).find(body)

    end = shop.wired.broker.store.end_offset
    distance = send_record(0) - end
    target = shop.wired.broker.store.end_offset + distance
    assert send_record(target) == target
    return Half(target, offset, "E")


@pytest.mark.parametrize("is_asked", [False, True])
def test_what_looks_like_a_half_message_inside_a_body_ends_no_transaction(
    shop: Shop, is_asked: bool
) -> None:
    victim = shop.half(b"victim's")
    peer = shop.join()
    shop.pass_time(TIMEOUT * is_asked)
    assert len(shop.asked(peer)) == is_asked
    forged = forge(shop, victim.offset)
    assert shop.end(forged, COMMIT, group="evil") == ResponseCode.SYSTEM_ERROR
    assert shop.end(victim, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies()[2:] == [b"victim's"]


def test_half_messages_in_front_of_the_progress_still_end_their_transactions(shop: Shop) -> None:
    first = shop.half(b"paid")
    peer = shop.join()
    shop.pass_time(TIMEOUT)
    assert len(shop.asked(peer)) == 1
    shop.restart()
    assert shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0) == 1
    assert shop.end(forge(shop, first.offset), COMMIT, group="evil") == ResponseCode.SYSTEM_ERROR
    assert shop.end(first, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies()[2:] == [b"paid"]


# Moved again and again.


@pytest.mark.parametrize("restarts", [False, True])
def test_a_transaction_that_nobody_can_be_asked_about_takes_no_more_room(
    shop: Shop, restarts: bool
) -> None:
    half = shop.half(b"paid")
    peer = shop.join()
    shop.pass_time(TIMEOUT)
    ((asked, _),) = shop.asked(peer)
    peer.gone("it ended")
    for _ in range(50):
        shop.pass_time(INTERVAL)
    if restarts:
        shop.start(shop.disk.kill())
    opened = shop.wired.broker.transactions.table.find(half.offset)
    assert opened is not None
    assert [place.offset for place in opened.aliases] == [half.offset]
    assert [message.queue_offset for message in shop.messages(topic=HALF_TOPIC)] == [0, 1]
    assert shop.end(asked, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"paid"]


def test_a_transaction_that_is_open_is_not_opened_again(shop: Shop) -> None:
    half = shop.half(b"paid")
    offset_id = encode_offset_id(shop.wired.broker.state.store_host, half.physical_offset)
    request = Command.request(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage(offset_id)
    )
    assert shop.ask(request).code == ResponseCode.SYSTEM_ERROR
    assert shop.open_count == 1


def test_a_commit_into_a_topic_that_was_deleted_is_refused(shop: Shop) -> None:
    mark = f"UNIQ_KEY\x01K1\x02TRAN_MSG\x01true\x02PGROUP\x01{SHOP}\x02"
    said = shop.wired.ask(shop.peer, send_request("Mine", b"paid", properties=mark))
    found = said.read(SendMessageResponse)
    half = Half(decode_offset_id(found.msg_id).physical_offset, found.queue_offset, "K1")
    request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic="Mine"))
    assert shop.wired.ask(shop.peer, request).code == ResponseCode.SUCCESS
    answer = shop.ask(shop.end_request(half, COMMIT))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Mine" in (answer.remark or "")
    assert shop.wired.broker.store.queues.simple.find("Mine", 0) is None
    assert shop.open_count == 1
