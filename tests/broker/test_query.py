"""Finding messages by key, by unique key, by tag and by time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.running import config_of, send_request
from tests.broker.wired import Wired
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.handlers.query import QUERY_COUNT_MAX, UNIQUE_QUERY_COUNT
from cometmq.proto.bodies import UniqueKeys
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import FindUniqueKeys, QueryMessage, QueryMessageResponse
from cometmq.proto.message_list import MessageList

TOPIC = "BenchmarkTest"
MANY = QUERY_COUNT_MAX + 6
SECOND = 1_000


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    """A broker with many messages, a second apart, of one key, one unique key and two tags."""
    config = config_of(tmp_path)
    config = replace(config, store=replace(config.store, index_items=1_024))
    wired = Wired(config, SimulatedFileSystem())
    peer = wired.connect()
    for number in range(MANY):
        tag = "red" if number % 2 else "blue"
        properties = f"UNIQ_KEY\x01AB\x02KEYS\x01order k{number}\x02TAGS\x01{tag}\x02"
        request = send_request(TOPIC, b"%d" % number, properties=properties)
        wired.ask(peer, request).expect()
        wired.now_ms += SECOND
    yield wired
    wired.close()


def ask(wired: Wired, key: str, *, max_num: int = 1_000, **fields: Any) -> Command:
    header: dict[str, Any] = {"begin_timestamp": 0, "end_timestamp": 1 << 60, **fields}
    request = QueryMessage(topic=TOPIC, key=key, max_num=max_num, **header)
    return wired.ask(wired.connect(), Command.request(RequestCode.QUERY_MESSAGE, request))


def found(wired: Wired, key: str, **fields: Any) -> list[int]:
    answer = ask(wired, key, **fields).expect()
    return [int(message.body) for message in MessageList(bytes(answer.body or b""))]


def test_the_newest_come_first_and_as_many_as_are_asked_for(wired: Wired) -> None:
    assert found(wired, "k7") == [7]
    assert found(wired, "order", max_num=3) == [MANY - 1, MANY - 2, MANY - 3]


def test_more_than_the_most_are_never_given(wired: Wired) -> None:
    assert found(wired, "order") == list(range(MANY - 1, MANY - 1 - QUERY_COUNT_MAX, -1))


def test_of_a_unique_key_a_few_are_given_however_many_are_asked_for(wired: Wired) -> None:
    for asked in (1, 1_000):
        numbers = found(wired, "AB", max_num=asked, unique_key_query=True)
        assert numbers == list(range(MANY - 1, MANY - 1 - UNIQUE_QUERY_COUNT, -1))


def test_a_tag_is_looked_for_where_that_is_said(wired: Wired) -> None:
    assert found(wired, "red", index_type="T", max_num=2) == [MANY - 1, MANY - 3]
    assert ask(wired, "red").code == ResponseCode.QUERY_NOT_FOUND


def test_only_messages_of_the_time_are_given(wired: Wired) -> None:
    begin_ms = wired.now_ms - MANY * SECOND
    window = {"begin_timestamp": begin_ms + 5 * SECOND, "end_timestamp": begin_ms + 8 * SECOND}
    assert found(wired, "order", **window) == [8, 7, 6, 5]


def test_the_answer_says_where_the_newest_of_them_is(wired: Wired) -> None:
    answer = ask(wired, "k3").expect()
    (message,) = MessageList(bytes(answer.body or b""))
    said = answer.read(QueryMessageResponse)
    assert said.index_last_update_timestamp == message.store_timestamp
    assert said.index_last_update_phyoffset == message.physical_offset


def test_what_there_is_not_is_not_found(wired: Wired) -> None:
    answer = ask(wired, "nothing")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.read(QueryMessageResponse) == QueryMessageResponse(0, 0)
    for none in (0, -1):
        assert ask(wired, "order", max_num=none).code == ResponseCode.QUERY_NOT_FOUND


def test_a_broker_without_an_index_says_so_and_not_that_nothing_is_stored(tmp_path: Path) -> None:
    """A client that asks before it sends would otherwise send a second time."""
    config = config_of(tmp_path)
    wired = Wired(replace(config, store=replace(config.store, index=False)), SimulatedFileSystem())
    peer = wired.connect()
    header = QueryMessage(TOPIC, "key", 32, 0, 1 << 60)
    keys = UniqueKeys(keys=("AB",)).encode()
    for request in (
        Command.request(RequestCode.QUERY_MESSAGE, header),
        Command.request(RequestCode.FIND_UNIQUE_KEYS, FindUniqueKeys(TOPIC), body=keys),
    ):
        answer = wired.ask(peer, request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "index=false" in (answer.remark or "")
    wired.close()
