"""Thirty days of a broker in seconds: messages of all kinds, each of which must come in time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.broker.clocked import TOPIC
from tests.broker.running import pull_request, send_request
from tests.broker.test_transactions import COMMIT, INTERVAL, ROLLBACK, Half, Shop
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker.transaction_records import GIVEN_UP_TOPIC
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.send import ConsumerSendMsgBack
from cometmq.proto.message_id import decode_offset_id
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from tests.broker.wired import WiredPeer

    from cometmq.proto.message import StoredMessage

MONTH_MS = 30 * 24 * 3_600_000
STEPS_MS = (100, 5_000, INTERVAL, 3_600_000, 6 * 3_600_000, 12 * 3_600_000)
RETRY = "%RETRY%billing"
FIRST_RETRY = 3
"""The delay level of a message that comes back for the first time."""


class Month:
    """A broker, its clients, and the messages that must still come."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.shop = Shop(SimulatedFileSystem())
        self.levels = self.shop.config.store.delay_levels_ms
        self.peer: WiredPeer = self.shop.join()
        self.due: dict[tuple[str, bytes], int] = {}
        """When each message that is still to come is due, by topic and body."""
        self.seen: dict[str, int] = {TOPIC: 0, RETRY: 0}
        self.decisions: dict[str, tuple[int | None, bytes]] = {}
        """The answer to give when a transaction is asked about, or None for silence."""
        self.silent = 0
        self.number = self.came = self.step_ms = 0

    def play(self) -> None:
        """Do random things for a month, then wait for the messages still to come."""
        end_ms = self.shop.now_ms + MONTH_MS
        while self.shop.now_ms < end_ms:
            self.rng.choice([self.send, self.delay, self.delay, self.transact, self.end])()
            self.go_on(self.rng.choice(STEPS_MS))
        for _ in range(40):
            self.go_on(3_600_000)
        assert self.due == {}

    def body(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def send(self) -> None:
        """Send a message, which is there at once."""
        body = self.body()
        assert self.shop.ask(send_request(TOPIC, body)).code == ResponseCode.SUCCESS
        self.due[TOPIC, body] = self.shop.now_ms

    def delay(self) -> None:
        """Send a message with a delay."""
        body, level = self.body(), self.rng.randint(1, len(self.levels))
        properties = f"UNIQ_KEY\x01D{self.number}\x02DELAY\x01{level}\x02"
        answer = self.shop.ask(send_request(TOPIC, body, properties=properties))
        assert answer.code == ResponseCode.SUCCESS
        self.due[TOPIC, body] = self.shop.now_ms + self.levels[level - 1]

    def transact(self) -> None:
        """Begin a transaction, and end it at once, when asked about it, or never."""
        body = self.body()
        half = self.shop.half(body)
        how = self.rng.choice([COMMIT, ROLLBACK, None])
        if self.rng.random() < 0.5 and how is not None:
            self.decide(half, how, body)
            return
        self.silent += how is None
        self.decisions[half.key] = (None if how is None else int(how)), body

    def decide(self, half: Half, how: int, body: bytes, *, is_answer: bool = False) -> None:
        code = self.shop.end(half, how, is_answer=is_answer)
        assert code == ResponseCode.SUCCESS
        if how == COMMIT:
            self.due[TOPIC, body] = self.shop.now_ms

    def end(self) -> None:
        """Sometimes restart or kill the broker."""
        if self.rng.random() < 0.3:
            if self.rng.random() < 0.5:
                self.shop.restart()
            else:
                self.shop.save()
                self.shop.start(self.shop.disk.kill())
            self.peer = self.shop.join()

    def go_on(self, step_ms: int) -> None:
        """Let time pass, answer the broker's questions, and check the messages that have come."""
        self.step_ms = step_ms
        self.shop.pass_time(step_ms)
        self.shop.save()  # This answers requests that wait for a new topic.
        for half, _ in self.shop.asked(self.peer):
            how, body = self.decisions[half.key]
            if how is not None:
                self.decide(half, how, body, is_answer=True)
                self.decisions[half.key] = None, body  # It is never asked about again.
        for topic in self.seen:
            for message in self.come(topic):
                self.take(topic, message)

    def come(self, topic: str) -> list[StoredMessage]:
        """Pull the messages that have come since the last time."""
        answer = self.shop.wired.ask(self.shop.peer, pull_request(topic, self.seen[topic]))
        if answer.code != ResponseCode.SUCCESS:
            return []
        found = list(MessageList(answer.body))
        self.seen[topic] += len(found)
        return found + self.come(topic)

    def take(self, topic: str, message: StoredMessage) -> None:
        """Check that a message was due now, and send some of them back."""
        self.came += 1
        due_ms = self.due.pop((topic, message.body))
        assert due_ms <= message.store_timestamp <= due_ms + self.step_ms
        times = message.reconsume_times
        if self.rng.random() < 0.3 and times < 4:
            offset = decode_offset_id(message.offset_id).physical_offset
            header = ConsumerSendMsgBack(offset, "billing", 0, origin_topic=TOPIC)
            request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            self.shop.wired.give(self.shop.peer, self.shop.wired.frame(self.shop.peer, request))
            self.shop.save()
            self.shop.wired.sync()
            (answer,) = self.shop.wired.answers(self.shop.peer)
            assert answer.code == ResponseCode.SUCCESS
            level_ms = self.levels[FIRST_RETRY - 1 + times]
            self.due[RETRY, message.body] = self.shop.now_ms + level_ms


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_in_a_month_all_comes_when_it_must_and_nothing_else(seed: int) -> None:
    month = Month(seed)
    month.play()
    assert month.came > 100
    assert month.silent > 5
    assert len(month.shop.messages(topic=GIVEN_UP_TOPIC)) == month.silent
    assert month.shop.open_count == 0
