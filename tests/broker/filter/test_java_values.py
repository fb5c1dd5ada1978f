from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from cometmq.broker.filter.java_values import (
    UnfitValueError,
    double_order,
    to_boolean,
    to_double,
    to_i32,
    to_i64,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("read", [to_i32, to_i64])
@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "5.0", "1_0", "+", "-", "0x5", "5L", "²", "\U0001d7db", "a"]
)
def test_these_are_no_whole_numbers(read: Callable[[str], int], text: str) -> None:
    with pytest.raises(UnfitValueError):
        read(text)


def test_whole_numbers_have_a_range() -> None:
    assert to_i32("-2147483648") == -(1 << 31)
    assert to_i64("+9223372036854775807") == (1 << 63) - 1
    assert to_i32("0" * 3000 + "7") == 7
    for read, text in [(to_i32, "2147483648"), (to_i64, "-9223372036854775809")]:
        with pytest.raises(UnfitValueError):
            read(text)
    with pytest.raises(UnfitValueError):
        to_i64("7" * 5000)


def test_digits_of_other_scripts_are_digits() -> None:
    assert to_i32("-٣٤") == -34


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5.0), (" 5.d\n", 5.0), (".5f", 0.5), ("-1e3", -1000.0), ("0x1.8p1", 3.0),
     ("1e999", math.inf), ("-Infinity", -math.inf), ("-0x1p99999", -math.inf), ("0x1p-99999", 0.0)],
)  # fmt: skip
def test_real_numbers_are_read_as_java_does(text: str, value: float) -> None:
    assert to_double(text) == value


@pytest.mark.parametrize(
    "text", ["", " ", "inf", "nan", "1_0", "5ff", "0x10", "1e", ".", "\xa05", "٣"]
)
def test_these_are_no_real_numbers(text: str) -> None:
    with pytest.raises(UnfitValueError):
        to_double(text)


def test_doubles_have_a_total_order() -> None:
    numbers = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    keys = [double_order(number) for number in numbers]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert double_order(math.nan) == double_order(-math.nan)


def test_only_true_is_true() -> None:
    assert [t for t in ("true", "TRUE", "tRuE", "yes", "1", " true", "") if to_boolean(t)] == [
        "true",
        "TRUE",
        "tRuE",
    ]
