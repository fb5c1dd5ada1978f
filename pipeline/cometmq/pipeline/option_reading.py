"""Parsing Spark's options, which are all texts, into the fields of a dataclass.

Spark writes the names of options in lower case, so case is ignored. The dataclass is the
documentation of its options: a field's name in camel case is the option's name, and its type says
how the text is parsed. An unknown option is an error, as a misspelt one would otherwise be silently
ignored.
"""

from __future__ import annotations

import re
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")

Verbatim = str
"""The type of a text whose spaces count, as in the name of a file."""

_SIZE = re.compile(r"([0-9]{1,15}) ?(|[kmg])(|i?b)", re.ASCII | re.IGNORECASE)
_DIGITS_MAX: Final = 15
_OF_A_TABLE: Final = "provider"
"""What Spark adds to the options of a CREATE TABLE, which it has forgotten at the first read."""
FORGOTTEN: Final = (
    "Spark forgets the options of a table, so it could not read it; use CREATE TEMPORARY VIEW ..."
    " USING ... OPTIONS (...)"
)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_options(kind: type[Options], options: Mapping[str, str]) -> Options:
    """Parse the options that a dataclass has fields for; raise `OptionError` for any other."""
    known = {camel(each.name).lower(): each for each in fields(kind)}
    values: dict[str, Any] = {}
    if _OF_A_TABLE in options:
        raise OptionError(f"CREATE TABLE: {FORGOTTEN}")
    for given, text in options.items():
        field = known.get(given.lower())
        if field is None:
            raise OptionError(unknown(given, [camel(each.name) for each in known.values()]))
        name = camel(field.name)
        values[field.name] = _READERS[str(field.type)](name, text)
    return kind(**values)


def unknown(given: str, known: list[str]) -> str:
    """Say that there is no such option, and which one was probably meant."""
    names = {name.lower(): name for name in known}
    close = get_close_matches(given.lower(), names, n=1)
    return f"{given}: no such option" + (
        f"; did you mean {names[close[0]]}?"
        if close
        else f"; there are {', '.join(names.values())}"
    )


def camel(name: str) -> str:
    """Return the name of an option for that of its field."""
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


def listed(text: str) -> list[str]:
    """Return the names in a text, separated by commas; ignore empty ones."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _read_bool(option: str, text: str) -> bool:
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise OptionError(f"{option}: {text!r} is neither true nor false")


def read_size(option: str, text: str) -> int:
    """Parse a number of bytes, which may end with k, m or g."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{option}: {text!r} is not a number of bytes, such as 64m")
    return int(match[1]) * _UNITS[match[2].lower()]


def _read_int(option: str, text: str) -> int:
    if "bytes" in option.lower():
        return read_size(option, text)
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise OptionError(f"{option}: {text!r} is not a whole number of 0 or more")
    if len(text.strip().lstrip("0")) > _DIGITS_MAX:
        raise OptionError(f"{option}: {text!r} has more than {_DIGITS_MAX} digits")
    return int(text)


def _read_float(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"{option}: {text!r} is not a number") from None


_READERS: Final[dict[str, Callable[[str, str], object]]] = {
    "bool": _read_bool,
    "float": _read_float,
    "int": _read_int,
    "str": lambda _, text: text.strip(),
    "Verbatim": lambda _, text: text,
}
