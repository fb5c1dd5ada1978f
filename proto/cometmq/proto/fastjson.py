"""The JSON that RocketMQ's bodies are written in: fastjson's dialect, both ways.

It is JSON with map keys that JSON does not have. Integers stand bare, and an object may be a key::

    {"offsetTable":{"T@g":{0:123,1:45}}}
    {{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":9,"minOffset":0}}

Reading takes the fast road when the text is standard JSON, which most bodies are, and otherwise a
small parser by hand. That one accepts what fastjson 2 accepts besides: single quotes, a comma
before a closing bracket, `/* */` comments, raw control characters in strings. It refuses what
fastjson 2 refuses: names without quotes, a byte order mark, anything after the value.

In the tree that reading gives, an integer key is an `int` and an object key an `ObjectKey`, a
mapping that can be hashed; `msgspec.convert` makes a struct of it. Of two equal keys the last wins.

Writing is compact and leaves members out that are null, as Apache does: two of its readers split
the text instead of parsing it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, Never, TypeAlias

import msgspec

from cometmq.proto.errors import BodyError, LocalProtocolError

DEPTH_MAX: Final = 32
SIZE_MAX: Final = 16 * 1024 * 1024
MEMBERS_MAX: Final = 1_000_000

Buffer: TypeAlias = bytes | bytearray | memoryview

_FLAT_OBJECT = re.compile(r"\{[^{}\[\]'/]*+\}")
_GAP = re.compile(r"[ \t\r\n]*+")
_BARE_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?![0-9])")
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_ESCAPE_OR_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BEYOND_BMP = re.compile(r"[\U00010000-\U0010ffff]")
_NO_ASCII = re.compile(r"[^\x00-\x7f]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_ROUND_BRACKETS: Final = bytes.maketrans(b"{}[]", b"()()")


class ObjectKey(Mapping[str, Any]):
    """An object that stands as a key of a map: its members are scalars, and it can be hashed."""

    __slots__ = ("_hash", "_members")

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)
        self._hash = hash(frozenset(self._members.items()))

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


def loads(
    data: Buffer,
    *,
    depth_max: int = DEPTH_MAX,
    size_max: int = SIZE_MAX,
    members_max: int = MEMBERS_MAX,
) -> Any:
    """Read one value; `BodyError` says what is wrong and at which character.

    `size_max` is in bytes, `members_max` counts the members of all objects and arrays together,
    and `depth_max` is how many of those may stand inside each other (at most 200).
    """
    assert depth_max <= 200, "the parser recurses"
    check_size(data, size_max)
    text = bytes(data)
    # Each member has a comma before it or a bracket: where these are few, so are members.
    if text.count(b",") + text.count(b"{") + text.count(b"[") <= members_max:
        try:
            value = msgspec.json.decode(text)
            if _depth_is_at_most(depth_max, text):
                return value
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass  # The parser by hand either reads it or says better why not.
    return _Parser(_decoded(text), depth_max, members_max).document()


def check_size(data: Buffer, size_max: int = SIZE_MAX) -> None:
    """Refuse a body that is empty or larger than `size_max` bytes."""
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    if size == 0:
        raise BodyError("body is empty, expected JSON")
    if size > size_max:
        raise BodyError(f"body has {size} bytes, the limit is {size_max}")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"body is not UTF-8 at byte {error.start}") from None


def _depth_is_at_most(depth_max: int, data: bytes) -> bool:
    """Whether this text, which is sound JSON, nests no deeper."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return True
    brackets = _QUOTED.sub(b"", data).translate(None, _NO_BRACKETS).translate(_ROUND_BRACKETS)
    for _ in range(depth_max):
        brackets = brackets.replace(b"()", b"")
    return not brackets


def _no_constant(name: str) -> Never:
    raise ValueError(name)


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(text)
    return number


_SCANNER = json.JSONDecoder(strict=False, parse_constant=_no_constant, parse_float=_finite)


