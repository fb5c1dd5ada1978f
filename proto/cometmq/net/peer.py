"""One connection as its owner sees it, and the half of a driver that needs no socket.

How it works. A driver gives each read to `data_received`. That takes the requests out of the
sans-I/O connection one by one, has the owner handle each, and gathers the answers' buffers, which
leave in one write when the turn calls `flush`. There is no task and no timer for a request.

Back-pressure: when the peer leaves too much unread the driver calls `pause_writing`. From then on
nothing is read from it and nothing more is handled, also of what has been read, until
`resume_writing`. A request that is answered with much also stops the handling of those behind it
until that has left.
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

    For the owner: `host` is its address, `local_port` ours that it came in by, `context` what the
    owner keeps with it; `answer`, `ask`, `tell` and `close`. For the drivers: the rest, and the
    verbs of `Carrier`. `prepare` sees each request of ours last, and gives what is sent, signed.
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
        self.in_flight = 0  # requests of the peer's whose answers come later
        self.closed_because: str | None = None
        self._prepare = prepare
        self._send = connection.send
        self._asks: Asks | None = None  # made for the first: few peers are asked anything
        self._fresh = True  # nothing has been received
        self.is_paused = False  # the peer does not read: nothing of it is handled
        self._stalled = False  # there may be received requests that are not handled
        self._receiving_size = 0  # as noted in peers
        self._out: list[Buffer] = []
        self._out_size = 0  # of those answers in _out that have a body

    # What an owner calls.

    def answer(self, request: Command, response: Command | Frame) -> None:
        """Answer a request that was put off with LATER, once; it leaves with the turn."""
        if request.flag & ONEWAY_FLAG or self.closed_because is not None:
            return
        self.in_flight -= 1
        self._put(response)

    def answer_all(self, frames: list[bytes]) -> None:
        """Answer as many requests, each with a whole frame, which has its number; none one-way."""
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
        """Ask; `answered` gets the response, or why there is none. Returns the request's number.

        A LocalProtocolError for what cannot be sent, or when `pending_max` requests wait. The time
        is as exact as `Peers.tick` is called.
        """
        self.peers.note_deadline(self, opaque := self.ask_untimed(request, answered), timeout_ms)
        return opaque

    def ask_untimed(self, request: Command, answered: Callable[[Command | NetError], None]) -> int:
        """Ask as `ask` does, with no deadline: for who keeps one, and calls `expire`."""
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
            self.flush()  # It would wait for others until the end of the turn.
        return opaque

    def tell(self, request: Command) -> None:
        """Send a one-way request; nothing tells whether it arrives."""
        if self.closed_because is None:
            opaque = self.connection.new_opaque()
            request = replace(request, opaque=opaque, flag=ONEWAY_FLAG)
            self._queue(self._send(request if self._prepare is None else self._prepare(request)))

    def close(self, reason: str) -> None:
        """Close when what the turns have released has left; answers of an open turn are lost.

        Requests of ours that are pending fail with the reason.
        """
        if self._end(reason):
            self._close()

    def drop(self, reason: str) -> None:
        """Close at once, log why, and forget what has not left."""
        if self._end(reason):
            self.peers.note_dropped(self, reason)
        self._abort()  # Also one that was closed: it may never read what it is to be sent first.

    # What the drivers and `Peers` call.

    def open(self, host: Host, local_port: int) -> bool:
        """Begin; False, and nothing else will come of it, when there are too many connections."""
        self.host = host
        self.local_port = local_port
        if not self.peers.admit(self):
            self.closed_because = "connections_max are open"
            return False
        self._tell_owner(self.peers.owner.opened)
        return True

    def gone(self, reason: str) -> None:
        """End, once, whoever began it."""
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
        """Wait no longer for an answer, and tell nobody."""
        self.connection.forget(opaque)
        if self._asks:
            self._asks.forget(opaque)

    # The next three have the names of asyncio: a frame in between would cost 0.1 µs.

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
            self._stalled = True  # It came before the driver stopped reading.
        elif not self._handle_events():
            self._note_receiving()
        elif self._receiving_size:
            self.peers.note_received(self, self._receiving_size)
            self._receiving_size = 0

    def pause_writing(self) -> None:
        """Handle no more until `resume_writing`: the peer leaves too much unread."""
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
        """Take the end of the stream: what the peer asked before is handled and answered first."""
        self.connection.receive_data(b"")
        if not self.is_paused:
            self._handle_events()
        self.peers.turn.end()
        self.close("the peer closed it")

    def flush(self) -> None:
        """Give what is to be sent to the driver, in one write."""
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
        """Handle what has been received; tell whether there was anything."""
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
        """Take what is no request; of the end, `receive_end` takes care when the turn is over."""
        if isinstance(event, Answer):
            if self._asks:
                self._asks.settle(event.request.opaque, event.response)
        elif isinstance(event, ConnectionBroken):
            self.drop(str(event.error))

    def _tell_owner(self, word: Callable[[Peer], None]) -> None:
        try:
            word(self)
        except Exception:
            _log.exception("%s: the owner fails on a connection; this is a bug", self.host)

    def _go_on(self) -> None:
        if self._stalled and not self.is_paused and self.closed_because is None:
            self._stalled = False
            self._handle_events()
            if not self._stalled:
                self._resume_reading()

    def _put(self, response: Command | Frame) -> None:
        """Queue an answer, or, when it has no form on the wire, that it has none."""
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
