"""Sending to a broker, while it and its network do what they may do.

Whatever happens, each message is stored that `finish` says is, and in order where that is asked.
"""

from __future__ import annotations

from random import Random
from struct import Struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from cometmq.pipeline import retrying, wire
from cometmq.pipeline.errors import BusyError, ConnectionLostError, PipelineError
from cometmq.pipeline.lanes import SEND_MESSAGE_V2, Lane, Request, Sending
from cometmq.pipeline.wire import Answer, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME: Final = Struct(">III")
"""Of a request, its number, its queue and which message it is."""
SEEDS: Final = 500
STORED, BUSY = 0, 2


class Broker:
    """A broker with some queues, on which each message is a number."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queues: list[list[int]] = [[] for _ in range(3)]
        self._trouble = self.random.choice((0.0, 0.02, 0.1))

    def happens(self) -> bool:
        """Whether something goes wrong now."""
        return self.random.random() < self._trouble

    def answer(self, number: int, queue: int, message: int) -> Answer:
        """Store a message, or be too busy for it."""
        if self.happens():
            return Answer(number, BUSY, "busy", {}, b"")
        self.queues[queue].append(message)
        return Answer(number, STORED, "", {}, b"")


class Peer:
    """A connection, on which requests are answered one after the other."""

    is_known = speaks_cometmq = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._number = 0
        self._there: list[tuple[int, int, int]] = []
        """Requests that the broker has not looked at yet."""

    def number(self) -> int:
        """Return the number of the next request."""
        self._number += 1
        return self._number

    def frame(self, _code: int, fields: Mapping[str, str], body: bytes, number: int) -> bytes:
        """Encode a request."""
        return FRAME.pack(number, int(fields["e"]), int(body))

    def write(self, data: bytes) -> None:
        """Send requests; if the connection breaks, the broker has some of them."""
        sent = [*FRAME.iter_unpack(data)]
        if self._broker.happens():
            self._there += sent[: self._broker.random.randrange(len(sent) + 1)]
            while self._there:
                self._broker.answer(*self._there.pop(0))
            raise ConnectionLostError("broken")
        self._there += sent

    def receive(self) -> Answer:
        """Return an answer; if the connection breaks, that may be lost."""
        assert self._there, "nothing was sent"
        answer = self._broker.answer(*self._there.pop(0))
        if self._broker.happens():
            raise ConnectionLostError("broken")
        return answer

    def close(self) -> None:
        """Close it."""


@pytest.mark.parametrize("in_order", [False, True])
def test_what_is_said_to_be_stored_is(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: dict[str, int] = {}
    for seed in range(SEEDS):
        kind = send(seed, monkeypatch, in_order=in_order)
        ends[kind] = ends.get(kind, 0) + 1
    assert ends.keys() >= {"done", BusyError.__name__, ConnectionLostError.__name__}
    assert ends["done"] > SEEDS // 2, ends


def send(seed: int, monkeypatch: pytest.MonkeyPatch, *, in_order: bool) -> str:
    """Send messages as a seed has it; return how it ended."""
    broker = Broker(seed)
    choose = broker.random.randrange

    def connect(_address: str, _settings: Settings) -> Peer:
        if broker.happens():
            raise ConnectionLostError("away")
        return Peer(broker)

    def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(wire, "connect", connect)
    monkeypatch.setattr(wire, "keep", nothing)
    monkeypatch.setattr(retrying, "time", SimpleNamespace(sleep=nothing))
    monkeypatch.setattr("cometmq.pipeline.lanes._WRITE_SIZE", choose(1, 30) * FRAME.size)
    how = Sending(Settings(), retries=choose(2, 5), max_in_flight=choose(9), in_order=in_order)
    lane = Lane("127.0.0.1:1", how)
    wanted = [list[int]() for _ in broker.queues]
    kind = "done"
    try:
        for message in range(choose(1, 80)):
            queue = choose(len(wanted))
            wanted[queue].append(message)
            lane.submit(Request(SEND_MESSAGE_V2, "T", queue, "", 0, b"%d" % message))
        lane.finish()
    except PipelineError as error:
        kind = type(error).__name__
    finally:
        lane.close()
    for want, got in zip(wanted, broker.queues, strict=True):
        case = f"seed {seed}: {kind}, wanted {want}, got {got}"
        if in_order:
            assert got == sorted(got), f"{case}: not in order"
        if kind == "done":
            assert {*got} == {*want}, f"{case}: something is missing"
        else:
            assert {*got} <= {*want}, case
    return kind
