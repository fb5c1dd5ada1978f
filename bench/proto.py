"""The codec: from bytes to a command with parsed fields, and from an answer to bytes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.measure import YARDSTICK, show
from cometmq.proto.answer_form import JsonAnswerForm
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse, SendMessageV2
from cometmq.proto.connection import Connection
from cometmq.proto.frame import FrameParser
from cometmq.proto.header import from_texts
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.header_typed import RequestReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.command import HeaderCodec

BODY = bytes(range(256)) * 4
PIPELINED = 32
SEND = from_texts(SendMessageV2, json.loads(YARDSTICK)["extFields"])
READER = RequestReader({RequestCode.SEND_MESSAGE_V2: SendMessageV2})
ANSWER = SendMessageResponse(
    msg_id="7F000001000055B5000000000007B916",
    queue_id=3,
    queue_offset=1500,
    transaction_id="FD0000000000000000000000000000026B1F5FFD2B27692603620000",
    region_id="DefaultRegion",
    trace_on=True,
)


def sent(codec: HeaderCodec) -> bytes:
    """Return one send as on the wire."""
    request = Command.request(RequestCode.SEND_MESSAGE_V2, SEND, body=BODY, opaque=4, codec=codec)
    return b"".join(Connection().send(request))


def parse(codec: HeaderCodec, count: int, *, typed: bool = True) -> Callable[[], object]:
    """Return a case: from one read with `count` sends to the typed header of each."""
    stream = sent(codec) * count
    connection = Connection(request_reader=READER if typed else None)

    def once() -> None:
        connection.receive_data(stream)
        for command in connection.events():
            assert isinstance(command, Command)
            command.read(SendMessageV2)

    return once


def received(connection: Connection, codec: HeaderCodec) -> Command:
    """Return the send as a connection gives it to a broker."""
    connection.receive_data(sent(codec))
    request = connection.next_event()
    assert isinstance(request, Command)
    return request


def answer(codec: HeaderCodec) -> Callable[[], object]:
    """Return a case: from an answer's fields to what is written to the socket."""
    connection = Connection()
    request = received(connection, codec)

    def once() -> object:
        return connection.send(request.answer(0, ANSWER))

    return once


def encoded(codec: HeaderCodec) -> Callable[[], object]:
    """Return a case with the encoding alone: from the answer to the bytes of its header."""
    made = received(Connection(), codec).answer(0, ANSWER)

    def once() -> object:
        return codec.encode(made)

    return once


def filled_in() -> Callable[[], object]:
    """Return a case with the same answer by a template, as brokers do: five values to bytes."""
    host, raw_id = ANSWER.msg_id[:16], (ANSWER.transaction_id or "").encode()
    specimen = replace(
        ANSWER, msg_id=f"{host}<offset>", queue_id=1357, queue_offset=2468, transaction_id="<id>"
    )
    form = JsonAnswerForm(
        Command.request(RequestCode.SEND_MESSAGE_V2).answer(0, specimen),
        [("<offset>", b"%016X"), ("1357", b"%d"), ("2468", b"%d"), ("<id>", b"%s")],
    )
    physical_offset, queue_id = int(ANSWER.msg_id[16:], 16), ANSWER.queue_id

    def once() -> object:
        assert raw_id.isalnum()
        return form.frame(physical_offset, queue_id, ANSWER.queue_offset, raw_id, 4)

    assert once() == answered(JSON), "not what the codec makes"
    return once


def answered(codec: HeaderCodec) -> bytes:
    """Return the answer as on the wire."""
    request = Command.request(RequestCode.SEND_MESSAGE_V2, opaque=4, codec=codec)
    return b"".join(Connection().send(request.answer(0, ANSWER)))


def cut() -> Callable[[], object]:
    """Return a case that only finds frames, without decoding them."""
    stream = sent(JSON) * PIPELINED
    parser = FrameParser()

    def once() -> None:
        parser.receive_data(stream)
        while parser.next_frame() is not None:
            pass

    return once


def codec_cases(codec: HeaderCodec) -> dict[str, tuple[Callable[[], object], int]]:
    """Return the cases of one codec, in both directions."""
    return {
        f"{codec.name}: bytes → typed send, 1 KiB body, one a read": (parse(codec, 1), 1),
        f"{codec.name}: the same, {PIPELINED} a read": (parse(codec, PIPELINED), PIPELINED),
        f"{codec.name}: the send's answer encoded": (encoded(codec), 1),
        f"{codec.name}: the same, made, checked and framed": (answer(codec), 1),
    }


CASES: dict[str, tuple[Callable[[], object], int]] = {
    "json.loads of the header alone": (lambda: json.loads(YARDSTICK), 1),
    "cut a frame (1 KiB body)": (cut(), PIPELINED),
    **codec_cases(JSON),
    "JSON: the send's answer by a form, as a broker sends it": (filled_in(), 1),
    "JSON: bytes → typed send, by a connection without its classes": (
        parse(JSON, 1, typed=False),
        1,
    ),
    **codec_cases(ROCKETMQ),
    **codec_cases(MESSAGEPACK),
}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    show(CASES, "python -m bench.proto", arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
