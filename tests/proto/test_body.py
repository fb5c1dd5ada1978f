"""Typed bodies: what a class reads, as leniently as Apache does, and what it writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

import pytest

from cometmq.proto.bodies import (
    ConsumerOffsets,
    HeartbeatData,
    KVTable,
    MessageQueue,
    RegisterBrokerBody,
    ResetOffsets,
    TimerCheckPoint,
    decode_registration,
    decode_reset_offsets,
    decode_settings,
)
from cometmq.proto.body import BY_HAND_SIZE_MAX, F64, Body, empty_table, preset, wire
from cometmq.proto.buffer import Buffer
from cometmq.proto.errors import BodyError, LocalProtocolError
from cometmq.proto.fastjson import loads
from cometmq.proto.header import I32, I64


class Color(StrEnum):
    RED = "RED"
    GREEN = "GREEN"


class Key(Body):
    name: str
    number: I32


class Part(Body):
    rate: F64 = preset(0.0)
    text: str = preset("")


class Whole(Body):
    color: Color | None = None
    flag: bool = preset(False)
    list: tuple[I32, ...] = preset(())
    long: I64 = preset(7)
    note: str | None = None
    part: Part | None = None
    parts: tuple[Part, ...] = preset(())
    required_id: str = wire("requiredID")
    table: dict[str, str] = empty_table()
    tints: tuple[Color, ...] = preset(())
    by_key: dict[Key, I64] = empty_table()
    by_number: dict[I32, Part] = empty_table()


def whole(text: str) -> Whole:
    return Whole.decode(f'{{"requiredID":"x",{text}}}'.encode())


def test_missing_members_have_apaches_defaults() -> None:
    value = Whole.decode(b'{"requiredID":"x"}')
    assert value == Whole(required_id="x")
    assert (value.long, value.note, value.list, value.table) == (7, None, (), {})


def test_defaults_are_written_and_nulls_are_not() -> None:
    assert Whole(required_id="x").encode() == (
        b'{"flag":false,"list":[],"long":7,"parts":[],"requiredID":"x","table":{},"tints":[],'
        b'"byKey":{},"byNumber":{}}'
    )
    assert Part().encode() == b'{"rate":0.0,"text":""}'


def test_keys_that_are_no_strings_are_written_bare() -> None:
    value = Whole(required_id="x", by_key={Key(name="n", number=1): 2}, by_number={0: Part()})
    assert value.encode().endswith(
        b'"byKey":{{"name":"n","number":1}:2},"byNumber":{0:{"rate":0.0,"text":""}}}'
    )
    assert Whole.decode(value.encode()) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"long":"12"', {"long": 12}),
        ('"long":12.0', {"long": 12}),
        ('"long":"12.0"', {"long": 12}),
        ('"LONG":12', {}),
        ('"long":null', {}),
        ('"flag":"true"', {"flag": True}),
        ('"flag":1', {"flag": True}),
        ('"color":"GREEN"', {"color": Color.GREEN}),
        ('"color":1', {"color": Color.GREEN}),
        ('"color":"1"', {"color": Color.GREEN}),
        ('"color":9', {}),
        ('"color":"PUCE"', {}),
        ('"list":["1",2,3.0]', {"list": (1, 2, 3)}),
        ('"list":null', {}),
        ('"list":[1,null,2]', {"list": (1, 2)}),
        ('"parts":[null,{}]', {"parts": (Part(),)}),
        ('"tints":["RED",null,"PUCE"]', {"tints": (Color.RED,)}),
        ('"note":"null"', {"note": "null"}),
        ('"note":5', {"note": "5"}),
        ('"note":true', {"note": "true"}),
        ('"part":{"rate":1,"text":null}', {"part": Part(rate=1.0)}),
        ('"part":{"rate":"1.5","text":2}', {"part": Part(rate=1.5, text="2")}),
        ('"parts":[{"text":1},{}]', {"parts": (Part(text="1"), Part())}),
        ('"table":{"a":1,"b":null,3:"c"}', {"table": {"a": "1", "3": "c"}}),
        ('"tints":["RED",1]', {"tints": (Color.RED, Color.GREEN)}),
        ('"byKey":{{"number":"1","name":"n","x":0}:2}', {"by_key": {Key(name="n", number=1): 2}}),
        ('"byKey":{{"number":1,"name":2}:3.0}', {"by_key": {Key(name="2", number=1): 3}}),
        ('"byNumber":{"0":{},1:{}}', {"by_number": {0: Part(), 1: Part()}}),
        ('"byNumber":{"0":{"text":1}}', {"by_number": {0: Part(text="1")}}),
        ('"unknown":[1,{}],"another":null', {}),
        ('"long":1,"long":2', {"long": 2}),
    ],
)  # fmt: skip
def test_reading_is_as_lenient_as_apaches(text: str, expected: dict[str, object]) -> None:
    plain = Whole(required_id="x")
    value = whole(text)
    for name in Whole.__struct_fields__:
        assert getattr(value, name) == expected.get(name, getattr(plain, name)), name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "Whole: Object missing required field `requiredID`"),
        ('{"requiredID":null}', "Whole: Object missing required field `requiredID`"),
        ("[]", "Whole: Expected `object`, got `array`"),
        ("null", "Whole: Expected `object`, got `null`"),
        ('{"requiredID":"x","long":"many"}', r"got `str` - at `\$\.long`"),
        ('{"requiredID":"x","long":1.5}', r"got `float` - at `\$\.long`"),
        ('{"requiredID":"x","long":9223372036854775808}', r"at `\$\.long`"),
        ('{"requiredID":"x","list":[0,2147483648]}', r"at `\$\.list\[1\]`"),
        ('{"requiredID":"x","list":{}}', r"Expected `array`, got `object` - at `\$\.list`"),
        ('{"requiredID":"x","table":[]}', r"Expected `object`, got `array` - at `\$\.table`"),
        ('{"requiredID":"x","part":{"rate":[]}}', r"at `\$\.part\.rate`"),
        ('{"requiredID":"x","part":{"rate":"nan"}}', r"at `\$\.part\.rate`"),
        ('{"requiredID":"x","part":{"rate":"-Infinity"}}', r"at `\$\.part\.rate`"),
        ('{"requiredID":"x","part":{"rate":1e999}}', r"not a JSON number at character 33"),
        ('{"requiredID":"x","tints":[true]}', r"at `\$\.tints\[0\]`"),
        ('{"requiredID":"x","byKey":{"n":1}}', r"at `key` in `\$\.byKey`"),
        ('{"requiredID":"x","byKey":{{"name":"n"}:1}}', r"missing required field `number`"),
        ('{"requiredID":"x","byNumber":{"a":{}}}', r"at `key` in `\$\.byNumber`"),
        ('{"requiredID":"x"', r"expected ',' or '}' at character 17"),
        ('{"requiredID":"x"}}', "expected the end of the body at character 18"),
        ("", "body is empty"),
    ],
)
def test_a_body_that_is_wrong_names_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        Whole.decode(text.encode())


@pytest.mark.parametrize("depth", [100, 900_000])
def test_a_deep_unknown_member_never_exhausts_the_stack(depth: int) -> None:
    text = '{"requiredID":"x","unknown":' + "[" * depth + "]" * depth + "}"
    if depth == 100:  # Shallow enough to skip.
        assert Whole.decode(text.encode()) == Whole(required_id="x")
    else:
        with pytest.raises(BodyError, match="nested too deep"):
            Whole.decode(text.encode())


def test_bodies_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Part().text = "x"  # type: ignore[misc]  # The very point.


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("text", ['"list":[1]', '"byNumber":{3:{}}', '"byNumber":{3:{},}'])
def test_a_body_is_read_from_any_buffer(
    buffer: Callable[[bytes], bytes | bytearray | memoryview], text: str
) -> None:
    data = f'{{"requiredID":"x",{text}}}'.encode()
    assert Whole.decode(buffer(data)) == Whole.decode(data)


@pytest.mark.parametrize("data", [None, b"", bytearray(), memoryview(b"")])
def test_no_body_and_an_empty_one_are_refused_alike(data: Buffer | None) -> None:
    for decode in (KVTable.decode, decode_reset_offsets, loads):
        with pytest.raises(BodyError, match="body is empty"):
            decode(data)
    with pytest.raises(BodyError, match="0 bytes"):
        TimerCheckPoint.decode(data)
    assert decode_settings(data) == {}
    assert decode_registration(data, version=513) == RegisterBrokerBody()


def test_a_number_that_does_not_fit_a_fixed_layout_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match="TimerCheckPoint"):
        TimerCheckPoint(last_read_time_ms=2**63).encode()


@pytest.mark.parametrize(
    "piece",
    [b"'a',", b"1:'',", b'{"a":1}:1,', b"/**/1,", b"[{}],", rb"'\ud83d\ude00',", b'"a",', b"1,"],
)
@pytest.mark.parametrize("opening", [b'{"clientID":[', b'{"x":{', b"["])
def test_a_body_made_to_cost_time_costs_little_whatever_its_size(
    opening: bytes, piece: bytes
) -> None:
    closing = b"]" if opening.endswith(b"[") else b"}"
    body = opening + piece * (8 * 1024 * 1024 // len(piece)) + closing
    started = time.thread_time()
    with pytest.raises(BodyError):
        HeartbeatData.decode(body)
    # The dialect's own reader would take 2.4 to 6 seconds. This checks that it is not used.
    assert time.thread_time() - started < 1.2


def test_what_is_no_standard_json_is_read_up_to_a_limit() -> None:
    def body(size: int) -> bytes:
        return b"{'clientID':'" + b"c" * (size - 15) + b"'}"

    assert len(HeartbeatData.decode(body(BY_HAND_SIZE_MAX)).client_id) == BY_HAND_SIZE_MAX - 15
    with pytest.raises(BodyError, match=r"body of 262145 bytes .* is read up to 262144 bytes"):
        HeartbeatData.decode(body(BY_HAND_SIZE_MAX + 1))


def test_large_tables_whose_keys_are_objects_are_read() -> None:
    table = {MessageQueue(topic="T", broker_name="b", queue_id=n): n for n in range(6_000)}
    body = ResetOffsets(offset_table=table).encode()
    assert len(body) > BY_HAND_SIZE_MAX
    assert ResetOffsets.decode(body).offset_table == table


def test_large_tables_whose_keys_are_integers_are_read() -> None:
    table = {"T@g": {n: n for n in range(40_000)}}
    body = ConsumerOffsets(offset_table=table).encode()
    assert len(body) > BY_HAND_SIZE_MAX
    assert ConsumerOffsets.decode(body).offset_table == table
