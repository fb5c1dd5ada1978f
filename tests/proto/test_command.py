from __future__ import annotations

import pytest

from cometmq.proto.command import Command, HeaderCodec
from cometmq.proto.commands import GetMaxOffset, OffsetResponse, SendMessage, SendMessageV2
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.header_rocketmq import ROCKETMQ

ASKED = GetMaxOffset("T", 3)


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
    with pytest.raises(LocalProtocolError, match="'topic' is an extra"):
        _ = command.ext_fields


@pytest.mark.parametrize("codec", HEADER_CODECS.values(), ids=lambda codec: codec.name)
def test_extras_travel_in_every_codec(codec: HeaderCodec) -> None:
    command = Command.request(30, ASKED, extras={"AccessKey": "k", "Signature": "s="})
    received = codec.decode(codec.encode(command), None, 9)
    assert received.read(GetMaxOffset) == ASKED
    assert received.ext_fields_as(GetMaxOffset) == command.ext_fields
