"""Administrative requests for data that is only on the disk wait for it, and nobody else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.broker.captured import STORED_MS, fill
from tests.broker.running import PATIENCE_SECONDS, config_of, pull_request
from tests.broker.wired import Wired, WiredPeer
from tests.crash.disk import SimulatedFile, SimulatedFileSystem

from cometmq.broker.errors import RequestError
from cometmq.broker.handlers.reading import answered, answered_in_slices
from cometmq.broker.session import Session
from cometmq.net import Later
from cometmq.proto.bodies import ConsumeStats, KVTable, TopicConfig, TopicStats, UniqueKeys
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    FindUniqueKeys,
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeResponse,
    GetTopicStatsInfo,
    QueryConsumerOffset,
    QueryMessage,
)
from cometmq.proto.commands.consumer import ResetOffset
from cometmq.proto.commands.group import GetConsumeStats
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.message_list import MessageList
from cometmq.store.disk.cold import Cold
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from cometmq.broker.cold_reads import Fetched


@pytest.fixture
def disk() -> SimulatedFileSystem:
    return SimulatedFileSystem()


@pytest.fixture
def wired(tmp_path: Path, disk: SimulatedFileSystem) -> Iterator[Wired]:
    config = config_of(tmp_path, listen_port=21911)
    wired = Wired(replace(config, store=replace(config.store, hot_size=0)), disk)
    wired.broker.state.topics.put(TopicConfig(topic_name="T"), 0)
    wired.broker.state.groups.find_or_make("g", 0)
    fill(wired, "T", 0, 10)
    fill(wired, "T", 1, 3)
    wired.broker.state.offsets.commit("g", "T", 0, 4)
    wired.close()
    wired = Wired(replace(config, store=replace(config.store, hot_size=0)), disk)
    disk.is_cold = True
    assert isinstance(wired.broker.store.find_record(0), Cold)
    assert wired.broker.store.read("T", 0, 0, 1).cold
    yield wired
    disk.is_cold = False
    wired.close()


def ask_patiently(wired: Wired, request: Command, *, of: WiredPeer | None = None) -> Command:
    """Ask, run what the reading threads hand to the loop, and return the answer."""
    peer = of or wired.connect()
    wired.give(peer, wired.frame(peer, request))
    wired.save()
    answers = wired.answers(peer)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not answers and time.monotonic() < deadline:
        wired.turn()
        wired.save()
        answers = wired.answers(peer)
    (answer,) = answers
    return answer


def check_stats(answer: Command) -> None:
    table = TopicStats.decode(answer.body).offset_table
    times = {queue.queue_id: each.last_update_timestamp for queue, each in table.items()}
    assert (times[0], times[1], times[2]) == (STORED_MS + 9_000, STORED_MS + 2_000, 0)


def check_progress(answer: Command) -> None:
    table = ConsumeStats.decode(answer.body).offset_table
    assert {each.last_timestamp for each in table.values()} == {STORED_MS + 3_000, 0}


def check_earliest(answer: Command) -> None:
    assert answer.read(GetEarliestMsgStoretimeResponse).timestamp == STORED_MS


def check_runtime(answer: Command) -> None:
    assert KVTable.decode(answer.body).table["earliestMessageTimeStamp"] == str(STORED_MS)


def check_reset(answer: Command) -> None:
    assert b'"queueId":0,"topic":"T"}:3' in bytes(answer.body or b"")


def check_by_key(answer: Command) -> None:
    assert [bytes(each.body) for each in MessageList(bytes(answer.body or b""))] == [b"1", b"1"]


def check_empty(answer: Command) -> None:
    assert answer.body is None


BY_KEY = QueryMessage("T", "k", 9, 0, 1 << 60)
REQUESTS: dict[str, tuple[Command, Callable[[Command], None]]] = {
    "stats": (Command.request(Code.GET_TOPIC_STATS_INFO, GetTopicStatsInfo("T")), check_stats),
    "progress": (Command.request(Code.GET_CONSUME_STATS, GetConsumeStats("g")), check_progress),
    "earliest": (
        Command.request(Code.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoretime("T", 0)),
        check_earliest,
    ),
    "runtime": (Command.request(Code.GET_BROKER_RUNTIME_INFO), check_runtime),
    "reset": (
        Command.request(
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffset(topic="T", group="g", timestamp=STORED_MS + 2_500, is_force=True),
        ),
        check_reset,
    ),
    "by key": (Command.request(Code.QUERY_MESSAGE, BY_KEY), check_by_key),
    "sent back": (
        Command.request(
            Code.CONSUMER_SEND_MSG_BACK,
            ConsumerSendMsgBack(offset=0, group="g", delay_level=1, origin_topic="T"),
        ),
        check_empty,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_cold_is_fetched_before_the_answer(wired: Wired, name: str) -> None:
    request, check = REQUESTS[name]
    answer = ask_patiently(wired, request)
    assert answer.code == 0, answer.remark
    check(answer)


@pytest.mark.parametrize(
    ("request_", "folder"),
    [
        (Command.request(Code.QUERY_MESSAGE, BY_KEY), "/index/"),
        (
            Command.request(
                Code.FIND_UNIQUE_KEYS, FindUniqueKeys("T"), body=UniqueKeys(keys=("k",)).encode()
            ),
            "/index/",
        ),
    ],
    ids=["key", "unique keys"],
)
def test_the_loop_does_not_wait_for_the_disk(
    wired: Wired, monkeypatch: pytest.MonkeyPatch, request_: Command, folder: str
) -> None:
    loop = threading.current_thread()
    fetched: set[tuple[str, int, int]] = set()
    waited: list[tuple[str, int, int]] = []
    read = SimulatedFile.read

    def note(self: SimulatedFile, count: int, position: int) -> bytes:
        place = (self.path, position, count)
        if threading.current_thread() is not loop:
            fetched.add(place)
        elif folder in self.path and place not in fetched:
            waited.append(place)
        return read(self, count, position)

    monkeypatch.setattr(SimulatedFile, "read", note)
    assert ask_patiently(wired, request_).code == 0
    assert any(folder in path for path, _, _ in fetched)
    assert waited == []


def test_a_first_message_that_is_only_on_the_disk_is_not_where_a_new_group_begins(
    wired: Wired,
) -> None:
    request = Command.request(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("new", "T", 0))
    answer = ask_patiently(wired, request)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_what_is_sent_back_from_the_disk_is_put_without_another_request(wired: Wired) -> None:
    ask_patiently(wired, REQUESTS["sent back"][0])
    assert wired.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(ResponseCode.NO_PERMISSION, "not this one"), ResponseCode.NO_PERMISSION),
        (StoreFormatError("not this one"), ResponseCode.SYSTEM_ERROR),
        (OSError("not this one"), ResponseCode.SYSTEM_ERROR),
    ],
    ids=["refused", "damaged", "disk"],
)
@pytest.mark.parametrize("is_sliced", [False, True])
def test_what_is_refused_once_it_was_fetched_is_answered_too(
    wired: Wired, is_sliced: bool, error: Exception, code: ResponseCode
) -> None:
    def attempt(fetched: Fetched) -> Sequence[Cold]:
        if fetched:
            raise error
        found = wired.broker.store.find_record(0)
        assert isinstance(found, Cold)
        return [found]

    def in_slices(fetched: Fetched) -> Generator[None, None, Sequence[Cold]]:
        yield
        return attempt(fetched)

    def handle(request: Command, session: Session) -> Command | Later:
        if is_sliced:
            return answered_in_slices(request, session, in_slices)
        return answered(request, session, attempt)

    request = REQUESTS["earliest"][0]
    peer = wired.connect()
    peer.context.handlers = {request.code: handle}
    answer = ask_patiently(wired, request, of=peer)
    assert (answer.code, answer.remark) == (code, "not this one")
    assert wired.broker.state.traffic.refused[request.code, answer.code] == 1


def test_a_disk_that_fails_the_read_is_told_of(wired: Wired, disk: SimulatedFileSystem) -> None:
    disk.make_unreadable(f"{wired.broker.store.root}/commitlog/{0:020d}", 0, 1 << 20)
    answer = ask_patiently(wired, REQUESTS["earliest"][0])
    assert answer.code == 1
    assert (answer.remark or "").startswith("a read failed: ")


def test_a_pull_whose_queue_fails_once_something_was_fetched_is_answered_too(
    wired: Wired, disk: SimulatedFileSystem
) -> None:
    peer = wired.connect()
    wired.give(peer, wired.frame(peer, pull_request("T")))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not wired.soon and time.monotonic() < deadline:
        pass
    disk.make_unreadable(f"{wired.broker.store.root}/consumequeue/T/0/{0:020d}", 0, 1 << 20)
    (answer,) = wired.answers_of_threads(peer)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert wired.broker.state.traffic.refused[Code.PULL_MESSAGE, answer.code] == 1
