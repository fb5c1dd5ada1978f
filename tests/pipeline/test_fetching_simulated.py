"""Reading of a range of a queue, while a simulated broker and its network do what they may do.

Whatever happens, messages come in order, each once, and none is left out without a word.
"""

from __future__ import annotations

from itertools import chain, repeat
from random import Random
from struct import Struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from cometmq.pipeline import fetching, retrying, wire
from cometmq.pipeline.cluster import Queue
from cometmq.pipeline.errors import ConnectionLostError, PipelineError
from cometmq.pipeline.fetching import BULK_PULL_MESSAGE, NOT_SUPPORTED, Pulling, chunks
from cometmq.pipeline.planning import Range
from cometmq.pipeline.wire import Answer, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cometmq.pipeline.losses import Listener

QUEUE: Final = Queue("orders", "broker-a", 0)
ADDRESS: Final = "127.0.0.1:1"
RECORD: Final = Struct(">20xq")
"""A record, as far as the reader looks at it: with the message's offset."""
SUCCESS, BUSY, NOT_FOUND, RETRY, MOVED = 0, 2, 19, 20, 21
_REMARKS: Final = {RETRY: "MESSAGE_WAS_REMOVING"}
SEEDS: Final = 500


class Broker:
    """A broker with one queue."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lowest = self.random.randrange(40)
        self.highest = self.lowest + self.random.randrange(1, 400)
        self.knows_bulk = self.random.random() < 0.5
        self.is_filtering = self.random.random() < 0.3
        self._expires = self.random.random() < 0.4
        self._trouble = self.random.choice((0.0, 0.02, 0.1))
        self.most: Iterator[int] | None = None
        self.answers = 0
        self._silent_at = self.random.randrange(self.lowest, self.highest)
        self._silent = self.random.choice((0, 3, 11, 25, 60))
        """How often it returns nothing at that offset, though there is a message."""

    @classmethod
    def sound(cls, highest: int, most: Iterator[int]) -> Broker:
        """Make one without trouble, like Apache's, that returns so many messages at most."""
        broker = cls(0)
        broker.lowest, broker.highest, broker.most = 0, highest, most
        broker.knows_bulk = broker.is_filtering = broker._expires = False
        broker._trouble = broker._silent = 0
        return broker

    def happens(self) -> bool:
        """Whether something goes wrong now."""
        return self.random.random() < self._trouble

    def passes(self, offset: int) -> bool:
        """Whether a message passes the filter."""
        return not self.is_filtering or offset % 7 in (1, 2)

    def answer(self, number: int, code: int, fields: Mapping[str, str]) -> Answer:
        """Answer a request for messages."""
        self.answers += 1
        if code == BULK_PULL_MESSAGE and not self.knows_bulk:
            return Answer(number, NOT_SUPPORTED, "", {}, b"")
        if self.happens():
            return Answer(number, BUSY, "busy", {}, b"")
        if self._expires and self.random.random() < 0.1:
            self.lowest = min(self.lowest + self.random.randrange(50), self.highest)
        first = int(fields["queueOffset"])
        if first >= self.highest:
            return self._answer(number, NOT_FOUND, self.lowest)
        if first < self.lowest:
            kind = self.random.choice((MOVED, SUCCESS, RETRY))
            if kind != SUCCESS:
                return self._answer(number, kind, self.lowest, remark=_REMARKS.get(kind, ""))
            first = self.lowest  # It skips what has expired.
            if first == self.highest or first >= int(fields.get("endOffset", first + 1)):
                return self._answer(number, MOVED, self.lowest)
        if first == self._silent_at and self._silent:
            self._silent -= 1
            return self._answer(number, NOT_FOUND, first)
        choose = self.random.randrange
        if code == BULK_PULL_MESSAGE:
            end = min(int(fields["endOffset"]), first + choose(1, 90))
        else:
            most = int(fields["maxMsgNums"])
            end = first + (min(most, next(self.most)) if self.most else choose(1, most + 1))
        end = min(end, self.highest)
        found = [RECORD.pack(each) for each in range(first, end) if self.passes(each)]
        return self._answer(number, SUCCESS if found else RETRY, end, b"".join(found))

    def _answer(
        self, number: int, code: int, following: int, body: bytes = b"", remark: str = ""
    ) -> Answer:
        said = {
            "nextBeginOffset": following,
            "minOffset": self.lowest,
            "maxOffset": self.highest,
        }
        return Answer(number, code, remark, {key: str(of) for key, of in said.items()}, body)


