"""One connection, seen from either end: bytes in, events out, commands in, buffers out.

::

    connection.receive_data(data)              # b"" is the end of the stream
    while (event := connection.next_event()) is not NEED_DATA:
        match event:
            case Command():                    # the peer asks
                write(connection.send(event.answer(ResponseCode.SUCCESS)))
            case Answer(request, response):    # the peer answers what we asked
                ...
            case ConnectionClosed() | ConnectionBroken():
                break                          # the last event there is

How it works. Both sides may ask at any time, and each numbers its own requests (`opaque`), so a
connection holds a table of those that it sent and that are not answered yet. A response with a
number that is not in it (given up, or never asked for) is counted and dropped. Whatever a peer
sends, `next_event` does not raise: bytes that are not the protocol end the connection with a
ConnectionBroken.

Requests that name no codec go out in the connection's own: JSON, unless told otherwise, and
MessagePack from when the peer is known to read it (`docs/protocol-extensions.md`). An answer goes
in the codec of its request.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from cometmq.proto.errors import FieldError, LocalProtocolError, RemoteProtocolError
from cometmq.proto.frame import FRAME_SIZE_MAX, HEAD_SIZE, HEADER_SIZE_MAX, FrameParser, frame_head
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.command import Buffer, HeaderCodec
    from cometmq.proto.header_json_typed import TypedJsonReader

FIELDS_MAX = 1024
PENDING_MAX = 65536

# A request with this field says which header types above 1 its sender reads; the same field in
# the answer says which of them the answerer reads.
OFFER_FIELD = "cometmqHeaders"
_OFFER: Final = {OFFER_FIELD: str(MESSAGEPACK.serialize_type)}
_NO_OFFER: Final[dict[str, str]] = {}

_UNANSWERED = RESPONSE_FLAG | ONEWAY_FLAG
_OPAQUE_MAX = 2**31 - 1
_OPAQUE_MIN = -(2**31)
_CODE_MAX_ROCKETMQ = 2**15 - 1


_DECODERS = {number: codec.decode for number, codec in HEADER_CODECS.items()}


class NeedData(Enum):
    """The type of NEED_DATA."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The peer answered a request of ours."""

    request: Command
    response: Command


class ConnectionClosed(msgspec.Struct, frozen=True):
    """The peer ended the stream between two frames. Requests still pending get no answer."""


class ConnectionBroken(msgspec.Struct, frozen=True):
    """What the peer sent is not the protocol, or ended within a frame. Close the connection."""

    error: RemoteProtocolError


Event = Command | Answer | ConnectionClosed | ConnectionBroken | NeedData


