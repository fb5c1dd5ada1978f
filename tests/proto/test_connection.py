from __future__ import annotations

import re
from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from cometmq.proto.buffer import Buffer
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command, HeaderCodec
from cometmq.proto.commands import GetMaxOffset, OffsetResponse, SendMessageV2
from cometmq.proto.connection import (
    NEED_DATA,
    Answer,
    Connection,
    ConnectionBroken,
    ConnectionClosed,
)
from cometmq.proto.errors import FieldError, LocalProtocolError
from cometmq.proto.frame import frame_head
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.header_typed import RequestReader
from cometmq.proto.offer import OFFER_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = GetMaxOffset("T", 0)
CODECS = (JSON, ROCKETMQ, MESSAGEPACK)
READER = RequestReader({RequestCode.GET_MAX_OFFSET: GetMaxOffset})


def deliver(connection: Connection, buffers: list[Buffer]) -> None:
    connection.receive_data(b"".join(buffers))


def ask(
    connection: Connection, *, codec: HeaderCodec | None = None, oneway: bool = False
) -> Command:
    return Command.request(
        RequestCode.GET_MAX_OFFSET,
        ASKED,
        opaque=connection.new_opaque(),
        codec=codec,
        oneway=oneway,
        extras=connection.offer,
    )


def received(connection: Connection) -> Command:
    event = connection.next_event()
    assert isinstance(event, Command)
    return event


def answered(connection: Connection) -> Answer:
    event = connection.next_event()
    assert isinstance(event, Answer)
    return event


def broken(connection: Connection) -> str:
    event = connection.next_event()
    assert isinstance(event, ConnectionBroken)
    assert connection.next_event() is event
    return str(event.error)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_request_and_its_answer_cross(codec: HeaderCodec) -> None:
    client, server = Connection(), Connection()
    request = ask(client, codec=codec)
    deliver(server, client.send(request))
    assert dict(client.pending) == {request.opaque: request}
    asked = received(server)
    assert asked.read(GetMaxOffset) == ASKED
    assert asked.codec is codec
    assert server.next_event() is NEED_DATA
    deliver(client, server.send(asked.answer(ResponseCode.SUCCESS, OffsetResponse(7), remark="r")))
    answer = answered(client)
    assert answer.request is request
    assert answer.response.codec is codec
    assert answer.response.remark == "r"
    assert answer.response.read(OffsetResponse).offset == 7
    assert not client.pending


def test_both_sides_ask_at_once_and_numbers_do_not_mix() -> None:
    client, server = Connection(), Connection()
    first, second = ask(client), ask(server)
    assert first.opaque == second.opaque == 0
    deliver(server, client.send(first))
    deliver(client, server.send(second))
    deliver(client, server.send(received(server).answer(ResponseCode.SUCCESS)))
    deliver(server, client.send(received(client).answer(ResponseCode.SYSTEM_ERROR)))
    assert answered(client).request is first
    assert answered(server).request is second


def test_answers_come_in_any_order() -> None:
    client, server = Connection(), Connection()
    requests = [ask(client) for _ in range(3)]
    deliver(server, [part for request in requests for part in client.send(request)])
    asked = [received(server) for _ in requests]
    for request in reversed(asked):
        deliver(client, server.send(request.answer(ResponseCode.SUCCESS)))
    assert [answered(client).request for _ in requests] == requests[::-1]


def test_a_oneway_request_waits_for_nothing_and_its_answer_is_dropped() -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(ask(client, oneway=True)))
    assert not client.pending
    request = received(server)
    assert request.is_oneway
    assert not request.is_response
    deliver(client, server.send(request.answer(ResponseCode.SUCCESS)))
    assert client.next_event() is NEED_DATA
    assert client.unmatched_count == 1


def test_a_forgotten_request_is_not_answered() -> None:
    client, server = Connection(), Connection()
    request = ask(client)
    deliver(server, client.send(request))
    client.forget(request.opaque)
    client.forget(request.opaque)
    deliver(client, server.send(received(server).answer(ResponseCode.SUCCESS)))
    assert client.next_event() is NEED_DATA
    assert client.unmatched_count == 1


