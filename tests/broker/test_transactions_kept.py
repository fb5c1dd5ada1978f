"""Half messages still in memory at their end give the same result as those read from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.broker.clocked import FOLDER
from tests.broker.running import config_of, send_request
from tests.broker.test_transactions import (
    CODECS,
    COMMIT,
    INTERVAL,
    ROLLBACK,
    SHOP,
    TIMEOUT,
    Half,
    Shop,
)
from tests.broker.test_transactions_at_the_edge import full_disk
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.handlers import transaction
from cometmq.broker.handlers.send_half import KEPT_SIZE_MAX
from cometmq.broker.transaction_records import OP_TOPIC
from cometmq.broker.transaction_table import KEPT
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.commands.topic import DeleteTopicInBroker
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.properties import decode_properties
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from cometmq.proto.command import HeaderCodec
    from cometmq.proto.message import StoredMessage


BEFORE = b"before"


class Ends(list[bool]):
    """For each end that came, whether everything that it needed was in memory."""

    is_blind = False
    """Whether to make the broker read each half message from its log."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    found, end_kept = Ends(), transaction.end_kept

    def noting(*arguments: Any) -> bool:
        done = not found.is_blind and end_kept(*arguments)
        found.append(done)
        return done

    monkeypatch.setattr(transaction, "end_kept", noting)
    return found


@pytest.fixture
def shop(ends: Ends) -> Shop:
    """A broker that has already stored messages like those of the tests."""
    shop = Shop(SimulatedFileSystem())
    prepare(shop, ends)
    return shop


def prepare(shop: Shop, ends: Ends) -> None:
    for _ in range(2):
        shop.end(shop.half(BEFORE), COMMIT)
    assert shop.bodies() == [BEFORE, BEFORE]
    ends.clear()


def bodies(shop: Shop) -> list[bytes]:
    """Return the bodies of the later messages."""
    return [body for body in shop.bodies() if body != BEFORE]


def compared(message: StoredMessage, half: Half) -> tuple[Any, ...]:
    return (
        message.properties_raw.replace(half.key.encode(), b"ID"),
        message.body,
        message.sys_flag,
        message.flag,
        message.born_timestamp,
        message.born_host,
        message.store_timestamp,
        message.reconsume_times,
        message.prepared_transaction_offset - half.physical_offset,
    )


@pytest.mark.parametrize("how", [COMMIT, ROLLBACK])
def test_an_end_from_memory_stores_what_one_from_the_log_does(
    shop: Shop, ends: Ends, how: int
) -> None:
    halves: list[Half] = []
    for is_blind in (True, False, True, False):
        ends.is_blind = is_blind
        halves.append(shop.half(b"paid", queue_id=1, flag=7))
        assert shop.end(halves[-1], how) == ResponseCode.SUCCESS
    assert ends == [False, True, False, True]
    messages = shop.messages(1)
    assert len(messages) == (4 if how == COMMIT else 0)
    stored = {compared(each, half) for each, half in zip(messages, halves, strict=False)}
    assert len(stored) <= 1
    ops = shop.messages(topic=OP_TOPIC)[-4:]
    assert [each.body for each in ops] == [b"%d," % half.offset for half in halves]
    assert len({each.properties_raw for each in ops}) == 1
    assert shop.open_count == 0


def test_what_ended_from_memory_is_over(shop: Shop, ends: Ends) -> None:
    paid, failed = shop.half(b"paid"), shop.half(b"failed")
    assert (shop.end(paid, COMMIT), shop.end(failed, ROLLBACK)) == (0, 0)
    for _ in range(2):
        assert (shop.end(paid, COMMIT), shop.end(failed, ROLLBACK)) == (0, 0)
        for half, other in ((paid, ROLLBACK), (failed, COMMIT)):
            assert shop.end(half, other) == ResponseCode.ILLEGAL_OPERATION
        shop.restart()
    assert (ends[:2], any(ends[2:])) == ([True, True], False)
    assert bodies(shop) == [b"paid"]


