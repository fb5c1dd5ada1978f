from __future__ import annotations

import json
from struct import pack
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st
from tests.proto.wire_vectors import VECTORS, Vector

from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command, HeaderCodec
from cometmq.proto.commands import GetMaxOffset, PopMessage, SendMessageV2, UnregisterClient
from cometmq.proto.connection import FIELDS_MAX, Connection
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import Header, from_texts
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ
from cometmq.proto.header_typed import RequestReader, TypedFields

CLASSES: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.GET_MAX_OFFSET: GetMaxOffset,
    RequestCode.POP_MESSAGE: PopMessage,
}
READER = RequestReader(CLASSES)
decode_json = READER.decoders[JSON.serialize_type]
decode_messagepack = READER.decoders[MESSAGEPACK.serialize_type]
POP = from_texts(
    PopMessage,
    dict.fromkeys(["consumerGroup", "topic"], "t")
    | dict.fromkeys(
        ["queueId", "maxMsgNums", "invisibleTime", "pollTime", "bornTime", "initMode"], "1"
    ),
)
JSON_VECTORS = [
    vector for vector in VECTORS if vector.codec == "JSON" and vector.header["code"] in CLASSES
]


def outcome(command: Command) -> tuple[object, ...]:
    """Return everything that a command contains, or the error of a wrong field."""
    cls = CLASSES.get(command.code, SendMessageV2)
    try:
        fields: object = (command.read(cls), command.ext_fields_as(cls))
    except FieldError as error:
        fields = str(error)
    known = (command.code, command.flag, command.opaque, command.remark, command.body)
    return (*known, command.language, command.version, command.codec, fields)


def both_ways(
    raw: bytes, fields_max: int = FIELDS_MAX, codec: HeaderCodec = JSON
) -> tuple[object, ...]:
    """Read a header typed and in the general way, and check that the outcomes are the same."""
    found: list[tuple[object, ...]] = []
    for decode in (READER.decoders[codec.serialize_type], codec.decode):
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
        typed += isinstance(decode_json(raw, None, FIELDS_MAX).fields, TypedFields)
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
    command = decode_json(raw, None, 64)
    assert isinstance(command.fields, TypedFields)
    assert command.read(GetMaxOffset) == GetMaxOffset("T", 1)
    assert command.read(UnregisterClient) == UnregisterClient("c")
    assert JSON.encode(command).count(b'"clientID":"c"') == 1


def rocketmq_header(
    code: int, fields: list[tuple[str, str]], *, opaque: int = 7, remark: bytes = b""
) -> bytes:
    """Return a header as Java writes it, with any names."""
    pairs = b"".join(
        pack(">h", len(name)) + name.encode() + pack(">i", len(text.encode())) + text.encode()
        for name, text in fields
    )
    return (
        pack(">hBhiii", code, 0, 501, opaque, 0, len(remark))
        + remark
        + pack(">i", len(pairs))
        + pairs
    )


SOUND = [("a", "g"), ("b", "t"), ("c", "d"), *((name, "1") for name in "defgh"), ("i", "p=" * 70)]
TEXTS = st.sampled_from(["1", "2", "10", "", " 1", "007", "true", "True", "x", "null", "é", "1_0"])


@settings(deadline=None, max_examples=400)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abdghijkmn"), TEXTS), max_size=3),
        min_size=2,
        max_size=6,
    ),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([FIELDS_MAX, 10]),
)
def test_any_rocketmq_header_reads_the_same_in_one_pass(
    changes: list[list[tuple[str, str]]], opaque: int, fields_max: int
) -> None:
    """Each is read after others of the same length, whose layouts are already known."""
    for change in changes:
        changed = dict(change)
        fields = [(name, changed.pop(name, text)) for name, text in SOUND] + list(changed.items())
        for some in (fields, fields[::-1], [*fields, *change]):
            raw = rocketmq_header(310, some, opaque=opaque)
            for _ in range(2):
                both_ways(raw, fields_max, ROCKETMQ)


@given(st.data())
def test_a_damaged_rocketmq_header_reads_the_same_in_one_pass(data: st.DataObject) -> None:
    raw = bytearray(rocketmq_header(310, SOUND))
    both_ways(bytes(raw), codec=ROCKETMQ)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(raw), len(raw), len(raw) - 1, 16, 20]))
    both_ways(bytes(raw[:end]) + data.draw(st.sampled_from([b"", b"", b"xx"])), codec=ROCKETMQ)


