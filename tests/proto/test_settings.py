"""Settings in the forms in which people write them."""

from __future__ import annotations

from enum import Enum

import pytest

from cometmq.proto.settings import (
    SettingError,
    format_setting,
    parse_setting,
    unknown_setting,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (False, " TRUE ", True),
        (True, "false", False),
        (0, "+42", 42),
        (0, "-1", -1),
        (None, "7", 7),
        (None, "off", None),
        ("", " a b ", "a b"),
        (Colour.RED, "blue", Colour.BLUE),
        ((), "4, 16,", (4, 16)),
        ((1,), "", ()),
    ],
)
def test_a_text_becomes_a_value(default: object, text: str, value: object) -> None:
    found = parse_setting("x", default, text)
    assert (found, type(found)) == (value, type(value))
    assert parse_setting("x", default, format_setting(value)) == value


@pytest.mark.parametrize(
    ("default", "value"),
    [(False, True), (0, 5), (None, 5), ("", "x"), (Colour.RED, Colour.BLUE), ((), (1, 2))],
)
def test_a_value_that_has_its_type_is_taken(default: object, value: object) -> None:
    assert parse_setting("x", default, value) == value


@pytest.mark.parametrize(
    ("name", "size"),
    [("segment_size", True), ("size_max", False), ("read_size_max", True), ("a_bytes", True)],
)
def test_sizes_have_units(name: str, size: bool) -> None:
    if size:
        assert parse_setting(name, 0, "64KiB") == 64 << 10
        assert parse_setting(name, None, "2MiB") == 2 << 20
        assert parse_setting(name, 0, "1GiB") == 1 << 30
    else:
        with pytest.raises(SettingError):
            parse_setting(name, 0, "64KiB")


@pytest.mark.parametrize(
    ("default", "value", "wanted"),
    [
        (False, "yes", "true or false"),
        (False, 1, "true or false"),
        (0, "1.5", "an integer"),
        (0, True, "an integer"),
        (0, "9" * 19, "an integer"),
        (0, None, "an integer"),
        (None, "none", "an integer or off"),
        (None, True, "an integer or off"),
        ("", 5, "a text"),
        ("", "\udcff", "UTF-8 text"),
        (Colour.RED, "green", "red or blue"),
        ((), "4,x", "an integer"),
        ((), 4, "a list of integers"),
        ((), [True], "an integer"),
    ],
)
def test_what_cannot_be_a_value_is_refused(default: object, value: object, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"is not {wanted}$"):
        parse_setting("x", default, value)


def test_an_unknown_setting_is_told_with_the_one_that_is_like_it() -> None:
    known = ["listen_port", "broker_name"]
    assert unknown_setting("listenport", known) == (
        "listenport: no such setting; did you mean listen_port?"
    )
    assert unknown_setting("zzz", known) == "zzz: no such setting"
    assert len(unknown_setting("a" * 10_000, known)) < 200


def test_a_path_may_be_of_any_bytes() -> None:
    assert parse_setting("store_path", "", "/d/\udcff") == "/d/\udcff"