def test_a_stranger_ends_nothing_that_is_in_memory(shop: Shop, ends: Ends) -> None:
    half, other = shop.half(b"paid"), shop.half(b"other")
    for wrong in (half._replace(offset=other.offset), half._replace(physical_offset=1 << 40)):
        assert shop.end(wrong, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert shop.end(half, COMMIT, group="strangers") == ResponseCode.SYSTEM_ERROR
    assert (any(ends), bodies(shop), shop.open_count) == (False, [], 2)


def test_what_was_taken_back_is_not_what_is_committed_in_its_place(shop: Shop) -> None:
    with full_disk(shop):
        assert shop.ask(shop.half_request(b"no room")).code != ResponseCode.SUCCESS
    half = shop.half(b"much more than that", "KEYS\x01unlike\x02")  # Not put the quick way.
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(shop) == [b"much more than that"]


def test_a_half_message_that_names_a_place_of_its_own_goes_where_it_was_sent(shop: Shop) -> None:
    for _ in range(3):
        half = shop.half(b"paid", "REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x017\x02")
        assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(shop) == [b"paid"] * 3
    for message in shop.messages()[-3:]:
        assert not {"REAL_TOPIC", "REAL_QID"} & decode_properties(message.properties_raw).keys()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_an_end_that_the_disk_refuses_can_come_again(
    shop: Shop, ends: Ends, codec: HeaderCodec
) -> None:
    shop.codec = codec
    paid, failed = shop.half(b"paid"), shop.half(b"failed")
    refused = shop.wired.broker.state.traffic.refused
    with full_disk(shop):
        codes = [shop.end(paid, COMMIT), shop.end(failed, ROLLBACK)]
        assert ResponseCode.SUCCESS not in codes
    assert sum(refused[RequestCode.END_TRANSACTION, code] for code in set(codes)) == 2
    assert not any(code == RequestCode.SEND_MESSAGE_V2 for code, _ in refused)
    assert (shop.open_count, bodies(shop)) == (2, [])
    assert (shop.end(paid, COMMIT), shop.end(failed, ROLLBACK)) == (0, 0)
    assert (all(ends), bodies(shop)) == (True, [b"paid"])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_that_was_asked_about_is_read_from_the_log_again(
    shop: Shop, ends: Ends, which: int
) -> None:
    peer = shop.join()
    half = shop.half(b"paid")
    shop.pass_time(TIMEOUT)
    shop.pass_time(INTERVAL)
    told = [half, *(asked for asked, _ in shop.asked(peer))]
    assert len(told) == 3
    assert shop.end(told[which], COMMIT) == ResponseCode.SUCCESS
    assert (ends, bodies(shop)) == ([False], [b"paid"])


def test_two_ends_in_one_turn_are_one_from_memory_too(shop: Shop, ends: Ends) -> None:
    half = shop.half(b"paid")
    requests = [shop.end_request(half, how) for how in (COMMIT, COMMIT, ROLLBACK)]
    shop.wired.give(shop.peer, *(shop.wired.frame(shop.peer, each) for each in requests))
    answers = sorted(shop.wired.answers(shop.peer), key=lambda answer: answer.opaque)
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.ILLEGAL_OPERATION]
    assert (ends, bodies(shop)) == ([True, False, False], [b"paid"])


def test_the_newest_are_kept_and_large_ones_are_not(shop: Shop, ends: Ends) -> None:
    large = shop.half(b"x" * (KEPT_SIZE_MAX + 1))
    halves = [shop.half(b"%d" % number) for number in range(KEPT + 1)]
    table = shop.wired.broker.transactions.table
    kept = [opened for half in halves if (opened := table.find(half.offset)) and opened.kept]
    assert [opened.offset for opened in kept] == [half.offset for half in halves[1:]]
    assert [shop.end(half, COMMIT) for half in (large, *halves[:2])] == [0, 0, 0]
    assert ends == [False, False, True]
    assert bodies(shop) == [b"x" * (KEPT_SIZE_MAX + 1), b"0", b"1"]


def test_nobody_commits_what_is_not_written_yet(shop: Shop, ends: Ends) -> None:
    said = shop.ask(shop.half_request(b"now")).read(SendMessageResponse)
    place = decode_offset_id(said.msg_id).physical_offset
    size = shop.wired.broker.store.end_offset - place
    guessed = Half(place + size, said.queue_offset + 1, "")
    frames = [shop.half_request(b"new"), shop.end_request(guessed, COMMIT)]
    shop.wired.give(shop.peer, *(shop.wired.frame(shop.peer, each) for each in frames))
    codes = {answer.code for answer in shop.wired.answers(shop.peer)}
    assert codes == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    assert (ends, bodies(shop), shop.open_count) == ([False], [], 2)


def test_an_end_that_wants_no_answer_gets_none(shop: Shop, ends: Ends) -> None:
    request = shop.end_request(shop.half(b"paid"), COMMIT)
    frame = bytearray(shop.wired.frame(shop.peer, request))
    frame[:] = frame.replace(b'"flag":0', b'"flag":%d' % ONEWAY_FLAG)
    shop.wired.give(shop.peer, bytes(frame))
    assert shop.wired.answers(shop.peer) == []
    assert (ends, bodies(shop)) == ([True], [b"paid"])


def test_with_sync_flush_an_end_from_memory_waits_for_the_disk(ends: Ends) -> None:
    shop = Shop(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    prepare(shop, ends)
    halves = [shop.half(b"%d" % number) for number in range(3)]
    shop.wired.give(shop.peer, shop.wired.frame(shop.peer, shop.end_request(halves[2], COMMIT)))
    assert (ends, shop.wired.answers(shop.peer), bodies(shop)) == ([True], [], [])
    shop.wired.sync()
    assert [answer.code for answer in shop.wired.answers(shop.peer)] == [0]
    assert bodies(shop) == [b"2"]


def test_a_commit_into_a_topic_that_was_deleted_is_refused_from_memory_too(shop: Shop) -> None:
    said: list[SendMessageResponse] = []
    for number in range(3):
        mark = f"UNIQ_KEY\x01M{number}\x02TRAN_MSG\x01true\x02PGROUP\x01{SHOP}\x02"
        answer = shop.wired.ask(shop.peer, send_request("Mine", b"paid", properties=mark))
        said.append(answer.read(SendMessageResponse))
    half = Half(decode_offset_id(said[2].msg_id).physical_offset, said[2].queue_offset, "M2")
    opened = shop.wired.broker.transactions.table.find(half.offset)
    assert opened is not None
    assert opened.kept is not None
    request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker(topic="Mine"))
    assert shop.wired.ask(shop.peer, request).code == ResponseCode.SUCCESS
    assert shop.end(half, COMMIT) == ResponseCode.TOPIC_NOT_EXIST
    assert shop.open_count == 3
