"""The figures of topics and groups on the metrics page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.running import config_of, pull_request, send_request
from tests.broker.wired import Wired

from cometmq.broker.survey import Lag, Survey
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.commands.offset import UpdateConsumerOffset


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(config_of(tmp_path))
    yield wired
    wired.close()


def send(wired: Wired, topic: str, count: int, *, queue_id: int = 0) -> int:
    """Send some messages; return the time at which they were stored."""
    peer = wired.connect()
    for _ in range(count):
        answer = wired.ask(peer, send_request(topic, b"x", queue_id=queue_id))
        answer.read(SendMessageResponse)
    return wired.now_ms


def commit(wired: Wired, topic: str, offset: int, *, queue_id: int = 0, group: str = "g") -> None:
    peer = wired.connect()
    wired.ask(peer, pull_request(topic, queue_id=queue_id))  # This makes the group.
    header = UpdateConsumerOffset(group, topic, queue_id, offset)
    assert wired.ask(peer, Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def test_a_lag_is_what_is_left_and_how_old_its_oldest_is(wired: Wired) -> None:
    send(wired, "T", 3)
    wired.now_ms += 5_000
    second_ms = send(wired, "T", 2)
    send(wired, "T", 4, queue_id=1)
    commit(wired, "T", 3)
    commit(wired, "T", 4, queue_id=1)
    wired.now_ms += 7_000
    survey = Survey(wired.broker.state, 10)
    await survey.take()
    assert survey.lags == [(("g", "T"), Lag(2, wired.now_ms - second_ms))]
    assert survey.other_lag == 0
    assert survey.earliest_ms == second_ms - 5_000


async def test_who_has_consumed_everything_has_no_lag(wired: Wired) -> None:
    send(wired, "T", 3)
    commit(wired, "T", 3)
    wired.now_ms += 7_000
    survey = Survey(wired.broker.state, 10)
    await survey.take()
    assert survey.lags == [(("g", "T"), Lag(0, 0))]


async def test_messages_that_are_not_in_memory_are_looked_for_too(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config = replace(config, store=replace(config.store, hot_size=1))
    wired = Wired(config)
    stored_ms = send(wired, "T", 300)
    commit(wired, "T", 1)
    wired.now_ms += 1000
    survey = Survey(wired.broker.state, 10)
    await survey.take()
    assert survey.lags == [(("g", "T"), Lag(299, wired.now_ms - stored_ms))]
    assert survey.earliest_ms == stored_ms
    wired.close()


async def test_the_busiest_have_lines_and_the_others_share_one(wired: Wired) -> None:
    for number in range(1, 6):
        send(wired, f"T{number}", number)
        commit(wired, f"T{number}", 0)
    survey = Survey(wired.broker.state, 2)
    await survey.take()
    assert sorted((topic, flow.messages) for topic, flow in survey.put) == [("T4", 4), ("T5", 5)]
    assert survey.other_put.messages == 1 + 2 + 3
    assert sorted((key[1], lag.messages) for key, lag in survey.lags) == [("T4", 4), ("T5", 5)]
    assert survey.other_lag == 1 + 2 + 3


async def test_what_the_others_share_never_falls(wired: Wired) -> None:
    for name in ("a", "b", "c"):
        send(wired, name, 2)
    survey = Survey(wired.broker.state, 1)
    counted: list[int] = []
    for name in ("a", "b", "c", "b", "a", "c"):  # So that the busiest topic changes.
        send(wired, name, 5)
        await survey.take()
        counted.append(survey.other_put.messages)
        assert len(survey.put) == 1
    assert counted == sorted(counted)
    ((busiest, _),) = survey.put
    for name in ("a", "b", "c"):
        before = survey.other_put.messages
        send(wired, name, 1)
        await survey.take()
        assert survey.other_put.messages - before == (name != busiest)


async def test_a_topic_that_is_made_again_counts_from_nothing(wired: Wired) -> None:
    send(wired, "busy", 9)
    send(wired, "T", 5)
    survey = Survey(wired.broker.state, 1)
    await survey.take()
    assert survey.other_put.messages == 5
    wired.broker.state.topics.discard("T", wired.now_ms)
    await survey.take()
    send(wired, "T", 2)
    await survey.take()
    assert survey.other_put.messages == 7


async def test_a_topic_that_is_deleted_is_gone(wired: Wired) -> None:
    send(wired, "T", 3)
    survey = Survey(wired.broker.state, 100)
    await survey.take()
    assert "T" in dict(survey.put)
    wired.broker.state.topics.discard("T", wired.now_ms)
    await survey.take()
    assert "T" not in dict(survey.put)
