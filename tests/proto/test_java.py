from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.java import (
    TAGS_CACHED_SIZE_MAX,
    cached_tags_code,
    string_hash,
    tags_code,
    text_of,
)
from cometmq.proto.properties import decode_properties

SURROGATES = st.text(st.characters(exclude_categories=()), max_size=200)


def hash_by_definition(text: str) -> int:
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(raw), 2):
        value = (31 * value + raw[at] * 256 + raw[at + 1]) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("*", 42),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("order-created", -392709271),
        ("标签", 857175),
        ("TopicTest#KEY1", -1656969516),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 55357 * 31 + 56832),
        ("\ud83d", 55357),
    ],
)
def test_strings_hash_as_in_java(text: str, value: int) -> None:
    assert string_hash(text) == value


@given(SURROGATES)
def test_the_hash_follows_its_definition_on_utf_16_units(text: str) -> None:
    assert string_hash(text) == hash_by_definition(text)


@given(st.integers(0, 3), st.integers(-1, 1))
def test_the_hash_is_right_around_the_edges_of_its_blocks(blocks: int, more: int) -> None:
    text = "kéy"[: 1 + blocks % 2] * max(0, blocks * 64 + more)
    assert string_hash(text) == hash_by_definition(text)


def test_the_tag_code_is_the_hash_of_the_whole_text() -> None:
    assert tags_code(b"TagA") == 2598919
    assert tags_code("标签".encode()) == 857175
    assert tags_code(b"") == 0


def test_long_tags_hash_alike_without_the_cache() -> None:
    tags = b"t" * (TAGS_CACHED_SIZE_MAX + 1)
    known = cached_tags_code.cache_info().currsize
    assert tags_code(tags) == string_hash(tags.decode())
    assert cached_tags_code.cache_info().currsize == known


def test_tags_that_are_not_utf_8_hash_as_java_reads_them() -> None:
    assert tags_code(b"\xff") == 0xFFFD


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain \xc3\xbc \xf0\x9f\x98\x80", "plain ü 😀"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xe2\x82|\xc3", "\ufffd|\ufffd"),
        # Halves of surrogate pairs, whole and cut.
        (b"\xed\xa0\xbd", "\ufffd"),
        (b"a\xed\xa0\xbd\xed\xb8\x80b", "a\ufffd\ufffdb"),
        (b"\xed\xac", "\ufffd"),
        (b"\xed\xa0\xc1", "\ufffd\ufffd"),
        (b"\xed\xa0\xf5\xa0", "\ufffd\ufffd\ufffd"),
        (b"\xed\x9f\xbf\xed", "\ud7ff\ufffd"),
    ],
)
def test_text_that_is_no_utf_8_reads_as_in_java(raw: bytes, text: str) -> None:
    assert text_of(raw) == text
    assert tags_code(raw) == string_hash(text)
    assert decode_properties(b"TAGS\x01%b\x02" % raw) == {"TAGS": text}
