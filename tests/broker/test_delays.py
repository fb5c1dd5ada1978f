"""Delayed messages come when they are due: never early, never lost, never twice."""

from __future__ import annotations

import errno
import tracemalloc
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, pull_request, send_request
from tests.crash.disk import Moment, Operation, SimulatedFileSystem
from tests.store.cold_watch import Watch

from cometmq.broker.delay_runs import DelayRuns
from cometmq.broker.delays import LOOK_EVERY_MS, SLICE
from cometmq.broker.setting_aside import delay_level, set_aside
from cometmq.proto.codes import ResponseCode
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import decode_properties, encode_properties
from cometmq.store.config import Flush
from cometmq.store.log.turn import Origin
from cometmq.store.tables import DELAY_OFFSETS, TableFile

if TYPE_CHECKING:
    from cometmq.proto.command import Command
    from cometmq.store.queues.consume_queue import ConsumeQueue

SECOND, FIVE_SECONDS = 1_000, 5_000  # Levels 1 and 2.


def delayed(body: bytes, level: int, **fields: int) -> Command:
    properties = f"UNIQ_KEY\x01{body.hex().upper()}\x02DELAY\x01{level}\x02TAGS\x01red\x02"
    return send_request(TOPIC, body, properties=properties, **fields)


def send(broker: Clocked, body: bytes, level: int) -> ResponseCode:
    return ResponseCode(broker.ask(delayed(body, level)).code)


def test_a_message_comes_when_it_is_due_and_not_before() -> None:
    broker = Clocked(SimulatedFileSystem())
    assert send(broker, b"later", 2) is ResponseCode.SUCCESS
    broker.pass_time(FIVE_SECONDS - 1)
    assert broker.bodies() == []
    broker.pass_time(1)
    assert broker.bodies() == [b"later"]
    broker.pass_time(3_600_000)
    assert broker.bodies() == [b"later"], "it came twice"


def test_a_step_says_how_long_nothing_is_due() -> None:
    broker = Clocked(SimulatedFileSystem())
    step = broker.wired.broker.delays.step
    assert step(broker.now_ms).wait_ms == LOOK_EVERY_MS, "nothing waits"
    send(broker, b"later", 1)
    broker.pass_time(SECOND - 40)
    assert step(broker.now_ms).wait_ms == 40
    broker.pass_time(39)
    assert step(broker.now_ms).wait_ms == 1
    broker.pass_time(1)
    assert broker.bodies() == [b"later"]
    assert step(broker.now_ms).wait_ms == LOOK_EVERY_MS