class _Parser:
    """Reads one document in one pass; each character is looked at a bounded number of times."""

    def __init__(self, text: str, depth_max: int, members_max: int) -> None:
        self._text = text
        self._at = 0
        self._depth_left = depth_max
        self._members_left = members_max
        # Half a surrogate pair is no character. Where one may hide, every string is checked.
        self._may_hold_surrogates = _SURROGATE_ESCAPE.search(text) is not None

    def document(self) -> Any:
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
        # Most objects hold no other. (On a copy: json's errors count the lines before them.)
        if flat := _FLAT_OBJECT.match(self._text, self._at):
            try:
                value: dict[Any, Any] = msgspec.json.decode(flat[0])
            except (msgspec.MsgspecError, ValueError):
                pass  # Not standard JSON: by hand.
            else:
                self._count(len(value))
                self._at = flat.end() - 1
                self._leave()
                return value
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
                self._fail("an object key has members that are no scalars", start)
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
        """The next character that is neither blank nor comment; empty at the end."""
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
        raise BodyError(f"body: {problem} at character {self._at if at is None else at}")


def _swap_quotes(match: re.Match[str]) -> str:
    return {"\\'": "'", '"': '\\"'}.get(match[0], match[0])


_ENCODER = msgspec.json.Encoder()
_Layout: TypeAlias = tuple[tuple[str, bytes], ...]


def dumps(value: Any) -> bytes:
    """Write a tree, or a struct, as Apache's fastjson would: compact, integer keys bare.

    Members that are `None` are left out. A key is a `str`, an `int`, an `ObjectKey` or a struct.
    `LocalProtocolError` for anything that the dialect cannot say.

    A character beyond the BMP is written as `\\uXXXX` twice: fastjson 2.0.59 fails at one that
    stands in a member name together with an escape ("malformed input around byte").
    """
    parts: list[bytes] = []
    try:
        _write(value, parts)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise LocalProtocolError(f"cannot be written as JSON: {error}") from error
    data = b"".join(parts)
    if data.isascii():
        return data
    return _BEYOND_BMP.sub(_escape, data.decode()).encode()


def browser_compatible(data: bytes) -> bytes:
    r"""Write every character that is not ASCII as `\uXXXX`, those beyond the BMP as pairs."""
    if data.isascii():
        return data
    return _NO_ASCII.sub(_escape, data.decode()).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _write(value: Any, parts: list[bytes]) -> None:
    if isinstance(value, Mapping):
        _write_map(value, parts)  # pyright: ignore[reportUnknownArgumentType]  # Any tree.
    elif isinstance(value, list | tuple):
        opening = b"["
        for item in value:  # pyright: ignore[reportUnknownVariableType]  # Any tree.
            parts.append(opening)
            _write(item, parts)
            opening = b","
        parts.append(b"]" if opening == b"," else b"[]")
    elif isinstance(value, msgspec.Struct) and (layout := _layout(type(value))):
        opening = b"{"
        for attribute, name in layout:
            if (member := getattr(value, attribute)) is not None:
                parts += (opening, name)
                _write(member, parts)
                opening = b","
        parts.append(b"}" if opening == b"," else b"{}")
    else:
        parts.append(_ENCODER.encode(value))


def _write_map(members: Mapping[Any, Any], parts: list[bytes]) -> None:
    opening = b"{"
    for key, value in members.items():
        if value is not None:
            parts += (opening, _key_text(key), b":")
            _write(value, parts)
            opening = b","
    parts.append(b"}" if opening == b"," else b"{}")


def _key_text(key: object) -> bytes:
    if isinstance(key, str | int | msgspec.Struct) and not isinstance(key, bool):
        return _ENCODER.encode(key)
    if isinstance(key, ObjectKey):
        return _ENCODER.encode(dict(key))
    raise TypeError(f"a map has a {type(key).__name__} as a key")


@cache
def _layout(struct: type[msgspec.Struct]) -> _Layout | None:
    """The members that must be written one by one, or None where msgspec writes the whole right.

    It does unless some map in there has keys that are no strings.
    """
    if not _has_odd_keys(msgspec.inspect.type_info(struct)):
        return None
    return tuple(
        (field.name, _ENCODER.encode(field.encode_name) + b":")
        for field in msgspec.structs.fields(struct)
    )


def _has_odd_keys(kind: object) -> bool:
    match kind:
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return not isinstance(key, msgspec.inspect.StrType) or _has_odd_keys(value)
        case msgspec.inspect.StructType(fields=fields):
            return any(_has_odd_keys(field.type) for field in fields)
        case msgspec.inspect.UnionType(types=types):
            return any(map(_has_odd_keys, types))
        case msgspec.inspect.VarTupleType(item_type=item):
            return _has_odd_keys(item)
        case _:
            return isinstance(kind, msgspec.inspect.AnyType)
