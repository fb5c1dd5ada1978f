"""Damage in the broker's own queues for delays or transactions stops only what they serve."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import send_request
from tests.broker.test_damaged_queues import blank, put
from tests.broker.test_transactions import COMMIT, INTERVAL, TIMEOUT, Shop
from tests.crash.disk import SimulatedFileSystem
from tests.store.records import HOST

from cometmq.broker.transaction_records import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.store.log.turn import Origin
from cometmq.store.looking.inspection import inspect
from cometmq.store.mending import rebuilding

if TYPE_CHECKING:
    from tests.broker.test_transactions import Half

ORIGIN = Origin(1, 1, HOST)
LEVEL_QUEUE = "SCHEDULE_TOPIC_XXXX/1"
LEVEL, DELAY = 2, 5_000


def delayed(broker: Clocked, body: bytes, level: int = LEVEL) -> Command:
    return broker.ask(send_request(TOPIC, body, properties=f"DELAY\x01{level}\x02"))


def rebuilt(broker: Clocked) -> None:
    """Shut down, rebuild the queues as `cometmq store rebuild` does, and start."""
    broker.wired.close()
    store = inspect(broker.disk, f"{FOLDER}/data", broker.config.store)
    for _ in rebuilding.rebuild(store, rebuilding.Rebuilt(), broker.now_ms):
        pass
    broker.start(broker.disk)
    assert broker.wired.broker.store.queues.problems == []


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]


def test_a_damaged_level_stands_still_and_the_others_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Clocked(SimulatedFileSystem())
    bodies = [b"late %d" % number for number in range(9)]
    for body in bodies:
        assert delayed(broker, body).code == ResponseCode.SUCCESS
    broker.wired.close()
    blank(broker.disk, LEVEL_QUEUE)
    for _ in range(2):
        caplog.clear()
        broker.start(broker.disk)
        assert delayed(broker, b"soon", 1).code == ResponseCode.SUCCESS
        refused = delayed(broker, b"refused")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "`cometmq store rebuild` rebuilds the queue" in (refused.remark or "")
        broker.pass_time(DELAY)
        assert broker.bodies()[-1] == b"soon"
        assert errors(caplog)[0].startswith(
            "delayed messages of level 2 are stuck, and no more are accepted: "
        )
        info = broker.ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert b"scheduleMessageOffset_1" in (info.body or b"")
        assert b"scheduleMessageOffset_2" not in (info.body or b"")
        assert broker.ask(Command.request(RequestCode.GET_ALL_DELAY_OFFSET)).code == 0
        broker.wired.close()
    broker.start(broker.disk)
    rebuilt(broker)
    broker.pass_time(DELAY)
    assert broker.bodies() == [b"soon", b"soon", *bodies]


def test_what_was_delivered_shortly_before_a_kill_is_not_delivered_again_behind_the_rebuild() -> (
    None
):
    broker = Clocked(SimulatedFileSystem())
    bodies = [b"late %d" % number for number in range(9)]
    for body in bodies:
        delayed(broker, body)
    broker.wired.close()
    broker.start(broker.disk)
    broker.pass_time(DELAY)
    assert broker.bodies() == bodies
    delayed(broker, b"soon", 1)
    disk = broker.disk.kill()
    blank(disk, LEVEL_QUEUE)
    broker.start(disk)
    broker.pass_time(DELAY)
    broker.wired.broker.flush_offsets()
    rebuilt(broker)
    broker.pass_time(DELAY)
    assert broker.bodies() == [*bodies, b"soon"]


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC])
def test_transactions_stand_still_and_all_else_does_not(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(SimulatedFileSystem())
    for number in range(9):
        assert shop.end(shop.half(b"%d" % number), COMMIT) == ResponseCode.SUCCESS
    waiting = shop.half(b"waits")
    shop.wired.close()
    blank(shop.disk, f"{topic}/0")
    for _ in range(2):
        caplog.clear()
        shop.start(shop.disk)
        (told,) = errors(caplog)
        assert told.startswith("transactions are stuck, and no new ones are accepted: ")
        assert shop.ask(send_request(TOPIC, b"plain")).code == ResponseCode.SUCCESS
        for request in (shop.half_request(b"refused"), shop.end_request(waiting, COMMIT)):
            refused = shop.ask(request)
            assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, told)
        peer = shop.join()
        shop.pass_time(TIMEOUT + INTERVAL)
        assert shop.asked(peer) == []
        shop.save()
        assert (topic, 0) in shop.wired.broker.store.queues.damaged
        shop.wired.close()
    shop.start(shop.disk)
    rebuilt(shop)
    assert shop.open_count == 1
    assert shop.end(waiting, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies() == [*(b"%d" % n for n in range(9)), b"plain", b"plain", b"waits"]


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC])
def test_an_end_that_a_kill_cut_in_two_is_found_behind_the_rebuild(topic: str) -> None:
    """The log has its message, but not its op message."""
    shop = Shop(SimulatedFileSystem())
    for number in range(9):
        shop.end(shop.half(b"%d" % number), COMMIT)
    half = shop.half(b"paid")
    shop.wired.close()
    shop.start(shop.disk)
    cut_off(shop, half)
    blank(shop.disk, f"{topic}/0")
    shop.start(shop.disk)
    shop.pass_time(TIMEOUT)
    shop.save()
    rebuilt(shop)
    shop.pass_time(TIMEOUT)
    assert shop.open_count == 0
    assert shop.bodies().count(b"paid") == 1


def cut_off(shop: Shop, half: Half) -> None:
    """End a transaction, and kill the broker after it writes the message, before the op message."""
    store = shop.wired.broker.store
    begin = store.end_offset
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    record = store.find_record(begin)
    assert isinstance(record, memoryview)
    size = len(record)
    segment = f"{FOLDER}/data/commitlog/{0:020d}"
    disk = shop.disk.kill()
    file = disk.open(segment)
    file.write(bytes(store.end_offset - begin - size), begin + size)
    file.sync()
    shop.disk = disk


def with_damaged_target() -> Clocked:
    """Start a broker whose queue T/0, with nine messages, is damaged."""
    broker = Clocked(SimulatedFileSystem())
    for number in range(9):
        put(broker, send_request("T", b"%d" % number))
    broker.wired.close()
    blank(broker.disk, "T/0")
    broker.start(broker.disk)
    return broker


def test_a_delayed_message_to_a_damaged_queue_waits_and_those_behind_it_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = with_damaged_target()
    for number in range(3):
        delayed(broker, b"before %d" % number)
        broker.ask(send_request("T", b"to T %d" % number, properties=f"DELAY\x01{LEVEL}\x02"))
        delayed(broker, b"behind %d" % number)
    expected = [b"%b %d" % (word, n) for n in range(3) for word in (b"before", b"behind")]
    broker.pass_time(DELAY)
    assert broker.bodies() == expected
    stuck = [each for each in errors(caplog) if "level 2 delivers nothing from message" in each]
    assert len(stuck) == 3
    broker.start(broker.disk.kill())
    broker.pass_time(DELAY)
    assert broker.bodies() == expected, "what was delivered is not delivered again"
    rebuilt(broker)
    broker.pass_time(DELAY)
    assert broker.bodies() == expected
    assert broker.bodies("T")[9:] == [b"to T %d" % number for number in range(3)]
    broker.start(broker.disk.kill())
    broker.pass_time(DELAY)
    assert len(broker.messages(topic="T")) == 12


def test_so_many_of_them_hold_their_level_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.delay_runs.RUNS_MAX", 3)
    broker = with_damaged_target()
    for number in range(5):
        broker.ask(send_request("T", b"to T %d" % number, properties=f"DELAY\x01{LEVEL}\x02"))
    delayed(broker, b"behind")
    broker.pass_time(DELAY)
    assert broker.bodies() == []
    rebuilt(broker)
    broker.pass_time(DELAY)
    assert broker.bodies() == [b"behind"]
    assert broker.bodies("T")[9:] == [b"to T %d" % number for number in range(5)]


def test_what_is_given_up_stays_where_it_was_if_the_queue_for_that_is_damaged() -> None:
    shop = Shop(SimulatedFileSystem())
    store = shop.wired.broker.store
    for _ in range(9):
        store.put(GIVEN_UP_TOPIC, 0, b"x", b"", ORIGIN)
    store.commit()
    shop.wired.sync()
    half = shop.half(b"never decided")
    shop.wired.close()
    blank(shop.disk, f"{GIVEN_UP_TOPIC}/0")
    shop.start(shop.disk)
    assert shop.open_count == 1
    shop.pass_time(200 * 3_600_000)
    assert shop.open_count == 0
    assert shop.end(half, COMMIT) == ResponseCode.ILLEGAL_OPERATION
