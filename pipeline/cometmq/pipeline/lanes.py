"""Requests in flight to one broker, which are sent again if the connection breaks.

If a connection breaks, it is replaced and unanswered requests are sent again: messages that must be
stored once are, others may be stored twice. If a broker stays away, the task fails, and Spark
retries it, or the whole query is restarted later.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import wire
from cometmq.pipeline.cluster import GET_MAX_OFFSET
from cometmq.pipeline.errors import BusyError, ConnectionLostError, OptionError, SinkError
from cometmq.pipeline.messages import items_by_id
from cometmq.pipeline.retrying import Pauses
from cometmq.pipeline.stored import Stored
from cometmq.pipeline.targets import BODY_SIZE_COMMON, body_size_max

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.pipeline.wire import Answer, Settings, Wire

SEND_MESSAGE_V2: Final = 310
SEND_BATCH_MESSAGE: Final = 320
SEND_BATCH_ONCE: Final = 31005
_BATCHES: Final = frozenset({SEND_BATCH_MESSAGE, SEND_BATCH_ONCE})
_STORED: Final = frozenset({0, 10, 11, 12})
"""Answers that say that a message is stored, though maybe not as durably as requested."""
_UNTOLD: Final = 604
"""The code for a message to be stored once that is older than what the broker remembers."""
_ILLEGAL: Final = 13
"""The code for a batch that is too large or has an invalid message, or for an invalid message."""
_FAILED: Final = 1
_TOO_LARGE: Final = "size exceeded"
"""The remark of Apache's brokers about a batch that is too large."""
_UNIQUE_KEY: Final = "UNIQ_KEY\x01"
"""The beginning of the properties of a message that is sent alone; its id follows."""
_ONCE: Final = "\x02IDEMPOTENT\x01"
"""The property of a message that is to be stored once; it follows another property."""
_NOT_STORED: Final = "NOT_STORED\x011\x02"
"""The property of a batch of which nothing is stored, by the broker's index."""
_UNDIVIDED: Final = "its batches are one record each"
"""The remark of our brokers on a batch to batch queues, from which no message can be left out."""
_TIME: Final = "\x02TIMER_DELIVER_MS\x01"
"""The property of a message with a `deliver_time`; it follows another. It is never in a batch."""
_GROUP: Final = "cometmq-spark"
_WRITE_SIZE: Final = 1 << 16
_IN_FLIGHT_BATCHES: Final = 4
_IN_FLIGHT_SINGLE: Final = 512


class Request(NamedTuple):
    """One send, as it can be repeated."""

    code: int
    topic: str
    queue_id: int
    properties: str
    flag: int
    body: bytes
    instead_of: Request | None = None
    """The batch whose unstored messages, by the broker's last word, this request contains."""


@dataclass(frozen=True, slots=True)
class Sending:
    """How rows are sent."""

    settings: Settings
    delivery: str = "auto"
    batch_bytes: int = 1 << 20
    max_in_flight: int = 0
    in_order: bool = False
    retries: int = 5
    retry_interval_ms: int = 200


