"""The numbers of the protocol, compared with those of a live server."""

from __future__ import annotations

import pytest
from tests.proto.wire_vectors import VECTORS

from cometmq.proto.codes import Language, RequestCode, ResponseCode, request_name, response_name

UNNAMED = {None, "?"}  # The capture has no names for codes that 5.5.0 does not know.


def test_request_codes_have_the_names_that_the_vectors_say() -> None:
    said = {(v.said["requestName"], v.said["requestCode"]) for v in VECTORS}
    named = {(name, code) for name, code in said if name not in UNNAMED}
    assert len(named) > 120
    assert {(name, code) for name, code in named if RequestCode(code).name != name} == set()


def test_response_codes_have_the_names_that_the_vectors_say() -> None:
    answers = [v.said for v in VECTORS if v.said["kind"] == "response"]
    said = {(answer.get("responseName"), answer["responseCode"]) for answer in answers}
    named = {(name, code) for name, code in said if name not in UNNAMED}
    assert len(named) > 15
    assert {(name, code) for name, code in named if ResponseCode(code).name != name} == set()


def test_a_code_is_said_by_its_name() -> None:
    assert request_name(10) == "SEND_MESSAGE"
    assert request_name(200151) == "BATCH_ACK_MESSAGE"
    assert response_name(0) == "SUCCESS"
    assert response_name(-1006) == "RPC_TIME_OUT"


def test_a_code_of_no_table_is_said_by_its_number() -> None:
    assert request_name(9999) == "REQUEST_9999"
    assert request_name(-1) == "REQUEST_-1"
    assert response_name(9999) == "RESPONSE_9999"


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode, Language])
def test_no_two_names_share_a_code(
    codes: type[RequestCode] | type[ResponseCode] | type[Language],
) -> None:
    assert len(codes.__members__) == len({int(code) for code in codes})


def test_languages_are_numbered_without_gaps() -> None:
    assert [int(language) for language in Language] == list(range(14))
