"""Transactions: nothing is readable before its commit, and a commit is one message."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from msgspec import structs
from tests.broker.clocked import FOLDER, TOPIC, Clocked
from tests.broker.running import config_of, pull_request, send_request
from tests.crash.disk import Killed, Moment, Operation, Partial, SimulatedFileSystem

from cometmq.broker.handlers.send_half import send_half_alike
from cometmq.broker.transaction_records import (
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    Outcome,
    op_messages,
    read_op,
)
from cometmq.proto.bodies import HeartbeatData, ProducerData, TopicConfig
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.commands import (
    CheckTransactionState,
    EndTransaction,
    ResumeCheckHalfMessage,
    SendMessageResponse,
)
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.message import read_message
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.message_list import MessageList
from cometmq.proto.properties import decode_properties
from cometmq.proto.sysflag import SysFlag
from cometmq.store.config import Flush

if TYPE_CHECKING:
    from tests.broker.wired import WiredPeer

    from cometmq.proto.command import HeaderCodec
    from cometmq.proto.message import StoredMessage

CODECS: list[HeaderCodec] = [JSON, MESSAGEPACK, ROCKETMQ]
COMMIT, ROLLBACK = TransactionEnd.COMMIT, TransactionEnd.ROLLBACK
TIMEOUT, INTERVAL = 6_000, 30_000
SHOP = "shop"


class Half(NamedTuple):
    """A half message as its producer knows it."""

    physical_offset: int
    offset: int
    key: str


class Shop(Clocked):
    """A broker, and the actions of producers of transactions."""

    key_count = 0
    is_java = False
    """Whether the producers write a half message's mark before its unique id."""
    codec: HeaderCodec = JSON
    """The codec of the producers' half messages and ends."""

    def half_request(self, body: bytes, more: str = "", **fields: int) -> Command:
        self.key_count += 1
        # The unique id is where clients put it, so that half messages alike take the quick way.
        pairs = [f"UNIQ_KEY\x01K{self.key_count}\x02", "TRAN_MSG\x01true\x02"]
        properties = "".join(reversed(pairs) if self.is_java else pairs)
        properties += f"PGROUP\x01{SHOP}\x02TAGS\x01red\x02{more}"
        values = {"sys_flag": 4, "born_timestamp": self.now_ms, **fields}
        request = send_request(TOPIC, body, properties=properties, **values)
        return structs.replace(request, codec=self.codec)

    def half(self, body: bytes, more: str = "", **fields: int) -> Half:
        answer = self.ask(self.half_request(body, more, **fields))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        said = answer.read(SendMessageResponse)
        assert said.transaction_id is not None
        physical_offset = decode_offset_id(said.msg_id).physical_offset
        return Half(physical_offset, said.queue_offset, said.transaction_id)

    def end_request(
        self, half: Half, how: int, *, group: str = SHOP, is_answer: bool = False
    ) -> Command:
        header = EndTransaction(
            group,
            half.offset,
            half.physical_offset,
            int(how),
            half.key,
            from_transaction_check=is_answer,
        )
        return Command.request(RequestCode.END_TRANSACTION, header, codec=self.codec)

    def end(self, half: Half, how: int, *, group: str = SHOP, is_answer: bool = False) -> int:
        return self.ask(self.end_request(half, how, group=group, is_answer=is_answer)).code

    def join(self, group: str = SHOP, client_id: str = "c1") -> WiredPeer:
        peer = self.wired.connect()
        data = HeartbeatData(
            client_id=client_id, producer_data_set=(ProducerData(group_name=group),)
        )
        request = Command.request(RequestCode.HEART_BEAT, body=data.encode())
        assert self.ask(request, peer).code == ResponseCode.SUCCESS
        return peer

    def asked(self, peer: WiredPeer) -> list[tuple[Half, StoredMessage]]:
        """Take the questions that a producer got."""
        found: list[tuple[Half, StoredMessage]] = []
        for event in self.wired.events(peer):
            assert isinstance(event, Command)
            assert event.code == RequestCode.CHECK_TRANSACTION_STATE
            assert event.flag & ONEWAY_FLAG
            header = event.read(CheckTransactionState)
            half = Half(
                header.commit_log_offset, header.tran_state_table_offset, header.msg_id or ""
            )
            found.append((half, read_message(bytes(event.body or b""))))
        return found

    def save(self) -> None:
        """Save all progress, as the broker does every few seconds."""
        self.wired.broker.flush_offsets()
        self.wired.save()

    def restart(self) -> None:
        """Shut down in order, and start."""
        self.wired.close()
        self.start(self.disk)

    @property
    def open_count(self) -> int:
        return self.wired.broker.transactions.table.count


