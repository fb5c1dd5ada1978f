"""A damaged message that clients reach is counted, and logged once, with its place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.broker.clocked import TOPIC, Clocked
from tests.broker.running import pull_request, send_request
from tests.broker.test_batch_topics import broker_with_batches
from tests.broker.test_damaged_messages import BODY, PLACES, flip
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.damage_met import LOOK_EVERY_MS, MESSAGES_MAX, PLACES_MAX, DamageMet
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import QueryMessage

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


def filled(*bodies: bytes) -> Clocked:
    broker = Clocked(SimulatedFileSystem())
    for body in bodies:
        request = send_request(TOPIC, body, properties="KEYS\x01k\x02")
        assert broker.ask(request).code == ResponseCode.SUCCESS
    return broker


def pull(broker: Clocked, offset: int = 0, **fields: Any) -> Command:
    broker.pass_time(LOOK_EVERY_MS)
    return broker.ask(pull_request(TOPIC, offset, **fields))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def count(broker: Clocked) -> int:
    return broker.wired.broker.state.damage.count()


@pytest.mark.parametrize("where", PLACES)
def test_a_client_that_comes_back_to_a_damaged_message_is_told_of_once(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = filled(b"before", BODY, b"behind")
    at = broker.wired.broker.store.queues.entries(TOPIC, 0, 1, 1)
    assert at is not None
    flip(broker.disk, where)
    for _ in range(5):
        pull(broker)
    (told,) = errors(caplog)
    assert told.startswith("message 1 of BenchmarkTest/0 is damaged, and a client came upon it: ")
    assert f"commitlog: at byte {at[0][0]}: " in told
    assert "`cometmq store verify /simulated/data`, beside the running broker" in told
    assert count(broker) == 1


def test_who_comes_back_to_what_is_sound_is_told_nothing_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(b"before", BODY, b"behind")
    for offset in (0, 0, 1, 0, 2, 1):
        pull(broker, offset)
    assert errors(caplog) == []
    assert count(broker) == 0


@pytest.mark.parametrize("offset", [0, 50, 99, 100, 250])
def test_who_begins_in_the_middle_of_a_batch_finds_no_damage(offset: int) -> None:
    damage = broker_with_batches(SimulatedFileSystem(), 3).broker.state.damage
    assert not damage.look("B", 0, offset)
    assert damage.count() == 0


def test_a_filter_that_cannot_read_a_message_has_its_place_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(b"before", BODY, b"behind")
    flip(broker.disk, "magic")
    for offset, code in enumerate((ResponseCode.SUCCESS, *[ResponseCode.SYSTEM_ERROR] * 3)):
        by_content = {"subscription": "a IS NULL", "expression_type": "SQL92", "sys_flag": 6}
        assert pull(broker, min(offset, 1), **by_content).code == code
    (told,) = errors(caplog)
    assert "message 1 of BenchmarkTest/0 is damaged" in told


def test_a_message_that_is_damaged_far_behind_the_place_is_found_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(*[b"%d" % number for number in range(MESSAGES_MAX + 2)], BODY)
    flip(broker.disk, "body")
    for _ in range(3):
        pull(broker, max_msg_nums=1000)
    (told,) = errors(caplog)
    assert f"message {MESSAGES_MAX + 2} of" in told


def test_a_damaged_message_that_is_found_by_its_key_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = filled(b"before", BODY, b"behind")
    broker.wired.sync()
    flip(broker.disk, "body")
    header = QueryMessage(
        topic=TOPIC, key="k", max_num=10, begin_timestamp=0, end_timestamp=broker.now_ms + 1
    )
    for _ in range(2):
        answer = broker.ask(Command.request(RequestCode.QUERY_MESSAGE, header))
        assert answer.code == ResponseCode.SUCCESS
    (told,) = errors(caplog)
    assert "a message is damaged, and a client came upon it: commitlog: at byte " in told
    pull(broker)
    pull(broker)
    assert len(errors(caplog)) == 1, "it is the same place"


def test_messages_are_looked_at_no_more_often_than_can_be_afforded() -> None:
    broker = filled(b"before", BODY)
    flip(broker.disk, "body")
    damage = broker.wired.broker.state.damage
    pull(broker)
    assert not damage.look(TOPIC, 0, 2), "there is none"
    broker.ask(pull_request(TOPIC))
    assert damage.count() == 0
    pull(broker)
    assert damage.count() == 1


def test_what_is_remembered_has_an_end_and_expires(caplog: pytest.LogCaptureFixture) -> None:
    class Store:
        first_offset = 0
        root = "/store"

    store = Store()
    damage = DamageMet(store, lambda: 0)  # type: ignore[arg-type]  # All that is asked of it here.
    record: Buffer = b"no record"
    for offset in range(PLACES_MAX + 10):
        damage.check(offset, record)
    assert damage.count() == PLACES_MAX
    assert len(errors(caplog)) == PLACES_MAX + 1
    store.first_offset = PLACES_MAX - 1
    assert damage.count() == 1