class Lane:
    """The requests in flight to one broker."""

    def __init__(self, address: str, how: Sending) -> None:
        self._address = address
        self._how = how
        self._wire: Wire | None = None
        self._under_way: dict[int, Request] = {}
        self._unwritten: list[bytes] = []
        self._unwritten_size = 0
        self._pauses = Pauses(how.retries, how.retry_interval_ms, f"sending to {address}")
        self._first_since_pause = 0
        """The number of the first request after the last pause for a busy broker."""
        self.repeated = 0
        """The number of messages that the broker left out because they were sent before."""

    @property
    def speaks_cometmq(self) -> bool:
        """Whether the broker has CometMQ's extensions; send a request to find out.

        Only the answer to the first request of a connection says so; if sends are waiting, that is
        one of them.
        """
        while not (peer := self._connected()).is_known:
            self._attempt(self._receive if self._under_way else partial(_speaks_cometmq, peer))
        return peer.speaks_cometmq

    def submit(self, request: Request) -> None:
        """Send a request, once there is room for it."""
        if len(request.body) > BODY_SIZE_COMMON:
            self._require_room(request)
        is_batch = request.code in _BATCHES or len(request.body) >= _WRITE_SIZE  # Takes as much.
        room = self._how.max_in_flight or (_IN_FLIGHT_BATCHES if is_batch else _IN_FLIGHT_SINGLE)
        if len(self._under_way) >= room:
            self._wait(until=room - 1 if is_batch else room // 2)
        while self._how.in_order and self._has_queue_of(request):
            self._attempt(self._receive)
        peer = self._connected()
        number = peer.number()
        self._under_way[number] = request
        frame = _frame(peer, request, number)
        self._unwritten.append(frame)
        self._unwritten_size += len(frame)
        if self._unwritten_size >= _WRITE_SIZE:
            self._attempt(self._write)

    def _has_queue_of(self, request: Request) -> bool:
        """Whether a request to the same queue is in flight."""
        place = (request.topic, request.queue_id)
        return any((each.topic, each.queue_id) == place for each in self._under_way.values())

    def _require_room(self, request: Request) -> None:
        """Refuse a request for which the broker would silently end the connection.

        It would be sent again over the next connection, together with all others in flight.
        """
        size, most = len(request.body), body_size_max(self._address, self._how.settings)
        if size > most:
            raise SinkError(
                f"a message to topic {request.topic} takes {size} bytes of a request, but broker"
                f" {self._address} accepts at most {most} (maxMessageSize)"
            )

    def finish(self) -> None:
        """Wait until everything is answered."""
        self._wait(until=0)

    def close(self) -> None:
        """Give the connection back, or end it if answers are outstanding."""
        if self._wire is not None:
            if self._under_way:
                self._wire.close()
            else:
                wire.keep(self._wire, self._how.settings)
            self._wire = None

    def _wait(self, until: int) -> None:
        while len(self._under_way) > until:
            self._attempt(self._receive)

    def _receive(self) -> None:
        self._write()
        peer = self._connected()
        answer = peer.receive()
        request = self._under_way.get(answer.opaque)
        if request is None:
            return
        if answer.code in _STORED:
            self._pauses.taken = 0
            if request.code == SEND_BATCH_ONCE:
                whole = len(items_by_id(request.instead_of.body)) if request.instead_of else 0
                said = answer.fields
                self.repeated += (whole or int(said["count"])) - int(said["storedCount"])
        else:
            self._refused(request, answer)
        # Only now: if handling the answer fails, the request must be sent again.
        del self._under_way[answer.opaque]

    def _refused(self, request: Request, answer: Answer) -> None:
        if answer.code == _UNTOLD and request.code == SEND_BATCH_ONCE and not request.instead_of:
            self._send_untold(request)
            return
        if answer.code == _UNTOLD and _ONCE in request.properties:
            self._require_stored(request)
            return
        if answer.code == _ILLEGAL or (answer.code == _FAILED and _TOO_LARGE in answer.remark):
            raise _refused_for_good(self._address, request, answer)
        refused = answer.refusal(self._address)
        if not isinstance(refused, BusyError):
            raise refused
        peer = self._connected()
        if answer.opaque >= self._first_since_pause:  # Otherwise the last pause was for it, too.
            self._pauses.take(refused)
            self._first_since_pause = peer.number()
        self._again(peer, request)

    def _send_untold(self, request: Request) -> None:
        """Send the messages of a batch that are not stored by the broker's index.

        At a start, the broker's memory gets only the tail of the log. If the messages of a stretch
        did not come in order, because of a sharding key or a shuffle, it may know only later ones.
        """
        items = items_by_id(request.body)
        there = Stored(self._how).find(self._address, request.topic, list(items))
        rest = b"".join(item for each, item in items.items() if each not in there)
        if rest:
            again = request._replace(properties=_NOT_STORED, body=rest, instead_of=request)
            self._again(self._connected(), again)
        else:
            self.repeated += len(items)

    def _require_stored(self, request: Request) -> None:
        """Refuse a message that is sent alone because it is delayed, unless it is delivered by now.

        Before delivery, no index has it under its topic.
        """
        unique_id = request.properties.removeprefix(_UNIQUE_KEY).partition("\x02")[0]
        if not Stored(self._how).find(self._address, request.topic, [unique_id]):
            raise SinkError(
                f"broker {self._address} can no longer tell whether a delayed message to topic"
                f" {request.topic} is stored and still waits; start this again once it has been"
                " delivered, or write delivery=at-least-once, which may store it twice"
            )

    def _again(self, peer: Wire, request: Request) -> None:
        number = peer.number()
        self._under_way[number] = request
        self._unwritten.append(_frame(peer, request, number))

    def _write(self) -> None:
        if self._unwritten:
            frames, self._unwritten, self._unwritten_size = self._unwritten, [], 0
            self._connected().write(b"".join(frames))

    def _attempt(self, do: Callable[[], object]) -> None:
        """Do it; if the connection breaks, send all unanswered requests over another one."""
        try:
            do()
        except ConnectionLostError as error:
            self._anew(error)

    def _anew(self, error: ConnectionLostError) -> None:
        while True:
            if self._wire is not None:  # Before the pause, as that may raise.
                self._wire.close()
                self._wire = None
            self._pauses.take(error)
            # Messages that were not stored when the index was asked may be by now.
            requests = [each.instead_of or each for each in self._under_way.values()]
            self._under_way = {}
            self._unwritten, self._unwritten_size = [], 0
            try:
                peer = self._opened()
            except ConnectionLostError as again:
                self._under_way = dict(enumerate(requests))
                error = again
                continue
            for request in requests:
                self._again(peer, request)
            return

    def _connected(self) -> Wire:
        while self._wire is None:
            try:
                return self._opened()
            except ConnectionLostError as error:
                self._pauses.take(error)
        return self._wire

    def _opened(self) -> Wire:
        self._wire = wire.connect(self._address, self._how.settings)
        self._first_since_pause = 0  # Request numbers start again.
        return self._wire


def _speaks_cometmq(peer: Wire) -> bool:
    if not peer.is_known:
        peer.ask(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
    return peer.speaks_cometmq


def require_cometmq(addresses: Iterable[str], settings: Settings) -> None:
    """Refuse brokers that cannot store a message once; those that are away are checked later."""
    for address in sorted(addresses):
        with suppress(ConnectionLostError), closing(wire.connect(address, settings)) as peer:
            if not _speaks_cometmq(peer):
                raise no_cometmq(address)


def no_cometmq(broker: str) -> OptionError:
    """Make the error for a broker that cannot store a message once."""
    return OptionError(
        f"delivery: broker {broker} is not CometMQ's, and cannot recognize a message that is sent"
        " again; write delivery=at-least-once"
    )


def _refused_for_good(address: str, request: Request, answer: Answer) -> SinkError:
    """Make the error for messages that a broker will never accept; it says what to do.

    A batch of one message cannot be made smaller.
    """
    size = len(request.body)
    if _TIME in "\x02" + request.properties:
        return SinkError(
            f"broker {address} refuses a message to topic {request.topic}, queue"
            f" {request.queue_id}, with a deliver_time: {answer.remark}; if the time is"
            " the reason, write a delay_level instead"
        )
    if _UNDIVIDED in answer.remark:
        return SinkError(
            f"broker {address} cannot store each row of a batch to topic {request.topic} once:"
            f" {answer.remark}; write to a topic of ordinary queues, or delivery=at-least-once"
        )
    if request.code not in _BATCHES or len(items_by_id(request.body)) == 1:
        return SinkError(
            f"broker {address} refuses a message to topic {request.topic}, queue"
            f" {request.queue_id}, which takes {size} bytes of a request: {answer.remark}; if it is"
            " too large, that broker needs a larger maxMessageSize"
        )
    return SinkError(
        f"broker {address} refuses a batch of {size} bytes to topic {request.topic}:"
        f" {answer.remark}; if it is too large, write a smaller batchBytes (brokers accept 4m"
        " unless they are set otherwise)"
    )


def _frame(peer: Wire, request: Request, number: int) -> bytes:
    fields: Mapping[str, str] = {
        "a": _GROUP,
        "b": request.topic,
        "c": "TBW102",
        "d": "4",
        "e": str(request.queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": str(request.flag),
        "i": request.properties,
        "j": "0",
        "k": "false",
        "m": "true" if request.code in _BATCHES else "false",
    }
    return peer.frame(request.code, fields, request.body, number)