class Connection:
    """The state of one connection.

    `json_reader`, one for all connections, makes reading the requests that it knows faster.
    The limits: `frame_size_max`, `header_size_max` and `fields_max` are what a peer may send;
    `pending_max` is how many requests of ours may wait for an answer. `offer_messagepack` is for
    the side that asks first: see `offer`.
    """

    def __init__(
        self,
        *,
        codec: HeaderCodec = JSON,
        json_reader: TypedJsonReader | None = None,
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
        self._sent_size_max = frame_size_max - HEAD_SIZE
        self._next_frame = self._parser.next_frame
        self._decoders = _DECODERS
        if json_reader is not None:
            self._decoders = {**_DECODERS, JSON.serialize_type: json_reader.decode}
        self._pending: dict[int, Command] = {}
        self._opaque = 0
        self._stream_ended = False
        self._end: ConnectionClosed | ConnectionBroken | None = None
        self._offers = offer_messagepack
        self._offered_opaque: int | None = None  # of our request that made the offer
        self._first_request_seen = False
        self._accepting_opaque: int | None = None  # of their request that made an offer

    @property
    def offer(self) -> Mapping[str, str]:
        """Extras for our first request that wants an answer, to be added before it is signed.

        Empty when there is nothing to offer, or an offer has been sent. A peer that knows nothing
        of it (Apache) ignores the field, and the connection goes on as it is.
        """
        return _OFFER if self._offers and self._offered_opaque is None else _NO_OFFER

    @property
    def pending(self) -> Mapping[int, Command]:
        """Our requests that are not answered yet, by their number."""
        return self._pending

    @property
    def receiving_size(self) -> int:
        """How many bytes have come that are not part of an event yet."""
        return self._parser.pending_size

    def new_opaque(self) -> int:
        """Give the next number for a request of ours: 32 bits, signed, none that is pending."""
        while True:
            opaque = self._opaque
            self._opaque = opaque + 1 if opaque < _OPAQUE_MAX else _OPAQUE_MIN
            if opaque not in self._pending:
                return opaque

    def forget(self, opaque: int) -> None:
        """Give up waiting for an answer; it is dropped should it still come."""
        self._pending.pop(opaque, None)

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the stream; none at all mean that it ended."""
        if not data:
            self._stream_ended = True
        elif self._end is None:
            self._parser.receive_data(data)

    def next_event(self) -> Event:
        """Give what happened next, NEED_DATA when nothing did. The last event is repeated."""
        if self._end is not None:
            return self._end
        frame = None
        try:
            while (frame := self._next_frame()) is not None:
                serialize_type, header, body = frame
                decode = self._decoders.get(serialize_type)
                if decode is None:
                    raise RemoteProtocolError(f"header type {serialize_type} is unknown")
                command = decode(header, body, self.fields_max)
                if command.flag & RESPONSE_FLAG:
                    if (answer := self._match(command)) is not None:
                        return answer
                    continue
                if not self._first_request_seen:
                    self._see_first_request(command)
                return command
        except RemoteProtocolError as error:
            if frame is not None:
                start = self._parser.offset - HEAD_SIZE - len(frame[1]) - len(frame[2] or b"")
                error = RemoteProtocolError(f"frame at byte {start}: {error}")
            self._end = ConnectionBroken(error)
            return self._end
        return self._end_of_stream() if self._stream_ended else NEED_DATA

    def send(self, command: Command) -> list[Buffer]:
        """Give the buffers to write; body and parts are those of the command, uncopied.

        A request that wants an answer is pending from here on. A LocalProtocolError, and nothing
        pending, for what cannot be sent.
        """
        waits = not command.flag & _UNANSWERED
        if waits:
            self._check_pending(command)
        elif self._accepting_opaque is not None:
            command = self._accept_offer(command)
        codec = command.codec
        if codec is None:
            codec = self._codec_for(command.code)
        header = codec.encode(command)
        header_size = len(header)
        body, parts = command.body, command.parts
        body_size = 0 if body is None else len(body)
        if parts:
            body_size += sum(map(len, parts))
        if header_size + body_size > self._sent_size_max:
            raise _too_large(command, header_size + body_size, self._sent_size_max)
        if waits:
            self._wait_for(command)
        head = frame_head(codec.serialize_type, header_size, body_size) + header
        if not body_size:
            return [head]
        return [head, *parts] if body is None else [head, body, *parts]

    def _codec_for(self, code: int) -> HeaderCodec:
        if self.codec is ROCKETMQ and not 0 <= code <= _CODE_MAX_ROCKETMQ:
            return JSON
        return self.codec

    def _check_pending(self, request: Command) -> None:
        if request.opaque in self._pending:
            raise LocalProtocolError(f"request {request.opaque} is pending already")
        if len(self._pending) >= self.pending_max:
            raise LocalProtocolError(f"pending_max {self.pending_max} requests wait for answers")

    def _wait_for(self, request: Command) -> None:
        self._pending[request.opaque] = request
        if self._offers and request.extras is not None and OFFER_FIELD in request.extras:
            self._offered_opaque = request.opaque

    def _match(self, response: Command) -> Answer | None:
        request = self._pending.pop(response.opaque, None)
        if request is None:
            self.unmatched_count += 1
            return None
        if request.opaque == self._offered_opaque and self._offers:
            self._offers = False
            if _reads_messagepack(response):
                self.codec = MESSAGEPACK
        return Answer(request, response)

    def _see_first_request(self, request: Command) -> None:
        """Look for an offer: in the first request that wants an answer, and nowhere else."""
        if request.flag & ONEWAY_FLAG:
            return
        self._first_request_seen = True
        if request.codec is MESSAGEPACK:
            self.codec = MESSAGEPACK
        elif _reads_messagepack(request):
            self.codec = MESSAGEPACK
            self._accepting_opaque = request.opaque

    def _accept_offer(self, response: Command) -> Command:
        if response.opaque != self._accepting_opaque or not response.is_response:
            return response
        self._accepting_opaque = None
        return msgspec.structs.replace(response, extras={**(response.extras or {}), **_OFFER})

    def _end_of_stream(self) -> Event:
        if size := self._parser.pending_size:
            self._end = ConnectionBroken(
                RemoteProtocolError(
                    f"frame at byte {self._parser.offset}: the stream ends {size} bytes into it"
                )
            )
        else:
            self._end = ConnectionClosed()
        return self._end


def _too_large(command: Command, size: int, size_max: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"command {command.code}: header and body of {size} bytes exceed"
        f" the {size_max} that frame_size_max allows"
    )


def _reads_messagepack(command: Command) -> bool:
    try:
        said = command.ext_fields.get(OFFER_FIELD, "")
    except FieldError:
        # Who reads the fields for their own sake will say so.
        return False
    return _OFFER[OFFER_FIELD] in said.split(",")
