"""Settings as people write them: parsing and writing texts, and suggestions for unknown names.

==================  ===========================================================================
type                texts
==================  ===========================================================================
bool                `true`, `false`, in any case
int                 `42`, `-1`; for a size in bytes (`is_size`) also `64KiB`, `64MiB`, `1GiB`
int, or None        as int, or `off`
str                 anything, without blanks around it
Enum                the value of a member
tuple of int        `4, 16`
==================  ===========================================================================

A value that already has its type, as in a TOML file, is taken as it is.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SHOWN_MAX: Final = 80
"""Characters of an input text that an error repeats."""

_INTEGER = re.compile(r"([+-]?[0-9]{1,18})(KiB|MiB|GiB)?", re.ASCII)
_PLAIN = re.compile(r"[\w.-]{1,80}", re.ASCII)
_UNITS: Final = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OFF: Final = "off"


class SettingError(ValueError):
    """A value that a setting cannot have; the text says what it can be."""


def is_size(name: str) -> bool:
    """Whether a setting is a size in bytes, by its name."""
    return "_size" in name or name.endswith("_bytes") or "_bytes_" in name


def parse_setting(name: str, default: object, value: object) -> Any:
    """Return the value of a setting that is declared with this default.

    Raises a `SettingError` if it cannot be one. The default None means an integer that may be None.
    """
    if isinstance(value, str):
        return _parse_text(name, default, value.strip())
    declared = default  # The type of `default` is narrowed below.
    if isinstance(default, tuple):
        if isinstance(value, (tuple, list)):
            items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType]  # As TOML has it.
            return tuple(parse_setting(name, 0, item) for item in items)
    elif type(value) is type(default) or (default is None and type(value) is int):
        return value
    raise _refusal(name, declared, value)


def _parse_text(name: str, default: object, text: str) -> Any:
    if isinstance(default, str):
        return _sendable(name, text)
    if isinstance(default, bool):
        if text.lower() in {"true", "false"}:
            return text.lower() == "true"
    elif isinstance(default, Enum):
        for member in type(default):
            if member.value == text:
                return member
    elif isinstance(default, tuple):
        return tuple(_parse_text(name, 0, item.strip()) for item in text.split(",") if item.strip())
    elif default is None and text == _OFF:
        return None
    elif (found := _INTEGER.fullmatch(text)) and (not found[2] or is_size(name)):
        return int(found[1]) * _UNITS[found[2]]
    raise _refusal(name, default, text)


def _sendable(name: str, text: str) -> str:
    """Return a text that may be sent to a peer; only a path may be any bytes."""
    try:
        if not name.endswith("_path"):
            text.encode()
    except UnicodeEncodeError:
        raise SettingError(f"{text[:SHOWN_MAX]!r} is not UTF-8 text") from None
    return text


def _refusal(name: str, default: object, value: object) -> SettingError:
    if isinstance(default, Enum):
        wanted = " or ".join(str(member.value) for member in type(default))
    elif isinstance(default, bool):
        wanted = "true or false"
    elif isinstance(default, tuple):
        wanted = "a list of integers"
    elif isinstance(default, str):
        wanted = "a text"
    else:
        units = ", or one directly followed by KiB, MiB or GiB" if is_size(name) else ""
        wanted = f"an integer{units}" if default is not None else f"an integer{units} or {_OFF}"
    return SettingError(f"{str(value)[:SHOWN_MAX]!r} is not {wanted}")


def format_setting(value: object) -> str:
    """Write a value as `parse_setting` reads it."""
    if value is None:
        return _OFF
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        items: tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]  # Any tuple.
        return ",".join(map(str, items))
    return str(value)


def unknown_setting(key: str, known: Iterable[str]) -> str:
    """Return a text that says that there is no such setting, and which one may be meant."""
    close = get_close_matches(key[:SHOWN_MAX], known, n=1)
    shown = key if _PLAIN.fullmatch(key) else repr(key[:SHOWN_MAX])
    return f"{shown}: no such setting" + (f"; did you mean {close[0]}?" if close else "")
