"""Java's properties texts, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.proto.bodies.wire_bodies import BODIES, WireBody

from cometmq.proto.bodies import decode_settings, encode_settings
from cometmq.proto.codes import RequestCode
from cometmq.proto.errors import BodyError

CODES = {
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b\nc=d\n", {"a": "b", "c": "d"}),
        ("a:b", {"a": "b"}),
        ("a b c", {"a": "b c"}),
        (" \t a \t = \t b \n", {"a": "b "}),
        ("a = : b", {"a": ": b"}),
        ("a==b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("# no\n ! no\n\n \t\na=#yes!", {"a": "#yes!"}),
        ("a=b\\\n  c\\\r\n\td\\\re", {"a": "bcde"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\\n=b", {"a": "b"}),
        ("a=b\\\n#c", {"a": "b#c"}),
        ("a=b\\", {"a": "b"}),
        ("# comment \\\na=b", {"a": "b"}),
        (r"a\ b\=c\:d=e", {"a b=c:d": "e"}),
        (r"a=\t\n\r\f\q\\", {"a": "\t\n\r\fq\\"}),
        (r"a=\u4e2d\uD83D\uDE00", {"a": "中😀"}),
        ("k=中", {"k": "中"}),
        ("", {}),
        ("namesrvAddr=127.0.0.1:9876;h:1", {"namesrvAddr": "127.0.0.1:9876;h:1"}),
    ],
)
def test_texts_are_read_by_javas_rules(text: str, expected: dict[str, str]) -> None:
    assert decode_settings(text.encode()) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a=1\n\nb=\\u12g4", r"malformed \\uXXXX in line 3"),
        (b"a=x\\\n\\u123", r"malformed \\uXXXX in line 1"),
        (b"a=\\uD83D", "half a surrogate pair in line 1"),
        (b"a=\xff", "not UTF-8 at byte 2"),
    ],
)
def test_what_is_malformed_is_refused_with_its_line(data: bytes, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        decode_settings(data)


@pytest.mark.parametrize(
    "body", [body for body in BODIES if body.code in CODES], ids=lambda body: body.name
)
def test_a_captured_text_is_written_again_to_the_byte(body: WireBody) -> None:
    assert encode_settings(decode_settings(body.data)) == body.data


def test_what_java_would_mistake_is_escaped() -> None:
    assert encode_settings({"#a b": " x\\", "c=:": "é\n😀:="}) == (
        b"\\#a\\ b=\\ x\\\\\nc\\=\\:=\\u00E9\\n\\uD83D\\uDE00:=\n"
    )


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_written_reads_back(properties: dict[str, str]) -> None:
    text = encode_settings(properties)
    assert text.isascii()
    assert decode_settings(text) == properties
