"""The counts of a broker's traffic, and the rates computed from them."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired
from tests.crash.disk import Moment, Operation, SimulatedFileSystem

from cometmq.broker.traffic import FLOWS_A_TICK, ROUND_MS, Flow, Traffic, Window
from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.store.config import Flush

TOPIC = "BenchmarkTest"


def traffic(flows_max: int = 1000) -> Traffic:
    return Traffic(flows_max=flows_max, now_ms=0)


def ticked(counted: Traffic, *times_ms: int) -> None:
    for time_ms in times_ms:
        counted.tick(time_ms)
        counted.tick(time_ms)  # The first tick may only have begun a round.


def test_a_rate_is_what_came_since_the_window_began() -> None:
    counted = traffic()
    flow = counted.put_flow("t")
    for round_number in range(1, 20):
        flow.take(10, 1000)
        ticked(counted, round_number * ROUND_MS)
    rate = flow.rate(Window.MINUTE, 19 * ROUND_MS)
    assert rate.seconds == 60
    assert (rate.messages, rate.size, rate.calls) == (60, 6000, 6)
    assert (rate.messages_per_second, rate.size_per_second) == (1, 100)


def test_a_rate_knows_what_came_since_the_last_round() -> None:
    counted = traffic()
    flow = counted.put_flow("t")
    flow.messages += 5
    ticked(counted, ROUND_MS)
    flow.messages += 7
    assert flow.rate(Window.MINUTE, ROUND_MS + 2000).messages == 12


@pytest.mark.parametrize(("window", "seconds"), [(Window.HOUR, 3600), (Window.DAY, 86_400)])
def test_long_windows_reach_as_far_back_as_they_say(window: Window, seconds: int) -> None:
    counted = traffic()
    flow = counted.put_flow("t")
    step_s = ROUND_MS // 1000
    rounds = 3 * seconds // step_s
    for round_number in range(1, rounds + 1):
        flow.messages += 1
        ticked(counted, round_number * ROUND_MS)
    rate = flow.rate(window, rounds * ROUND_MS)
    assert seconds <= rate.seconds <= seconds + window.step_ms / 1000
    assert rate.messages == pytest.approx(rate.seconds / step_s)


def test_a_flow_that_rests_has_no_rate() -> None:
    counted = traffic()
    flow = counted.put_flow("t")
    assert flow.rate(Window.MINUTE, 5).messages_per_second == 0
    flow.messages = 100
    for round_number in range(1, 20):
        ticked(counted, round_number * ROUND_MS)
    assert flow.rate(Window.MINUTE, 19 * ROUND_MS).messages_per_second == 0
    assert flow.rate(Window.HOUR, 19 * ROUND_MS).messages == 100


def test_a_tick_notes_no_more_than_its_slice() -> None:
    counted = traffic(10 * FLOWS_A_TICK)
    flows = [counted.put_flow(str(n)) for n in range(3 * FLOWS_A_TICK)]
    for flow in flows:
        flow.messages = 1
    counted.tick(ROUND_MS)

    def noted() -> int:
        return sum([bool(flow.rate(Window.MINUTE, ROUND_MS + 1).seconds) for flow in flows])

    assert noted() == 0
    for done in (FLOWS_A_TICK - 2, 2 * FLOWS_A_TICK - 2, 3 * FLOWS_A_TICK - 2):  # And two sums.
        counted.tick(ROUND_MS)
        assert noted() == done
    counted.tick(ROUND_MS)
    assert noted() == len(flows)


def test_flows_beyond_the_limit_share_one() -> None:
    counted = traffic(2)
    first, second = counted.put_flow("a"), counted.put_flow("b")
    assert first is not second
    assert counted.put_flow("c") is counted.other
    assert counted.put_flow("a") is first
    assert counted.got_flow("c", "g") is not counted.other


def test_the_sums_keep_what_was_deleted() -> None:
    counted = traffic()
    counted.put_flow("a").take(1, 10)
    counted.put_flow("b").take(2, 20)
    for topic, group in itertools.product("ab", "gh"):
        counted.got_flow(topic, group).take(3, 30)
    counted.forget_topic("a")
    counted.forget_group("h")
    counted.sum_up()
    assert set(counted.put) == {"b"}
    assert set(counted.got) == {("b", "g")}
    assert (counted.all_put.messages, counted.all_put.size, counted.all_put.calls) == (3, 30, 2)
    assert (counted.all_got.messages, counted.all_got.size) == (12, 120)


# Counted where it happens


def test_sends_batches_and_pulls_are_counted(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    for _ in range(3):
        wired.ask(peer, send_request(TOPIC, b"x" * 100))
    body = encode_batch(TOPIC, [BatchItem(b"y" * 100, b"") for _ in range(4)])
    wired.ask(peer, send_request(TOPIC, body, code=320, batch=True))
    wired.ask(peer, pull_request(TOPIC))
    counted = wired.broker.state.traffic
    put, got = counted.put[TOPIC], counted.got[TOPIC, "g"]
    assert (put.messages, put.calls) == (7, 4)
    assert (got.messages, got.calls) == (7, 1)
    assert put.size == got.size == wired.broker.store.end_offset
    assert counted.send_durations.count == 4
    assert counted.pull_durations.count == 1
    wired.close()


def test_a_pull_that_was_held_has_no_duration(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    held = pull_request(TOPIC, sys_flag=6, suspend_timeout_millis=15_000)
    wired.give(peer, wired.frame(peer, held))
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"x")))
    assert [answer.code for answer in wired.answers(peer)] == [0, 0]
    counted = wired.broker.state.traffic
    assert counted.got[TOPIC, "g"].messages == 1
    assert counted.pull_durations.count == 0
    wired.close()


def test_a_topic_that_is_changed_goes_on_counting(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path))
    peer = wired.connect()
    wired.ask(peer, send_request(TOPIC, b"x"))
    topics = wired.broker.state.topics
    topic = topics.find(TOPIC)
    assert topic is not None
    assert topics.put(topic.config, wired.now_ms).flow is topic.flow
    wired.close()


def test_refusals_are_counted_by_what_was_asked_and_said(tmp_path: Path) -> None:
    disk = SimulatedFileSystem()
    wired = Wired(config_of(tmp_path, flush=Flush.SYNC), disk, threads=False)
    peer = wired.connect()
    wired.ask(peer, send_request("SCHEDULE_TOPIC_XXXX", b"x"))
    wired.ask(peer, pull_request("nowhere"))

    def refuse(operation: Operation) -> None:
        if "commitlog" in operation.path and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    disk.hook = refuse
    unhurried = send_request(TOPIC, b"x", properties="WAIT\x01false\x02")
    wired.give(peer, wired.frame(peer, send_request(TOPIC, b"x")), wired.frame(peer, unhurried))
    disk.hook = None
    send = int(RequestCode.SEND_MESSAGE_V2)
    assert wired.broker.state.traffic.refused == {
        (send, int(ResponseCode.NO_PERMISSION)): 1,
        (int(RequestCode.PULL_MESSAGE), int(ResponseCode.TOPIC_NOT_EXIST)): 1,
        (send, int(ResponseCode.SERVICE_NOT_AVAILABLE)): 2,
    }
    wired.close()


def test_a_flow_of_single_messages_counts_a_call_each() -> None:
    flow = Flow()
    flow.messages += 3
    assert flow.calls == 3