def test_the_second_rocketmq_request_of_a_length_is_read_in_one_pass() -> None:
    decode = RequestReader(CLASSES).decoders[ROCKETMQ.serialize_type]
    typed: list[bool] = []
    for fields in (SOUND, SOUND, [("a", "h"), *SOUND[1:]], SOUND[::-1], SOUND, SOUND, SOUND[:1]):
        raw = rocketmq_header(310, fields)
        command = decode(raw, b"body", FIELDS_MAX)
        typed.append(isinstance(command.fields, TypedFields))
        assert outcome(command) == outcome(ROCKETMQ.decode(raw, b"body", FIELDS_MAX))
    assert typed == [False, True, True, False, False, True, False]
    for raw in (rocketmq_header(310, SOUND, remark=b"r"), rocketmq_header(11, SOUND)):
        for _ in range(2):
            assert not isinstance(decode(raw, None, FIELDS_MAX).fields, TypedFields)
    command = decode(rocketmq_header(310, SOUND), None, FIELDS_MAX)
    assert command.read(SendMessageV2).producer_group == "g"
    assert ROCKETMQ.decode(ROCKETMQ.encode(command), None, 64).ext_fields == dict(SOUND)


ITEMS = SCALARS | st.sampled_from([2**31, -(2**63), 2**64 - 1, b"bin", [1], {"a": 1}, 0.0])


@st.composite
def arrays(draw: st.DrawFn) -> list[Any]:
    """A MessagePack header, any place of which may be odd."""
    sound: list[Any] = ["g", "t", "d", 4, 1, 0, 1700000000000, 0, "p", 0, False, None, True, "b"]
    for place in draw(st.lists(st.integers(0, 13), max_size=2)):
        sound[place] = draw(ITEMS)
    fields: Any = draw(st.sampled_from([sound, sound[:9], [*sound, 1], ["T", 3], [], None, "T"]))
    extras = draw(st.sampled_from([None, None, {}, {"x": "y"}, {"a": "g"}, {"x": 1}]))
    items = [draw(st.sampled_from([310, 30, 200050, 11])), 0, 7, 12, 513, None, fields, extras]
    for place in draw(st.lists(st.integers(0, 7), max_size=1)):
        items[place] = draw(ITEMS)
    return items[: draw(st.sampled_from([8, 8, 8, 7, 6, 3]))] + draw(st.sampled_from([[], [1]]))


@settings(max_examples=400)
@given(arrays(), st.sampled_from([FIELDS_MAX, 14, 13, 3]))
def test_any_array_reads_the_same_in_one_pass(items: list[Any], fields_max: int) -> None:
    both_ways(msgpack.packb(items), fields_max, MESSAGEPACK)


def test_a_messagepack_request_is_read_in_one_pass() -> None:
    for code, header in ((30, GetMaxOffset("T", 5)), (200050, POP)):
        raw = MESSAGEPACK.encode(Command.request(code, header, opaque=9))
        command = decode_messagepack(raw, b"body", FIELDS_MAX)
        assert command.fields == header, "typed already, as if made here"
        assert command.ext_fields == command.ext_fields_as(type(header))
        assert MESSAGEPACK.encode(command) == raw
        assert len(both_ways(raw, codec=MESSAGEPACK)) > 1


def test_a_messagepack_request_with_extras_is_read_the_general_way() -> None:
    raw = MESSAGEPACK.encode(Command.request(30, GetMaxOffset("T", 5), extras={"k": "v"}))
    command = decode_messagepack(raw, None, FIELDS_MAX)
    assert (command.read(GetMaxOffset), command.ext_fields) == (GetMaxOffset("T", 5), {"k": "v"})
    twice = msgpack.packb([30, 0, 1, 12, 513, None, ["T", 5], {"topic": "other"}])
    assert "both in the array and an extra" in str(both_ways(twice, codec=MESSAGEPACK))


def test_a_connection_reads_its_requests_in_one_pass() -> None:
    client, server = Connection(), Connection(request_reader=READER)
    sent = GetMaxOffset("T", 5)
    server.receive_data(b"".join(client.send(Command.request(30, sent))))
    request = server.next_event()
    assert isinstance(request, Command)
    assert isinstance(request.fields, TypedFields)
    assert request.read(GetMaxOffset) == sent
    client.receive_data(b"".join(server.send(request.answer(0, sent))))
    assert client.next_event() is not None
    assert not client.pending
