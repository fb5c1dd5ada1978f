from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.proto.wire_vectors import VECTORS, Vector

from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetMaxOffset, PopMessage, SendMessageV2, UnregisterClient
from cometmq.proto.connection import FIELDS_MAX, Connection
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import Header
from cometmq.proto.header_json import JSON
from cometmq.proto.header_json_typed import TypedJsonFields, TypedJsonReader

CLASSES: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.GET_MAX_OFFSET: GetMaxOffset,
    RequestCode.POP_MESSAGE: PopMessage,
}
READER = TypedJsonReader(CLASSES)
JSON_VECTORS = [
    vector for vector in VECTORS if vector.codec == "JSON" and vector.header["code"] in CLASSES
]


def outcome(command: Command) -> tuple[object, ...]:
    """All that a command tells: a wrong field, too."""
    try:
        header: object = command.read(CLASSES.get(command.code, SendMessageV2))
    except FieldError as error:
        header = str(error)
    known = (command.code, command.flag, command.opaque, command.remark, command.body)
    return (*known, command.language, command.version, command.codec, header, command.ext_fields)


def both_ways(raw: bytes, fields_max: int = FIELDS_MAX) -> tuple[object, ...]:
    """Read a header typed and the general way; the outcomes are the same."""
    found: list[tuple[object, ...]] = []
    for decode in (READER.decode, JSON.decode):
        try:
            found.append(outcome(decode(raw, b"body", fields_max)))
        except RemoteProtocolError as error:
            found.append((str(error),))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("vector", JSON_VECTORS, ids=lambda vector: vector.where)
def test_a_captured_request_reads_the_same_in_one_pass(vector: Vector) -> None:
    both_ways(vector.frame[8 : 8 + int.from_bytes(vector.frame[5:8], "big")])


def test_most_captured_requests_are_read_in_one_pass() -> None:
    typed = 0
    for vector in JSON_VECTORS:
        raw = vector.frame[8 : 8 + int.from_bytes(vector.frame[5:8], "big")]
        typed += isinstance(READER.decode(raw, None, FIELDS_MAX).fields, TypedJsonFields)
    assert typed > 20


SCALARS = st.sampled_from(
    [None, True, 1, 0, -1, 1.5, "", " ", "1", "7.0", "true", "TRUE", "null", "x", "2147483648"]
)


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from([30, 310, 3, 31, 300, 200050]),
    st.dictionaries(st.sampled_from("bcdefghijklmn"), SCALARS),
    st.dictionaries(
        st.sampled_from(["flag", "language", "opaque", "remark", "version", "extFields", "new"]),
        SCALARS | st.sampled_from(["JAVA", "GO", "KOTLIN"]),
    ),
)
def test_any_header_reads_the_same_in_one_pass(
    code: int, fields: dict[str, Any], members: dict[str, Any]
) -> None:
    full = {"a": "g", "b": "t", "c": "d", "topic": "T", "queueId": "1"}
    full |= dict.fromkeys("defgh", "1") | fields
    header = {"code": code, "extFields": full, "flag": 0, "language": "JAVA"} | members
    both_ways(json.dumps(header, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b'{"code":310,',
        b'{"code":310,"extFields":{}}xx',
        b'{"code":30,"extFields":{"topic":"\xff","queueId":"1"}}',
        b'{"code":30,"code":310,"extFields":{"topic":"T","queueId":"1"}}',
        b'{"code":310,"extFields":' + b"[" * 100_000,
    ],
)
def test_a_wrong_header_is_refused_the_same_in_one_pass(raw: bytes) -> None:
    both_ways(raw)


def test_another_class_than_the_codes_can_be_read() -> None:
    raw = b'{"code":30,"extFields":{"topic":"T","queueId":"1","clientID":"c"},"language":"GO"}'
    command = READER.decode(raw, None, 64)
    assert isinstance(command.fields, TypedJsonFields)
    assert command.read(GetMaxOffset) == GetMaxOffset("T", 1)
    assert command.read(UnregisterClient) == UnregisterClient("c")
    assert JSON.encode(command).count(b'"clientID":"c"') == 1


def test_a_connection_reads_its_requests_in_one_pass() -> None:
    client, server = Connection(), Connection(json_reader=READER)
    sent = GetMaxOffset("T", 5)
    server.receive_data(b"".join(client.send(Command.request(30, sent))))
    request = server.next_event()
    assert isinstance(request, Command)
    assert isinstance(request.fields, TypedJsonFields)
    assert request.read(GetMaxOffset) == sent
    client.receive_data(b"".join(server.send(request.answer(0, sent))))
    assert client.next_event() is not None
    assert not client.pending
