"""The JSON that RocketMQ's bodies are written in: fastjson's dialect, both ways.

It is JSON with map keys that JSON does not have. Integers stand bare, and an object may be a key::

    {"offsetTable":{"T@g":{0:123,1:45}}}
    {{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":9,"minOffset":0}}

Who tries what, in which order, until one of them takes the text (a sound body of Apache's ends at
1 or 2; what is refused, is refused by the last, which says best why):

1. `Body.decode`: msgspec, straight into the class. Standard JSON of the right types.
2. `Body.decode`, where the class has integers as keys: the same after `quote_integer_keys`, one
   regular expression over the text.
3. `loads`: msgspec into a tree, for standard JSON whose types are odd. Not for texts that might
   hold more members, or nest deeper, than the limits.
4. `loads`: the parser by hand (`fastjson_parser`), 20 times as slow: 1.1 s for a body of 6 MB, up
   to 0.8 s a MiB for the worst. `Body.decode` comes here with large texts only for classes that
   have objects as keys. It
   accepts what fastjson 2 accepts besides: single quotes, a comma before a closing bracket,
   `/* */` comments, raw control characters in strings. It refuses what fastjson 2 refuses: names
   without quotes, a byte order mark, anything after the value.
5. `Body.from_tree`: the tree of 3 or 4 into the class, as it is, and then bent into shape.

In the tree that reading gives, an integer key is an `int` and an object key an `ObjectKey`, a
mapping that can be hashed; `msgspec.convert` makes a struct of it. Of two equal keys the last wins.

Writing is compact and leaves members out that are null, as Apache does: two of its readers split
the text instead of parsing it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from cometmq.proto.errors import BodyError, LocalProtocolError
from cometmq.proto.fastjson_parser import ObjectKey, Parser

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer

__all__ = [
    "DEPTH_MAX",
    "MEMBERS_MAX",
    "RECURSION_MAX",
    "SIZE_MAX",
    "ObjectKey",
    "check_members",
    "check_size",
    "dumps",
    "escape_beyond_bmp",
    "loads",
    "quote_integer_keys",
]

# Defaults of `loads`, but for RECURSION_MAX, over which no `depth_max` goes.
DEPTH_MAX: Final = 32
RECURSION_MAX: Final = 200
SIZE_MAX: Final = 16 * 1024 * 1024
MEMBERS_MAX: Final = 1_000_000

_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BARE_KEY = re.compile(rb"([{,])(-?(?:0|[1-9][0-9]{0,18})):")
_BEYOND_BMP = re.compile(r"[\U00010000-\U0010ffff]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_ROUND_BRACKETS: Final = bytes.maketrans(b"{}[]", b"()()")


def loads(
    data: Buffer | None,
    *,
    depth_max: int = DEPTH_MAX,
    size_max: int = SIZE_MAX,
    members_max: int = MEMBERS_MAX,
    by_hand_size_max: int = SIZE_MAX,
) -> Any:
    """Read one value; `BodyError` says what is wrong and at which character.

    `size_max` is in bytes, `members_max` counts the members of all objects and arrays together,
    and `depth_max` is how many of those may stand inside each other (at most `RECURSION_MAX`).
    `by_hand_size_max` bounds the time: what is no standard JSON takes up to 0.8 s a MiB, and a text
    that is larger than this is then refused.
    """
    if depth_max > RECURSION_MAX:
        raise ValueError(f"depth_max {depth_max} is over {RECURSION_MAX}: the parser recurses")
    text = bytes(check_size(data, size_max))
    if _members_at_most(text) <= members_max:
        try:
            value = msgspec.json.decode(text)
            if _depth_is_at_most(depth_max, text):
                return value
        except (msgspec.MsgspecError, RecursionError, ValueError):
            pass  # The parser by hand either reads it or says better why not.
    if len(text) > by_hand_size_max:
        raise BodyError(
            f"body of {len(text)} bytes is no standard JSON within the limits of depth and members;"
            f" other JSON is read up to {by_hand_size_max} bytes"
        )
    return Parser(_decoded(text), depth_max, members_max).document()


def quote_integer_keys(data: Buffer) -> bytes | None:
    """Put the integer keys of a text in quotes; None if it has none.

    Where they are all that is not standard JSON, which is so in what Apache writes, the result is
    standard JSON, and read 20 times as fast as the text by hand. Where something inside a string
    only looks like a key, the result is no JSON at all: the string ends at the quote put in, and
    a digit follows it.
    """
    quoted, count = _BARE_KEY.subn(rb'\1"\2":', bytes(data))
    return quoted if count else None


def check_size(data: Buffer | None, size_max: int = SIZE_MAX) -> Buffer:
    """Refuse a body that is not there, empty or larger than `size_max` bytes."""
    size = data.nbytes if isinstance(data, memoryview) else len(data or b"")
    if data is None or size == 0:
        raise BodyError("body is empty, expected JSON")
    if size > size_max:
        raise BodyError(f"body has {size} bytes, the limit is {size_max}")
    return data


def check_members(data: Buffer) -> bytes:
    """Refuse a body that may have too many members for the memory that they would take.

    A member of a typed body takes up to 32 bytes for each of its own.
    """
    text = bytes(data)
    if (count := _members_at_most(text)) > MEMBERS_MAX:
        raise BodyError(f"body has up to {count} members, the limit is {MEMBERS_MAX}")
    return text


def _members_at_most(text: bytes) -> int:
    # Each member has a comma before it or a bracket: where these are few, so are members.
    return text.count(b",") + text.count(b"{") + text.count(b"[")


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
    return escape_beyond_bmp(b"".join(parts))


def escape_beyond_bmp(data: bytes) -> bytes:
    r"""Write each character beyond the BMP as `\uXXXX` twice: `dumps` says why."""
    if data.isascii():
        return data
    return _BEYOND_BMP.sub(_escape, data.decode()).encode()


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
