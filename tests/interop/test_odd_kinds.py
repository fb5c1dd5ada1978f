"""Odd delays, halves, ends, replies and returns: our broker and Apache's answer alike."""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient, send_header
from tests.interop.target import running_up

from cometmq.proto.batch import BatchItem, encode_batch
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import EndTransaction, SendMessageResponse
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.commands.transaction import TransactionEnd
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.properties import encode_properties
from cometmq.proto.sysflag import SysFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from cometmq.proto.command import Command

pytestmark = pytest.mark.slow

TOPIC: Final = "Odd"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
NOWHERE: Final = 1 << 40
PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
COMMIT, ROLLBACK = int(TransactionEnd.COMMIT), int(TransactionEnd.ROLLBACK)
PATIENCE_SECONDS: Final = 30
_ids = itertools.count()


def marked(**more: str) -> dict[str, str]:
    """Properties with a unique id."""
    return {"UNIQ_KEY": f"7F0000014D2C18B4AAC2{next(_ids):012X}", **more}


def half(**more: str) -> dict[str, str]:
    return marked(TRAN_MSG="true", PGROUP="interop", **more)


class Odd:
    """One broker, with a topic that has messages."""

    def __init__(self, client: BrokerClient) -> None:
        self.client = client
        self.send(marked())

    def send(self, properties: dict[str, str], sys_flag: int = 0) -> Command:
        header = send_header(TOPIC, 0, properties)
        header = replace(header, sys_flag=sys_flag, born_timestamp=time.time_ns() // 1_000_000)
        return self.client.ask(RequestCode.SEND_MESSAGE_V2, header, b"one")

    def counts(self) -> list[int]:
        """Count the topic's and the last level's messages, once all that came are in their queues.

        Apache's broker fills queues a moment later, in the order of the log.
        """
        said = self.client.send("Marks", 0, b"mark", {})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.client.max_offset("Marks", 0) <= said.queue_offset:
            assert time.monotonic() < deadline
        return [self.client.max_offset(*queue) for queue in ((TOPIC, 0), (SCHEDULE_TOPIC, 17))]

    def batch(
        self, item: dict[str, str], whole: dict[str, str], sys_flag: int = 0, code: int = 320
    ) -> Command:
        header = replace(send_header(TOPIC, 0, whole, batch=True), sys_flag=sys_flag)
        # Ours does not encode a batch with a delayed message.
        properties = encode_properties(item).replace(b"DELAY", b"XELAY")
        body = encode_batch(TOPIC, [BatchItem(b"one", properties)] * 2)
        return self.client.ask(code, header, body.replace(b"XELAY", b"DELAY"))

    def begun(self) -> tuple[int, int]:
        """Send a half message; return its places in the half queue and in the log."""
        said = self.send(half(), PREPARED).read(SendMessageResponse)
        place = decode_offset_id(said.msg_id).physical_offset
        self.until_stored(place)
        return said.queue_offset, place

    def until_stored(self, place: int) -> None:
        """Wait until a half message can be read, which takes Apache's broker a moment."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            # A stranger changes nothing, and is told whether the message is there.
            if self.end((0, place), COMMIT, "stranger").remark == "The producer group wrong":
                return
            assert time.monotonic() < deadline

    def end(self, places: tuple[int, int], how: int, group: str = "interop") -> Command:
        fields = EndTransaction(group, *places, how, "id", topic=TOPIC)
        return self.client.ask(RequestCode.END_TRANSACTION, fields)

    def reply(self, properties: dict[str, str]) -> Command:
        header = send_header(TOPIC, 0, properties)
        return self.client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, b"one")

    def send_back(self, offset: int) -> Command:
        fields = ConsumerSendMsgBack(offset, "odd", 3, origin_msg_id="id", origin_topic=TOPIC)
        return self.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    def place_beside(self, index: int, change: int) -> tuple[int, int]:
        """Send a half message; return its places, one of them wrong."""
        places = list(self.begun())
        places[index] += change
        return places[0], places[1]


ALIKE: dict[str, Callable[[Odd], Command]] = {
    "a batch of halves": lambda odd: odd.batch(half(), {}),
    "a batch that is half": lambda odd: odd.batch(marked(), half()),
    "a batch of halves that is half": lambda odd: odd.batch(half(), half()),
    "a batch of halves by its flags": lambda odd: odd.batch(half(), {}, PREPARED),
    "a batch of halves as a message": lambda odd: odd.batch(half(), half(), code=310),
    "a batch of delayed messages": lambda odd: odd.batch(marked(DELAY="3"), {}),
    "a batch that is delayed": lambda odd: odd.batch(marked(), {"DELAY": "3"}),
    "half by its flags alone": lambda odd: odd.send(marked(), PREPARED),
    "committed by its flags": lambda odd: odd.send(marked(), int(SysFlag.TRANSACTION_COMMITTED)),
    "half by its property alone": lambda odd: odd.send(half()),
    "half, said otherwise": lambda odd: odd.send(marked(TRAN_MSG="yes", PGROUP="interop")),
    "half without a unique id": lambda odd: odd.send({"TRAN_MSG": "true", "PGROUP": "interop"}),
    "delay level 0": lambda odd: odd.send(marked(DELAY="0")),
    "delay level 19": lambda odd: odd.send(marked(DELAY="19")),
    "delay level 99": lambda odd: odd.send(marked(DELAY="99")),
    "delay level -1": lambda odd: odd.send(marked(DELAY="-1")),
    "delay level abc": lambda odd: odd.send(marked(DELAY="abc")),
    "a delay level too large": lambda odd: odd.send(marked(DELAY="99999999999")),
    "the end of nothing": lambda odd: odd.end((0, NOWHERE), COMMIT),
    "the end of what is negative": lambda odd: odd.end((0, -5), COMMIT),
    "the end within a message": lambda odd: odd.end(odd.place_beside(1, 7), COMMIT),
    "a stranger's end": lambda odd: odd.end(odd.begun(), COMMIT, "stranger"),
    "an end of another offset": lambda odd: odd.end(odd.place_beside(0, 5), COMMIT),
    "a message's end": lambda odd: odd.end((0, 0), COMMIT),
    "a commit": lambda odd: odd.end(odd.begun(), COMMIT),
    "a rollback": lambda odd: odd.end(odd.begun(), ROLLBACK),
    "a reply to nobody": lambda odd: odd.reply(marked(REPLY_TO_CLIENT="nobody@1")),
    "a reply without a client": lambda odd: odd.reply(marked()),
    "the return of nothing": lambda odd: odd.send_back(NOWHERE),
}
"""Requests that both answer with the same code, and after which both have as many messages."""

WORDS: Final = {
    "the end of nothing": "Find prepared transaction message failed",
    "a stranger's end": "The producer group wrong",
    "an end of another offset": "The transaction state table offset wrong",
    "a reply to nobody": "push reply message fail, channel of <nobody@1> not found.",
    "a reply without a client": "reply message properties[REPLY_TO_CLIENT] is null",
    "the return of nothing": f"look message by offset failed, {NOWHERE}",
}
"""The requests whose remarks are the same, too."""

STORED_OTHERWISE: Final = {"a reply without a client", "half by its flags alone"}
"""Ours keeps no reply that names no client, and delivers a message that is half by its flags alone;
Apache stores such a message where nobody finds it."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Odd, Odd]]:
    folder: Path = tmp_path_factory.mktemp("odd")
    with ExitStack() as stack:
        apache = stack.enter_context(ApacheBroker(folder, {}))
        (folder / "ours").mkdir()
        ours = stack.enter_context(running_up(folder / "ours"))
        ports = int(ours.broker.rpartition(":")[2]), apache.port
        clients = [stack.enter_context(BrokerClient(port)) for port in ports]
        yield Odd(clients[0]), Odd(clients[1])


def grown(odd: Odd, done: Callable[[Odd], Command]) -> tuple[Command, list[int]]:
    """Return the answer, and by how many messages the topic and the last level grew."""
    before = odd.counts()
    answer = done(odd)
    return answer, [after - earlier for after, earlier in zip(odd.counts(), before, strict=True)]


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_odd_ends_as_with_apache(both: tuple[Odd, Odd], name: str) -> None:
    (mine, my_growth), (theirs, their_growth) = (grown(odd, ALIKE[name]) for odd in both)
    assert mine.code == theirs.code, (mine, theirs)
    if name not in STORED_OTHERWISE:
        assert my_growth == their_growth
    if name in WORDS:
        assert (mine.remark, theirs.remark) == (WORDS[name], WORDS[name])


def test_where_apache_stores_a_second_message_ours_stores_one(both: tuple[Odd, Odd]) -> None:
    """The promised difference: an end counts once, and the opposite end is then refused."""
    found: list[list[int]] = []
    for odd in both:
        committed, rolled_back = odd.begun(), odd.begun()
        before = odd.counts()[0]
        ends = [(committed, COMMIT), (committed, COMMIT), (committed, ROLLBACK)]
        ends += [(rolled_back, ROLLBACK), (rolled_back, ROLLBACK), (rolled_back, COMMIT)]
        codes = [odd.end(*end).code for end in ends]
        found.append([*codes, odd.counts()[0] - before])
    refused = int(ResponseCode.ILLEGAL_OPERATION)
    assert found[0] == [0, 0, refused, 0, 0, refused, 1]
    assert found[1] == [0, 0, 0, 0, 0, 0, 3]
