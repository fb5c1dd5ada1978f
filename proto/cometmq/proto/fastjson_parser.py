"""A hand-written parser for all of fastjson's dialect, linear and bounded.

`fastjson.loads` uses it for texts that msgspec refuses, to read them or to say what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Never

import msgspec

from cometmq.proto.errors import BodyError

_FLAT_OBJECT = re.compile(r"\{[^{}\[\]'/]*+\}")
_GAP = re.compile(r"[ \t\r\n]*+")
_BARE_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?![0-9])")
_BARE_KEY = re.compile(r"(?<=[{,])(-?[0-9]{1,19}):")
_SINGLE_QUOTED = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL)
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class ObjectKey(Mapping[str, Any]):
    """An object that is a key of a map: its members are scalars, and it is hashable."""

    __slots__ = ("_hash", "_members")

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)
        # The hash of a text, because it is seeded. The hashes of numbers are few and predictable,
        # and a map of a thousand keys with the same hash takes a million comparisons.
        self._hash = hash("\n".join(sorted(map(_hashable, self._members.items()))))

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ObjectKey):
            return self._members == other._members
        return NotImplemented

    def __repr__(self) -> str:
        return f"ObjectKey({self._members!r})"


def _hashable(member: tuple[str, Any]) -> str:
    """Return a text that is equal for equal members, such as 1, 1.0 and True."""
    name, value = member
    if isinstance(value, bool | float) and value == int(value):
        value = int(value)
    return f"{name}={value!r}"


def _no_constant(name: str) -> Never:
    raise ValueError(name)


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(text)
    return number


_STRING_MAP = msgspec.json.Decoder(dict[str, Any])
_INTEGER_MAP = msgspec.json.Decoder(dict[int, Any])
_SCANNER = json.JSONDecoder(strict=False, parse_constant=_no_constant, parse_float=_finite)


class Parser:
    """Reads one document in one pass, looking at each character a bounded number of times."""

    def __init__(self, text: str, depth_max: int, members_max: int) -> None:
        self._text = text
        self._at = 0
        self._depth_left = depth_max
        self._members_left = members_max
        # Half a surrogate pair is not a character. If there may be one, every string is checked.
        self._may_hold_surrogates = _SURROGATE_ESCAPE.search(text) is not None

    def document(self) -> Any:
        """Read the value; raise a `BodyError` for any mistake, and for anything after it."""
        value = self._value(self._next())
        if self._next():
            self._fail("expected the end of the body")
        return value

    def _value(self, first: str) -> Any:
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first == "'":
            return self._single_quoted()
        return self._scalar()

    def _object(self) -> dict[Any, Any]:
        self._enter()
        # Most objects contain no other object.
        flat = _FLAT_OBJECT.match(self._text, self._at)
        if flat and (known := _flat_members(flat[0])) is not None:
            self._count(len(known))
            self._at = flat.end() - 1
            self._leave()
            return known
        self._at += 1
        members: dict[Any, Any] = {}
        while (first := self._next()) != "}":
            key = self._key(first)
            if self._next() != ":":
                self._fail("expected ':'")
            self._at += 1
            members[key] = self._value(self._next())
            self._member_ends("}")
        self._leave()
        return members

    def _array(self) -> list[Any]:
        self._enter()
        self._at += 1
        items: list[Any] = []
        while (first := self._next()) != "]":
            items.append(self._value(first))
            self._member_ends("]")
        self._leave()
        return items

    def _key(self, first: str) -> str | int | ObjectKey:
        if first == "{":
            start = self._at
            members = self._object()
            if any(isinstance(value, dict | list) for value in members.values()):
                self._fail("an object key has members that are not scalars", start)
            if not all(isinstance(name, str) for name in members):
                self._fail("an object key has members whose names are not strings", start)
            return ObjectKey(members)
        if first == '"':
            return self._scalar()  # type: ignore[no-any-return]  # A text in quotes gives a str.
        if first == "'":
            return self._single_quoted()
        integer = _BARE_INTEGER.match(self._text, self._at)
        if integer is None:
            self._fail("expected a member name in quotes, an integer or an object")
        self._at = integer.end()
        return int(integer[0])

    def _scalar(self) -> Any:
        start = self._at
        try:
            value, self._at = _SCANNER.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            self._fail(error.msg[0].lower() + error.msg[1:], error.pos)
        except ValueError:
            self._fail("not a JSON number", start)
        if isinstance(value, str):
            self._check_string(value, start)
        return value

    def _single_quoted(self) -> str:
        start = self._at
        quoted = _SINGLE_QUOTED.match(self._text, start)
        if quoted is None:
            self._fail("unterminated string")
        self._at = quoted.end()
        text = quoted[1]
        if "\\" in text:
            swapped = _ESCAPE_OR_QUOTE.sub(_swap_quotes, text)
            try:
                text = _SCANNER.decode(f'"{swapped}"')
            except json.JSONDecodeError:
                self._fail("bad escape in string", start)
            self._check_string(text, start)
        return text

    def _check_string(self, value: str, start: int) -> None:
        if self._may_hold_surrogates:
            try:
                value.encode()
            except UnicodeEncodeError:
                self._fail("half a surrogate pair in string", start)

    def _next(self) -> str:
        """Return the next character that is neither blank nor comment; empty at the end."""
        while True:
            self._at = _GAP.match(self._text, self._at).end()  # type: ignore[union-attr]  # It matches nothing too.
            if not self._text.startswith("/*", self._at):
                return self._text[self._at : self._at + 1]
            end = self._text.find("*/", self._at + 2)
            if end < 0:
                self._fail("unterminated comment")
            self._at = end + 2

    def _member_ends(self, closing: str) -> None:
        self._count(1)
        first = self._next()
        if first == ",":
            self._at += 1
        elif first != closing:
            self._fail(f"expected ',' or {closing!r}")

    def _enter(self) -> None:
        if self._depth_left == 0:
            self._fail("nested too deep")
        self._depth_left -= 1

    def _leave(self) -> None:
        self._depth_left += 1
        self._at += 1

    def _count(self, members: int) -> None:
        self._members_left -= members
        if self._members_left < 0:
            self._fail("too many members")

    def _fail(self, problem: str, at: int | None = None) -> Never:
        at = self._at if at is None else at
        error = BodyError(f"body: {problem} at character {at}")
        error.problem, error.at = problem, at
        raise error


def _flat_members(text: str) -> dict[Any, Any] | None:
    """Read a flat object, if it is standard JSON or has bare integer keys and no strings."""
    try:
        if text[1] in '"} \t\r\n':
            return _STRING_MAP.decode(text)
        if '"' not in text:
            return _INTEGER_MAP.decode(_BARE_KEY.sub(r'"\1":', text))
    except (msgspec.MsgspecError, ValueError):
        pass
    return None


def _swap_quotes(match: re.Match[str]) -> str:
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])
