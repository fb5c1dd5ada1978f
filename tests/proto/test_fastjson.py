"""The JSON dialect: what is read, refused and written."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from cometmq.proto.errors import BodyError, LocalProtocolError
from cometmq.proto.fastjson import (
    ObjectKey,
    dumps,
    escape_beyond_bmp,
    loads,
    quote_integer_keys,
)

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "t"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1,"b":[true,false,null,"x",-1.5]}', {"a": 1, "b": [True, False, None, "x", -1.5]}),
        ('{0:"a",-1:"b",1024:"c"}', {0: "a", -1: "b", 1024: "c"}),
        ('{"T@g":{0:3, 1 : 4}}', {"T@g": {0: 3, 1: 4}}),
        ('{{"brokerName":"b","queueId":0,"topic":"t"}:9}', {ObjectKey(QUEUE): 9}),
        (
            ' { { "topic" : "t" ,\n"queueId":0,"brokerName":"b", } : {"x":{0:1}} } ',
            {ObjectKey(QUEUE): {"x": {0: 1}}},
        ),
        ("{'a':'b','it''s':0}".replace("''", "\\'"), {"a": "b", "it's": 0}),
        (r"""['say "hi"', 'a\\', '\u4e2d\n', '']""", ['say "hi"', "a\\", "中\n", ""]),
        ('{"a":[1,2,],"b":{"c":1,},}', {"a": [1, 2], "b": {"c": 1}}),
        ('/* a */{/**/"a"/* "b" */:/***/1/*,*/,/* * / */"b":2}//*/'[:-4], {"a": 1, "b": 2}),
        ('{"a":1,"a":2,}', {"a": 2}),
        ('{0:1,0:2}', {0: 2}),
        ('{0:1,-2:null,3:true}', {0: 1, -2: None, 3: True}),
        ('{0:1, 1:2}', {0: 1, 1: 2}),
        ('{0:1,1:2,}', {0: 1, 1: 2}),
        ('{0:",5:6",1:"{7:8"}', {0: ",5:6", 1: "{7:8"}),
        ('{{"a":1}:1,{"a":1}:2}', {ObjectKey({"a": 1}): 2}),
        ('["a\nb",]', ["a\nb"]),
        ('{"a":"{}[]","b":"\'","c":"/*",}', {"a": "{}[]", "b": "'", "c": "/*"}),
        (r'["\ud83d\ude00",]', ["😀"]),
        ("[1,]", [1]),
        ("7", 7),
        ("{}", {}),
        ("[ /* none */ ]", []),
        ('{"big":123456789012345678901234567890,}', {"big": 123456789012345678901234567890}),
    ],
)  # fmt: skip
def test_what_fastjson_reads_is_read(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{clientId:1}",
            "expected a member name in quotes, an integer or an object at character 1",
        ),
        ('\ufeff{"a":1}', "expecting value at character 0"),
        ('{"a":1}x', "expected the end of the body at character 7"),
        ('{"a":1}{"a":1}', "expected the end of the body at character 7"),
        ('{"a" 1}', "expected ':' at character 5"),
        ('{"a":1 "b":2}', "expected ',' or '}' at character 7"),
        ("[1 2]", "expected ',' or ']' at character 3"),
        ("{,}", "expected a member name in quotes, an integer or an object at character 1"),
        ("[1,,]", "expecting value at character 3"),
        ('["a', "unterminated string starting at at character 1"),
        ("['a", "unterminated string at character 1"),
        (r"['\x']", "bad escape in string at character 1"),
        (r"""{'a':['\ud800']}""", "half a surrogate pair in string at character 6"),
        (r'["\udc00"]', "half a surrogate pair in string at character 1"),
        ("[NaN]", "not a JSON number at character 1"),
        ("[-Infinity,]", "not a JSON number at character 1"),
        ("[1e999,]", "not a JSON number at character 1"),
        ("[nul]", "expecting value at character 1"),
        ("[/* ]", "unterminated comment at character 1"),
        ("[// x\n1]", "expecting value at character 1"),
        ("{1.5:1}", "expected ':' at character 2"),
        ("{99999999999999999999:1}", "expected a member name in quotes, an integer or an object"),
        ("{01:1}", "expected a member name in quotes"),
        ('{{"a":[]}:1}', "an object key has members that are not scalars at character 1"),
        ('{{{"a":1}:2}:3}', "an object key has members whose names are not strings at character 1"),
        ("{{0:1}:2}", "an object key has members whose names are not strings at character 1"),
        ('{{"a":1}}', "expected ':' at character 8"),
        ("{", "expected a member name in quotes, an integer or an object at character 1"),
        ("[", "expecting value at character 1"),
        ("   ", "expecting value at character 3"),
        ("[" + "9" * 5000 + ",]", "not a JSON number at character 1"),
    ],
)
def test_what_fastjson_refuses_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(BodyError) as caught:
        loads(text.encode())
    assert problem in str(caught.value)


def test_an_empty_body_is_no_json() -> None:
    with pytest.raises(BodyError, match="empty"):
        loads(b"")


def test_bytes_that_are_no_utf8_are_refused_with_the_place() -> None:
    with pytest.raises(BodyError, match="not UTF-8 at byte 2"):
        loads(b'["\xff"]')


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_every_buffer_is_read_on_both_roads(buffer: type) -> None:
    assert loads(buffer(b'{"a":1}')) == {"a": 1}
    assert loads(buffer(b"{0:1}")) == {0: 1}


@pytest.mark.parametrize("nested", ["[", '{"a":', "{0:", "{{"])
@pytest.mark.parametrize("depth", [10, 5_000, 100_000])
def test_deep_nesting_is_refused_and_never_exhausts_the_stack(nested: str, depth: int) -> None:
    with pytest.raises(BodyError):
        loads((nested * depth).encode(), depth_max=8)


@pytest.mark.parametrize("tail", ["", ","])
def test_the_depth_limit_is_exact_on_both_roads(tail: str) -> None:
    def nested(depth: int) -> bytes:
        return ("[" * depth + "1" + tail + "]" * depth).encode()

    many = b'{"a":["[[[[",[{}],[{}],[{}]]}'
    assert loads(nested(4), depth_max=4) == [[[[1]]]]
    assert loads(many, depth_max=4)
    for body, depth_max in ((nested(5), 4), (many, 3)):
        with pytest.raises(BodyError, match="nested too deep"):
            loads(body, depth_max=depth_max)


@pytest.mark.parametrize(
    "text",
    ["[1,2,3]", "[1,2,3,]", "{0:1,1:2,2:3}", '{"a":1,"b":[2]}', "[{'a':1,},2]", "[[],[],[]]"],
)
def test_the_member_limit_is_exact_on_both_roads(text: str) -> None:
    assert loads(text.encode(), members_max=3) is not None
    with pytest.raises(BodyError, match="too many members"):
        loads(text.encode(), members_max=2)


def test_the_size_limit_counts_bytes() -> None:
    assert loads(memoryview(b'["\xc3\xa9"]'), size_max=6) == ["é"]
    with pytest.raises(BodyError, match="has 6 bytes, the limit is 5"):
        loads(b'["\xc3\xa9"]', size_max=5)


@pytest.mark.parametrize(
    "piece",
    [
        "{0:1},", "'a',", '"a",', r'"\"",', r"'\'',", "/* */1,", "{{'a':1}:1},", r"'\u0041',",
        '{"a":"}",},', "\n",
    ],
)  # fmt: skip
def test_the_parser_by_hand_takes_linear_time(piece: str) -> None:
    def seconds(count: int) -> float:
        text = ("[" + piece * count + "]").encode()
        best = 60.0
        for _ in range(3):
            start = time.process_time()
            loads(text)
            best = min(best, time.process_time() - start)
        return best

    # Sixteen times the text would take 256 times as long if time were quadratic.
    assert seconds(16_000) < 64 * max(seconds(1_000), 0.001)


@pytest.mark.parametrize(
    "text", [r'["' + r"\"" * 200_000, "['" + r"\'" * 200_000, "[" + "/*" * 200_000, "{" * 200_000]
)
def test_an_unterminated_text_is_refused_in_linear_time(text: str) -> None:
    start = time.process_time()
    with pytest.raises(BodyError):
        loads(text.encode())
    assert time.process_time() - start < 5


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    brokerName: str  # noqa: N815  # The name on the wire.
    queueId: int = 0  # noqa: N815  # The name on the wire.


class Plain(msgspec.Struct, frozen=True):
    rate: float
    names: tuple[str, ...]
    table: dict[str, int]


class Odd(msgspec.Struct, frozen=True, rename={"offset_table": "offsetTable"}):
    offset_table: dict[Queue, Plain | None] | None = None
    levels: tuple[dict[int, str], ...] = ()
    tree: Any = None


class Empty(msgspec.Struct, frozen=True):
    table: dict[int, int] | None = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": None, "b": 1}, '{"b":1}'),
        ({0: "a", -1: [1, 2]}, '{0:"a",-1:[1,2]}'),
        ({ObjectKey(QUEUE): 9}, '{{"brokerName":"b","queueId":0,"topic":"t"}:9}'),
        ({Queue("b", 3): {}}, '{{"brokerName":"b","queueId":3}:{}}'),
        (Plain(0.0, ("x",), {"y": 1}), '{"rate":0.0,"names":["x"],"table":{"y":1}}'),
        (
            Odd({Queue("b", 1): Plain(1.5, (), {}), Queue("c", 1): None}, ({1: "é"},), {2: [3]}),
            '{"offsetTable":{{"brokerName":"b","queueId":1}:{"rate":1.5,"names":[],"table":{}}},'
            '"levels":[{1:"é"}],"tree":{2:[3]}}',
        ),
        (Odd(), '{"levels":[]}'),
        (Empty(), "{}"),
        ([], "[]"),
        ({"é😀\n": "中😀"}, r'{"é\uD83D\uDE00\n":"中\uD83D\uDE00"}'),
        ("a\n\"", r'"a\n\""'),
    ],
)  # fmt: skip
def test_writing_is_what_apache_writes(value: Any, text: str) -> None:
    assert dumps(value).decode() == text


@pytest.mark.parametrize("value", [{1.5: 1}, {True: 1}, {None: 1}, {"a": object()}, ["\ud800"]])
def test_what_the_dialect_cannot_say_is_our_error(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written"):
        dumps(value)


def test_a_value_that_holds_itself_is_our_error() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(LocalProtocolError):
        dumps(ring)


def test_object_keys_are_equal_by_their_members() -> None:
    key = ObjectKey(QUEUE)
    assert key == ObjectKey(dict(reversed(QUEUE.items())))
    assert key != QUEUE
    assert hash(key) == hash(ObjectKey(QUEUE))
    assert len(key) == 3
    assert repr(ObjectKey({"a": 1})) == "ObjectKey({'a': 1})"


def test_characters_beyond_the_bmp_are_escaped_and_the_others_stay() -> None:
    plain = '{"主题":"é😀\x7f"}'.encode()
    escaped = escape_beyond_bmp(plain)
    assert escaped == '{"主题":"é\\uD83D\\uDE00\x7f"}'.encode()
    assert loads(escaped) == loads(plain)
    assert escape_beyond_bmp(b"{}") == b"{}"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
object_keys = st.dictionaries(st.text(), scalars.filter(lambda x: x is not None)).map(ObjectKey)
keys = st.text() | st.integers(-(2**62), 2**62) | object_keys
trees = st.recursive(
    scalars.filter(lambda x: x is not None),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(trees)
def test_what_is_written_reads_back(tree: Any) -> None:
    assert loads(dumps(tree)) == tree


@given(trees)
def test_both_roads_read_the_same(tree: Any) -> None:
    text = dumps(tree).decode()
    assert loads(f"/* by hand */ {text}".encode()) == loads(text.encode())


@given(st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=9))
def test_all_standard_json_is_read_with_its_blanks(tree: Any) -> None:
    text = json.dumps(tree, indent=1, ensure_ascii=False).encode()
    assert loads(text) == tree
    assert loads(b"/**/" + text) == tree


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"{0:1,-7:{12:[1,2]}}", b'{"0":1,"-7":{"12":[1,2]}}'),
        (b'{"a":{0:"x"},"b":[{1:2}]}', b'{"a":{"0":"x"},"b":[{"1":2}]}'),
        (b'{0:"a\\"b"}', b'{"0":"a\\"b"}'),
    ],
)
def test_integer_keys_are_put_in_quotes(text: bytes, quoted: bytes) -> None:
    assert quote_integer_keys(text) == quoted


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1}',
        b"{}",
        b"[1,2]",
        b"{00:1}",
        b"{1.5:1}",
        b"{99999999999999999999:1}",
    ],
)
def test_a_text_without_integer_keys_is_left_alone(text: bytes) -> None:
    assert quote_integer_keys(text) is None


@pytest.mark.parametrize("text", [b'{0:"a {1:2}"}', b'{"a":",5:"}', b'{0:"\\",-1:"}'])
def test_what_looks_like_a_key_inside_a_string_makes_no_json(text: bytes) -> None:
    quoted = quote_integer_keys(text)
    assert quoted is not None
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(quoted)


@settings(deadline=None)
@given(
    st.recursive(
        st.integers() | st.text() | st.sampled_from(["{1:", ",2:", '"', "\\"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.integers(-99, 99) | st.text(), inner),
        max_leaves=20,
    )
)
def test_quoted_integer_keys_change_nothing_else(tree: object) -> None:
    text = dumps(tree)
    try:
        found: object = msgspec.json.decode(quote_integer_keys(text) or text)
    except msgspec.DecodeError:
        strings = re.findall(rb'"(?:[^"\\]|\\.)*+"', text)
        assert any(re.search(rb"[{,]-?[0-9]+:", string) for string in strings)
    else:
        assert found == with_text_keys(loads(text))


def with_text_keys(tree: Any) -> Any:
    match tree:
        case dict():
            return {str(key): with_text_keys(tree[key]) for key in tree}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # Any tree.
        case list():
            return [with_text_keys(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]  # Any tree.
        case _:
            return tree


def test_objects_as_keys_have_hashes_that_no_sender_can_make_equal() -> None:
    names = "abcdefghij"
    keys = [
        ObjectKey({name: -1 - (number >> at & 1) for at, name in enumerate(names)})
        for number in range(1 << len(names))
    ]
    assert len({hash(key) for key in keys}) == len(keys)  # hash(-1) is hash(-2).


def test_objects_as_keys_are_equal_as_their_members_are() -> None:
    one = ObjectKey({"a": 1, "b": None})
    for other in (ObjectKey({"b": None, "a": 1.0}), ObjectKey({"a": True, "b": None})):
        assert (one, hash(one)) == (other, hash(other))
    assert one != ObjectKey({"a": "1", "b": None})