def test_numbers_wrap_and_skip_those_that_are_pending() -> None:
    connection = Connection()
    connection.send(Command.request(34, opaque=2**31 - 1))
    connection.send(Command.request(34, opaque=-(2**31)))
    connection._opaque = 2**31 - 2  # pyright: ignore[reportPrivateUsage]  # 2**31 later
    assert connection.new_opaque() == 2**31 - 2
    assert connection.new_opaque() == -(2**31) + 1


def test_a_number_cannot_be_pending_twice() -> None:
    connection = Connection()
    connection.send(Command.request(34, opaque=5))
    with pytest.raises(LocalProtocolError, match="5 is already pending"):
        connection.send(Command.request(34, opaque=5))


def test_a_request_of_the_connection_is_numbered_and_makes_the_offer() -> None:
    connection = Connection(offer_messagepack=True)
    first = connection.request(30, ASKED, extras={"a": "b"})
    assert (first.opaque, first.extras) == (0, {"a": "b", OFFER_FIELD: "2"})
    connection.send(first)
    second = connection.request(30, body=b"x", codec=ROCKETMQ, oneway=True)
    assert (second.opaque, second.extras, second.is_oneway) == (1, None, True)
    assert (second.body, second.codec) == (b"x", ROCKETMQ)
    third = Connection(offer_messagepack=True).request(30, oneway=True)
    assert third.extras is None  # No answer could accept an offer.


def test_a_number_that_is_pending_is_refused_with_the_way_to_a_free_one() -> None:
    connection = Connection()
    connection.send(Command.request(30))
    with pytest.raises(LocalProtocolError, match="`new_opaque` returns a free number"):
        connection.send(Command.request(30))


def test_as_many_requests_as_pending_max_may_wait() -> None:
    connection = Connection(pending_max=2)
    connection.send(ask(connection))
    connection.send(ask(connection))
    with pytest.raises(LocalProtocolError, match="pending_max 2"):
        connection.send(ask(connection))
    connection.send(ask(connection, oneway=True))
    connection.forget(0)
    connection.send(ask(connection))


def test_bodies_and_parts_are_sent_uncopied() -> None:
    connection = Connection()
    body, part = b"body", memoryview(b"part")
    both = Command(310, opaque=1, body=body, parts=[part])
    assert connection.send(both)[1] is body
    assert connection.send(both.answer(0, body=body, parts=[part]))[2] is part
    assert connection.send(both.answer(0, parts=[part]))[1] is part
    assert len(connection.send(both.answer(0, body=b""))) == 1
    other = Connection()
    deliver(other, connection.send(both.answer(0, body=body, parts=[part])))
    deliver(other, connection.send(Command.request(310, body=body)))
    assert received(other).body == body
    assert other.unmatched_count == 1


def test_a_frame_beyond_frame_size_max_is_not_sent_and_not_pending() -> None:
    connection = Connection(frame_size_max=256)
    with pytest.raises(LocalProtocolError, match="frame_size_max"):
        connection.send(Command.request(310, body=bytes(256)))
    with pytest.raises(LocalProtocolError):
        connection.send(Command.request(310, {"a": "\ud800"}))
    assert not connection.pending


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_header_beyond_header_size_max_is_not_sent_and_not_pending(codec: HeaderCodec) -> None:
    connection = Connection(header_size_max=256)
    request = connection.request(30, {"topic": "T" * 256}, codec=codec)
    with pytest.raises(LocalProtocolError, match="the 256 that header_size_max allows"):
        connection.send(request)
    assert not connection.pending
    (frame,) = connection.send(connection.request(30, {"topic": "T"}, codec=codec))
    assert 0 < int.from_bytes(frame[5:8]) <= 256


def test_no_header_is_sent_whose_size_has_more_than_24_bits() -> None:
    connection = Connection(frame_size_max=2**30, header_size_max=2**30)
    with pytest.raises(LocalProtocolError, match="the 16777215 that header_size_max allows"):
        connection.send(connection.request(30, {"topic": "T" * 2**24}))


def test_a_breach_behind_an_unmatched_answer_is_said_once() -> None:
    client, server = Connection(), Connection()
    stray = b"".join(server.send(Command.request(30, opaque=5).answer(0)))
    client.receive_data(stray + bytes.fromhex("00000004 00000005"))
    said = broken(client)
    assert said.startswith(f"frame at byte {len(stray)}: a header of 5 bytes"), said


