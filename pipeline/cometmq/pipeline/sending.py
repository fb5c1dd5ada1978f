"""Sending what a task writes: requests under way over one connection to each broker.

Messages that must be stored once travel each in a request of its own, many under way at a time: of
a batch no broker knows what it stored before. All others travel in batches, one queue each.

A connection that breaks is made anew, and what was not answered is sent again: a message that must
be stored once is, and any other may be stored twice. When a broker stays away the task fails, and
Spark tries it again, or the whole query is started again later.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline import wire
from cometmq.pipeline.errors import ConnectionLostError, OptionError, RefusedError, SinkError
from cometmq.pipeline.stored import Stored
from cometmq.pipeline.targets import Target, Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cometmq.pipeline.rows import Row
    from cometmq.pipeline.wire import Answer, Settings, Wire

log = logging.getLogger(__name__)

SEND_MESSAGE_V2: Final = 310
SEND_BATCH_MESSAGE: Final = 320
GET_MAX_OFFSET: Final = 30
_STORED: Final = frozenset({0, 10, 11, 12})
"""Answers after which a message is stored, if not as durably as was asked for."""
_BUSY: Final = frozenset({2, 14, 215})
_GROUP: Final = "cometmq-spark"
_ITEM: Final = Struct(">I4x4xiI")
"""The head of a message in a batch: see `cometmq.proto.batch`."""
assert _ITEM.size == 20
_U16: Final = Struct(">H")
_PROPERTIES_SIZE_MAX: Final = 32767
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
    rows: int


@dataclass(frozen=True, slots=True)
class Sending:
    """How rows are sent."""

    settings: Settings
    delivery: str = "auto"
    batch_bytes: int = 1 << 20
    max_in_flight: int = 0
    retries: int = 5
    retry_interval_ms: int = 200


@dataclass(slots=True)
class Sent:
    """What a task has written."""

    rows: int = 0
    size: int = 0
    """Bytes of bodies."""
    once: int = 0
    """Rows that were sent so that they are stored once."""
    again: int = 0
    """Of these, rows that were stored before, by an earlier run."""


@dataclass(slots=True)
class Sender:
    """Sends the rows of one task; `finish` returns when all are stored."""

    targets: Targets
    how: Sending
    sent: Sent = field(default_factory=Sent)
    _lanes: dict[str, _Lane] = field(default_factory=lambda: dict[str, _Lane]())
    _batches: dict[tuple[str, Target], _Batch] = field(
        default_factory=lambda: dict[tuple[str, Target], _Batch]()
    )
    _turn: int = field(default_factory=lambda: secrets.randbelow(1 << 16))
    _ids: _Ids = field(default_factory=lambda: _Ids())
    _stored: Stored = field(init=False)

    def __post_init__(self) -> None:
        self._stored = Stored(self.how.settings)

    def send(self, rows: Iterable[Row]) -> None:
        """Send rows; most are under way when it returns."""
        rows = list(rows)
        placed = [(row, self._target(row)) for row in rows if row.unique_id is not None]
        once = {row.unique_id for row, target in placed if self._is_once(target)}
        there = self._stored.look(placed) if once else set[str]()
        for row in rows:
            target = self._target(row)
            self.sent.rows += 1
            self.sent.size += len(row.body)
            if row.unique_id in once:
                self.sent.once += 1
                if row.unique_id in there:
                    self.sent.again += 1
                    continue
                properties = f"{row.properties}IDEMPOTENT\x011\x02UNIQ_KEY\x01{row.unique_id}\x02"
                self._single(row, target, properties)
            elif row.is_delayed:
                self._single(row, target, f"{row.properties}UNIQ_KEY\x01{self._ids.next()}\x02")
            else:
                self._add(row, target)

    def _target(self, row: Row) -> Target:
        targets = self.targets.of(row.topic)
        return targets[(self._turn if row.spread is None else row.spread) % len(targets)]

    def finish(self) -> Sent:
        """Send what is left, and wait until everything is stored."""
        for (topic, target), batch in self._batches.items():
            self._send_batch(topic, target, batch)
        for lane in self._lanes.values():
            lane.finish()
        return self.sent

    def close(self) -> None:
        """Leave connections that are whole to the next task, and end the others."""
        for lane in self._lanes.values():
            lane.close()

    def _is_once(self, target: Target) -> bool:
        if self.how.delivery == "at-least-once":
            return False
        lane = self._lane(target)
        if lane.speaks_cometmq:
            return True
        if self.how.delivery == "idempotent":
            raise OptionError(
                f"delivery: broker {target.broker} is not CometMQ's, and cannot know a message that"
                " is sent again; write delivery=at-least-once"
            )
        return False

    def _single(self, row: Row, target: Target, properties: str) -> None:
        _check_size(properties)
        self._lane(target).submit(
            Request(SEND_MESSAGE_V2, row.topic, target.queue_id, properties, row.flag, row.body, 1)
        )

    def _add(self, row: Row, target: Target) -> None:
        batch = self._batches.get((row.topic, target))
        if batch is None:
            batch = self._batches[row.topic, target] = _Batch()
        properties = f"{row.properties}UNIQ_KEY\x01{self._ids.next()}\x02".encode()
        if len(properties) > _PROPERTIES_SIZE_MAX:
            _check_size(properties.decode())
        size = _ITEM.size + len(row.body) + _U16.size + len(properties)
        if batch.size and batch.size + size > self.how.batch_bytes:
            self._send_batch(row.topic, target, batch)
        batch.parts += (
            _ITEM.pack(size, row.flag, len(row.body)),
            row.body,
            _U16.pack(len(properties)),
            properties,
        )
        batch.size += size
        batch.rows += 1
        if batch.size >= self.how.batch_bytes:
            self._send_batch(row.topic, target, batch)

    def _send_batch(self, topic: str, target: Target, batch: _Batch) -> None:
        if not batch.rows:
            return
        body, rows = b"".join(batch.parts), batch.rows
        batch.parts, batch.size, batch.rows = [], 0, 0
        self._turn += 1  # What may go anywhere goes on with the next queue.
        request = Request(SEND_BATCH_MESSAGE, topic, target.queue_id, "", 0, body, rows)
        self._lane(target).submit(request)

    def _lane(self, target: Target) -> _Lane:
        lane = self._lanes.get(target.address)
        if lane is None:
            lane = self._lanes[target.address] = _Lane(target.address, self.how)
        return lane


@dataclass(slots=True)
class _Batch:
    parts: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    rows: int = 0


class _Ids:
    """Makes ids for messages that have none: of Apache's form, with the time in it."""

    def __init__(self) -> None:
        now = time.gmtime()
        in_month = ((now.tm_mday - 1) * 86_400 + now.tm_hour * 3_600 + now.tm_min * 60) * 1000
        self._prefix = "7F000001" + secrets.token_hex(6).upper()
        self._number = (in_month & 0xFFFFFFFF) << 16

    def next(self) -> str:
        self._number += 1
        return f"{self._prefix}{self._number:012X}"


