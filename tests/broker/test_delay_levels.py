"""Delay levels change while messages wait: each message comes by the levels of its time."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, send_request
from tests.crash.disk import Moment, Operation, SimulatedFileSystem
from tests.store.records import refuse

from cometmq.proto.bodies import encode_settings
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.property_names import DELAY
from cometmq.store.checking.verify import verify
from cometmq.store.config import Flush
from cometmq.store.delay_levels import Change
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.findings import Report
from cometmq.store.looking.inspection import inspect, looking_at
from cometmq.store.tables import DELAY_OFFSETS, TableFile

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
CONFIG = str(FOLDER / "data/config")


def changing(levels: str) -> Command:
    body = encode_settings({"messageDelayLevel": levels})
    return Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)


def change(broker: Clocked, levels: str) -> ResponseCode:
    return ResponseCode(broker.ask(changing(levels)).code)


def configured(levels: tuple[int, ...], **settings: Any) -> BrokerConfig:
    config = config_of(FOLDER, **settings)
    return replace(config, store=replace(config.store, delay_levels_ms=levels))


def delayed(body: bytes, level: int) -> Command:
    key = f"UNIQ_KEY\x01{body.hex().upper()}"
    return send_request(TOPIC, body, properties=f"{key}\x02{DELAY}\x01{level}\x02")


def send(broker: Clocked, body: bytes, level: int = 1) -> None:
    assert broker.ask(delayed(body, level)).code == ResponseCode.SUCCESS


def test_a_level_that_was_made_shorter_holds_for_what_is_sent_from_then_on() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,)))
    send(broker, b"old")
    assert change(broker, "1s") is ResponseCode.SUCCESS
    send(broker, b"new")
    broker.pass_time(SECOND - 1)
    assert broker.bodies() == []
    broker.pass_time(1)
    assert broker.bodies() == [b"new"], "what is new does not wait behind what is old"
    broker.pass_time(HOUR - SECOND - 1)
    assert broker.bodies() == [b"new"], "the old one came early"
    broker.pass_time(1)
    assert broker.bodies() == [b"new", b"old"]
    broker.pass_time(HOUR)
    assert broker.bodies() == [b"new", b"old"], "one came twice"


def test_a_level_that_was_made_shorter_while_nothing_waited_holds_at_once() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,)))
    send(broker, b"old")
    broker.pass_time(HOUR)
    assert change(broker, "1s") is ResponseCode.SUCCESS
    broker.pass_time(0)
    send(broker, b"new")
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"old", b"new"]


def test_a_level_that_was_made_longer_leaves_what_waits_as_it_was() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((SECOND,)))
    send(broker, b"old")
    assert change(broker, "1h") is ResponseCode.SUCCESS
    send(broker, b"new")
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"old"]
    broker.pass_time(HOUR - SECOND - 1)
    assert broker.bodies() == [b"old"]
    broker.pass_time(1)
    assert broker.bodies() == [b"old", b"new"]


def test_what_waits_at_a_level_that_is_no_more_comes_when_it_is_due() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((SECOND, MINUTE, HOUR)))
    send(broker, b"third", 3)
    assert change(broker, "1s") is ResponseCode.SUCCESS
    send(broker, b"clamped", 3)
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"clamped"]
    broker.pass_time(HOUR - SECOND - 1)
    assert broker.bodies() == [b"clamped"]
    broker.pass_time(1)
    assert broker.bodies() == [b"clamped", b"third"]


def test_a_level_that_is_new_is_one_at_once() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((SECOND,)))
    assert change(broker, "1s 1m") is ResponseCode.SUCCESS
    send(broker, b"later", 2)
    broker.pass_time(MINUTE - 1)
    assert broker.bodies() == []
    broker.pass_time(1)
    assert broker.bodies() == [b"later"]


def test_what_came_before_the_change_in_one_turn_waits_as_its_sender_meant() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,)))
    body = encode_settings({"messageDelayLevel": "1s"})
    requests = [
        delayed(b"old", 1),
        Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=body),
        delayed(b"new", 1),
    ]
    frames = [broker.wired.frame(broker.peer, each) for each in requests]
    broker.wired.give(broker.peer, *frames)
    broker.wired.sync()
    assert {each.code for each in broker.wired.answers(broker.peer)} == {ResponseCode.SUCCESS}
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"new"]
    broker.pass_time(HOUR - SECOND)
    assert broker.bodies() == [b"new", b"old"]


@pytest.mark.parametrize("flush", Flush)
@pytest.mark.parametrize("is_killed", [False, True])
def test_over_a_restart_each_comes_when_it_is_due_and_once(is_killed: bool, flush: Flush) -> None:
    """After a kill, entries are rebuilt from the log with the delays of their time."""
    broker = Clocked(SimulatedFileSystem(), configured((HOUR, MINUTE), flush=flush))
    send(broker, b"old")
    change(broker, "1m 1m")
    send(broker, b"middle")
    change(broker, "1s 1m")
    for body in (b"a", b"b"):
        send(broker, body)
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"a", b"b"]
    send(broker, b"c")
    for levels in ((5 * SECOND,), (2 * HOUR,)):
        broker.config = configured(levels, flush=flush)
        if is_killed:
            broker.start(broker.disk.kill())
        else:
            broker.wired.close()
            broker.start(broker.disk)
        broker.pass_time(0)
        assert broker.bodies() == [b"a", b"b"]
        send(broker, b"%d" % levels)
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"a", b"b", b"c"]
    broker.pass_time(4 * SECOND)
    assert broker.bodies() == [b"a", b"b", b"c", b"5000"]
    broker.pass_time(MINUTE - 6 * SECOND - 1)
    assert broker.bodies() == [b"a", b"b", b"c", b"5000"]
    broker.pass_time(1)
    assert broker.bodies()[4:] == [b"middle"]
    broker.pass_time(HOUR - MINUTE - 1)
    assert broker.bodies()[5:] == []
    broker.pass_time(1)
    assert broker.bodies()[5:] == [b"old"]
    broker.pass_time(HOUR + SECOND)
    assert broker.bodies()[6:] == [b"7200000"]
    broker.pass_time(3 * HOUR)
    assert len(broker.bodies()) == 7


def test_apache_finds_the_offset_in_front_of_which_all_is_delivered() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,)))
    for body in (b"0", b"1"):
        send(broker, body)
    change(broker, "1s")
    send(broker, b"2")
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"2"]
    broker.wired.close()
    tree = TableFile(broker.disk, CONFIG, DELAY_OFFSETS).load().tree
    assert {int(level): offset for level, offset in tree["offsetTable"].items()} == {1: 0}
    broker.start(broker.disk)
    broker.pass_time(HOUR)
    broker.wired.close()
    tree = TableFile(broker.disk, CONFIG, DELAY_OFFSETS).load().tree
    assert {int(level): offset for level, offset in tree["offsetTable"].items()} == {1: 3}


def test_a_store_of_apaches_whose_levels_were_changed_delivers_nothing_early() -> None:
    """Such a store has no record of the changes, only the entries."""
    broker = Clocked(SimulatedFileSystem(), configured((SECOND, HOUR, HOUR)))
    for level in (1, 2, 3):
        send(broker, b"%d" % level, level)
    broker.wired.close()
    disk = broker.disk
    for path in (str(FOLDER / "data/delay_levels.json"), f"{CONFIG}/{DELAY_OFFSETS}"):
        disk.remove(path)
    broker.config = configured((SECOND, SECOND))
    broker.start(disk)
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"1"]
    broker.pass_time(HOUR - SECOND - 1)
    assert broker.bodies() == [b"1"]
    broker.pass_time(1)
    assert sorted(broker.bodies()) == [b"1", b"2", b"3"]


def test_the_offline_check_knows_which_delays_held_where() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,)))
    send(broker, b"old")
    change(broker, "1s")
    send(broker, b"new")
    broker.wired.close()
    store = inspect(broker.disk, str(FOLDER / "data"), config_of(FOLDER).store)
    report = Report(findings_max=10)
    for _ in verify(store, report):
        pass
    assert report.entries >= 2
    assert report.findings == []


def test_levels_that_cannot_be_noted_down_stay_as_they_were() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((MINUTE,)))

    def refuse(operation: Operation) -> None:
        if "delay_levels" in operation.path and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    broker.disk.hook = refuse
    assert change(broker, "1s") is ResponseCode.SYSTEM_ERROR
    send(broker, b"later")
    broker.pass_time(MINUTE - 1)
    assert broker.bodies() == []
    broker.pass_time(1)
    assert broker.bodies() == [b"later"]
    broker.disk.hook = None
    assert change(broker, "1s") is ResponseCode.SUCCESS
    send(broker, b"sooner")
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"later", b"sooner"]


@pytest.mark.parametrize("seed", range(8))
def test_no_change_begins_behind_what_a_power_cut_leaves_of_the_log(seed: int) -> None:
    """Apache's broker may start next, and write new messages before the change's place."""
    config = configured((HOUR,), flush=Flush.ASYNC)
    broker = Clocked(SimulatedFileSystem(), config)
    wired, peer = broker.wired, broker.peer
    for number in range(50):
        wired.give(peer, wired.frame(peer, delayed(b"old %d" % number, 1)))
    wired.give(peer, wired.frame(peer, changing("1s")))
    assert all(answer.code == ResponseCode.SUCCESS for answer in wired.answers(peer))
    left = broker.disk.power_cut(Random(seed))
    with looking_at(left, str(FOLDER / "data"), config.store) as store:
        scan = LogScan(store.segments, 0)
        assert len(list(scan)) == 50
        assert store.delay_levels.changes[-1] == Change(scan.end_offset, (SECOND,))


def test_levels_stay_as_they_were_where_the_log_cannot_be_synced() -> None:
    broker = Clocked(SimulatedFileSystem(), configured((HOUR,), flush=Flush.ASYNC))
    wired, peer = broker.wired, broker.peer
    wired.give(peer, wired.frame(peer, delayed(b"old", 1)))
    broker.disk.hook = refuse("sync")
    wired.give(peer, wired.frame(peer, changing("1s")))
    codes = [answer.code for answer in wired.answers(peer)]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
    assert wired.broker.store.delay_levels.current == (HOUR,)
    assert wired.broker.store.failure is not None


@pytest.mark.parametrize("levels", ["", "1s soon", "-5s", " ".join(["1s"] * 1_001)])
def test_levels_that_nobody_can_wait_for_are_refused(levels: str) -> None:
    broker = Clocked(SimulatedFileSystem(), configured((SECOND,)))
    assert change(broker, levels) is ResponseCode.INVALID_PARAMETER
    send(broker, b"later")
    broker.pass_time(SECOND)
    assert broker.bodies() == [b"later"]


def test_levels_that_are_changed_too_often_are_refused_until_messages_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.store.delay_levels.CHANGES_MAX", 3)
    broker = Clocked(SimulatedFileSystem(), configured((SECOND,)))
    codes: list[ResponseCode] = []
    for seconds in (2, 3, 4):
        send(broker, b"x")
        codes.append(change(broker, f"{seconds}s"))
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_changes_and_whatever_ends_the_broker_each_comes_in_time_and_once(
    seed: int,
) -> None:
    """In the model, a message is due by the delay that its level had when it was sent."""
    rng = Random(seed)
    flush = Flush.SYNC if seed % 2 else Flush.ASYNC
    config = configured((5 * SECOND, 60 * SECOND), flush=flush)
    broker = Clocked(SimulatedFileSystem(), config)
    levels, due = config.store.delay_levels_ms, dict[bytes, int]()
    for number in range(80):
        body, level = b"%d" % number, rng.randint(1, 3)
        send(broker, body, level)
        due[body] = broker.now_ms + levels[min(level, len(levels)) - 1]
        broker.pass_time(rng.choice([0, 10, 700, 8_000]))
        expected = sorted(body for body, at in due.items() if at <= broker.now_ms)
        assert sorted(broker.bodies()) == expected, f"seed {seed}, message {number}"
        match rng.randint(0, 12):
            case 0 | 1 | 2:
                seconds = [rng.choice([1, 5, 30, 60]) for _ in range(rng.randint(1, 4))]
                assert change(broker, " ".join(f"{each}s" for each in seconds)) == 0
                levels = tuple(each * SECOND for each in seconds)
            case 3:
                broker.wired.broker.flush_offsets()
                broker.wired.save()
            case 4 | 5 as end:
                broker.config = configured(levels, flush=flush)
                if end == 4:
                    broker.wired.close()
                broker.start(broker.disk if end == 4 else broker.disk.kill())
            case 6 if flush is Flush.SYNC:
                broker.config = configured(levels, flush=flush)
                broker.start(broker.disk.power_cut(rng))
            case _:
                pass
    broker.pass_time(MINUTE)
    assert sorted(broker.bodies()) == sorted(due), f"seed {seed}"
