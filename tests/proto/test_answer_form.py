"""Answers made from forms have the same bytes as the codec's."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import astuple

from cometmq.proto.answer_form import JsonAnswerForm, messagepack_answers, rocketmq_answers
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageResponse
from cometmq.proto.connection import Connection
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ

SPECIMEN = Command.request(310).answer(
    0, SendMessageResponse("<offset>", 1357, 2468, "<id>", region_id="100 % sure")
)
HOLES = [("<offset>", b"%016X"), ("1357", b"%d"), ("2468", b"%d"), ("<id>", b"%s")]
FORM = JsonAnswerForm(SPECIMEN, HOLES)
ROCKETMQ_FRAME = rocketmq_answers(SPECIMEN, HOLES)
NUMBERS = st.integers(-(2**31), 2**31 - 1)


@given(
    physical_offset=st.integers(0, 2**63 - 1),
    queue_id=NUMBERS,
    queue_offset=st.integers(0, 2**63 - 1),
    unique_id=st.from_regex(r"[0-9A-Za-z]+", fullmatch=True),
    opaque=NUMBERS,
)
def test_a_form_gives_the_bytes_that_the_codec_gives(
    physical_offset: int, queue_id: int, queue_offset: int, unique_id: str, opaque: int
) -> None:
    response = SendMessageResponse(
        f"{physical_offset:016X}", queue_id, queue_offset, unique_id, region_id="100 % sure"
    )
    for codec, frame in ((JSON, FORM.frame), (ROCKETMQ, ROCKETMQ_FRAME)):
        request = Command.request(310, opaque=opaque, codec=codec)
        made = frame(physical_offset, queue_id, queue_offset, unique_id.encode(), opaque)
        assert made == b"".join(Connection().send(request.answer(0, response)))


@given(NUMBERS)
def test_an_answer_without_fields_has_the_bytes_that_the_codec_gives(opaque: int) -> None:
    done = Command.request(37).answer(0)
    for codec, made in (
        (JSON, JsonAnswerForm(done, []).frame(opaque)),
        (MESSAGEPACK, messagepack_answers(done)(opaque, None)),
        (ROCKETMQ, rocketmq_answers(done, [])(opaque)),
    ):
        request = Command.request(37, opaque=opaque, codec=codec)
        assert made == b"".join(Connection().send(request.answer(0)))


@given(
    msg_id=st.text(),
    queue_id=NUMBERS,
    queue_offset=st.integers(0, 2**63 - 1),
    trace_on=st.none() | st.booleans(),
    opaque=NUMBERS,
)
def test_an_answer_in_messagepack_has_the_bytes_that_the_codec_gives(
    msg_id: str, queue_id: int, queue_offset: int, trace_on: bool | None, opaque: int
) -> None:
    request = Command.request(310, opaque=opaque, codec=MESSAGEPACK)
    response = SendMessageResponse(msg_id, queue_id, queue_offset, trace_on=trace_on)
    frame = messagepack_answers(request.answer(0))(opaque, astuple(response))
    assert frame == b"".join(Connection().send(request.answer(0, response)))


def test_a_frame_with_a_body_begins_as_the_codec_begins_it() -> None:
    request = Command.request(310, opaque=9, codec=JSON)
    response = SendMessageResponse(f"{1:016X}", 2, 3, "ID", region_id="100 % sure")
    sent = Connection().send(request.answer(0, response, parts=[b"ab", b"c"]))
    assert [FORM.before(3, 1, 2, 3, b"ID", 9), b"ab", b"c"] == sent


def test_a_mark_that_stands_twice_makes_no_form() -> None:
    twice = Command.request(310).answer(0, SendMessageResponse("<m>", 1, 2, "<m>"))
    for make in (JsonAnswerForm, rocketmq_answers):
        with pytest.raises(AssertionError, match="more than once"):
            make(twice, [("<m>", b"%s")])
