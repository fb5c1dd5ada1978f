from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
    property_finder,
    remove_property,
    set_property,
)

WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=5
)
# Only a few different bytes, so that names, values and separators often coincide.
PIECES = st.lists(st.sampled_from([b"A", b"B", b"\x01", b"\x02", b"\xff", "é".encode()]))
RAW = PIECES.map(b"".join)


def decode_by_definition(raw: bytes) -> dict[str, str]:
    """Decode exactly as Apache's reader does, step by step."""
    text = raw.decode("utf-8", "replace")
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        end = len(text) if end < 0 else end
        if end - index >= 3:
            split = text.find("\x01", index)
            if index < split < end - 1:
                found[text[index:split]] = text[split + 1 : end]
        index = end + 1
    return found


def test_pairs_are_separated_by_two_control_characters() -> None:
    raw = encode_properties({"TAGS": "TagA", "KEYS": None, "ünï": "ö"})
    assert raw == "TAGS\x01TagA\x02ünï\x01ö\x02".encode()
    assert encode_properties({}) == b""


@given(st.dictionaries(WORDS, WORDS))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(RAW)
def test_any_bytes_read_as_apache_reads_them(raw: bytes) -> None:
    assert decode_properties(raw) == decode_by_definition(raw)


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01\x02", {}),
        (b"\x01b\x02", {}),
        (b"ab\x02", {}),
        (b"a\x01b\x02\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01b\x02a\x01\x02", {"a": "b"}),
        (b"c\x01d\x02a\x01b\x02a\x01\x02a\x01", {"a": "b", "c": "d"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_odd_properties_read_leniently(raw: bytes, read: dict[str, str]) -> None:
    assert decode_properties(raw) == decode_by_definition(raw) == read
    found = find_property(raw, b"a")
    assert (None if found is None else found.decode("utf-8", "replace")) == read.get("a")


@given(RAW, st.sampled_from([b"A", b"AB", "é".encode(), b"BA"]))
def test_finding_one_gives_what_decoding_all_gives(raw: bytes, name: bytes) -> None:
    found = find_property(raw, name)
    assert property_finder(name)(raw) == found
    decoded = decode_by_definition(raw).get(name.decode())
    assert (None if found is None else found.decode("utf-8", "replace")) == decoded


def test_a_name_is_not_found_inside_a_value_or_at_another_names_end() -> None:
    assert find_property(b"MYTAGS\x01x\x02KEYS\x01TAGS\x01y\x02", b"TAGS") is None
    assert find_property(b"MYTAGS\x01x\x02TAGS\x01y", b"TAGS") == b"y"


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"a": "\x01"}, "'a' holds a separator"),
        ({"a": "x", "b\x02": "x"}, "'b\\\\x02' holds a separator"),
        # An extra separator and an omitted pair would cancel each other out in a count.
        ({"": "x", "a": "\x01\x02"}, "name is empty"),
        ({"": None}, "name is empty"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"a": "x" * PROPERTIES_SIZE_MAX}, "32770 bytes, over 32767"),
    ],
)
def test_what_no_reader_would_read_back_is_not_written(
    properties: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        encode_properties(properties)


def test_properties_may_fill_a_record_to_the_last_byte() -> None:
    assert len(encode_properties({"a": "x" * (PROPERTIES_SIZE_MAX - 3)})) == PROPERTIES_SIZE_MAX


@given(RAW, st.sampled_from(["A", "AB"]))
def test_removing_one_leaves_the_others(raw: bytes, name: str) -> None:
    expected = decode_by_definition(raw)
    expected.pop(name, None)
    removed = remove_property(raw, name.encode())
    assert decode_by_definition(removed) == expected
    assert find_property(removed, name.encode()) is None


@given(RAW, st.sampled_from(["A", "AB"]))
def test_setting_one_leaves_the_others(raw: bytes, name: str) -> None:
    expected = decode_by_definition(raw) | {name: "new"}
    assert decode_by_definition(set_property(raw, name.encode(), b"new")) == expected


@given(RAW, RAW)
def test_of_joined_properties_the_later_count(raw: bytes, more: bytes) -> None:
    expected = decode_by_definition(raw) | decode_by_definition(more)
    assert decode_by_definition(join_properties(raw, more)) == expected


def test_setting_one_replaces_it() -> None:
    assert set_property(b"a\x01b\x02c\x01d", b"a", b"e") == b"c\x01d\x02a\x01e\x02"
