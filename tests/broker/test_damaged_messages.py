"""A message that the disk has damaged stops nobody, and is never put again as if sound."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, send_request
from tests.broker.test_transactions import COMMIT, INTERVAL, TIMEOUT, Shop
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.delays import STUCK_MS
from cometmq.broker.intact import messages_from
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.send import ConsumerSendMsgBack

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT = f"{FOLDER}/data/commitlog/{0:020d}"
BODY = b"a body that is found again in the log"
LEVEL_QUEUE = f"{FOLDER}/data/consumequeue/SCHEDULE_TOPIC_XXXX/0"
SECOND = 1_000

PLACES: dict[str, Callable[[bytes, int], int]] = {
    "body": lambda _, body: body + 3,
    "length of the properties": lambda data, body: body + len(BODY) + data[body + len(BODY)] + 1,
    "magic": lambda _, body: body - 84,
    "size": lambda _, body: body - 86,
    "queue offset": lambda _, body: body - 62,
}
"""The place of the byte to damage in a record, from its segment and the place of its body."""


def flip(disk: SimulatedFileSystem, where: str) -> None:
    """Damage the record with `BODY`, on the disk and where a process has the file in memory."""
    file = disk.open(SEGMENT)
    data = file.read(1 << 15, 0)
    at = PLACES[where](data, data.index(BODY))
    file.write(bytes([data[at] ^ 0x41]), at)


def send(broker: Clocked, body: bytes, level: int) -> None:
    request = send_request(TOPIC, body, properties=f"DELAY\x01{level}\x02")
    assert broker.ask(request).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("before", [0, 1], ids=["the first due", "behind another"])
def test_a_damaged_delayed_message_is_told_and_the_others_come(
    where: str, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Clocked(SimulatedFileSystem())
    others = [b"before"] * before + [b"behind", b"of another level"]
    for body in [*others[:before], BODY, b"behind"]:
        send(broker, body, 1)
    send(broker, b"of another level", 2)
    flip(broker.disk, where)
    broker.pass_time(SECOND)
    broker.pass_time(4 * SECOND)
    assert broker.bodies() == others
    (told,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"delayed message {before} of level 1 is not delivered: " in told.getMessage()


@pytest.mark.parametrize("where", PLACES)
def test_a_start_that_reads_a_queue_passes_over_a_damaged_message(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Clocked(SimulatedFileSystem())
    for body in (b"before", BODY, b"behind"):
        assert broker.ask(send_request(TOPIC, body)).code == ResponseCode.SUCCESS
    flip(broker.disk, where)
    found = messages_from(broker.wired.broker.store, TOPIC, 0, 0, 100)
    assert [message.body for message in found] == [b"before", b"behind"]
    assert f"message 1 of {TOPIC} is passed over: " in caplog.text


@pytest.mark.parametrize("where", ["body", "length of the properties", "magic", "size"])
def test_nobody_is_asked_about_a_half_message_that_was_damaged_since(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(SimulatedFileSystem())
    shop.half(BODY)
    shop.half(b"sound")
    shop.restart()
    producer = shop.join()
    flip(shop.disk, where)
    shop.pass_time(TIMEOUT + INTERVAL)
    assert [message.body for _, message in shop.asked(producer)] == [b"sound"]
    assert "is given up undecided: " in caplog.text
    assert shop.open_count == 1


@pytest.mark.parametrize("where", ["body", "length of the properties", "magic", "size"])
def test_a_damaged_half_message_is_not_committed(where: str) -> None:
    shop = Shop(SimulatedFileSystem())
    half = shop.half(BODY)
    shop.restart()
    flip(shop.disk, where)
    assert shop.end(half, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert shop.bodies() == []


@pytest.mark.parametrize("where", ["body", "length of the properties", "magic", "size"])
def test_a_damaged_message_is_not_taken_back_for_a_retry(where: str) -> None:
    broker = Clocked(SimulatedFileSystem())
    assert broker.ask(send_request(TOPIC, BODY)).code == ResponseCode.SUCCESS
    flip(broker.disk, where)
    header = ConsumerSendMsgBack(offset=0, group="g", delay_level=1, origin_topic=TOPIC)
    answer = broker.ask(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    broker.pass_time(SECOND)
    assert broker.bodies("%RETRY%g") == []


def test_a_level_whose_queue_lost_a_file_says_so_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The missing messages are not skipped: they come after a rebuild."""
    config = config_of(FOLDER)
    config = replace(config, store=replace(config.store, consume_queue_file_size=4 * 20))
    broker = Clocked(SimulatedFileSystem(), config)
    for number in range(10):
        send(broker, b"%d" % number, 1)
    send(broker, b"of another level", 2)
    broker.wired.close()
    broker.disk.remove(f"{LEVEL_QUEUE}/{4 * 20:020d}")
    broker.start(broker.disk)
    broker.pass_time(5 * SECOND)
    assert broker.bodies() == [b"0", b"1", b"2", b"3", b"of another level"]
    text = "level 1 delivers nothing from message 4 on, retried in 60 s: "
    assert caplog.text.count(text) == 1
    assert "is missing; `cometmq store rebuild` rebuilds the queue" in caplog.text
    broker.pass_time(STUCK_MS - 1)
    assert caplog.text.count(text) == 1, "it is looked at too often"
    broker.pass_time(1)
    assert caplog.text.count(text) == 2, "it is not looked at again"
    assert broker.bodies() == [b"0", b"1", b"2", b"3", b"of another level"]