class _Lane:
    """What is under way to one broker."""

    def __init__(self, address: str, how: Sending) -> None:
        self._address = address
        self._how = how
        self._wire: Wire | None = None
        self._under_way: dict[int, Request] = {}
        self._unwritten: list[bytes] = []
        self._unwritten_size = 0
        self._failures = 0
        self._batches = 0

    @property
    def speaks_cometmq(self) -> bool:
        """Whether the broker has CometMQ's extensions; it is asked something, to see."""
        peer = self._connected()
        if not peer.is_known:
            peer.ask(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
        return peer.speaks_cometmq

    def submit(self, request: Request) -> None:
        """Send a request, once there is room for it."""
        is_batch = request.code == SEND_BATCH_MESSAGE
        room = self._how.max_in_flight or (_IN_FLIGHT_BATCHES if is_batch else _IN_FLIGHT_SINGLE)
        if len(self._under_way) >= room:
            self._wait(until=room - 1 if is_batch else room // 2)
        peer = self._connected()
        number = peer.number()
        self._under_way[number] = request
        frame = _frame(peer, request, number)
        self._unwritten.append(frame)
        self._unwritten_size += len(frame)
        if self._unwritten_size >= _WRITE_SIZE:
            self._attempt(self._write)

    def finish(self) -> None:
        """Wait until everything is answered."""
        self._wait(until=0)

    def close(self) -> None:
        """Give the connection back; one with answers to come is ended."""
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
        request = self._under_way.pop(answer.opaque, None)
        if request is None:
            return
        if answer.code in _STORED:
            self._failures = 0
            return
        self._refused(request, answer)

    def _refused(self, request: Request, answer: Answer) -> None:
        if answer.code not in _BUSY:
            raise RefusedError(self._address, answer.code, answer.remark)
        self._pause(RefusedError(self._address, answer.code, answer.remark))
        peer = self._connected()
        number = peer.number()
        self._under_way[number] = request
        self._unwritten.append(_frame(peer, request, number))

    def _write(self) -> None:
        if self._unwritten:
            frames, self._unwritten, self._unwritten_size = self._unwritten, [], 0
            self._connected().write(b"".join(frames))

    def _attempt(self, do: Callable[[], None]) -> None:
        """Do it; when the connection breaks, send all that was not answered over another one."""
        try:
            do()
        except ConnectionLostError as error:
            self._anew(error)

    def _anew(self, error: ConnectionLostError) -> None:
        while True:
            self._pause(error)
            if self._wire is not None:
                self._wire.close()
                self._wire = None
            requests, self._under_way = list(self._under_way.values()), {}
            self._unwritten, self._unwritten_size = [], 0
            try:
                peer = self._connected()
            except ConnectionLostError as again:
                self._under_way = dict(enumerate(requests))
                error = again
                continue
            for request in requests:
                number = peer.number()
                self._under_way[number] = request
                self._unwritten.append(_frame(peer, request, number))
            return

    def _pause(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > self._how.retries:
            raise error
        log.warning("sending to %s: %s; trying again", self._address, error)
        time.sleep(min(self._how.retry_interval_ms << self._failures - 1, 10_000) / 1000)

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = wire.connect(self._address, self._how.settings)
        return self._wire


def _check_size(properties: str) -> None:
    size = len(properties.encode())
    if size > _PROPERTIES_SIZE_MAX:
        raise SinkError(f"properties of {size} bytes: a message can have {_PROPERTIES_SIZE_MAX}")


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
        "m": "true" if request.code == SEND_BATCH_MESSAGE else "false",
    }
    return peer.frame(request.code, fields, request.body, number)
