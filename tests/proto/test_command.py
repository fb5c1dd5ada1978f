from __future__ import annotations

import msgpack
import pytest

from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command, HeaderCodec
from cometmq.proto.commands import (
    GetMaxOffset,
    GetRouteInfoByTopic,
    OffsetResponse,
    SendMessage,
    SendMessageV2,
)
from cometmq.proto.errors import FieldError, LocalProtocolError, RefusedError
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.header_typed import RequestReader

ASKED = GetMaxOffset("T", 3)
READERS = {
    "JSON": JSON.decode,
    "typed JSON": RequestReader({105: GetRouteInfoByTopic}).decoders[0],
}


def packed(*items: object) -> bytes:
    raw: bytes = msgpack.packb(items)
    return raw


def test_an_answer_has_the_number_and_the_codec_of_its_request() -> None:
    request = Command.request(30, ASKED, opaque=-7, codec=ROCKETMQ)
    answer = request.answer(1, OffsetResponse(5), remark="r", body=b"b", extras={"x": "y"})
    assert (answer.opaque, answer.codec, answer.code, answer.remark) == (-7, ROCKETMQ, 1, "r")
    assert answer.is_response
    assert not answer.is_oneway
    assert not request.is_response


def test_a_command_of_ours_is_read_without_the_wire() -> None:
    assert Command.request(30, ASKED).read(GetMaxOffset) is ASKED
    assert Command.request(30, {"topic": "T", "queueId": "3"}).read(GetMaxOffset) == ASKED
    named = {"topic": "T", "queueId": "3", "committed": "true"}
    assert Command.request(30, ASKED).ext_fields == named
    assert Command.request(30).ext_fields == {}


def test_ext_fields_are_the_callers_own() -> None:
    fields = {"a": "b"}
    command = Command.request(30, fields)
    command.ext_fields["x"] = "y"
    assert fields == {"a": "b"}
    received = ROCKETMQ.decode(ROCKETMQ.encode(command), None, 9)
    received.ext_fields["x"] = "y"
    assert received.ext_fields == {"a": "b"}


def test_a_send_of_letters_reads_as_a_send_of_names() -> None:
    letters = SendMessageV2("g", "T", "TBW102", 4, 0, 0, 1, 0)
    assert isinstance(Command.request(310, letters).read(SendMessage), SendMessage)


def test_an_extra_may_not_be_a_field_of_the_header() -> None:
    command = Command.request(30, ASKED, extras={"topic": "U"})
    with pytest.raises(LocalProtocolError, match="'topic' is also an extra"):
        _ = command.ext_fields


@pytest.mark.parametrize("codec", HEADER_CODECS.values(), ids=lambda codec: codec.name)
def test_extras_travel_in_every_codec(codec: HeaderCodec) -> None:
    command = Command.request(30, ASKED, extras={"AccessKey": "k", "Signature": "s="})
    received = codec.decode(codec.encode(command), None, 9)
    assert received.read(GetMaxOffset) == ASKED
    assert received.ext_fields_as(GetMaxOffset) == command.ext_fields


@pytest.mark.parametrize("items", [["T"], []])
def test_a_field_in_the_array_and_in_the_extras_is_refused_by_all_who_read(
    items: list[str],
) -> None:
    raw = packed(105, 0, 7, 3, 513, None, items, {"topic": "U"})
    command = MESSAGEPACK.decode(raw, None, 9)
    for read in (command.read, command.ext_fields_as):
        with pytest.raises(FieldError, match="'topic' is both in the array and an extra"):
            read(GetRouteInfoByTopic)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "members",
    [
        '"extFields":{"topic":"T","topic":"U"}',
        '"extFields":{"topic":"T","\\u0074opic":"U"}',
        '"extFields":{"topic":7,"topic":"U"}',
        '"extFields":{"topic":null,"topic":"U"}',
        '"extFields":{"topic":"T"},"extFields":{"topic":"U"}',
        '"extFields":{"topic":"T","other":"x"},"extFields":{"topic":"U"}',
        '"extFields":null,"extFields":{"topic":"U"}',
    ],
)
def test_of_a_field_that_stands_twice_everybody_sees_the_last(reader: str, members: str) -> None:
    raw = b'{"code":105,%b,"language":"JAVA"}' % members.encode()
    command = READERS[reader](raw, None, 99)
    assert command.read(GetRouteInfoByTopic).topic == "U"
    assert command.ext_fields == {"topic": "U"}
    assert command.ext_fields_as(GetRouteInfoByTopic) == {"topic": "U"}


@pytest.mark.parametrize("reader", READERS)
def test_a_field_whose_last_value_is_null_is_missing_for_everybody(reader: str) -> None:
    raw = b'{"code":105,"extFields":{"topic":"T","topic":null},"language":"JAVA"}'
    command = READERS[reader](raw, None, 99)
    assert command.ext_fields == {}
    for read in (command.read, command.ext_fields_as):
        with pytest.raises(FieldError, match="'topic' is missing"):
            read(GetRouteInfoByTopic)


