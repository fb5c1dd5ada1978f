"""Values as Java parses and orders them, for the comparisons of properties in filters.

Properties are strings. When compared with a number, they are parsed as a number of its type by
Java's rules: an integer may have digits of any script but no blanks around it; a real may have
blanks around it and may be hexadecimal; `NaN` is the greatest of all.
"""

from __future__ import annotations

import math
import re
from typing import Final

I32_MIN: Final = -(1 << 31)
I32_MAX: Final = (1 << 31) - 1
I64_MIN: Final = -(1 << 63)
I64_MAX: Final = (1 << 63) - 1

_BLANKS: Final = "".join(map(chr, range(0x21)))
_REAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEX_REAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)


class UnfitValueError(ValueError):
    """A value that cannot be compared with the other one."""


def to_i32(text: str) -> int:
    """Read a Java `Integer`."""
    number = _to_int(text)
    if I32_MIN <= number <= I32_MAX:
        return number
    raise UnfitValueError(text)


def to_i64(text: str) -> int:
    """Read a Java `Long`."""
    number = _to_int(text)
    if I64_MIN <= number <= I64_MAX:
        return number
    raise UnfitValueError(text)


def _to_int(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java looks at UTF-16 code units, so it knows no digits outside the Basic Multilingual Plane.
    if digits.isdecimal() and (digits.isascii() or max(digits) <= "\uffff"):
        try:
            return int(text)
        except ValueError:  # Too many digits, thousands of them.
            raise UnfitValueError(text[:64]) from None
    raise UnfitValueError(text)


def to_double(text: str) -> float:
    """Read a Java `Double`."""
    text = text.strip(_BLANKS)
    if _REAL.fullmatch(text):
        return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
    found = _HEX_REAL.fullmatch(text)
    if found is None:
        raise UnfitValueError(text)
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def to_boolean(text: str) -> bool:
    """Read a Java `Boolean`: anything but `true` is false."""
    return len(text) == 4 and text.lower() == "true"


def double_order(number: float) -> tuple[bool, float, float]:
    """Return a key that sorts like Java's doubles: -0.0 before 0.0, NaN last, equal to itself."""
    if math.isnan(number):
        return (True, 0.0, 0.0)
    return (False, number, math.copysign(1.0, number))