def test_a_wrong_header_between_others_is_found_where_it_stands() -> None:
    client, server = Connection(), Connection()
    good = b"".join(client.send(ask(client)))
    server.receive_data(good + bytes.fromhex("00000005 00000001 21") + good + good[:9])
    received(server)
    assert broken(server).startswith(f"frame at byte {len(good)}: JSON header")


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("queue_id", [2**31, -(2**40), "x"])
def test_a_field_that_does_not_fit_its_type_is_refused_there_and_breaks_nothing(
    codec: HeaderCodec, queue_id: Any
) -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(client.request(30, GetMaxOffset("T", queue_id), codec=codec)))
    deliver(server, client.send(ask(client, codec=codec)))
    with pytest.raises(FieldError, match="queueId"):
        received(server).read(GetMaxOffset)
    assert received(server).read(GetMaxOffset) == ASKED


@pytest.mark.parametrize("codec", [ROCKETMQ, MESSAGEPACK], ids=lambda codec: codec.name)
@pytest.mark.parametrize("reads", [Connection(), Connection(request_reader=READER)])
def test_received_fields_that_are_none_cannot_be_sent_on_by_name(
    codec: HeaderCodec, reads: Connection
) -> None:
    header = b'{"code":30,"extFields":[1],"opaque":1}'
    reads.receive_data(frame_head(0, len(header), 0) + header)
    command = structs.replace(received(reads), codec=codec)
    with pytest.raises(LocalProtocolError, match="extFields"):
        Connection().send(command)


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "frame at byte 0: .* exceed frame_size_max"),
        (bytes.fromhex("00000004 00000005"), "frame at byte 0: a header of 5 bytes"),
        (bytes.fromhex("00000005 00000001 21"), "frame at byte 0: JSON header"),
        (bytes.fromhex("00000005 01000001 21"), "frame at byte 0: ROCKETMQ header"),
        (bytes.fromhex("00000005 02000001 21"), "frame at byte 0: MessagePack header"),
        (bytes.fromhex("00000006 07000001 21 00"), "frame at byte 0: header type 7"),
    ],
)
@pytest.mark.parametrize("good_frames", [0, 2])
def test_bytes_that_are_not_the_protocol_break_the_connection(
    stream: bytes, problem: str, good_frames: int
) -> None:
    client, server = Connection(), Connection()
    good = b"".join(b"".join(client.send(ask(client))) for _ in range(good_frames))
    server.receive_data(good + stream)
    for _ in range(good_frames):
        received(server)
    said = broken(server)
    assert re.match(problem.replace("byte 0", f"byte {len(good)}"), said), said
    server.receive_data(good)
    assert broken(server) == said


def test_a_stream_that_ends_between_frames_is_closed_cleanly() -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(ask(client)))
    server.receive_data(b"")
    received(server)
    closed = server.next_event()
    assert closed == ConnectionClosed()
    server.receive_data(b"more")
    assert server.next_event() is closed


@pytest.mark.parametrize("size", [1, 7, 8, 30])
def test_a_stream_that_ends_within_a_frame_is_broken(size: int) -> None:
    client, server = Connection(), Connection()
    frame = b"".join(client.send(ask(client)))
    server.receive_data(frame + frame[:size])
    received(server)
    assert server.next_event() is NEED_DATA
    server.receive_data(b"")
    assert broken(server) == f"frame at byte {len(frame)}: the stream ends {size} bytes into it"


