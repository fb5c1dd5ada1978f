r"""The properties of a message: a string map in one line of bytes.

`name 0x01 value 0x02`, repeated, in UTF-8, at most 32767 bytes. Reading is as lenient as Apache's:
a pair counts if it has a 0x01 with something on either side (a value may contain more 0x01), the
last 0x02 may be missing, of two pairs with one name the later counts, and bytes that are not UTF-8
read as U+FFFD (`java.text_of`). So reading never fails. Writing is strict.

A record and a `BatchItem` have the bytes, `encode_properties(...)`. A SEND_MESSAGE_V2
(`SendMessageV2.properties`) carries the same as a string in its header,
`encode_properties(...).decode()`.

To get a single property, use `find_property` on the bytes: it takes less than a third of the time
of decoding all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.java import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROPERTIES_SIZE_MAX: Final = 32767
"""The longest properties that a record can hold: their length is an i16."""


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Return the stored form; properties that are `None` are left out.

    A value may be empty, but readers take such a property as absent. Raises a `LocalProtocolError`
    for names and values that would not read back, and for more than a record can hold.
    """
    pairs = [f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None]
    text = "".join(pairs)
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs) or "" in properties:
        raise LocalProtocolError(_separator_in(properties))
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"properties: not encodable as UTF-8: {error.reason}") from None
    if len(raw) > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"properties: {len(raw)} bytes, over {PROPERTIES_SIZE_MAX}")
    return raw


def _separator_in(properties: Mapping[str, str | None]) -> str:
    if "" in properties:
        return "properties: a name is empty"
    name = next(n for n, value in properties.items() if {"\x01", "\x02"} & {*n, *(value or "")})
    return f"properties: {name!r} holds a separator, 0x01 or 0x02, in name or value"


def decode_properties(raw: bytes) -> dict[str, str]:
    """Return all properties as Apache's clients read them."""
    properties: dict[str, str] = {}
    for pair in text_of(raw).split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Return the value of one property, exactly as decoding would, without decoding the others."""
    first = name + b"\x01"
    return _find_with_care(raw, first, b"\x02" + first)


def property_finder(name: bytes) -> Callable[[bytes], bytes | None]:
    """Return `find_property` for one name: faster for a name that is often looked up."""
    first = name + b"\x01"
    inner, size = b"\x02" + first, len(first)

    def find(raw: bytes) -> bytes | None:
        _, found, rest = raw.rpartition(inner)
        if found:
            return rest.partition(b"\x02")[0] or _find_with_care(raw, first, inner)
        return _value_at(raw, size) or None if raw.startswith(first) else None

    return find


def _find_with_care(raw: bytes, first: bytes, inner: bytes) -> bytes | None:
    """Find a property that is the first pair, or that occurs several times, the last time empty."""
    found = raw.rfind(inner)
    while found >= 0:
        value = _value_at(raw, found + len(inner))
        if value:
            return value
        found = raw.rfind(inner, 0, found)
    return (raw.startswith(first) and _value_at(raw, len(first))) or None


def _value_at(raw: bytes, start: int) -> bytes:
    stop = raw.find(b"\x02", start)
    return raw[start:] if stop < 0 else raw[start:stop]


def remove_property(raw: bytes, name: bytes) -> bytes:
    """Return the properties without any pair of that name; the other bytes are unchanged."""
    head = name + b"\x01"
    if not raw.startswith(head) and b"\x02" + head not in raw:
        return raw
    return b"\x02".join([pair for pair in raw.split(b"\x02") if not pair.startswith(head)])


def join_properties(raw: bytes, more: bytes) -> bytes:
    """Return both joined; for a name in both, the one in `more` counts, because it is later.

    So the properties that a broker adds to each message are encoded once, and cost only a copy.
    """
    return raw + b"\x02" + more if raw and not raw.endswith(b"\x02") else raw + more


def set_property(raw: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with one replaced, or added at the end.

    The caller checks name and value; the size is checked when a record is made.
    """
    return join_properties(remove_property(raw, name), b"%b\x01%b\x02" % (name, value))
