"""The ROCKETMQ binary header, type byte 1.

All integers are big-endian, and signed except for the language.

====  =========  ==================================================
size  type       field
====  =========  ==================================================
   2  i16        code
   1  u8         language
   2  i16        version
   4  i32        opaque
   4  i32        flag
   4  i32        size of the remark, 0 for none
   …  UTF-8      remark
   4  i32        size of all pairs that follow in bytes, 0 for none
   …  pairs      i16 size and UTF-8 of the key, i32 size and UTF-8 of the value, in any order
====  =========  ==================================================

Codes above 32767 (POP, lite topics) do not fit: Java truncates them to 16 bits, we refuse them.
As in Java, bytes left over after the pairs are ignored.
"""

from __future__ import annotations

from struct import Struct, error as StructError  # noqa: N812  # reads as the exception it is
from typing import TYPE_CHECKING

from cometmq.proto.command import Command
from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError
from cometmq.proto.header import Header, refuse_unsayable

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer

_FIXED = Struct(">hBhiii")  # code, language, version, opaque, flag, size of the remark
assert _FIXED.size == 17
_SIZE = Struct(">i")
_KEY_SIZE = Struct(">h")

_KEY_SIZE_MAX = 2**15 - 1


class RocketmqCodec:
    """The codec of type byte 1."""

    serialize_type = 1
    name = "ROCKETMQ"

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a header and the texts of its fields; every size in it is checked."""
        try:
            code, language, version, opaque, flag, size = _FIXED.unpack_from(raw)
            remark, at = _text(raw, _FIXED.size, size, "remark")
            (size,) = _SIZE.unpack_from(raw, at)
        except StructError:
            raise RemoteProtocolError(
                f"ROCKETMQ header: its {len(raw)} bytes end within the fixed fields"
            ) from None
        fields = _pairs(raw, at + _SIZE.size, size, fields_max)
        return Command(
            code, fields, flag, opaque, remark or None, body, (), None, self, language, version
        )

    def encode(self, command: Command) -> bytes:
        """Write a header."""
        try:
            remark = (command.remark or "").encode()
            pairs: list[bytes] = []
            # In a header class all names are strings, and a value that is not has no `encode`.
            is_typed = isinstance(command.fields, Header) and not command.extras
            texts = command.ext_fields if is_typed else command.texts_to_send()
            for name, text in texts.items():
                key, value = name.encode(), text.encode()
                pairs += (_KEY_SIZE.pack(len(key)), key, _SIZE.pack(len(value)), value)
            fields = b"".join(pairs)
            fixed = _FIXED.pack(
                command.code,
                command.language,
                command.version,
                command.opaque,
                command.flag,
                len(remark),
            )
            return b"".join((fixed, remark, _SIZE.pack(len(fields)), fields))
        except StructError as error:
            raise LocalProtocolError(
                f"command {command.code}, version {command.version} cannot have a ROCKETMQ header:"
                f" {error}"
            ) from None
        except (UnicodeEncodeError, AttributeError) as error:
            raise refuse_unsayable(error) from error


def _pairs(raw: bytes, at: int, size: int, fields_max: int) -> dict[str, str]:
    end = at + size
    if size < 0 or end > len(raw):
        raise RemoteProtocolError(
            f"ROCKETMQ header: fields of {size} bytes at {at} exceed its {len(raw)} bytes"
        )
    fields: dict[str, str] = {}
    count = 0
    try:
        while at < end:
            if (count := count + 1) > fields_max:
                raise RemoteProtocolError(
                    f"ROCKETMQ header: more fields than fields_max {fields_max}"
                )
            (size,) = _KEY_SIZE.unpack_from(raw, at)
            key, at = _text(raw, at + _KEY_SIZE.size, size, "key")
            (size,) = _SIZE.unpack_from(raw, at)
            fields[key], at = _text(raw, at + _SIZE.size, size, "value")
    except StructError:
        raise RemoteProtocolError(
            f"ROCKETMQ header: its {len(raw)} bytes end within a size at {at}"
        ) from None
    if at > end:
        raise RemoteProtocolError(
            f"ROCKETMQ header: the last field goes past the end of the fields at {end}"
        )
    return fields


def places_of_pairs(raw: bytes) -> list[tuple[str, int, int]] | None:
    """Return the name, start and end of each value in a header that `decode` has read.

    None if more than pairs follow the numbers: a remark, or bytes left over.
    """
    (remark_size,) = _SIZE.unpack_from(raw, _FIXED.size - _SIZE.size)
    at = _FIXED.size + _SIZE.size
    (size,) = _SIZE.unpack_from(raw, _FIXED.size)
    if remark_size or at + size != len(raw):
        return None
    found: list[tuple[str, int, int]] = []
    while at < len(raw):
        (size,) = _KEY_SIZE.unpack_from(raw, at)
        name, at = _text(raw, at + _KEY_SIZE.size, size, "key")
        (size,) = _SIZE.unpack_from(raw, at)
        start = at + _SIZE.size
        at = start + size
        found.append((name, start, at))
    return found


def _text(raw: bytes, at: int, size: int, what: str) -> tuple[str, int]:
    end = at + size
    if size < 0 or end > len(raw):
        raise RemoteProtocolError(
            f"ROCKETMQ header: a {what} of {size} bytes at {at} exceeds its {len(raw)} bytes"
        )
    try:
        return raw[at:end].decode(), end
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ROCKETMQ header: {what} at {at}: {error}") from None


ROCKETMQ = RocketmqCodec()
"""The codec of type byte 1."""
