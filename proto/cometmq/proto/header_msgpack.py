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

import msgpack
import msgspec
from msgspec import convert
from msgspec.structs import astuple

from cometmq.proto.command import Command, ReceivedFields
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.header import (
    I32,
    REFUSALS,
    Header,
    fields_of,
    from_texts,
    plan_of,
    refuse_unsayable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.command import Buffer
    from cometmq.proto.header import H

# What the unpacker raises beside its own: a type that cannot be a map's key, nesting, sizes. A size
# that is claimed is checked against the bytes that came before anything is made for it.
_REFUSALS = (*REFUSALS, ValueError, TypeError, msgpack.UnpackException)


class _Received(msgspec.Struct, array_like=True, gc=False):
    code: I32
    flag: I32
    opaque: I32
    language: I32 = 0
    version: I32 = 0
    remark: str | None = None
    fields: Any = None
    extras: dict[str, str] | None = None


_pack = msgpack.Packer().pack
_unpack = msgpack.unpackb


class ArrayFields(ReceivedFields, frozen=True, gc=False):
    """The array of a header class's values as it came, or None."""

    items: list[Any] | None

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read the fields as a header class: from the array, or by name where there is none."""
        if extras is not None and self.items is None:
            return from_texts(cls, extras)
        plan = plan_of(cls)
        try:
            return cls(*astuple(convert(self.items, plan.array_struct)))
        except REFUSALS:
            return plan.read_array(self.items)  # type: ignore[no-any-return]  # of that class

    def ext_fields(self) -> dict[str, str]:
        """Give the fields as strings by name: none, for an array has no names."""
        return {}


class MessagePackCodec:
    """The codec of type byte 2."""

    serialize_type = 2
    name = "MESSAGEPACK"

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a header; its fields are not looked at until somebody reads them."""
        try:
            found = convert(_unpack(raw), _Received)
        except _REFUSALS as error:
            raise RemoteProtocolError(f"MessagePack header: {error}") from None
        extras, fields = found.extras, ArrayFields(found.fields)
        # Checked here and not by its type, for msgspec would copy the list.
        if fields.items is not None and type(fields.items) is not list:
            raise RemoteProtocolError("MessagePack header: the fields are no array")
        if extras is not None and len(extras) > fields_max:
            raise RemoteProtocolError(
                f"MessagePack header: {len(extras)} extras exceed fields_max {fields_max}"
            )
        return Command(
            found.code,
            fields,
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
            values = astuple(fields)
            if extras:
                command.check_extras([field.wire_name for field in fields_of(type(fields))])
        elif isinstance(fields, ArrayFields):
            values = fields.items
        elif fields is not None:
            extras = command.ext_fields
        try:
            return _pack(
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