def test_the_last_of_two_pairs_of_a_rocketmq_header_is_what_everybody_sees() -> None:
    def pair(value: bytes) -> bytes:
        return b"\0\5topic" + len(value).to_bytes(4) + value

    pairs = pair(b"T") + pair(b"U")
    head = (105).to_bytes(2) + b"\0" + (513).to_bytes(2) + bytes(12)
    command = ROCKETMQ.decode(head + len(pairs).to_bytes(4) + pairs, None, 9)
    assert command.read(GetRouteInfoByTopic).topic == "U"
    assert command.ext_fields == command.ext_fields_as(GetRouteInfoByTopic) == {"topic": "U"}


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ], ids=lambda codec: codec.name)
def test_fields_that_came_by_name_are_signed_as_they_came(codec: HeaderCodec) -> None:
    sent = {"topic": "T", "queueId": "007"}  # Without `committed`, whose default is true.
    received = codec.decode(codec.encode(Command.request(30, sent)), None, 9)
    assert received.ext_fields_as(GetMaxOffset) == sent


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ], ids=lambda codec: codec.name)
def test_fields_without_names_are_not_lost_in_a_codec_that_needs_names(codec: HeaderCodec) -> None:
    received = MESSAGEPACK.decode(MESSAGEPACK.encode(Command.request(30, ASKED)), None, 9)
    with pytest.raises(LocalProtocolError, match="without names"):
        codec.encode(received)


def test_an_answer_that_says_no_raises_with_its_code_and_its_remark() -> None:
    request = Command.request(RequestCode.GET_MAX_OFFSET, ASKED)
    no = request.answer(ResponseCode.SYSTEM_ERROR, remark="disk full")
    with pytest.raises(RefusedError, match=r"SYSTEM_ERROR \(1\): disk full") as refused:
        no.expect()
    assert (refused.value.code, refused.value.name) == (1, "SYSTEM_ERROR")
    assert refused.value.remark == "disk full"
    with pytest.raises(RefusedError, match=r"RESPONSE_999 \(999\)$"):
        request.answer(999).expect(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    assert no.expect(ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR) is no
    yes = request.answer(ResponseCode.SUCCESS, OffsetResponse(5))
    assert yes.expect().read(OffsetResponse).offset == 5
    with pytest.raises(LocalProtocolError, match="not an answer"):
        request.expect()


def test_a_field_that_a_refusal_lacks_is_named_with_what_the_refusal_says() -> None:
    no = Command.request(30, ASKED).answer(ResponseCode.SYSTEM_ERROR, remark="disk full")
    said = r"'offset' is missing; the answer is SYSTEM_ERROR \(1\): disk full"
    for codec in HEADER_CODECS.values():
        with pytest.raises(FieldError, match=said):
            codec.decode(codec.encode(no), None, 9).read(OffsetResponse)
    with pytest.raises(FieldError, match=r"'offset' is missing$"):
        Command.request(30, {}).answer(0).read(OffsetResponse)


def test_an_answer_has_no_answer() -> None:
    with pytest.raises(
        LocalProtocolError, match="an answer cannot be answered: <response 0 SUCCESS"
    ):
        Command.request(30).answer(0).answer(0)


def test_a_command_shows_what_it_is() -> None:
    request = Command.request(30, ASKED, opaque=7, body=b"12345", codec=JSON)
    shown = "<request 30 GET_MAX_OFFSET, opaque 7, JSON, topic='T' queueId='3' committed='true'"
    assert repr(request) == f"{shown}, body of 5 bytes>"
    assert repr(request.answer(1, remark="no")) == (
        "<response 1 SYSTEM_ERROR, opaque 7, JSON, remark 'no'>"
    )
    assert repr(Command.request(999, oneway=True)) == "<one-way request 999 REQUEST_999, opaque 0>"
    came = MESSAGEPACK.decode(MESSAGEPACK.encode(request), None, 9)
    assert repr(came).endswith("opaque 7, MESSAGEPACK, 'T' 3 True>")


def test_what_a_command_shows_is_bounded_and_no_secret() -> None:
    fields = {f"{n}" * 200: "v" * 10_000 for n in range(1000)}
    assert len(repr(Command.request(30, fields, body=bytes(10_000)))) < 4000
    signed = Command.request(30, ASKED, extras={"AccessKey": "k", "Signature": "s3cret"})
    assert "AccessKey='k' Signature=…" in repr(signed)
    forging = repr(Command.request(30, {"a\nERROR forged": "1", "\x1b[2J": "2"}))
    assert "\n" not in forging
    assert "\x1b" not in forging
    broken = JSON.decode(b'{"code":30,"extFields":[1]}', None, 9)
    assert "fields unreadable" in repr(broken)
    nested = MESSAGEPACK.decode(packed(30, 0, 7, 3, 513, None, [["x"] * 9999, "y" * 9999]), None, 9)
    assert len(repr(nested)) < 200
