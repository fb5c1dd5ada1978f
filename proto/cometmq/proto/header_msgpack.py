"""The MessagePack header, type byte 2: ours, between peers that both know it.

One MessagePack array; `docs/protocol-extensions.md` has it byte by byte::

    [code, flag, opaque, language, version, remark, fields, extras]

`fields` is the array of the header class's values in the order of the class, typed, or nil;
`extras` is a map of strings by name, or nil: what goes beyond the header class, and all fields
of a command that has no header class. Items missing at the end are nil (numbers: 0), more items
are ignored, in both arrays: that is how the layout may grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import msgpack

from cometmq.proto.command import Command, ReceivedFields
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.header import (
    I32,
    REFUSALS,
    Header,
    fields_of,
    from_array,
    from_texts,
    refuse_unsayable,
    to_array,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.command import Buffer
    from cometmq.proto.header import H

_NIL = msgspec.Raw(b"\xc0")


class _Received(msgspec.Struct, array_like=True, gc=False):
    code: I32
    flag: I32
    opaque: I32
    language: I32 = 0
    version: I32 = 0
    remark: str | None = None
    fields: msgspec.Raw = _NIL
    extras: dict[str, str] | None = None


_decode = msgpack.Decoder(_Received).decode
_encode = msgpack.Encoder().encode


class ArrayFields(ReceivedFields, frozen=True, gc=False):
    """The array of a header class's values as it came, or nil."""

    raw: msgspec.Raw

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read the fields as a header class: from the array, or by name where there is none."""
        if extras is not None and self.raw == _NIL:
            return from_texts(cls, extras)
        return from_array(cls, self.raw)

    def ext_fields(self) -> dict[str, str]:
        """Give the fields as strings by name: none, for an array has no names."""
        return {}


class MessagePackCodec:
    """The codec of type byte 2."""

    serialize_type = 2
    name = "MESSAGEPACK"

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a header; its fields stay bytes until somebody reads them."""
        try:
            found = _decode(raw)
        except REFUSALS as error:
            raise RemoteProtocolError(f"MessagePack header: {error}") from None
        extras = found.extras
        if extras is not None and len(extras) > fields_max:
            raise RemoteProtocolError(
                f"MessagePack header: {len(extras)} extras exceed fields_max {fields_max}"
            )
        return Command(
            found.code,
            ArrayFields(found.fields),
            found.flag,
            found.opaque,
            found.remark,
            body,
            (),
            extras,
            self,
            found.language,
            found.version,
        )

    def encode(self, command: Command) -> bytes:
        """Write a header."""
        fields, extras = command.fields, command.extras
        values: Any = None
        if isinstance(fields, Header):
            values = to_array(fields)
            if extras:
                command.check_extras([field.wire_name for field in fields_of(type(fields))])
        elif isinstance(fields, ArrayFields):
            values = fields.raw
        elif fields is not None:
            extras = command.ext_fields
        try:
            return _encode(
                (
                    command.code,
                    command.flag,
                    command.opaque,
                    command.language,
                    command.version,
                    command.remark,
                    values,
                    extras,
                )
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise refuse_unsayable(error) from error


MESSAGEPACK = MessagePackCodec()
