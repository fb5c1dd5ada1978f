"""The lag of groups, and their throughput."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.captured import STORED_MS, beat, fill
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired, WiredPeer

from cometmq.proto.bodies import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumerData,
    ConsumeStats,
    ConsumeTimeSpans,
    KVTable,
    SubscriptionData,
    TopicConfig,
)
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import Command
from cometmq.proto.commands.admin import ViewBrokerStatsData
from cometmq.proto.commands.group import GetBrokerConsumeStats, GetConsumeStats
from cometmq.proto.commands.topic import GetTopicStatsInfo, QueryConsumeTimeSpan


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path, listen_port=21911))
    state = wired.broker.state
    for topic, order in (("T", True), ("U", False)):
        state.topics.put(
            TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, order=order), 0
        )
    fill(wired, "T", 0, 10)
    state.offsets.commit("g", "T", 0, 4)
    state.offsets.commit("g", "U", 1, 0)
    state.groups.find_or_make("g", 0)
    wired.save()
    yield wired
    wired.close()


@pytest.fixture
def peer(wired: Wired) -> WiredPeer:
    return wired.connect()


def stats(wired: Wired, peer: WiredPeer, **fields: Any) -> dict[tuple[str, int], tuple[int, ...]]:
    request = Command.request(Code.GET_CONSUME_STATS, GetConsumeStats("g", **fields))
    table = ConsumeStats.decode(wired.ask(peer, request).body).offset_table
    return {
        (queue.topic, queue.queue_id): (
            each.broker_offset, each.consumer_offset, each.pull_offset, each.last_timestamp
        )
        for queue, each in table.items()
    }  # fmt: skip


def test_a_group_is_shown_in_every_queue_of_its_topics(wired: Wired, peer: WiredPeer) -> None:
    wired.ask(peer, pull_request("T", 4, max_msg_nums=3))
    assert stats(wired, peer) == {
        ("T", 0): (10, 4, 7, STORED_MS + 3_000),
        ("T", 1): (0, 0, 0, 0),
        ("U", 0): (0, 0, 0, 0),
        ("U", 1): (0, 0, 0, 0),
    }


def test_the_rate_of_a_group_is_that_of_its_topics_together(wired: Wired, peer: WiredPeer) -> None:
    fill(wired, "U", 0, 6)
    wired.broker.tick(wired.now_ms)
    wired.ask(peer, pull_request("T"))
    wired.ask(peer, pull_request("U"))
    for _ in range(3):
        wired.now_ms += 10_000
        for _ in range(3):
            wired.broker.tick(wired.now_ms)
    rates = {
        topic: ConsumeStats.decode(
            wired.ask(
                peer, Command.request(Code.GET_CONSUME_STATS, GetConsumeStats("g", topic=topic))
            ).body
        ).consume_tps
        for topic in (None, "T", "U")
    }
    assert rates["T"] == pytest.approx(10 / 30, rel=0.5)
    assert rates["U"] == pytest.approx(rates["T"] * 6 / 10)
    assert rates[None] == pytest.approx(rates["T"] + rates["U"])


def test_a_group_that_is_there_is_shown_in_what_it_wants(wired: Wired, peer: WiredPeer) -> None:
    wanted = (SubscriptionData(topic="T"),)
    beat(wired, peer, "c", (ConsumerData(group_name="g", subscription_data_set=wanted),))
    wired.events(peer)
    assert {topic for topic, _ in stats(wired, peer)} == {"T"}
    assert stats(wired, peer, topic="U") == {}
    assert {topic for topic, _ in stats(wired, peer, topic_list="U;nope;")} == {"U"}


def test_groups_of_ordered_topics_are_shown_alone(wired: Wired, peer: WiredPeer) -> None:
    for is_order, topics in ((True, {"T"}), (False, {"T", "U"})):
        request = Command.request(Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(is_order))
        body = BrokerConsumeStats.decode(wired.ask(peer, request).body)
        found = {
            queue.topic
            for each in body.consume_stats_list
            for reached in each.get("g", ())
            for queue in reached.offset_table
        }
        assert found == topics
        assert (body.total_diff, body.total_inflight_diff) == (6, 0)


MANY = 1_500
WIDE = {
    "topic": Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("Wide")),
    "group": Command.request(Code.GET_CONSUME_STATS, GetConsumeStats("g", topic="Wide")),
    "all groups": Command.request(
        Code.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats(is_order=False)
    ),
    "times": Command.request(Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan("Wide", "g")),
}


@pytest.mark.parametrize("request_", WIDE.values(), ids=WIDE)
def test_who_asks_about_many_queues_lets_others_have_their_turn(
    wired: Wired, peer: WiredPeer, request_: Command
) -> None:
    state = wired.broker.state
    config = TopicConfig(topic_name="Wide", read_queue_nums=MANY, write_queue_nums=MANY)
    state.topics.put(config, 0)
    state.offsets.commit("g", "Wide", MANY - 1, 7)
    other = wired.connect()
    peer.data_received(wired.frame(peer, request_))
    other.data_received(wired.frame(other, pull_request("T", 4)))
    steps = 0
    while not peer.written:
        wired.soon.pop(0)()
        steps += 1
        assert other.written or steps == 1
    assert steps > 3
    (answer,) = wired.answers(peer)
    assert bytes(answer.expect().body or b"").count(b'"topic":"Wide"') == MANY


def test_for_who_is_gone_nobody_looks_further(wired: Wired, peer: WiredPeer) -> None:
    config = TopicConfig(topic_name="Wide", read_queue_nums=MANY, write_queue_nums=MANY)
    wired.broker.state.topics.put(config, 0)
    peer.data_received(wired.frame(peer, WIDE["topic"]))
    peer.gone("the test wants it")
    wired.turn()
    assert not peer.written


def test_the_times_of_a_queue_show_how_late_a_group_is(wired: Wired, peer: WiredPeer) -> None:
    wired.now_ms = STORED_MS + 60_000
    request = Command.request(
        Code.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan(topic="T", group="g")
    )
    first, second = ConsumeTimeSpans.decode(wired.ask(peer, request).body).consume_time_span_set
    assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp) == (
        STORED_MS, STORED_MS + 9_000, STORED_MS + 3_000
    )  # fmt: skip
    assert first.delay_time == 56_000
    assert (second.min_time_stamp, second.delay_time) == (-1, 0)


def stat(wired: Wired, peer: WiredPeer, name: str, key: str) -> BrokerStats | str | None:
    request = Command.request(Code.VIEW_BROKER_STATS_DATA, ViewBrokerStatsData(name, key))
    answer = wired.ask(peer, request)
    return answer.remark if answer.code else BrokerStats.decode(answer.body)


def test_what_goes_through_is_counted_by_topic_group_and_broker(
    wired: Wired, peer: WiredPeer
) -> None:
    wired.broker.tick(wired.now_ms)
    for _ in range(30):
        wired.ask(peer, send_request("fresh", b"x" * 100))
    wired.ask(peer, pull_request("fresh", max_msg_nums=10))
    for _ in range(8):
        wired.now_ms += 10_000
        for _ in range(3):
            wired.broker.tick(wired.now_ms)
    for name, key, total in (
        ("TOPIC_PUT_NUMS", "fresh", 30),
        ("GROUP_GET_NUMS", "fresh@g", 10),
        ("BROKER_PUT_NUMS", "DefaultCluster", 40),
        ("BROKER_GET_NUMS", "DefaultCluster", 10),
    ):
        found = stat(wired, peer, name, key)
        assert isinstance(found, BrokerStats), name
        assert found.stats_day.sum == total, name
        assert found.stats_hour.sum == total, name
    put = stat(wired, peer, "TOPIC_PUT_SIZE", "fresh")
    assert isinstance(put, BrokerStats)
    assert put.stats_day.sum == wired.broker.state.traffic.put["fresh"].size > 3_000
    assert put.stats_day.average_per_call == put.stats_day.sum / 30
    for name, key in (("TOPIC_PUT_NUMS", "U"), ("BROKER_PUT_NUMS", "other"), ("NOPE", "fresh")):
        assert stat(wired, peer, name, key) == f"The stats <{name}> <{key}> not exist"


def runtime(wired: Wired, peer: WiredPeer) -> dict[str, str]:
    answer = wired.ask(peer, Command.request(Code.GET_BROKER_RUNTIME_INFO))
    return KVTable.decode(answer.body).table


def test_the_runtime_info_says_what_the_broker_has_done(wired: Wired, peer: WiredPeer) -> None:
    wired.ask(peer, pull_request("T", 0, max_msg_nums=4))
    for _ in range(2):
        wired.ask(peer, pull_request("T", 10))
    wired.now_ms += 3_725_000
    wired.broker.expire_clients(wired.now_ms)
    table = runtime(wired, peer)
    assert table["runtime"] == "[ 0 days, 1 hours, 2 minutes, 5 seconds ]"
    assert (table["putMessageTimesTotal"], table["msgGetTotalTodayNow"]) == ("10", "4")
    assert table["commitLogMaxOffset"] == str(wired.broker.store.end_offset)
    assert table["earliestMessageTimeStamp"] == str(STORED_MS)
    assert table["brokerVersionDesc"] == "V5_5_0"
    assert float(table["putTps"]) == pytest.approx(10 / 3_725)
    rates = [float(table[f"get{kind}Tps"]) for kind in ("Transferred", "Found", "Miss", "Total")]
    assert rates == pytest.approx([4 / 3_725, 1 / 3_725, 2 / 3_725, 3 / 3_725])
    unsynced = wired.broker.store.end_offset - wired.broker.store.synced_offset
    assert unsynced > 0
    assert table["remainHowManyDataToFlush"] == f"{unsynced} B"
    assert table["putTps"].count(" ") == 0, "one span is known"


def test_rates_go_back_ten_seconds_a_minute_and_ten_minutes(wired: Wired, peer: WiredPeer) -> None:
    for number in range(61):
        if number == 60:
            wired.ask(peer, send_request("T", b"x"))
        wired.now_ms += 10_000
        wired.broker.expire_clients(wired.now_ms)
    last, minute, ten_minutes = map(float, runtime(wired, peer)["putTps"].split())
    assert (last, minute, ten_minutes) == pytest.approx((1 / 10, 1 / 60, 1 / 600))


def test_totals_of_two_midnights_are_kept(wired: Wired, peer: WiredPeer) -> None:
    day_ms = 86_400_000
    wired.now_ms += day_ms
    wired.broker.expire_clients(wired.now_ms)
    wired.ask(peer, send_request("T", b"x"))
    wired.now_ms += day_ms
    wired.broker.expire_clients(wired.now_ms)
    table = runtime(wired, peer)
    assert [table[f"msgPutTotal{moment}"] for moment in (
        "YesterdayMorning", "TodayMorning", "TodayNow"
    )] == ["10", "11", "11"]  # fmt: skip


def test_an_empty_broker_has_no_earliest_message(tmp_path: Path) -> None:
    wired = Wired(config_of(tmp_path / "empty", listen_port=21911))
    table = runtime(wired, wired.connect())
    assert (table["earliestMessageTimeStamp"], table["putTps"]) == ("-1", "0.0")
    wired.close()
