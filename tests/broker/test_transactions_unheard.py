"""Transactions without a producer to ask, and those that were given up and resumed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.broker.clocked import FOLDER, TOPIC
from tests.broker.running import config_of, send_request
from tests.broker.test_transactions import COMMIT, INTERVAL, ROLLBACK, TIMEOUT, Shop
from tests.broker.test_transactions_at_the_edge import full_disk
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.transaction_records import GIVEN_UP_TOPIC, GROUP, HALF_TOPIC
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import ResumeCheckHalfMessage
from cometmq.proto.properties import decode_properties

if TYPE_CHECKING:
    from types import FrameType


@pytest.fixture
def shop() -> Shop:
    return Shop(SimulatedFileSystem())


def test_whoever_comes_back_is_asked_about_what_waited_meanwhile(shop: Shop) -> None:
    halves = [shop.half(b"%d" % number) for number in range(200)]
    slow = shop.half(b"slow", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    for _ in range(10):
        shop.pass_time(INTERVAL)
    assert len(shop.messages(topic=HALF_TOPIC)) == len(halves) + 1
    shop.save()
    assert shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0) == 0
    assert shop.end(halves.pop(7), ROLLBACK) == ResponseCode.SUCCESS
    peer = shop.join()
    shop.pass_time(INTERVAL)
    asked = [half for half, _ in shop.asked(peer)]
    assert sorted(each.key for each in asked) == sorted(each.key for each in (*halves, slow))
    for half in asked:
        assert shop.end(half, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    shop.restart()
    assert shop.open_count == 0
    assert len(set(shop.bodies())) == len(shop.bodies()) == len(halves) + 1


def test_what_nobody_is_asked_about_does_not_have_a_start_read_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.transaction_table.SPAN_MAX", 50)
    stuck = shop.half(b"stuck")
    for number in range(200):
        shop.end(shop.half(b"%d" % number), ROLLBACK)
        shop.pass_time(INTERVAL)
    assert 201 < len(shop.messages(topic=HALF_TOPIC)) < 210
    shop.restart()
    progress = shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0)
    assert progress is not None
    assert progress >= 140
    assert shop.end(stuck, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"stuck"]


def test_what_nobody_is_asked_about_does_not_go_with_the_oldest_segment() -> None:
    config = config_of(FOLDER)
    store = replace(config.store, segment_size=64 << 10)
    shop = Shop(SimulatedFileSystem(), replace(config, store=store))
    half = shop.half(b"stuck")
    shop.pass_time(INTERVAL)
    assert len(shop.messages(topic=HALF_TOPIC)) == 1
    for _ in range(100):
        shop.ask(send_request(TOPIC, b"x" * 1000))
    shop.pass_time(INTERVAL)
    shop.pass_time(INTERVAL)
    (_, copy) = shop.messages(topic=HALF_TOPIC)
    assert copy.physical_offset > 64 << 10
    assert shop.end(half, ROLLBACK) == ResponseCode.SUCCESS


def resume(shop: Shop, offset_id: str) -> Command:
    request = ResumeCheckHalfMessage(offset_id)
    return shop.ask(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, request))


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_given_up_is_resumed_once_however_often_it_is_asked_for(
    shop: Shop, restarts: bool
) -> None:
    shop.wired.broker.configure(replace(shop.config, transaction_checks_max=1))
    peer = shop.join()
    shop.half(b"paid")
    shop.pass_time(TIMEOUT)
    shop.pass_time(INTERVAL)
    assert len(shop.asked(peer)) == 1
    (given_up,) = shop.messages(topic=GIVEN_UP_TOPIC)
    for _ in range(3):
        assert resume(shop, given_up.offset_id).code == ResponseCode.SUCCESS
        if restarts:
            shop.restart()
            peer = shop.join()
    assert shop.open_count == 1
    shop.pass_time(TIMEOUT)
    ((asked, _),) = shop.asked(peer)
    assert resume(shop, given_up.offset_id).code == ResponseCode.SUCCESS
    assert shop.end(asked, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    again = resume(shop, given_up.offset_id)
    assert again.code == ResponseCode.ILLEGAL_OPERATION
    assert "it was committed" in (again.remark or "")
    (message,) = shop.messages()
    assert "RESUMED_FROM" not in decode_properties(message.properties_raw)


def test_a_resumption_that_the_disk_refuses_can_be_asked_for_again(shop: Shop) -> None:
    shop.half(b"paid", born_timestamp=0)  # Too old to be asked about.
    shop.pass_time(TIMEOUT)
    (given_up,) = shop.messages(topic=GIVEN_UP_TOPIC)

    with full_disk(shop):
        assert resume(shop, given_up.offset_id).code != ResponseCode.SUCCESS
    assert shop.open_count == 0
    assert resume(shop, given_up.offset_id).code == ResponseCode.SUCCESS
    assert shop.open_count == 1


def lines_of_a_look(shop: Shop) -> int:
    """Return how many lines of Python a look at the due transactions runs, some time from now."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    shop.now_ms += INTERVAL
    before = sys.gettrace()
    sys.settrace(count)
    try:
        done = shop.wired.broker.transactions.step(shop.now_ms).done
    finally:
        sys.settrace(before)
    assert done == 1, "what is open was not asked about"
    return lines


def test_a_look_at_what_is_due_costs_the_same_however_many_are_over(shop: Shop) -> None:
    shop.join()
    shop.half(b"waits")
    found: list[int] = []
    for count in (10, 10, 1_000):
        for number in range(count):
            assert shop.end(shop.half(b"%d" % number), ROLLBACK) == ResponseCode.SUCCESS
        found.append(lines_of_a_look(shop))
    # The clock decides on a few lines. Looking at each ended one would add at least a thousand.
    assert abs(found[2] - found[1]) < 100
