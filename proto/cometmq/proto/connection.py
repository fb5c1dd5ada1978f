"""One connection, seen from either end: bytes in, events out, commands in, buffers out.

::

    write(connection.send(connection.request(code, fields)))
    ...
    connection.receive_data(data)              # b"" is the end of the stream
    while (event := connection.next_event()) is not NEED_DATA:
        match event:
            case Command():                    # the peer asks
                write(connection.send(event.answer(ResponseCode.SUCCESS)))
            case Answer(request, response):    # the peer answers what we asked
                ...
            case ConnectionClosed() | ConnectionBroken():
                break                          # the last event there is

How it works. Both sides may send requests at any time, and each numbers its own (`opaque`). So a
connection has a table of the requests that it sent and that are not answered yet. A response whose
number is not in the table (given up, or never asked for) is counted and dropped. Whatever a peer
sends, `next_event` does not raise: bytes that are not the protocol end the connection with a
ConnectionBroken.

A request without a codec goes out in that of the connection: JSON by default, and MessagePack once
the peer is known to read it (`docs/protocol-extensions.md`). An answer has its request's codec.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto.buffer import body_size_of
from cometmq.proto.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError
from cometmq.proto.frame import (
    FRAME_SIZE_MAX,
    HEAD_SIZE,
    HEADER_SIZE_LAYOUT_MAX,
    HEADER_SIZE_MAX,
    FrameParser,
    pack_head,
)
from cometmq.proto.header_codecs import DECODERS
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.offer import NO_OFFER, Accepting, Offering, reads_messagepack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import HeaderCodec
    from cometmq.proto.header import Header
    from cometmq.proto.header_typed import RequestReader

# Defaults of `Connection`.
FIELDS_MAX = 1024
PENDING_MAX = 65536

_I32_MAX = 2**31 - 1
_I32_MIN = -(2**31)
_CODE_MAX_ROCKETMQ = 2**15 - 1


class NeedData(Enum):
    """The type of NEED_DATA."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA
"""The result of `next_event` if nothing happened; compare with `is`."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The peer has answered a request of ours."""

    request: Command
    response: Command


class ConnectionClosed(msgspec.Struct, frozen=True):
    """The peer has ended the stream between two frames. Pending requests get no answer."""


class ConnectionBroken(msgspec.Struct, frozen=True):
    """What the peer sent is not the protocol, or ended within a frame. Close the connection."""

    error: RemoteProtocolError


Event = Command | Answer | ConnectionClosed | ConnectionBroken | NeedData
"""All that `next_event` returns."""