class Peer:
    """A connection, on which answers overtake each other."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asked: list[tuple[int, int, Mapping[str, str]]] = []
        self._number = 0

    def send(self, code: int, fields: Mapping[str, str]) -> int:
        """Send a request, unless the connection is broken."""
        if self._broker.happens():
            raise ConnectionLostError("broken")
        self._number += 1
        self._asked.append((self._number, code, fields))
        return self._number

    def receive(self) -> Answer:
        """Return the answer to one of the requests."""
        assert self._asked, "nothing was asked for"
        if self._broker.happens():
            raise ConnectionLostError("broken")
        at = self._broker.random.randrange(len(self._asked))
        return self._broker.answer(*self._asked.pop(at))

    def close(self) -> None:
        """Close it."""


def offsets(data: bytes) -> list[int]:
    return [offset for (offset,) in RECORD.iter_unpack(data)]


@pytest.mark.parametrize("block", range(3))
def test_nothing_is_lost_or_read_twice(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[str, int] = {}
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        kind = read(seed, monkeypatch)
        ends[kind] = ends.get(kind, 0) + 1
    assert ends.keys() >= {"done", "DataLossError", "ConnectionLostError"}
    assert ends["done"] > SEEDS // 2, ends


@pytest.mark.parametrize(
    ("first", "later", "answers"), [([1], 32, 500), ([8] * 50, 32, 500), ([], 8, 1500)]
)
def test_one_short_answer_does_not_make_all_requests_small(
    first: list[int], later: int, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's brokers return one large message alone, and eight of what is on their disk."""
    broker = Broker.sound(10_000, chain(first, repeat(later)))
    simulate(broker, monkeypatch)
    wanted = Range(QUEUE, ADDRESS, 0, 10_000)
    got = [each for chunk in chunks([wanted], Pulling(Settings())) for each in offsets(chunk.data)]
    assert got == [*range(10_000)]
    assert broker.answers < answers


def simulate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have that broker be read from, without pauses; return where losses are told."""
    told: list[int] = []

    def connect(_address: str, _settings: Settings) -> Peer:
        if broker.happens():
            raise ConnectionLostError("away")
        return Peer(broker)

    def tell(_listener: object, _part: Range, lost: int) -> None:
        told.append(lost)

    def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(wire, "connect", connect)
    monkeypatch.setattr(wire, "keep", nothing)
    monkeypatch.setattr(fetching, "tell", tell)
    monkeypatch.setattr(fetching, "without_bulk", set[str]())
    quick = SimpleNamespace(sleep=nothing)  # Other threads of the process may sleep, too.
    monkeypatch.setattr(fetching, "time", quick)
    monkeypatch.setattr(retrying, "time", quick)
    return told


def read(seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read a range as a seed has it; return how it ended."""
    broker = Broker(seed)
    choose = broker.random.randrange
    lowest = broker.lowest
    begin = choose(max(lowest - 10, 0), broker.highest)
    wanted = Range(QUEUE, ADDRESS, begin, choose(begin + 1, broker.highest + 20))
    told = simulate(broker, monkeypatch)
    monkeypatch.setattr(fetching, "_JOINED_SIZE", choose(1, 60) * RECORD.size)
    how = Pulling(
        Settings(),
        expression="SQL" if broker.is_filtering else "*",
        fail_on_data_loss=choose(2) == 0,
        retries=choose(1, 4),
        losses=cast("Listener", broker),
    )
    got: list[int] = []
    kind = "done"
    try:
        for chunk in chunks([wanted], how):
            got += [each for each in offsets(chunk.data) if chunk.first <= each < chunk.end]
    except PipelineError as error:
        kind = type(error).__name__
    case = f"seed {seed}: {wanted}, {kind}, {broker.lowest} to {broker.highest}"
    assert got == sorted({*got}), f"{case}: not in order, or twice"
    # After an error, a prefix of what was wanted has come.
    until = wanted.end if kind == "done" else max(got, default=wanted.first - 1) + 1
    missing = {*filter(broker.passes, range(wanted.first, min(until, broker.highest)))} - {*got}
    assert all(each < broker.lowest for each in missing), f"{case}: without {sorted(missing)}"
    if kind == "DataLossError":
        assert how.fail_on_data_loss
        assert wanted.first < broker.lowest or wanted.end > broker.highest, case
    elif kind == "done" and how.fail_on_data_loss:
        assert not missing, f"{case}: nothing was said of {sorted(missing)}"
        assert not told, case
    elif kind == "done" and not broker.is_filtering:
        assert sum(told) == len(missing), f"{case}: {told} told of {sorted(missing)}"
    return kind
