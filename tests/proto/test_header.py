"""The rules of header fields, which the fast reader follows, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from cometmq.proto.errors import FieldError
from cometmq.proto.header import (
    I32,
    I64,
    Header,
    from_array,
    from_json,
    from_texts,
    texts_from_json,
    to_array,
    to_json_object,
    to_texts,
    wire,
)
from cometmq.proto.header_plan import HeaderPlan
from cometmq.proto.header_rules import header_fields, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Every(Header):
    """One field of each kind, required, with a default, and optional."""

    text: str
    number: I32
    long_number: I64 = 5
    ratio: float = 0.5
    yes: bool = False
    default_text: str = "d"
    maybe_text: str | None = None
    maybe_number: I32 | None = None
    maybe_ratio: float | None = None
    maybe_yes: bool | None = wire("MAYBE_YES", default=None)


LEAST = {"text": "t", "number": "1"}
NAMES = [field.wire_name for field in header_fields(Every)]


def read_json(fields: dict[str, Any]) -> Every:
    return from_json(Every, json.dumps(LEAST | fields).encode())


def outcome(read: Callable[[], Every]) -> Every | str:
    try:
        return read()
    except FieldError as error:
        return str(error)


def by_the_rules(texts: dict[str, str]) -> Every | str:
    return outcome(lambda: Every(*read_texts(header_fields(Every), texts)))


def shown(header: Every | str) -> str:
    """Return a text to compare, as NaN does not equal itself, and 1 equals True and 1.0.

    Only the sign of a zero, which means nothing in any field, is ignored.
    """
    return repr(header).replace("=-0.0", "=0.0")


def test_names_on_the_wire_are_camel_case_unless_said() -> None:
    header = Every("t", -1, maybe_yes=True, maybe_text="")
    assert to_texts(header) == {
        "text": "t",
        "number": "-1",
        "longNumber": "5",
        "ratio": "0.5",
        "yes": "false",
        "defaultText": "d",
        "maybeText": "",
        "MAYBE_YES": "true",
    }
    assert json.loads(msgspec.json.encode(to_json_object(header))) == to_texts(header)


@pytest.mark.parametrize(
    ("name", "sent", "read"),
    [
        ("number", "+7", 7),
        ("number", "007", 7),
        ("number", "-0", 0),
        ("number", "-2147483648", -(2**31)),
        ("number", 2147483647, 2**31 - 1),
        ("number", "7.0", 7),
        ("number", 7.0, 7),
        ("number", "7e2", 700),
        ("longNumber", "9223372036854775807", 2**63 - 1),
        ("longNumber", "", 5),
        ("longNumber", " \t", 5),
        ("longNumber", None, 5),
        ("longNumber", "null", 5),
        ("maybeNumber", "NULL", None),
        ("maybeNumber", "", None),
        ("ratio", "1", 1.0),
        ("ratio", 2, 2.0),
        ("ratio", " 0.25 ", 0.25),
        ("maybeRatio", "", None),
        ("yes", "true", True),
        ("yes", "TRUE", True),
        ("yes", True, True),
        ("yes", "1", False),
        ("yes", 1, False),
        ("yes", "yes", False),
        ("yes", "", False),
        ("yes", "null", False),
        ("yes", None, False),
        ("MAYBE_YES", "true", True),
        ("MAYBE_YES", "1", False),
        ("MAYBE_YES", " true", False),
        ("MAYBE_YES", "null", None),
        ("MAYBE_YES", None, None),
        ("text", 7, "7"),
        ("text", 7.10, "7.1"),
        ("text", True, "true"),
        ("text", "", ""),
        ("text", "null", "null"),
        ("text", [1, {"a": None}], '[1, {"a": null}]'),
        ("defaultText", None, "d"),
        ("maybeText", None, None),
    ],
)
def test_a_field_is_read_as_java_reads_it(name: str, sent: object, read: object) -> None:
    header = read_json({name: sent})
    values = dict(zip(NAMES, to_array(header), strict=True))
    assert (values[name], type(values[name])) == (read, type(read))


@pytest.mark.parametrize(
    ("name", "sent", "problem"),
    [
        ("number", None, "is missing"),
        ("number", "", "is missing"),
        ("number", "null", "is missing"),
        ("text", None, "is missing"),
        ("number", "7.5", "is '7.5', not a number"),
        ("number", 7.5, "is '7.5', not a number"),
        ("number", "x", "is 'x', not a number"),
        ("number", " 7", "is ' 7', not a number"),
        ("number", "7_0", "is '7_0', not a number"),
        ("number", "٣", "is '٣', not a number"),
        ("number", "0x7", "is '0x7', not a number"),
        ("number", "9" * 5000, f"is '{'9' * 40}'…, not a number"),
        ("number", True, "is 'true', not a number"),
        ("number", {}, "is '{}', not a number"),
        ("number", "1e999", "is '1e999', not a number"),
        ("number", "2147483648", "is '2147483648', not within -2147483648 to 2147483647"),
        ("number", -2147483649, "is '-2147483649', not within -2147483648 to 2147483647"),
        ("ratio", "1_0.0", "is '1_0.0', not a number"),
        ("ratio", "x", "is 'x', not a number"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_wrong(name: str, sent: object, problem: str) -> None:
    with pytest.raises(FieldError) as raised:
        read_json({name: sent})
    assert (raised.value.command, raised.value.field, raised.value.problem) == (
        "Every",
        name,
        problem,
    )


def test_unknown_fields_are_ignored_and_the_last_of_duplicates_wins() -> None:
    raw = b'{"number":"x","text":"a","new":{"x":[1]},"number":"2","t\\u0065xt":"b"}'
    assert from_json(Every, raw) == Every("b", 2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"7",
        b'{"text":}',
        b'{"text":"\xff"}',
        b'{"\xff":"1"}',
        b'{"text":"\\ud800"}',
        b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_object_of_texts_is_a_wrong_field(raw: bytes) -> None:
    with pytest.raises(FieldError):
        from_json(Every, raw)
    with pytest.raises(FieldError, match="field 'extFields' is not an object"):
        texts_from_json(raw)


@pytest.mark.parametrize("raw", [b"null", b"{}"])
def test_no_fields_at_all_are_missing_fields(raw: bytes) -> None:
    with pytest.raises(FieldError, match="field 'text' is missing"):
        from_json(Every, raw)
    assert texts_from_json(raw) == {}


WORDS = st.sampled_from(
    [
        "",
        " ",
        "1",
        "0",
        "-1",
        "-0",
        "+1",
        "007",
        "1.0",
        "1.5",
        "1e2",
        "1E+2",
        "-0.0",
        "true",
        "TRUE",
        "True",
        "false",
        "FALSE",
        "null",
        "Null",
        "nan",
        "inf",
        "Infinity",
        "2147483648",
        "-2147483648",
        "9223372036854775808",
        "-9223372036854775808",
        "9007199254740993.0",
        "1e400",
        "1e-400",
        "0.1e1",
        ".5",
        "5.",
        "1_0",
        "٣",
    ]
)
SCALARS = st.one_of(
    WORDS,
    st.text(),
    st.integers().map(str),
    st.floats().map(repr),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)
OBJECTS = st.dictionaries(
    st.sampled_from([*NAMES, "unknown"]),
    SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(OBJECTS)
@example({"yes": "1"})
@example({"yes": 1, "MAYBE_YES": True})
@example({"number": 99999999999999999999})
@example({"maybeRatio": "-0"})
@example({"maybeRatio": "-0.0"})
def test_the_fast_reader_agrees_with_the_rules(fields: dict[str, Any]) -> None:
    raw = json.dumps(LEAST | fields).encode()
    texts = texts_from_json(raw)
    expected = by_the_rules(texts)
    assert shown(outcome(lambda: from_json(Every, raw))) == shown(expected)
    assert shown(outcome(lambda: from_texts(Every, texts))) == shown(expected)


def test_an_array_grows_and_shrinks_at_its_end() -> None:
    full = to_array(Every("t", 1, maybe_yes=True))
    assert from_array(Every, full) == Every("t", 1, maybe_yes=True)
    assert from_array(Every, [*full, "newer", [1]]) == Every("t", 1, maybe_yes=True)
    assert from_array(Every, full[:2]) == Every("t", 1)
    assert from_array(Every, ["t", 1, None, None, None, None]) == Every("t", 1)


@pytest.mark.parametrize(
    ("items", "field"),
    [
        (None, "text"),
        ((), "text"),
        (("t",), "number"),
        (("t", None), "number"),
        ((b"t", 1), "text"),
        (("t", "1"), "number"),
        (("t", 2**31), "number"),
        (("t", True), "number"),
        (("t", 1, 2**63), "longNumber"),
        (("t", 1, 5, 0.5, 1), "yes"),
    ],
)
def test_a_wrong_item_of_an_array_is_named(items: Sequence[Any] | None, field: str) -> None:
    with pytest.raises(FieldError) as raised:
        from_array(Every, items)
    assert raised.value.field == field


def test_a_class_without_booleans_has_no_second_look() -> None:
    class Plain(Header):
        text: str

    assert from_json(Plain, b'{"text":"true"}') == Plain("true")
    assert from_texts(Plain, {"text": "true"}) == Plain("true")


def test_a_declaration_that_no_wire_can_carry_is_our_own_bug() -> None:
    class Unbounded(Header):
        number: int

    class Nested(Header):
        names: list[str]

    class Ambiguous(Header):
        text: str | None = "x"

    for cls in (Unbounded, Nested, Ambiguous):
        with pytest.raises(AssertionError, match=cls.__name__):
            HeaderPlan(cls)
