"""The MessagePack header, type byte 2: our own, between peers that both know it.

It is one MessagePack array; `docs/protocol-extensions.md` describes it byte by byte::

    [code, flag, opaque, language, version, remark, fields, extras]

`fields` is the array of the header class's values, typed and in the order of the class, or nil.
`extras` is a map of strings by name, or nil: fields beyond the header class, or all fields of a
command without a header class. In both arrays, items missing at the end are nil (numbers: 0) and
surplus items are ignored, so that the layout can grow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
from msgspec import convert
from msgspec.structs import astuple

from cometmq.proto.command import Command, ReceivedFields, refuse_non_texts, remark_to_send
from cometmq.proto.errors import FieldError, RemoteProtocolError
from cometmq.proto.header import (
    I32,
    REFUSALS,
    Header,
    from_texts,
    plan_of,
    refuse_unsayable,
    text_writers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.header import H

# The unpacker also raises these: for a type that cannot be a map's key, for nesting, for sizes. It
# checks a claimed size against the received bytes before it allocates anything.
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


_pack: Callable[[Any], bytes] = msgpack.Packer().pack
# The same bytes in half the time, for the values of header classes. It cannot pack all that comes.
_pack_typed: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_unpack = msgpack.unpackb


_PLACE = re.compile(rf"\$\[([0-{len(_Received.__struct_fields__) - 1}])\]")


def _by_name(error: Exception) -> str:
    """Return the text of an error, with the name of an item in place of its position."""
    return _PLACE.sub(lambda place: _Received.__struct_fields__[int(place[1])], str(error))


class ArrayFields(ReceivedFields, msgspec.Struct, frozen=True, gc=False):
    """The values of a header class as a received array, or None."""

    items: list[Any] | None

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read the fields as a header class: from the array, or by name if there is none.

        A field that is in both is refused: the check of a signature would see one value, and the
        handler the other.
        """
        plan = plan_of(cls)
        if extras is not None:
            if self.items is None:
                return from_texts(cls, extras)
            if twice := plan.wire_names & extras.keys():
                raise FieldError(cls.__name__, min(twice), "is both in the array and an extra")
        try:
            return cls(*astuple(convert(self.items, plan.array_struct)))
        except REFUSALS:
            return plan.read_array(self.items)  # type: ignore[no-any-return]  # of that class

    def ext_fields(self) -> dict[str, str]:
        """Return the fields as strings by name: none, because an array has no names."""
        return {}

    @property
    def nameless(self) -> Sequence[Any]:
        """All values."""
        return self.items or ()


class MessagePackCodec:
    """The codec of type byte 2."""

    serialize_type = 2
    name = "MESSAGEPACK"

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a header; its fields stay undecoded until somebody reads them."""
        try:
            found = convert(_unpack(raw), _Received)
        except _REFUSALS as error:
            raise RemoteProtocolError(f"MessagePack header: {_by_name(error)}") from None
        extras, fields = found.extras, ArrayFields(found.fields)
        # Checked here and not by its type, because msgspec would copy the list.
        if fields.items is not None and type(fields.items) is not list:
            raise RemoteProtocolError("MessagePack header: the fields are not an array")
        count = len(fields.items or ()) + len(extras or ())
        if count > fields_max:
            raise RemoteProtocolError(
                f"MessagePack header: {count} fields exceed fields_max {fields_max}"
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
        pack = _pack
        if type(fields) in text_writers or isinstance(fields, Header):
            header: Any = fields  # Type checkers cannot infer this from the first condition.
            values = astuple(header)
            pack = _pack_typed
            if extras:
                command.check_extras(plan_of(header.__class__).wire_names)
        elif isinstance(fields, ArrayFields):
            values = fields.items
        elif fields is not None:
            extras = command.texts_to_send()
        if extras:
            refuse_non_texts(command.code, extras)
        try:
            return pack(
                (
                    command.code,
                    command.flag,
                    command.opaque,
                    command.language,
                    command.version,
                    None if command.remark is None else remark_to_send(command),
                    values,
                    extras,
                )
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise refuse_unsayable(error) from error


MESSAGEPACK = MessagePackCodec()
"""The codec of type byte 2."""