def test_a_wrong_field_breaks_no_connection() -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(Command.request(310, {"a": "g"}, opaque=1)))
    deliver(server, client.send(ask(client)))
    with pytest.raises(FieldError, match="field 'b' is missing"):
        received(server).read(SendMessageV2)
    assert received(server).read(GetMaxOffset) == ASKED


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ], ids=lambda codec: codec.name)
def test_an_offer_that_is_accepted_changes_both_sides_to_messagepack(codec: HeaderCodec) -> None:
    client, server = Connection(codec=codec, offer_messagepack=True), Connection()
    notice = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, oneway=True, extras=client.offer)
    deliver(server, client.send(notice))
    assert received(server).codec is codec
    assert server.codec is JSON  # It does not look for an offer there either.
    assert client.offer  # A oneway request has no answer that could accept.
    deliver(server, client.send(ask(client)))
    assert client.offer == {}
    deliver(client, server.send(received(server).answer(ResponseCode.SYSTEM_ERROR)))
    response = answered(client).response
    assert response.codec is codec
    assert response.ext_fields == {OFFER_FIELD: "2"}
    for sender, receiver in ((client, server), (server, client)):
        deliver(receiver, sender.send(ask(sender)))
        request = received(receiver)
        assert request.codec is MESSAGEPACK
        deliver(sender, receiver.send(request.answer(ResponseCode.SUCCESS, ASKED)))
        response = answered(sender).response
        assert response.codec is MESSAGEPACK
        assert response.ext_fields == {}


def test_a_peer_that_knows_no_offer_changes_nothing() -> None:
    client, apache = Connection(offer_messagepack=True), Connection()
    deliver(apache, client.send(ask(client)))
    plain = Command(0, {}, 1, received(apache).opaque, codec=JSON)
    apache = Connection()
    deliver(client, apache.send(plain))
    answered(client)
    deliver(apache, client.send(ask(client)))
    assert received(apache).codec is JSON
    assert client.offer == {}


def test_an_answer_to_another_request_accepts_no_offer() -> None:
    client, server = Connection(offer_messagepack=True), Connection()
    deliver(server, client.send(ask(client)))
    first = received(server)
    deliver(server, client.send(ask(client)))
    deliver(client, server.send(received(server).answer(ResponseCode.SUCCESS)))
    assert answered(client).response.ext_fields == {}
    deliver(client, server.send(first.answer(ResponseCode.SUCCESS)))
    assert OFFER_FIELD in answered(client).response.ext_fields


@pytest.mark.parametrize("said", ["", "3", "22", "x"])
def test_an_offer_of_other_header_types_is_not_accepted(said: str) -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(Command.request(34, {OFFER_FIELD: said})))
    deliver(client, server.send(received(server).answer(ResponseCode.SUCCESS)))
    assert answered(client).response.ext_fields == {}
    deliver(client, server.send(ask(server)))
    assert received(client).codec is JSON


def test_fields_that_are_no_object_are_no_offer() -> None:
    server = Connection()
    header = b'{"code":34,"extFields":[1]}'
    server.receive_data(frame_head(0, len(header), 0) + header)
    assert received(server).code == 34


def test_a_peer_that_begins_with_messagepack_is_asked_in_it() -> None:
    client, server = Connection(codec=MESSAGEPACK), Connection()
    deliver(server, client.send(ask(client)))
    received(server)
    deliver(client, server.send(ask(server)))
    assert received(client).codec is MESSAGEPACK


def test_a_code_that_has_no_rocketmq_header_is_asked_in_json() -> None:
    client, server = Connection(codec=ROCKETMQ), Connection()
    deliver(server, client.send(Command.request(RequestCode.POP_MESSAGE, opaque=1)))
    deliver(server, client.send(Command.request(RequestCode.HEART_BEAT, opaque=2)))
    assert received(server).codec is JSON
    assert received(server).codec is ROCKETMQ