@pytest.fixture
def shop() -> Shop:
    return Shop(SimulatedFileSystem())


def test_a_message_comes_with_its_commit_and_not_before(shop: Shop) -> None:
    half = shop.half(b"paid", queue_id=0, flag=7, reconsume_times=0)
    assert shop.bodies() == []
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    (message,) = shop.messages()
    assert (message.body, message.flag, message.sys_flag) == (b"paid", 7, 8)
    assert message.prepared_transaction_offset == half.physical_offset
    properties = decode_properties(message.properties_raw)
    assert properties["UNIQ_KEY"] == properties["__transactionId__"] == half.key
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", SHOP)
    assert not {"REAL_TOPIC", "REAL_QID", "TRAN_PREPARED_QUEUE_OFFSET"} & properties.keys()
    assert shop.open_count == 0


@pytest.mark.parametrize("is_java", [False, True])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_quick_way_stores_what_the_careful_one_does(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, is_java: bool, codec: HeaderCodec
) -> None:
    shop.is_java, shop.codec = is_java, codec
    taken: list[bool] = []

    def noting(*args: Any) -> Any:
        found = send_half_alike(*args)
        taken.append(found is not None)
        return found

    monkeypatch.setattr("cometmq.broker.handlers.send.send_half_alike", noting)
    for number in range(3):
        half = shop.half(b"%d" % number, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", queue_id=1)
        assert half.key == f"K{number + 1}"
        assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    assert taken == [True, True]
    for topic, queue_id in ((HALF_TOPIC, 0), (TOPIC, 1)):
        records = [
            (
                decode_properties(each.properties_raw.replace(b"K%d" % (number + 1), b"K")),
                *(each.sys_flag, each.queue_id, each.born_timestamp, each.store_timestamp),
                *(each.body.replace(b"%d" % number, b"n"), each.flag, each.tags),
            )
            for number, each in enumerate(shop.messages(queue_id, topic))
        ]
        assert len(records) == 3
        assert records[0] == records[1] == records[2]
    tagged = shop.ask(pull_request(TOPIC, queue_id=1, subscription="red"))
    assert len(list(MessageList(tagged.body))) == 3
    assert shop.ask(pull_request(TOPIC, queue_id=1, subscription="blue")).code != 0
    peer = shop.join()
    slow = shop.half(b"3", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    shop.pass_time(59_999)
    assert shop.asked(peer) == []
    shop.pass_time(1)
    assert [each.key for each, _ in shop.asked(peer)] == [slow.key]


def test_a_message_that_is_rolled_back_never_comes(shop: Shop) -> None:
    half = shop.half(b"not paid")
    assert shop.end(half, ROLLBACK) == ResponseCode.SUCCESS
    peer = shop.join()
    shop.pass_time(10 * INTERVAL)
    assert (shop.bodies(), shop.asked(peer)) == ([], [])


def test_an_end_that_comes_again_is_answered_as_the_first(shop: Shop) -> None:
    paid, failed = shop.half(b"paid"), shop.half(b"failed")
    for _ in range(3):
        assert shop.end(paid, COMMIT) == ResponseCode.SUCCESS
        assert shop.end(failed, ROLLBACK) == ResponseCode.SUCCESS
    for _ in range(2):
        assert shop.end(paid, ROLLBACK) == ResponseCode.ILLEGAL_OPERATION
        assert shop.end(failed, COMMIT) == ResponseCode.ILLEGAL_OPERATION
        shop.restart()
    assert shop.bodies() == [b"paid"]


def test_two_ends_in_one_turn_are_one(shop: Shop) -> None:
    paid, failed = shop.half(b"paid"), shop.half(b"failed")
    frames = [
        shop.wired.frame(shop.peer, shop.end_request(half, how))
        for half, how in (
            (paid, COMMIT), (paid, COMMIT), (paid, ROLLBACK), (failed, ROLLBACK), (failed, COMMIT)
        )
    ]  # fmt: skip
    shop.wired.give(shop.peer, *frames)
    answers = sorted(shop.wired.answers(shop.peer), key=lambda answer: answer.opaque)
    refused = ResponseCode.ILLEGAL_OPERATION
    assert [answer.code for answer in answers] == [0, 0, refused, 0, refused]
    assert shop.bodies() == [b"paid"]


def test_with_sync_flush_a_second_commit_is_answered_when_the_first_is_safe() -> None:
    shop = Shop(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    half = shop.half(b"paid")
    for _ in range(2):
        shop.wired.give(shop.peer, shop.wired.frame(shop.peer, shop.end_request(half, COMMIT)))
        assert shop.wired.answers(shop.peer) == []
    shop.wired.sync()
    assert [answer.code for answer in shop.wired.answers(shop.peer)] == [0, 0]
    assert shop.bodies() == [b"paid"]


def test_ends_that_fit_no_transaction_have_apaches_codes(shop: Shop) -> None:
    half = shop.half(b"paid")
    plain = shop.ask(send_request(TOPIC, b"plain")).read(SendMessageResponse)
    assert shop.end(half, COMMIT, group="strangers") == ResponseCode.SYSTEM_ERROR
    for wrong, remark in (
        (half._replace(physical_offset=1 << 40), "Find prepared transaction message failed"),
        (half._replace(physical_offset=-1), "Find prepared transaction message failed"),
        (half._replace(offset=7), "The transaction state table offset wrong"),
        (
            Half(decode_offset_id(plain.msg_id).physical_offset, plain.queue_offset, ""),
            "The producer group wrong",
        ),
    ):
        answer = shop.ask(shop.end_request(wrong, COMMIT))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert shop.bodies() == [b"plain"]
    assert shop.open_count == 1


def test_a_message_that_only_says_it_is_a_half_cannot_be_committed(shop: Shop) -> None:
    properties = f"PGROUP\x01{SHOP}\x02REAL_TOPIC\x01{TOPIC}\x02REAL_QID\x010\x02"
    said = shop.ask(send_request(TOPIC, b"forged", properties=properties)).read(SendMessageResponse)
    forged = Half(decode_offset_id(said.msg_id).physical_offset, said.queue_offset, "")
    assert shop.end(forged, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert shop.bodies() == [b"forged"]


def test_flags_of_a_transaction_make_no_message_one_of_it(shop: Shop) -> None:
    """Only properties do. Neither the first send nor similar later ones keep such flags."""
    flags = int(SysFlag.TRANSACTION_COMMITTED | SysFlag.COMPRESSED)
    for number in range(3):
        properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
        shop.ask(send_request(TOPIC, b"x", properties=properties, sys_flag=flags)).expect()
    assert [each.sys_flag for each in shop.messages()] == [SysFlag.COMPRESSED] * 3


def test_who_does_not_know_yet_is_answered_and_asked_later(shop: Shop) -> None:
    peer = shop.join()
    half = shop.half(b"paid")
    assert shop.end(half, TransactionEnd.UNKNOWN) == ResponseCode.SUCCESS
    assert shop.peer.in_flight == 0
    shop.pass_time(TIMEOUT)
    assert len(shop.asked(peer)) == 1


@pytest.mark.parametrize(
    "more", ["DELAY\x013\x02", "TIMER_DELAY_SEC\x0110\x02", "TIMER_DELIVER_MS\x011\x02"]
)
def test_a_delayed_half_message_is_refused(shop: Shop, more: str) -> None:
    answer = shop.ask(shop.half_request(b"x", more))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "delayed" in (answer.remark or "")


def test_a_half_message_to_a_batch_topic_is_refused(shop: Shop) -> None:
    attributes = {"queue.type": "BatchCQ"}
    shop.wired.broker.state.topics.put(TopicConfig(topic_name="B", attributes=attributes), 0)
    shop.wired.save()
    properties = f"UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01{SHOP}\x02"
    answer = shop.ask(send_request("B", b"x", properties=properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert shop.open_count == 0


def test_a_committed_message_that_comes_back_is_no_half_message(shop: Shop) -> None:
    answer = shop.ask(shop.half_request(b"again", "DELAY\x011\x02", reconsume_times=1, sys_flag=0))
    assert answer.code == ResponseCode.SUCCESS
    shop.pass_time(1_000)
    assert shop.bodies() == [b"again"]


def test_a_broker_can_be_set_to_refuse_transactions() -> None:
    config = replace(config_of(FOLDER), reject_transactions=True)
    answer = Shop(SimulatedFileSystem(), config).ask(Shop(SimulatedFileSystem()).half_request(b"x"))
    assert answer.code == ResponseCode.NO_PERMISSION


def test_only_so_many_transactions_can_be_open() -> None:
    shop = Shop(SimulatedFileSystem(), replace(config_of(FOLDER), open_transactions_max=2))
    first, _ = shop.half(b"1"), shop.half(b"2")
    answer = shop.ask(shop.half_request(b"3"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "open_transactions_max" in (answer.remark or "")
    shop.end(first, ROLLBACK)
    shop.half(b"3")


# Questions.


def test_a_producer_that_says_nothing_is_asked_again_and_again(shop: Shop) -> None:
    peer = shop.join()
    half = shop.half(b"paid", queue_id=3, flag=5)
    shop.pass_time(TIMEOUT - 1)
    assert shop.asked(peer) == []
    shop.pass_time(1)
    ((first, message),) = shop.asked(peer)
    assert first.key == half.key
    assert (message.topic, message.queue_id, message.body, message.flag) == (TOPIC, 3, b"paid", 5)
    assert decode_properties(message.properties_raw)["TRANSACTION_CHECK_TIMES"] == "1"
    assert (message.queue_offset, message.physical_offset) == (first.offset, first.physical_offset)
    shop.pass_time(INTERVAL - 1)
    assert shop.asked(peer) == []
    shop.pass_time(1)
    ((second, message),) = shop.asked(peer)
    assert decode_properties(message.properties_raw)["TRANSACTION_CHECK_TIMES"] == "2"
    assert shop.end(second, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    shop.pass_time(10 * INTERVAL)
    assert shop.asked(peer) == []
    (message,) = shop.messages(queue_id=3)
    assert (message.body, message.flag) == (b"paid", 5)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_answer_to_any_question_ends_the_transaction_once(shop: Shop, which: int) -> None:
    peer = shop.join()
    known = [shop.half(b"paid")]
    for wait in (TIMEOUT, INTERVAL):
        shop.pass_time(wait)
        ((half, _),) = shop.asked(peer)
        known.append(half)
    assert shop.end(known[which], COMMIT, is_answer=True) == ResponseCode.SUCCESS
    for half in known:
        assert shop.end(half, COMMIT, is_answer=True) == ResponseCode.SUCCESS
        assert shop.end(half, ROLLBACK, is_answer=True) == ResponseCode.ILLEGAL_OPERATION
    assert shop.bodies() == [b"paid"]


def test_another_producer_of_the_group_is_asked_when_the_first_is_gone(shop: Shop) -> None:
    first, other, stranger = shop.join(), shop.join(client_id="c2"), shop.join("inn", "c3")
    shop.half(b"paid")
    first.gone("it ended")
    shop.pass_time(TIMEOUT)
    ((half, _),) = shop.asked(other)
    assert shop.asked(stranger) == []
    assert shop.end(half, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"paid"]


def test_the_producers_of_a_group_are_asked_in_turn(shop: Shop) -> None:
    peers = [shop.join(client_id=f"c{number}") for number in range(3)]
    shop.half(b"paid")
    shop.pass_time(TIMEOUT)
    for _ in range(5):
        shop.pass_time(INTERVAL)
    assert [len(shop.asked(peer)) for peer in peers] == [2, 2, 2]


def test_a_transaction_is_given_up_after_so_many_questions(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    peer = shop.join()
    half = shop.half(b"paid", flag=5)
    shop.pass_time(TIMEOUT)
    for _ in range(14):
        shop.pass_time(INTERVAL)
    assert len(shop.asked(peer)) == 15
    assert shop.messages(topic=GIVEN_UP_TOPIC) == []
    with caplog.at_level(logging.WARNING):
        shop.pass_time(INTERVAL)
    assert half.key in caplog.text
    (message,) = shop.messages(topic=GIVEN_UP_TOPIC)
    assert (message.body, message.flag) == (b"paid", 5)
    shop.restart()
    shop.pass_time(10 * INTERVAL)
    assert shop.open_count == 0
    assert len(shop.messages(topic=GIVEN_UP_TOPIC)) == 1
    assert shop.end(half, COMMIT) == ResponseCode.ILLEGAL_OPERATION


def test_a_transaction_that_was_given_up_can_be_resumed(shop: Shop) -> None:
    config = replace(shop.config, transaction_checks_max=1)
    shop.wired.broker.configure(config)
    peer = shop.join()
    shop.half(b"paid")
    shop.pass_time(TIMEOUT)
    shop.pass_time(INTERVAL)
    (message,) = shop.messages(topic=GIVEN_UP_TOPIC)
    assert len(shop.asked(peer)) == 1
    request = ResumeCheckHalfMessage(message.offset_id)
    answer = shop.ask(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, request))
    assert answer.code == ResponseCode.SUCCESS
    shop.pass_time(TIMEOUT)
    ((half, _),) = shop.asked(peer)
    assert shop.end(half, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"paid"]


def test_only_a_half_message_is_resumed(shop: Shop) -> None:
    plain = shop.ask(send_request(TOPIC, b"plain")).read(SendMessageResponse)
    for offset_id in (plain.msg_id, "7F000001000055B50000FFFFFFFFFFFF", "nonsense"):
        request = ResumeCheckHalfMessage(offset_id)
        answer = shop.ask(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, request))
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert shop.open_count == 0


def test_a_question_that_reaches_nobody_does_not_count(shop: Shop) -> None:
    shop.half(b"paid")
    for _ in range(40):
        shop.pass_time(INTERVAL)
    assert shop.messages(topic=GIVEN_UP_TOPIC) == []
    peer = shop.join()
    shop.pass_time(INTERVAL)
    ((_, message),) = shop.asked(peer)
    assert decode_properties(message.properties_raw)["TRANSACTION_CHECK_TIMES"] == "1"


def test_what_is_older_than_messages_are_kept_is_given_up_unasked(shop: Shop) -> None:
    shop.half(b"paid", born_timestamp=shop.now_ms - shop.config.store.retention_hours * 3_600_000)
    shop.pass_time(TIMEOUT)
    assert len(shop.messages(topic=GIVEN_UP_TOPIC)) == 1


def test_a_producer_can_ask_for_time(shop: Shop) -> None:
    peer = shop.join()
    half = shop.half(b"slow", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    quick = shop.half(b"quick")
    shop.pass_time(59_999)
    assert [each.key for each, _ in shop.asked(peer)] == [quick.key]
    shop.restart()
    peer = shop.join()
    shop.pass_time(1)
    ((asked, _),) = [each for each in shop.asked(peer) if each[0].key == half.key]
    # The answer to the question counts, while an end without one comes too late.
    shop.pass_time(1)
    assert shop.end(asked, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    assert shop.end(asked, COMMIT, is_answer=True) == ResponseCode.SUCCESS


def test_with_sync_flush_nobody_is_asked_about_what_is_not_safe() -> None:
    shop = Shop(SimulatedFileSystem(), config_of(FOLDER, flush=Flush.SYNC))
    peer = shop.join()
    shop.half(b"paid")
    shop.now_ms += TIMEOUT
    shop.wired.broker.transactions.step(shop.now_ms)
    shop.wired.turn()
    assert shop.asked(peer) == []
    shop.wired.sync()
    ((half, _),) = shop.asked(peer)
    assert shop.end(half, COMMIT, is_answer=True) == ResponseCode.SUCCESS


def test_a_clock_that_was_set_back_delays_no_question_for_longer(shop: Shop) -> None:
    peer = shop.join()
    shop.half(b"paid")
    shop.pass_time(-3_600_000)
    assert len(shop.asked(peer)) == 1


def test_half_messages_that_are_cold_by_the_time_are_fetched() -> None:
    config = config_of(FOLDER)
    shop = Shop(SimulatedFileSystem(), replace(config, store=replace(config.store, hot_size=0)))
    halves = [shop.half(b"%d" % number) for number in range(100)]
    shop.restart()
    peer = shop.join()
    shop.disk.is_cold = True
    shop.now_ms += TIMEOUT
    shop.wired.now_ms = shop.now_ms
    shop.wired.broker.store.tick(shop.now_ms)
    assert shop.wired.broker.transactions.step(shop.now_ms).cold, "nothing was cold"
    assert shop.work() == 100
    shop.disk.is_cold = False
    assert [half.key for half, _ in shop.asked(peer)] == [half.key for half in halves]


# Whatever ends the broker.


CUTS = {
    "before both": 0.0,
    "inside the message": 0.3,
    "between the message and its op": None,
    "inside the op": 0.95,
    "behind both": 1.0,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("saved", [False, True])
def test_a_crash_inside_a_commit_leaves_none_or_one_message(
    shop: Shop, cut: str, saved: bool
) -> None:
    """The message and its op message are one write, which may be cut anywhere."""
    shop.half(b"other")
    half = shop.half(b"paid")
    if saved:
        shop.save()
    store = shop.wired.broker.store
    begin = store.end_offset
    message_size = size_in_the_end(shop, half)
    part = CUTS[cut]

    def crash(operation: Operation) -> None:
        is_log = operation.verb == "write" and "commitlog" in operation.path
        if is_log and operation.moment is Moment.BEFORE and part != 1.0:
            size = message_size + 150
            raise Partial(message_size if part is None else int(size * part), Killed())
        if is_log and operation.moment is Moment.AFTER:
            raise Killed

    shop.disk.hook = crash
    with pytest.raises(Killed):
        shop.end(half, COMMIT)
    shop.disk.hook = None
    shop.start(shop.disk.kill())
    is_there = cut in ("between the message and its op", "inside the op", "behind both")
    assert shop.wired.broker.store.end_offset > begin or not is_there
    assert shop.bodies() == [b"paid"] * is_there
    peer = shop.join()
    for _ in range(2):
        shop.pass_time(INTERVAL)
        for asked, message in shop.asked(peer):
            how = COMMIT if message.body == b"paid" else ROLLBACK
            assert shop.end(asked, how, is_answer=True) == ResponseCode.SUCCESS
        shop.end(half, COMMIT)
    shop.restart()
    assert shop.end(half, COMMIT) in (ResponseCode.SUCCESS, ResponseCode.ILLEGAL_OPERATION)
    assert shop.bodies() == [b"paid"]
    assert shop.open_count == 0


def test_what_a_crash_left_of_a_commit_is_made_whole(shop: Shop) -> None:
    """All readers of the half queue, Apache's brokers included, go by the op messages."""
    half = shop.half(b"paid")
    size = size_in_the_end(shop, half)

    def crash(operation: Operation) -> None:
        if operation.verb == "write" and "commitlog" in operation.path:
            raise Partial(size, Killed())

    shop.disk.hook = crash
    with pytest.raises(Killed):
        shop.end(half, COMMIT)
    shop.disk.hook = None
    shop.start(shop.disk.kill())
    assert (shop.bodies(), shop.messages(topic=OP_TOPIC)) == ([b"paid"], [])
    shop.work()
    (op,) = shop.messages(topic=OP_TOPIC)
    assert read_op(op) == [(half.offset, Outcome.COMMITTED)]
    assert shop.open_count == 0


def size_in_the_end(shop: Shop, half: Half) -> int:
    """Return the size of the message that a half message becomes."""
    size = half_size(shop, half) - len(f"REAL_TOPIC\x01{TOPIC}\x02REAL_QID\x010\x02")
    return size + len(TOPIC) - len(HALF_TOPIC)


def half_size(shop: Shop, half: Half) -> int:
    record = shop.wired.broker.store.find_record(half.physical_offset)
    assert isinstance(record, bytes | bytearray | memoryview)
    return len(record)


def test_a_crash_between_a_copy_and_its_op_doubles_nothing(shop: Shop) -> None:
    shop.join()
    half = shop.half(b"paid")
    copy_size = half_size(shop, half) + len(
        "TRANSACTION_CHECK_TIMES\x011\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02"
    )

    def crash(operation: Operation) -> None:
        if operation.verb == "write" and "commitlog" in operation.path:
            raise Partial(copy_size, Killed())

    shop.disk.hook = crash
    with pytest.raises(Killed):
        shop.pass_time(TIMEOUT)
    shop.disk.hook = None
    shop.start(shop.disk.kill())
    assert shop.open_count == 1
    peer = shop.join()
    shop.pass_time(INTERVAL)
    ((asked, _),) = shop.asked(peer)
    assert shop.end(asked, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    shop.pass_time(INTERVAL)
    assert (shop.asked(peer), shop.bodies()) == ([], [b"paid"])


def test_a_disk_that_refuses_changes_nothing(shop: Shop) -> None:
    peer = shop.join()
    half = shop.half(b"paid")

    def refuse(operation: Operation) -> None:
        is_write = operation.verb == "write" and "commitlog" in operation.path
        if is_write and operation.moment is Moment.BEFORE:
            raise OSError(errno.ENOSPC, "no room")

    shop.disk.hook = refuse
    assert shop.end(half, COMMIT) != ResponseCode.SUCCESS
    assert shop.ask(shop.half_request(b"more")).code != ResponseCode.SUCCESS
    shop.pass_time(TIMEOUT)
    assert (shop.asked(peer), shop.open_count) == ([], 1)
    shop.disk.hook = None
    shop.wired.broker.store.tick(shop.now_ms)
    shop.pass_time(0)
    assert len(shop.asked(peer)) == 1
    assert shop.end(half, COMMIT) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"paid"]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ends_the_broker_each_commit_is_one_message(seed: int) -> None:
    rng = Random(seed)
    is_sync = bool(seed % 2)
    shop = Shop(SimulatedFileSystem(), config_of(FOLDER, flush=Flush(("async", "sync")[is_sync])))
    decided: dict[str, TransactionEnd] = {}
    bodies: dict[str, bytes] = {}
    peer = shop.join()
    halves: list[Half] = []
    for number in range(100):
        body = b"%d" % number
        half = shop.half(body)
        decided[half.key], bodies[half.key] = rng.choice([COMMIT, ROLLBACK]), body
        halves.append(half)
        for half in rng.sample(halves, min(len(halves), rng.randint(0, 2))):
            # After a crash, one that was asked about may no longer be known.
            shop.end(half, decided[half.key])
        shop.pass_time(rng.choice([0, 10, 900, 4_000, 20_000]))
        for half, _ in shop.asked(peer):
            if rng.random() < 0.5:
                shop.end(half, decided[half.key], is_answer=True)
        peer = end_somehow(shop, rng, is_sync=is_sync) or peer
        come = sorted(shop.bodies())
        assert len(set(come)) == len(come)
    for _ in range(3):
        shop.pass_time(INTERVAL)
        for half, _ in shop.asked(peer):
            shop.end(half, decided[half.key], is_answer=True)
    wanted = sorted(bodies[key] for key, how in decided.items() if how is COMMIT)
    assert sorted(shop.bodies()) == wanted, f"seed {seed}"
    assert shop.open_count == 0


def end_somehow(shop: Shop, rng: Random, *, is_sync: bool) -> WiredPeer | None:
    """Sometimes end the broker in some way, start it, and return the new producer."""
    match rng.randint(0, 20):
        case 0 | 1:
            shop.save()
            return None
        case 2:
            shop.restart()
        case 3:
            shop.start(shop.disk.kill())
        case 4 if is_sync:
            shop.start(shop.disk.power_cut(rng))
        case _:
            return None
    return shop.join()


def test_progress_is_where_apache_keeps_it_and_never_passes_what_is_open(shop: Shop) -> None:
    halves = [shop.half(b"%d" % number) for number in range(10)]
    for half in halves[:4] + halves[5:]:
        shop.end(half, COMMIT)
    shop.restart()
    find = shop.wired.broker.state.offsets.find
    assert (find(GROUP, HALF_TOPIC, 0), find(GROUP, OP_TOPIC, 0)) == (4, 0)
    assert shop.open_count == 1
    assert shop.end(halves[4], ROLLBACK) == ResponseCode.SUCCESS
    for _ in range(3):  # A start that finds nothing new goes no further back.
        shop.restart()
        find = shop.wired.broker.state.offsets.find
        assert (find(GROUP, HALF_TOPIC, 0), find(GROUP, OP_TOPIC, 0)) == (10, 10)


def test_a_power_cut_that_takes_an_end_takes_its_progress_too() -> None:
    shop = Shop(SimulatedFileSystem())
    half = shop.half(b"paid")
    shop.wired.broker.store.finish_log()
    before = shop.disk
    shop.wired.give(shop.peer, shop.wired.frame(shop.peer, shop.end_request(half, COMMIT)))
    shop.save()
    shop.start(before.power_cut(Random(3)))
    come, is_open = shop.bodies(), shop.open_count
    assert (come, is_open) in (([b"paid"], 0), ([], 1))


def test_ops_are_apaches_and_say_how_each_ended(shop: Shop) -> None:
    paid, failed = shop.half(b"paid"), shop.half(b"failed")
    frames = [
        shop.wired.frame(shop.peer, shop.end_request(half, how))
        for half, how in ((paid, COMMIT), (failed, ROLLBACK))
    ]
    shop.wired.give(shop.peer, *frames)
    assert len(shop.wired.answers(shop.peer)) == 2
    (op,) = shop.messages(topic=OP_TOPIC)
    assert (op.body, op.tags) == (b"0,1,", "d")
    assert read_op(op) == [(0, Outcome.COMMITTED), (1, Outcome.ROLLED_BACK)]


def test_many_ends_are_several_ops() -> None:
    ends = [(10**6 + number, Outcome.COMMITTED) for number in range(2_000)]
    found = list(op_messages(ends))
    assert all(len(body) <= 4096 for body, _, _ in found)
    assert b"".join(body for body, _, _ in found) == b"".join(b"%d," % each for each, _ in ends)
    assert found[-1][2] == ends[-1][0]


def test_an_hour_of_immunity_does_not_have_a_start_read_an_hour(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.broker.transaction_table.SPAN_MAX", 50)
    peer = shop.join()
    slow = shop.half(b"slow", "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02")
    for number in range(200):
        shop.end(shop.half(b"%d" % number), ROLLBACK)
        shop.pass_time(10)
    assert shop.asked(peer) == []
    shop.restart()
    progress = shop.wired.broker.state.offsets.find(GROUP, HALF_TOPIC, 0)
    assert progress is not None
    assert progress >= 150
    peer = shop.join()
    shop.pass_time(3_600_000)
    ((asked, _),) = shop.asked(peer)
    assert asked.key == slow.key
    assert shop.end(asked, COMMIT, is_answer=True) == ResponseCode.SUCCESS
    assert shop.bodies() == [b"slow"]