def test_levels_at_which_nothing_waits_are_not_looked_at_before_anything_can_be_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise an idle broker would look a hundred times a second in vain."""
    broker = Clocked(SimulatedFileSystem())
    send(broker, b"first", 1)
    broker.pass_time(SECOND)
    queue_of, looks = DelayRuns.queue, 0

    def counted(runs: DelayRuns, queue_id: int) -> ConsumeQueue | None:
        nonlocal looks
        looks += queue_id == 0
        return queue_of(runs, queue_id)

    monkeypatch.setattr(DelayRuns, "queue", counted)
    for _ in range(10):
        broker.pass_time(SECOND // 10)
    assert looks == 1


@pytest.mark.parametrize("set_back_ms", [1, SECOND - 1, SECOND, 10 * SECOND])
def test_a_clock_that_was_set_back_puts_a_message_off_by_no_more_than_that(
    set_back_ms: int,
) -> None:
    broker = Clocked(SimulatedFileSystem())
    broker.pass_time(0)
    broker.pass_time(-set_back_ms)
    send(broker, b"later", 1)
    broker.pass_time(SECOND - 1)
    assert broker.bodies() == []
    broker.pass_time(1 + set_back_ms)
    assert broker.bodies() == [b"later"]


def test_what_the_disk_has_not_confirmed_yet_is_due_by_when_it_was_stored() -> None:
    broker = Clocked(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    broker.wired.give(broker.peer, broker.wired.frame(broker.peer, delayed(b"later", 1)))
    broker.now_ms += SECOND // 2
    assert broker.wired.broker.delays.step(broker.now_ms).done == 0
    broker.wired.sync()
    broker.wired.answers(broker.peer)
    broker.pass_time(SECOND // 2)
    assert broker.bodies() == [b"later"]


def test_what_comes_is_what_was_sent() -> None:
    broker = Clocked(SimulatedFileSystem())
    request = delayed(b"later", 1, queue_id=3, flag=7, born_timestamp=123, reconsume_times=2)
    assert broker.wired.ask(broker.peer, request).code == 0
    broker.pass_time(SECOND)
    (message,) = broker.messages(queue_id=3)
    assert (message.topic, message.queue_id, message.flag) == (TOPIC, 3, 7)
    assert (message.born_timestamp, message.reconsume_times) == (123, 2)
    assert message.store_timestamp == broker.now_ms
    properties = decode_properties(message.properties_raw)
    assert properties["TAGS"] == "red"
    assert (properties["DELAY"], properties["REAL_TOPIC"]) == ("1", TOPIC)
    red = broker.wired.ask(broker.peer, pull_request(TOPIC, queue_id=3, subscription="red"))
    assert red.code == ResponseCode.SUCCESS, "its tag is not in the queue's entry"


def test_messages_that_are_alike_come_as_the_first_of_them_does() -> None:
    """Those after the first are put the quick way."""
    broker = Clocked(SimulatedFileSystem())
    for number in range(4):
        properties = f"UNIQ_KEY\x01K{number}\x02DELAY\x011\x02TAGS\x01red\x02KEYS\x01k\x02"
        request = send_request(TOPIC, b"later", properties=properties, queue_id=1, flag=7)
        assert broker.ask(request).code == 0
    broker.pass_time(SECOND)
    messages = broker.messages(queue_id=1)
    found = [decode_properties(each.properties_raw) for each in messages]
    assert [each.pop("UNIQ_KEY") for each in found] == ["K0", "K1", "K2", "K3"]
    assert [each.pop("DELAYED_AT") for each in found] == ["0:0", "0:1", "0:2", "0:3"]
    assert all(each == found[0] for each in found)
    assert {(each.flag, each.sys_flag, each.body) for each in messages} == {(7, 0, b"later")}
    red = pull_request(TOPIC, queue_id=1, subscription="red")
    assert len(list(MessageList(broker.wired.ask(broker.peer, red).body))) == 4
    blue = pull_request(TOPIC, queue_id=1, subscription="blue")
    assert broker.wired.ask(broker.peer, blue).code != ResponseCode.SUCCESS
    broker.start(broker.disk.kill())
    broker.pass_time(SECOND)
    assert len(broker.messages(queue_id=1)) == 4


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_message_without_room_for_what_its_delivery_adds_is_refused(record_crc: bool) -> None:
    config = config_of(FOLDER)
    config = replace(config, store=replace(config.store, record_crc=record_crc))
    broker = Clocked(SimulatedFileSystem(), config)

    def send_padded(size: int) -> int:
        properties = "DELAY\x011\x02PAD\x01" + "x" * size + "\x02"
        return broker.ask(send_request(TOPIC, b"later", properties=properties)).code

    size = 32_767
    while send_padded(size) == ResponseCode.MESSAGE_ILLEGAL:
        size -= 1
    assert size > 32_000, "the room is for the broker's own properties"
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"later"]


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_message_with_a_checksum_in_its_properties_comes_once_over_a_kill(
    record_crc: bool,
) -> None:
    config = config_of(FOLDER)
    config = replace(config, store=replace(config.store, record_crc=record_crc))
    broker = Clocked(SimulatedFileSystem(), config)
    properties = "DELAY\x011\x02X\x01a\x00b\x02"  # A NUL gives the record a checksum.
    assert broker.ask(send_request(TOPIC, b"later", properties=properties)).code == 0
    broker.pass_time(SECOND)
    broker.start(broker.disk.kill())
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"later"]


def test_a_consumer_that_waits_is_woken_by_the_delivery() -> None:
    broker = Clocked(SimulatedFileSystem())
    send(broker, b"later", 1)
    pull = pull_request(TOPIC, sys_flag=6, suspend_timeout_millis=60_000)
    broker.wired.give(broker.peer, broker.wired.frame(broker.peer, pull))
    assert broker.wired.answers(broker.peer) == []
    broker.pass_time(SECOND)
    (answer,) = broker.wired.answers(broker.peer)
    assert [each.body for each in MessageList(answer.body)] == [b"later"]


def test_many_messages_of_all_levels_come_in_the_order_of_their_time() -> None:
    broker = Clocked(SimulatedFileSystem())
    rng = Random(7)
    due: list[tuple[int, int, bytes]] = []
    levels = broker.config.store.delay_levels_ms
    for number in range(600):
        level = rng.randint(1, 5)
        body = b"%d" % number
        assert send(broker, body, level) is ResponseCode.SUCCESS
        due.append((broker.now_ms + levels[level - 1], number, body))
        broker.pass_time(rng.choice([0, 0, 1, 40, 700]))
        arrived = broker.bodies()
        assert sorted(arrived) == sorted(body for at, _, body in due if at <= broker.now_ms)
    broker.pass_time(levels[4])
    assert len(broker.bodies()) == 600


@pytest.mark.parametrize("level", [-1, 0])
def test_a_level_below_one_is_no_delay(level: int) -> None:
    broker = Clocked(SimulatedFileSystem())
    assert send(broker, b"now", level) is ResponseCode.SUCCESS
    assert broker.bodies() == [b"now"]


def test_a_level_above_the_highest_is_the_highest() -> None:
    broker = Clocked(SimulatedFileSystem())
    assert send(broker, b"later", 99) is ResponseCode.SUCCESS
    broker.pass_time(7_199_999)
    assert broker.bodies() == []
    broker.pass_time(1)
    assert broker.bodies() == [b"later"]


@pytest.mark.parametrize("level", ["soon", "1_0", " 3", "1.5", "2147483648", "9" * 5_000])
def test_a_level_that_is_no_number_to_java_is_refused(level: str) -> None:
    broker = Clocked(SimulatedFileSystem())
    request = send_request(TOPIC, b"x", properties=f"DELAY\x01{level}\x02")
    answer = broker.wired.ask(broker.peer, request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "DELAY" in (answer.remark or "")
    assert broker.bodies() == []


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
def test_a_message_for_a_given_time_is_refused_and_not_delivered_at_once(name: str) -> None:
    broker = Clocked(SimulatedFileSystem())
    answer = broker.ask(send_request(TOPIC, b"x", properties=f"{name}\x015000\x02"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "not at a given time yet; its levels are 1, 5, 10, 30, 60, " in (answer.remark or "")
    broker.pass_time(FIVE_SECONDS)
    assert broker.bodies() == []


@pytest.mark.parametrize(("level", "queue_id"), [("+2", 1), ("19", 17), ("2147483647", 17)])
def test_a_level_beyond_the_last_is_the_last(level: str, queue_id: int) -> None:
    broker = Clocked(SimulatedFileSystem())
    request = send_request(TOPIC, b"x", properties=f"DELAY\x01{level}\x02")
    assert broker.wired.ask(broker.peer, request).code == ResponseCode.SUCCESS
    assert broker.wired.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", queue_id) == 1


def test_a_clock_that_was_set_back_makes_nothing_wait_for_longer_than_its_level() -> None:
    broker = Clocked(SimulatedFileSystem())
    send(broker, b"later", 1)
    broker.pass_time(-3_600_000)
    assert broker.bodies() == [b"later"]


def test_a_disk_that_refuses_delays_the_delivery_and_doubles_nothing() -> None:
    broker = Clocked(SimulatedFileSystem())
    for number in range(5):
        send(broker, b"%d" % number, 1)

    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    broker.disk.hook = refuse
    broker.pass_time(SECOND)
    assert broker.bodies() == []
    broker.disk.hook = None
    broker.pass_time(0)
    assert broker.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_that_are_cold_by_the_time_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(FOLDER)
    broker = Clocked(
        SimulatedFileSystem(), replace(config, store=replace(config.store, hot_size=0))
    )
    for number in range(100):
        send(broker, b"%d" % number, 1)
    broker.wired.close()
    broker.start(broker.disk)
    broker.disk.is_cold = True
    broker.now_ms += SECOND
    broker.wired.now_ms = broker.now_ms
    watch = Watch(monkeypatch)
    assert broker.wired.broker.delays.step(broker.now_ms).cold, "nothing was cold"
    assert broker.work() == 100
    assert [path for path, _ in watch.waited if "SCHEDULE" in path] == []
    broker.disk.is_cold = False
    assert len(broker.bodies()) == 100


def test_a_step_delivers_a_slice_and_each_message_into_its_own_queue() -> None:
    broker = Clocked(SimulatedFileSystem())
    for number in range(100):
        properties = f"UNIQ_KEY\x01K{number}\x02DELAY\x011\x02KEYS\x01k{number % 2}\x02"
        request = send_request(
            TOPIC, b"%d" % number, properties=properties, queue_id=number % 3, flag=number
        )
        assert broker.ask(request).code == 0
    broker.now_ms += SECOND
    broker.wired.now_ms = broker.now_ms
    assert broker.wired.broker.delays.step(broker.now_ms).done == SLICE
    assert broker.work() == 100 - SLICE
    for queue_id in range(3):
        found = [(each.body, each.flag, each.keys) for each in broker.messages(queue_id)]
        mine = range(queue_id, 100, 3)
        assert found == [(b"%d" % number, number, [f"k{number % 2}"]) for number in mine]


def test_a_delayed_message_that_waits_takes_no_memory_of_its_own() -> None:
    broker = Clocked(SimulatedFileSystem())

    def send_many(count: int) -> None:
        for _ in range(count):
            assert send(broker, b"later", 3) is ResponseCode.SUCCESS
        broker.pass_time(SECOND)
        while broker.wired.broker.store.tick(broker.now_ms):
            pass  # Indexes the keys, which wait in memory as any message's do.

    send_many(100)  # Allocates everything that is needed only once.
    tracemalloc.start()
    try:
        send_many(1_000)
        ours = tracemalloc.Filter(inclusive=True, filename_pattern="*/broker/cometmq/broker/*")
        found = tracemalloc.take_snapshot().filter_traces([ours]).statistics("lineno")
    finally:
        tracemalloc.stop()
    assert broker.bodies() == []
    assert sum(each.size for each in found) < 16 * 1_000, found[:5]


def test_a_delayed_message_whose_own_place_is_unreadable_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Clocked(SimulatedFileSystem())
    store = broker.wired.broker.store
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "no number"})
    store.put("SCHEDULE_TOPIC_XXXX", 0, b"lost", properties, Origin(broker.now_ms, 0, bytes(8)))
    store.commit()
    send(broker, b"later", 1)
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"later"]
    assert "REAL_TOPIC and REAL_QID do not say which queue it is for" in caplog.text


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ends_the_broker_each_message_comes_exactly_once(seed: int) -> None:
    rng = Random(seed)
    is_sync = bool(seed % 2)
    config = config_of(FOLDER, flush=Flush.SYNC if is_sync else Flush.ASYNC)
    broker = Clocked(SimulatedFileSystem(), config)
    sent: list[bytes] = []
    for number in range(120):
        body = b"%d" % number
        if send(broker, body, rng.randint(1, 2)) is ResponseCode.SUCCESS:
            sent.append(body)
        broker.pass_time(rng.choice([0, 10, 400, 2_000]))
        match rng.randint(0, 20):
            case 0 | 1:
                broker.wired.broker.flush_offsets()
                broker.wired.save()
            case 2:
                broker.wired.close()
                broker.start(broker.disk)
            case 3:
                broker.start(broker.disk.kill())
            case 4 if is_sync:  # With async flush, a power cut may take unsynced messages.
                broker.start(broker.disk.power_cut(rng))
            case _:
                pass
    broker.pass_time(FIVE_SECONDS)
    assert sorted(broker.bodies()) == sorted(sent), f"seed {seed}"


@pytest.mark.parametrize("flush", Flush)
def test_a_delivery_that_a_power_cut_takes_is_made_again(flush: Flush) -> None:
    """The file, saved between the delivery and its sync, must not claim the delivery as done."""
    counts: list[int] = []
    for seed in range(20):
        broker = Clocked(SimulatedFileSystem(), config_of(FOLDER, flush=flush))
        assert send(broker, b"later", 1) is ResponseCode.SUCCESS
        broker.wired.broker.store.tick(broker.now_ms)
        broker.wired.sync()  # With async flush, too, the message is on the disk by now.
        broker.now_ms = broker.wired.now_ms = broker.now_ms + SECOND
        assert broker.wired.broker.delays.step(broker.now_ms).done == 1
        broker.wired.broker.flush_offsets()
        broker.wired.save_tables()
        broker.start(broker.disk.power_cut(Random(seed)))
        counts.append(len(broker.bodies()))
        broker.pass_time(SECOND)
        assert broker.bodies() == [b"later"], f"seed {seed}"
    assert set(counts) == {0, 1}, "the delivery was never taken, or always"


def test_a_producer_cannot_make_a_restart_pass_messages_over() -> None:
    broker = Clocked(SimulatedFileSystem())
    send(broker, b"later", 1)
    for forged in ("0:0", "0:999999", "99:1", "x"):
        request = send_request(TOPIC, b"forged", properties=f"DELAYED_AT\x01{forged}\x02")
        assert broker.wired.ask(broker.peer, request).code == ResponseCode.SUCCESS
    broker.start(broker.disk.kill())
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"forged"] * 4 + [b"later"]


def test_the_file_is_apaches_with_a_member_of_ours() -> None:
    broker = Clocked(SimulatedFileSystem())
    send(broker, b"a", 1)
    send(broker, b"b", 2)
    broker.pass_time(SECOND)
    broker.wired.close()
    tree = TableFile(broker.disk, str(FOLDER / "data/config"), DELAY_OFFSETS).load().tree
    offsets = {int(level): offset for level, offset in tree["offsetTable"].items()}
    assert (offsets[1], offsets[2]) == (1, 0)
    assert tree["dataVersion"]


def test_setting_aside_drops_the_timers_and_keeps_the_rest() -> None:
    raw = encode_properties({"DELAY": "30", "TIMER_DELAY_SEC": "5", "KEYS": "k"})
    assert delay_level(raw) == 30
    aside = set_aside("t", 4, raw, 30, 18)
    assert aside.queue_id == 17
    assert decode_properties(aside.properties) == {
        "KEYS": "k",
        "DELAY": "18",
        "REAL_TOPIC": "t",
        "REAL_QID": "4",
    }
