"""End-to-end latency at a steady rate: from a send to the answer of the pull that waits for it.

One connection sends; another holds a pull for each queue. Each body begins with the time of its
send, so an arriving message shows how long it took. The sender goes by the clock: if it is late, it
sends everything that is due.
"""

from __future__ import annotations

import select
import socket
import time
from array import array
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.admin.bench_frames import OPAQUE_MIN, TIME_SIZE, pull_header
from cometmq.admin.bench_load import BenchError, Link, Sends, received
from cometmq.net.errors import reason_of
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands.offset import GetMaxOffset, OffsetResponse
from cometmq.proto.commands.pull import PullMessageResponse
from cometmq.proto.connection import NEED_DATA, Answer, Connection
from cometmq.proto.message_list import MessageList

if TYPE_CHECKING:
    from cometmq.admin.bench_load import Interrupt, Load
    from cometmq.proto.command import Command

PULLED_MAX: Final = 32
DRAIN_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 10.0


class Passed(NamedTuple):
    """The result of a run."""

    sent: int
    received: int
    seconds: float
    refused: int
    accepted_us: array[float]
    """From a send to its answer."""
    received_us: array[float]
    """From a send to the answer of the pull that brings the message."""


class _Puller:
    """One connection that holds a pull for each queue."""

    def __init__(self, load: Load) -> None:
        self.socket = socket.create_connection((load.host, load.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.received_us: array[float] = array("f")
        self._connection = Connection()
        self._topic = load.topic
        self._since_ns = time.perf_counter_ns()
        self._queues: dict[int, int] = {}  # by the number of the pull in flight
        # All ends first, as a pull may be answered any time, say with messages of the warm-up.
        ends = [self._end_of(queue) for queue in range(load.queues)]
        for queue, end in enumerate(ends):
            self._pull(queue, end)

    def _end_of(self, queue: int) -> int:
        connection = self._connection
        request = connection.request(RequestCode.GET_MAX_OFFSET, GetMaxOffset(self._topic, queue))
        self.socket.sendall(b"".join(connection.send(request)))
        while not isinstance(event := connection.next_event(), Answer):
            if event is not NEED_DATA:
                raise BenchError(f"instead of the end of queue {queue} there came {event}")
            connection.receive_data(received(self.socket))
        return event.response.expect().read(OffsetResponse).offset

    def _pull(self, queue: int, offset: int) -> None:
        request = self._connection.request(
            RequestCode.PULL_MESSAGE,
            pull_header(self._topic, queue, offset, PULLED_MAX, waits=True),
        )
        self._queues[request.opaque] = queue
        self.socket.sendall(b"".join(self._connection.send(request)))

    def receive(self) -> None:
        """Take the messages that have arrived, and pull the next ones."""
        data = received(self.socket)
        now_ns = time.perf_counter_ns()
        self._connection.receive_data(data)
        while (event := self._connection.next_event()) is not NEED_DATA:
            if isinstance(event, Answer):
                self._take(event.response, now_ns)

    def _take(self, answer: Command, now_ns: int) -> None:
        code = answer.code
        if code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            answer.expect()
        if code == ResponseCode.SUCCESS:
            for message in MessageList(answer.body):
                sent_ns = int(bytes(message.body[:TIME_SIZE]))
                if sent_ns >= self._since_ns:  # Sends of the warm-up may still arrive.
                    self.received_us.append((now_ns - sent_ns) / 1000)
        queue = self._queues.pop(answer.opaque)
        self._pull(queue, answer.read(PullMessageResponse).next_begin_offset)


def run(load: Load, rate: float, interrupt: Interrupt) -> Passed:
    """Send at a rate for a while, and return the result. The topic must exist."""
    try:
        puller = _Puller(load)
        opaques = count(OPAQUE_MIN)
        sender = Link(load, Sends(load, count()), opaques.__next__)
    except OSError as error:
        raise BenchError(f"{load.host}:{load.port}: {reason_of(error)}") from error
    try:
        begun = time.perf_counter()
        sent = _send_all(load, rate, sender, puller, interrupt)
        seconds = time.perf_counter() - begun
        _drain(sent, sender, puller)
    except OSError as error:
        raise BenchError(f"{load.host}:{load.port}: {reason_of(error)}") from error
    finally:
        sender.socket.close()
        puller.socket.close()
    return Passed(
        sent,
        len(puller.received_us),
        seconds,
        sender.refused.total(),
        sender.latencies_us,
        puller.received_us,
    )


def _send_all(load: Load, rate: float, sender: Link, puller: _Puller, interrupt: Interrupt) -> int:
    begun = time.perf_counter()
    sent = 0
    sockets = [sender.socket, puller.socket]
    while (passed := time.perf_counter() - begun) < load.seconds and not interrupt.has_come:
        due = int(passed * rate) - sent
        if due > 0:
            sender.fill(due)
            sent += due
        # Not epoll, which waits in whole milliseconds.
        wait = max((sent + 1) / rate - (time.perf_counter() - begun), 0)
        for ready in select.select(sockets, (), (), wait)[0]:
            (sender if ready is sender.socket else puller).receive()
    return sent


def _drain(sent: int, sender: Link, puller: _Puller) -> None:
    end = time.perf_counter() + DRAIN_SECONDS
    sockets = [sender.socket, puller.socket]
    while len(puller.received_us) < sent and (left := end - time.perf_counter()) > 0:
        for ready in select.select(sockets, (), (), left)[0]:
            (sender if ready is sender.socket else puller).receive()
