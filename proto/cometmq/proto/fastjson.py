"""fastjson's dialect of JSON, in which RocketMQ's bodies are written: reading and writing.

It is JSON with other map keys. Integer keys are bare, and an object may be a key::

    {"offsetTable":{"T@g":{0:123,1:45}}}
    {{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":9,"minOffset":0}}

A text is tried in this order, until a step accepts it. A sound body of Apache's ends at 1 or 2; a
refused one is refused by the last step, whose errors are the best:

1. `Body.decode`: msgspec, straight into the class. For standard JSON of the right types.
2. `Body.decode`, if the class has integer keys: the same after `quote_integer_keys`, which is one
   regular expression over the text.
3. `loads`: msgspec into a tree, for standard JSON with odd types. Not for texts that might exceed
   the limits of members or depth.
4. `loads`: the hand-written parser (`fastjson_parser`), 20 times as slow: 1.1 s for a body of 6 MB,
   up to 0.8 s a MiB at worst. `Body.decode` comes here with large texts only for classes that have
   objects as keys. Like fastjson 2, it also accepts single quotes, a comma before a closing
   bracket, `/* */` comments and raw control characters in strings, and it refuses names without
   quotes, a byte order mark and anything after the value.
5. `Body.from_tree`: the tree of 3 or 4 into the class, first as it is, then bent into shape.

In the tree, an integer key is an `int`, and an object key is an `ObjectKey`, a hashable mapping, of
which `msgspec.convert` makes a struct. Of two equal keys the last wins.

As with Apache, writing is compact and leaves out null members: two of its readers split the text
instead of parsing it.
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

# Defaults of `loads`, except RECURSION_MAX, which no `depth_max` may exceed.
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
    """Read one value; a `BodyError` says what is wrong and at which character.

    `size_max` is in bytes, `members_max` counts the members of all objects and arrays together, and
    `depth_max` is how deep these may nest (at most `RECURSION_MAX`). `by_hand_size_max` limits the
    time: nonstandard JSON takes up to 0.8 s a MiB, and a larger text of it is refused.
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
            pass  # The hand-written parser either reads it or gives a better error.
    if len(text) > by_hand_size_max:
        raise BodyError(
            f"body of {len(text)} bytes is not standard JSON within the limits of depth and"
            f" members; other JSON is read up to {by_hand_size_max} bytes"
        )
    return Parser(_decoded(text), depth_max, members_max).document()


def quote_integer_keys(data: Buffer) -> bytes | None:
    """Put the integer keys of a text in quotes; return None if it has none.

    If nothing else is nonstandard, as in Apache's texts, the result is standard JSON, which is read
    20 times as fast as by the hand-written parser. If something in a string only looks like a key,
    the result is not JSON at all: the string ends at the added quote, and a digit follows.
    """
    quoted, count = _BARE_KEY.subn(rb'\1"\2":', bytes(data))
    return quoted if count else None


def check_size(data: Buffer | None, size_max: int = SIZE_MAX) -> Buffer:
    """Refuse a body that is missing, empty or larger than `size_max` bytes."""
    size = data.nbytes if isinstance(data, memoryview) else len(data or b"")
    if data is None or size == 0:
        raise BodyError("body is empty, expected JSON")
    if size > size_max:
        raise BodyError(f"body has {size} bytes, the limit is {size_max}")
    return data


def check_members(data: Buffer) -> bytes:
    """Refuse a body that may have so many members that they would take too much memory.

    A member of a typed body takes up to 32 bytes for each of its bytes.
    """
    text = bytes(data)
    if (count := _members_at_most(text)) > MEMBERS_MAX:
        raise BodyError(f"body has up to {count} members, the limit is {MEMBERS_MAX}")
    return text


def _members_at_most(text: bytes) -> int:
    # Each member has a comma or a bracket before it: if these are few, so are the members.
    return text.count(b",") + text.count(b"{") + text.count(b"[")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"body is not UTF-8 at byte {error.start}") from None


def _depth_is_at_most(depth_max: int, data: bytes) -> bool:
    """Whether this sound JSON text nests no deeper than `depth_max`."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return True
    brackets = _QUOTED.sub(b"", data).translate(None, _NO_BRACKETS).translate(_ROUND_BRACKETS)
    for _ in range(depth_max):
        brackets = brackets.replace(b"()", b"")
    return not brackets


_ENCODER = msgspec.json.Encoder()
_Layout: TypeAlias = tuple[tuple[str, bytes], ...]


def dumps(value: Any) -> bytes:
    """Write a tree or a struct as Apache's fastjson would: compact, with bare integer keys.

    Members that are `None` are left out. A key is a `str`, an `int`, an `ObjectKey` or a struct.
    Raises a `LocalProtocolError` for anything that the dialect cannot express.

    A character beyond the BMP is written as `\\uXXXX` twice: fastjson 2.0.59 fails on one in a
    member name that also has an escape ("malformed input around byte").
    """
    parts: list[bytes] = []
    try:
        _write(value, parts)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise LocalProtocolError(f"cannot be written as JSON: {error}") from error
    return escape_beyond_bmp(b"".join(parts))


def escape_beyond_bmp(data: bytes) -> bytes:
    r"""Write each character beyond the BMP as `\uXXXX` twice, for the reason given in `dumps`."""
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
    """Return the members to be written one by one; None if msgspec writes the struct correctly.

    It does unless a map in the struct has keys that are not strings.
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