UNSENDABLE: dict[str, dict[str, Any]] = {
    "a text as the body": {"body": "text"},
    "a number as the body": {"body": 5},
    "a text as a part": {"parts": ["text"]},
    "a text among views": {"parts": [memoryview(b"x"), "text"]},
    "a view with gaps as the body": {"body": memoryview(b"abcd")[::2]},
    "views with gaps as parts": {"parts": [memoryview(b"abcd")[::2]] * 2},
    "a code of 33 bits": {"code": 2**31},
    "a number of 33 bits": {"opaque": -(2**31) - 1},
    "a version of 33 bits": {"version": 2**31},
    "a text as the code": {"code": "310"},
    "a number in a map": {"fields": {"a": 1}},
    "None in a map": {"fields": {"a": None}},
    "a number as a name": {"fields": {1: "a"}},
    "a list of fields": {"fields": ["abc"]},
    "a number as an extra": {"extras": {"a": 1}},
    "a number as an extra of a header": {"fields": ASKED, "extras": {"a": 1}},
    "a number as the remark": {"remark": 5},
    "half a surrogate pair": {"fields": {"a": "\ud800"}},
}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("what", UNSENDABLE)
def test_what_cannot_be_sent_is_a_local_error_and_not_pending(
    what: str, codec: HeaderCodec
) -> None:
    connection = Connection()
    arguments: dict[str, Any] = {"code": 31, "codec": codec} | UNSENDABLE[what]
    with pytest.raises(LocalProtocolError):
        connection.send(Command(**arguments))
    assert not connection.pending


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ], ids=lambda codec: codec.name)
@pytest.mark.parametrize("fields", [GetMaxOffset(None, 0), GetMaxOffset("T", None)])  # type: ignore[arg-type]  # a caller's bug
def test_a_required_field_that_is_none_is_not_sent(
    fields: GetMaxOffset, codec: HeaderCodec
) -> None:
    connection = Connection()
    with pytest.raises(LocalProtocolError, match=r"GetMaxOffset: field '\w+' is None"):
        connection.send(connection.request(30, fields, codec=codec))
    assert not connection.pending


def test_a_released_view_is_not_sent() -> None:
    views = [memoryview(b"a"), memoryview(b"b")]
    views[1].release()
    for command in (Command(30, body=views[1]), Command(30, parts=views)):
        with pytest.raises(LocalProtocolError, match="released"):
            Connection().send(command)


def test_the_size_of_a_view_is_that_of_its_bytes() -> None:
    numbers = memoryview(array("I", range(5)))
    for command in (Command(30, body=numbers), Command(30, parts=[numbers, numbers])):
        frame = b"".join(Connection().send(command))
        assert int.from_bytes(frame[:4]) == len(frame) - 4


class Word(StrEnum):
    TOPIC = "topic"


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_member_of_a_strenum_is_a_text(codec: HeaderCodec) -> None:
    client, server = Connection(), Connection()
    deliver(server, client.send(client.request(30, {Word.TOPIC: Word.TOPIC}, codec=codec)))
    assert received(server).ext_fields == {"topic": "topic"}


@pytest.mark.parametrize("stream", [b"", b"GET / HTTP/1.1\r\n"])
def test_a_request_that_can_get_no_answer_is_refused_and_not_pending(stream: bytes) -> None:
    connection, asker = Connection(), Connection()
    deliver(connection, asker.send(ask(asker)))
    request = received(connection)
    connection.receive_data(stream)
    connection.next_event()
    assert connection.is_over
    with pytest.raises(LocalProtocolError, match="the connection is over"):
        connection.send(ask(connection))
    assert not connection.pending
    assert connection.send(ask(connection, oneway=True))
    assert connection.send(request.answer(ResponseCode.SUCCESS))  # The peer may still read.


@pytest.mark.parametrize("data", [None, "abc", "", 5, [1]])
def test_data_that_is_not_bytes_is_a_type_error_at_once(data: Any) -> None:
    connection = Connection()
    with pytest.raises(TypeError, match="receive_data takes bytes"):
        connection.receive_data(data)
    assert connection.next_event() is NEED_DATA


def view_of_copy(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


@pytest.mark.parametrize("kind", [bytearray, view_of_copy])
def test_a_receive_buffer_may_be_used_again(kind: Callable[[bytes], Any]) -> None:
    client, server = Connection(), Connection()
    buffer = kind(b"".join(client.send(Command.request(30, ASKED, body=b"body"))))
    server.receive_data(buffer)
    buffer[:] = bytes(len(buffer))
    request = received(server)
    assert (request.read(GetMaxOffset), request.body) == (ASKED, b"body")
    server.receive_data(kind(b""))
    assert server.next_event() == ConnectionClosed()


def test_a_connection_shows_its_state() -> None:
    connection = Connection()
    connection.send(ask(connection))
    connection.receive_data(b"\0\0")
    assert repr(connection) == "<Connection JSON, 1 pending, 2 bytes of a frame, open>"
    connection.receive_data(b"")
    assert repr(connection).endswith("input ended>")
    connection.next_event()
    assert "the stream ends 2 bytes into it" in repr(connection)
