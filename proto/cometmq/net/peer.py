"""One connection as its owner sees it, and the part of a driver that needs no socket.

How it works. A driver passes each read to `data_received`. This takes the requests out of the
sans-I/O connection one by one, has the owner handle each, and gathers the buffers of the answers,
which leave in one write when the turn calls `flush`. A request has no task and no timer.

Back-pressure: when the peer leaves too much unread, the driver calls `pause_writing`. From then on,
until `resume_writing`, nothing is read from the peer, and what has been read is not handled. A
large answer also stops the handling of the following requests until it has left.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from cometmq.net.asks import Asks
from cometmq.net.carrier import Carrier
from cometmq.net.errors import AnswerTimeoutError, ConnectionLostError
from cometmq.net.failures import failure, overload, unfinished, unread, unsayable
from cometmq.net.opening import refusal_of
from cometmq.net.owner import LATER
from cometmq.proto.capture import decode_frame
from cometmq.proto.command import ONEWAY_FLAG, Command
from cometmq.proto.connection import Answer, Connection, ConnectionBroken
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.errors import NetError
    from cometmq.net.owner import Frame
    from cometmq.net.peers import Peers
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.connection import ConnectionClosed

_log = logging.getLogger("cometmq.net")

# Answers up to this size are joined: copying them costs less than a write of many buffers.
JOIN_SIZE_MAX: Final = 16 * 1024


class Peer(Carrier):
    """The other end of one connection.

    For the owner: `host` is the peer's address, `local_port` our port that it connected to,
    `context` whatever the owner keeps with it; and `answer`, `ask`, `tell` and `close`. The rest,
    and `Carrier`, is for the drivers. `prepare` gets each of our requests last, to sign it.
    """

    __slots__ = (
        "_asks",
        "_fresh",
        "_out",
        "_out_size",
        "_prepare",
        "_receiving_size",
        "_send",
        "_stalled",
        "closed_because",
        "connection",
        "context",
        "heard_ms",
        "host",
        "in_flight",
        "is_paused",
        "local_port",
        "peers",
    )

    def __init__(
        self,
        peers: Peers,
        *,
        offer_messagepack: bool = False,
        prepare: Callable[[Command], Command] | None = None,
    ) -> None:
        super().__init__()
        limits = peers.limits
        connection = Connection(
            request_reader=peers.request_reader,
            offer_messagepack=offer_messagepack,
            frame_size_max=limits.frame_size_max,
            header_size_max=limits.header_size_max,
            fields_max=limits.fields_max,
            pending_max=limits.pending_max,
        )
        self.peers = peers
        self.connection = connection
        self.host = Host("", 0)
        self.local_port = 0
        self.context: Any = None
        self.heard_ms = peers.now_ms
        self.in_flight = 0  # requests of the peer whose answers come later
        self.closed_because: str | None = None
        self._prepare = prepare
        self._send = connection.send
        self._asks: Asks | None = None  # made for the first: few peers are asked anything
        self._fresh = True  # nothing has been received yet
        self.is_paused = False  # the peer does not read: none of its requests are handled
        self._stalled = False  # there may be received requests that are not handled
        self._receiving_size = 0  # as noted in peers
        self._out: list[Buffer] = []
        self._out_size = 0  # of the answers in _out that have a body

    # Called by the owner.

    def answer(self, request: Command, response: Command | Frame) -> None:
        """Answer a request that was put off with LATER; call it once. It leaves with the turn."""
        if request.flag & ONEWAY_FLAG or self.closed_because is not None:
            return
        self.in_flight -= 1
        self._put(response)

    def answer_all(self, frames: list[bytes]) -> None:
        """Answer requests, each by a whole frame with its number; none of them is one-way."""
        if self.closed_because is not None:
            return
        self.in_flight -= len(frames)
        if not self.connection.takes_frames:
            for frame in frames:
                self._put(decode_frame(frame))
            return
        if not self._out:
            self.peers.turn.release(self)
        self._out += frames

    def ask(
        self, request: Command, answered: Callable[[Command | NetError], None], *, timeout_ms: int
    ) -> int:
        """Send a request, and return its number; `answered` gets the response, or why none comes.

        Raises a LocalProtocolError if it cannot be sent, or if `pending_max` requests wait. The
        timeout is as precise as the calls of `Peers.tick`.
        """
        self.peers.note_deadline(self, opaque := self.ask_untimed(request, answered), timeout_ms)
        return opaque

    def ask_untimed(self, request: Command, answered: Callable[[Command | NetError], None]) -> int:
        """Send like `ask`, without a deadline: the caller keeps one, and calls `expire`."""
        if self.closed_because is not None or self.connection.is_over:
            reason = self.closed_because or "the peer closed it"
            raise ConnectionLostError(f"{self.host}: the connection is closed: {reason}")
        opaque = self.connection.new_opaque()
        extras = request.extras
        if offer := self.connection.offer:
            extras = {**(extras or {}), **offer}
        request = replace(request, opaque=opaque, extras=extras)
        buffers = self._send(request if self._prepare is None else self._prepare(request))
        if self._asks is None:
            self._asks = Asks()
        is_alone = not self._asks and not self._out and not self.peers.turn.is_handling
        self._asks.add(opaque, answered)
        self._queue(buffers)
        if is_alone:
            self.flush()  # Otherwise it would wait until the end of the turn.
        return opaque

    def tell(self, request: Command) -> None:
        """Send a one-way request; whether it arrives is not known."""
        if self.closed_because is None:
            opaque = self.connection.new_opaque()
            request = replace(request, opaque=opaque, flag=ONEWAY_FLAG)
            self._queue(self._send(request if self._prepare is None else self._prepare(request)))

    def close(self, reason: str) -> None:
        """Close once everything that turns have released has left; an open turn's answers are lost.

        Our pending requests fail with the reason.
        """
        if self._end(reason):
            self._close()

    def drop(self, reason: str) -> None:
        """Close at once, log why, and drop what has not left."""
        if self._end(reason):
            self.peers.note_dropped(self, reason)
        self._abort()  # Even a closed one: it may never read what has to be sent first.

    # Called by the drivers and `Peers`.

    def open(self, host: Host, local_port: int) -> bool:
        """Begin; return False, and nothing else happens, if there are too many connections."""
        self.host = host
        self.local_port = local_port
        if not self.peers.admit(self):
            self.closed_because = "connections_max connections are open"
            return False
        self._tell_owner(self.peers.owner.opened)
        return True

    def gone(self, reason: str) -> None:
        """End the connection, once, whoever began that."""
        self._end(reason)
        if self._receiving_size:
            self.peers.note_received(self, self._receiving_size)
            self._receiving_size = 0
        if self.peers.leave(self):
            self._tell_owner(self.peers.owner.closed)

    def expire(self, opaque: int) -> None:
        """Give up a request of ours, if it is still pending."""
        self.connection.forget(opaque)
        if self._asks:
            self._asks.settle(
                opaque, AnswerTimeoutError(f"{self.host}: no answer to request {opaque}")
            )

    def forget(self, opaque: int) -> None:
        """Stop waiting for an answer, and tell nobody."""
        self.connection.forget(opaque)
        if self._asks:
            self._asks.forget(opaque)

    # The next three have asyncio's names: a call in between would cost 0.1 µs.

    def data_received(self, data: bytes) -> None:
        """Take one read: handle its requests in order, and let the turn release the answers."""
        self.heard_ms = self.peers.now_ms
        if self._fresh:
            self._fresh = False
            if refusal := refusal_of(data[0], self.peers.limits.frame_size_max):
                self.drop(refusal)
                return
        self.connection.receive_data(data)
        if self.is_paused or self._stalled:
            self._stalled = True  # This came before the driver stopped reading.
        elif not self._handle_events():
            self._note_receiving()
        elif self._receiving_size:
            self.peers.note_received(self, self._receiving_size)
            self._receiving_size = 0

    def pause_writing(self) -> None:
        """Handle nothing more until `resume_writing`: the peer leaves too much unread."""
        self.is_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """Go on: the peer has read."""
        self.is_paused = False
        self.heard_ms = self.peers.now_ms
        if self._stalled:
            self._go_on()
        else:
            self._resume_reading()

    def receive_end(self) -> None:
        """Take the end of the stream, after handling and answering the requests before it."""
        self.connection.receive_data(b"")
        if not self.is_paused:
            self._handle_events()
        self.peers.turn.end()
        self.close("the peer closed it")

    def flush(self) -> None:
        """Pass everything that is to be sent to the driver, in one write."""
        out = self._out
        if not out or self.closed_because is not None:
            return
        if self._out_size > JOIN_SIZE_MAX:
            self._write_all(out)
        else:
            self._write(out[0] if len(out) == 1 else b"".join(out))
        if self._has_marked:
            self._since_marked += sum(map(len, out))
        self._out = []
        self._out_size = 0
        if self.is_paused:
            if reason := unread(self._unsent_size(), self.peers.limits.unsent_bytes_max):
                self.drop(reason)
        elif self._stalled:
            self.peers.call_soon(self._go_on)

    def _handle_events(self) -> bool:
        """Handle the received events; return whether there were any."""
        peers = self.peers
        turn = peers.turn
        handle = peers.owner.handle
        in_flight_max = peers.limits.in_flight_max
        unsent_bytes_pause = peers.limits.unsent_bytes_pause
        found = False
        turn.is_handling = True
        try:
            for event in self.connection.events():
                if self.closed_because is not None:
                    break
                found = True
                if not isinstance(event, Command):
                    self._take(event)
                    continue
                try:
                    if self.in_flight < in_flight_max:
                        response = handle(event, self)
                    else:
                        response = overload(event, in_flight_max)
                    if event.flag & ONEWAY_FLAG:
                        continue
                    if response is LATER:
                        self.in_flight += 1
                        continue
                    self._put(response)
                except Exception as error:
                    self._failed(event, error)
                if self._out_size > unsent_bytes_pause:
                    self._stalled = True
                    self._pause_reading()
                    break
        finally:
            turn.is_handling = False
            if found:
                turn.found(self)
        return found

    def _failed(self, request: Command, error: Exception) -> None:
        _log.exception("%s: request %d failed; this is a bug", self.host, request.code)
        if not request.flag & ONEWAY_FLAG:
            self._put(failure(request, error))

    def _take(self, event: Answer | ConnectionClosed | ConnectionBroken) -> None:
        """Take an event that is not a request; `receive_end` handles the end after the turn."""
        if isinstance(event, Answer):
            if self._asks:
                self._asks.settle(event.request.opaque, event.response)
        elif isinstance(event, ConnectionBroken):
            self.drop(str(event.error))

    def _tell_owner(self, word: Callable[[Peer], None]) -> None:
        try:
            word(self)
        except Exception:
            _log.exception("%s: the owner failed on a connection; this is a bug", self.host)

    def _go_on(self) -> None:
        if self._stalled and not self.is_paused and self.closed_because is None:
            self._stalled = False
            self._handle_events()
            if not self._stalled:
                self._resume_reading()

    def _put(self, response: Command | Frame) -> None:
        """Queue an answer or, if it cannot be encoded, the answer that says so."""
        if not isinstance(response, Command):
            self._queue(response)
            return
        try:
            buffers = self._send(response)
        except LocalProtocolError as error:
            _log.error("%s: an answer cannot be sent: %s", self.host, error)
            buffers = self._send(unsayable(response, error))
        self._queue(buffers)

    def _queue(self, buffers: list[Buffer]) -> None:
        out = self._out
        if not out:
            self.peers.turn.release(self)
        if len(buffers) == 1:
            out.append(buffers[0])
        else:
            self._out_size += sum(map(len, buffers))
            out += buffers

    def _note_receiving(self) -> None:
        """Account for the unfinished frame of a read that finished none."""
        size = self.connection.receiving_size
        grown = size - self._receiving_size
        self._receiving_size = size
        if not self.peers.note_receiving(self, grown):
            self.drop(unfinished(size, self.peers.limits.receiving_bytes_max))

    def _end(self, reason: str) -> bool:
        if self.closed_because is not None:
            return False
        self.closed_because = reason
        self._out = []
        if self._asks:
            self._asks.fail(ConnectionLostError(f"{self.host}: the connection ended: {reason}"))
        return True