class Connection:
    """The state of one connection.

    `request_reader`, shared by all connections, makes reading the requests that it knows faster.
    `frame_size_max`, `header_size_max` and `fields_max` limit what a peer may send, and the first
    two what we send. Equal names in a JSON header count as one field, because one is kept.
    `pending_max` limits how many of our requests may wait for an answer. `offer_messagepack` is for
    the side that asks first: see `offer`.
    """

    receive_data: Callable[[Buffer], None]
    """Take bytes of the stream, in any kind of buffer; no bytes mean that it has ended.

    This is `FrameParser.receive_data` itself: a method that calls it would cost 0.09 µs a read.
    """

    def __init__(
        self,
        *,
        codec: HeaderCodec = JSON,
        request_reader: RequestReader | None = None,
        offer_messagepack: bool = False,
        frame_size_max: int = FRAME_SIZE_MAX,
        header_size_max: int = HEADER_SIZE_MAX,
        fields_max: int = FIELDS_MAX,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self.codec = codec
        self.fields_max = fields_max
        self.pending_max = pending_max
        self.unmatched_count = 0  # responses that nobody waited for
        self._parser = FrameParser(frame_size_max=frame_size_max, header_size_max=header_size_max)
        self.receive_data = self._parser.receive_data
        self._sent_size_max = frame_size_max - HEAD_SIZE
        self._sent_header_max = min(header_size_max, HEADER_SIZE_LAYOUT_MAX, self._sent_size_max)
        self._frames = self._parser.frames
        self._decoders = DECODERS if request_reader is None else request_reader.decoders
        self._pending: dict[int, Command] = {}
        self._opaque = 0
        self._last_event: ConnectionClosed | ConnectionBroken | None = None
        self._offering = Offering() if offer_messagepack else None
        self._accepting: Accepting | None = Accepting()

    def __repr__(self) -> str:
        state = "open"
        if self.is_over:
            state = repr(self._last_event) if self._last_event else "input ended"
        return (
            f"<Connection {self.codec.name}, {len(self._pending)} pending,"
            f" {self.receiving_size} bytes of a frame, {state}>"
        )

    @property
    def offer(self) -> Mapping[str, str]:
        """Extras for our first request that wants an answer, to be added before it is signed.

        Empty if there is nothing to offer, or an offer has been sent. A peer that does not know the
        field (Apache) ignores it, and nothing changes for the connection.
        """
        return NO_OFFER if self._offering is None else self._offering.extras

    @property
    def pending(self) -> Mapping[int, Command]:
        """Our requests that are not answered yet, by their number."""
        return self._pending

    @property
    def receiving_size(self) -> int:
        """The number of received bytes that are not part of an event yet."""
        return self._parser.pending_size

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come: a request sent now would get no answer."""
        return self._parser.is_over

    @property
    def takes_frames(self) -> bool:
        """Whether an answer may leave as bytes made elsewhere, without `send`.

        It may not while an offer of the peer waits to be accepted in its answer.
        """
        return self._accepting is None

    def request(
        self,
        code: int,
        fields: Header | Mapping[str, str] | None = None,
        *,
        body: Buffer | None = None,
        oneway: bool = False,
        extras: Mapping[str, str] | None = None,
        codec: HeaderCodec | None = None,
    ) -> Command:
        """Make a request to send here, with the next number, and with the offer if there is one."""
        if not oneway and (offer := self.offer):
            extras = {**(extras or {}), **offer}
        return Command.request(
            code,
            fields,
            body=body,
            opaque=self.new_opaque(),
            oneway=oneway,
            extras=extras,
            codec=codec,
        )

    def new_opaque(self) -> int:
        """Return the next free number for a request of ours: 32 bits, signed, not pending."""
        while True:
            opaque = self._opaque
            self._opaque = opaque + 1 if opaque < _I32_MAX else _I32_MIN
            if opaque not in self._pending:
                return opaque

    def forget(self, opaque: int) -> None:
        """Give up waiting for an answer; if it still comes, it is dropped."""
        self._pending.pop(opaque, None)

    def next_event(self) -> Event:
        """Return the next event, NEED_DATA if there is none. The last event is repeated."""
        return next(self.events(), NEED_DATA)

    def events(self) -> Iterator[Command | Answer | ConnectionClosed | ConnectionBroken]:
        """Yield all events until there are no more; cheaper than repeated `next_event`."""
        frames, decoders, fields_max = self._frames, self._decoders, self.fields_max
        while frames:
            serialize_type, header, body = frames.popleft()
            try:
                command = decoders[serialize_type](header, body, fields_max)
            except RemoteProtocolError as error:
                yield self._break(header, body, error)
                return
            flag = command.flag
            if flag and flag & RESPONSE_FLAG:  # Most have no flag, and skip the second test.
                if (answer := self._match(command)) is not None:
                    yield answer
                continue
            if self._accepting is not None:
                self._see_request(self._accepting, command)
            yield command
        if self._parser.is_over:
            yield self._end()

    def send(self, command: Command) -> list[Buffer]:
        """Return the buffers to write; body and parts are those of the command, uncopied.

        A request that wants an answer is pending from here on. An answer can be sent even after the
        peer has ended its side. Raises a LocalProtocolError, with nothing pending, for what cannot
        be sent: a request whose numbers don't fit, or that could get no answer; a body or part that
        is not a buffer; fields by name that are not strings; text with half a surrogate pair; a
        header with a required field that is None (not in MessagePack, where the peer refuses it).

        Not checked, because it would make an answer a sixth more expensive, are the types and
        ranges of fields in a header class, and the numbers of an answer, which are its request's.
        The former are left to a type checker; the peer refuses the field or breaks the connection.
        """
        waits = False
        if not command.flag & RESPONSE_FLAG:
            waits = self._check_request(command)
        elif self._accepting is not None:
            command = self._accept(self._accepting, command)
        codec = command.codec
        if codec is None:
            codec = self._codec_for(command.code)
        header = codec.encode(command)
        size = len(header)
        if size > self._sent_header_max:
            raise LocalProtocolError(
                f"command {command.code}: a header of {size} bytes exceeds"
                f" the {self._sent_header_max} that header_size_max allows"
            )
        body = command.body
        parts = command.parts
        body_size = 0
        if body is not None or parts:
            body_size = body_size_of(body, parts)
            if size + body_size > self._sent_size_max:
                raise _too_large(command, size + body_size, self._sent_size_max)
        if waits:
            self._wait_for(command)
        head = pack_head(4 + size + body_size, codec.serialize_type << 24 | size) + header
        if not body_size:
            return [head]
        return [head, *parts] if body is None else [head, body, *parts]

    def _codec_for(self, code: int) -> HeaderCodec:
        if self.codec is ROCKETMQ and not 0 <= code <= _CODE_MAX_ROCKETMQ:
            return JSON
        return self.codec

    def _check_request(self, request: Command) -> bool:
        """Refuse a request that cannot be sent; return whether it waits for an answer."""
        opaque = request.opaque
        try:
            are_numbers = (
                _I32_MIN <= opaque <= _I32_MAX
                and _I32_MIN <= request.code <= _I32_MAX
                and _I32_MIN <= request.version <= _I32_MAX
            )
        except TypeError:
            are_numbers = False
        if not are_numbers:
            raise LocalProtocolError(f"code, opaque or version is not an i32: {request!r}")
        if request.flag & ONEWAY_FLAG:
            return False
        if opaque in self._pending:
            raise LocalProtocolError(
                f"request {opaque} is already pending; `request` numbers requests by itself,"
                " and `new_opaque` returns a free number"
            )
        if self.is_over:
            raise LocalProtocolError(
                f"request {opaque} cannot get an answer: the connection is over"
            )
        if len(self._pending) >= self.pending_max:
            raise LocalProtocolError(f"pending_max {self.pending_max} requests wait for answers")
        return True

    def _wait_for(self, request: Command) -> None:
        self._pending[request.opaque] = request
        if self._offering is not None:
            self._offering.sent(request)

    def _match(self, response: Command) -> Answer | None:
        request = self._pending.pop(response.opaque, None)
        if request is None:
            self.unmatched_count += 1
            return None
        if self._offering is not None and self._offering.is_answered_by(response):
            self._offering = None
            if reads_messagepack(response):
                self.codec = MESSAGEPACK
        return Answer(request, response)

    def _see_request(self, accepting: Accepting, request: Command) -> None:
        if accepting.see(request):
            self.codec = MESSAGEPACK
        if accepting.is_over:
            self._accepting = None

    def _accept(self, accepting: Accepting, response: Command) -> Command:
        response = accepting.add_to(response)
        if accepting.is_over:
            self._accepting = None
        return response

    def _break(
        self, header: bytes, body: bytes | None, error: RemoteProtocolError
    ) -> ConnectionBroken:
        start = self._parser.offset - HEAD_SIZE - len(header) - len(body or b"")
        self._parser.stop()
        broken = ConnectionBroken(RemoteProtocolError(f"frame at byte {start}: {error}"))
        self._last_event = broken
        return broken

    def _end(self) -> ConnectionClosed | ConnectionBroken:
        if self._last_event is None:
            breach = self._parser.breach
            self._last_event = (
                ConnectionClosed()
                if breach is None
                else ConnectionBroken(RemoteProtocolError(breach))
            )
        return self._last_event


def _too_large(command: Command, size: int, size_max: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"command {command.code}: header and body of {size} bytes exceed"
        f" the {size_max} that frame_size_max allows"
    )
