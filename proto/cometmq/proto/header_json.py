"""The JSON header, type byte 0, which every client and server speaks.

It is an object. Java writes its members in alphabetical order; we read them in any order::

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,
     "remark":"...","serializeTypeCurrentRPC":"JSON","version":513}

Reading accepts what Apache 5.5.0 accepts: unknown members, missing and null ones (0, no remark, no
fields), numbers given as strings, and a language that is unknown, missing or a number.

Writing: each value of `extFields` is a string, because Go fails on anything else. A response always
has `extFields`, because several Java clients read it without checking; as in Java, a request
without fields has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import json

from cometmq.proto.codes import Language
from cometmq.proto.command import RESPONSE_FLAG, Command, ReceivedFields, remark_to_send
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.header import (
    I32,
    REFUSALS,
    Header,
    from_json,
    json_problem,
    refuse_unsayable,
    text_writers,
    texts_from_json,
    to_json_object,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.header import H

_NAMES = {int(language): language.name for language in Language}
LANGUAGE_NUMBERS: dict[str | int | None, int] = {name: number for number, name in _NAMES.items()}
"""Languages by name; the key type is that of the member as it may come."""
_OTHER = int(Language.OTHER)
_PYTHON = int(Language.PYTHON)
_UNSET = msgspec.UNSET
_EMPTY: dict[str, str] = {}
_NO_FIELDS = msgspec.Raw(b"null")
# The smallest field: "":"",
FIELD_SIZE_MIN = 6


class _Received(msgspec.Struct, gc=False):
    code: I32 | None = 0
    extFields: msgspec.Raw = _NO_FIELDS  # noqa: N815  # the name on the wire
    flag: I32 | None = 0
    language: str | int | None = None
    opaque: I32 | None = 0
    remark: str | None = None
    version: I32 | None = 0


class _Sent(msgspec.Struct, gc=False):
    """The members in the order in which Java writes them; UNSET ones are left out."""

    code: int
    extFields: Any  # noqa: N815  # the name on the wire
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str  # noqa: N815  # the name on the wire
    version: int


_decode = json.Decoder(_Received, strict=False).decode
_encode = json.Encoder().encode


class JsonFields(ReceivedFields, msgspec.Struct, frozen=True, gc=False):
    """The text of `extFields` as it came."""

    raw: msgspec.Raw

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:  # noqa: ARG002  # none come
        """Read the fields as a header class."""
        return from_json(cls, self.raw)

    def ext_fields(self) -> dict[str, str]:
        """Return the fields as strings by name."""
        return texts_from_json(self.raw)


class JsonCodec:
    """The codec of type byte 0."""

    serialize_type = 0
    name = "JSON"

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read the text of a header; its fields stay text until somebody reads them."""
        try:
            found = _decode(raw)
        except REFUSALS as error:
            raise RemoteProtocolError(f"JSON header: {json_problem(raw, error)}") from None
        fields = found.extFields
        # The fields of a header too short to break the limit need not be counted.
        if len(raw) > fields_max * FIELD_SIZE_MIN:
            _check_count(fields, fields_max)
        language = LANGUAGE_NUMBERS.get(found.language)
        if language is None:
            language = _odd_language(found.language)
        return Command(
            found.code or 0,
            None if fields is _NO_FIELDS else JsonFields(fields),
            found.flag or 0,
            found.opaque or 0,
            found.remark,
            body,
            (),
            None,
            self,
            language,
            found.version or 0,
        )

    def encode(self, command: Command) -> bytes:
        """Write a header as Java writes it."""
        fields = command.fields
        to_texts = text_writers.get(type(fields))
        if to_texts is not None and not command.extras:
            members: Any = to_texts(fields)
        else:
            members = _members(command)
        remark = command.remark
        language = command.language
        try:
            return _encode(
                _Sent(
                    command.code,
                    members,
                    command.flag,
                    "PYTHON" if language == _PYTHON else _NAMES.get(language, "OTHER"),
                    command.opaque,
                    _UNSET if remark is None else remark_to_send(command),
                    "JSON",
                    command.version,
                )
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise refuse_unsayable(error) from error


def _members(command: Command) -> Any:
    fields = command.fields
    if isinstance(fields, Header) and not command.extras:
        return to_json_object(fields)
    if isinstance(fields, JsonFields) and not command.extras:
        return fields.raw
    if fields is None and not command.extras:
        return _EMPTY if command.flag & RESPONSE_FLAG else _UNSET
    return command.texts_to_send()


def _odd_language(said: str | int | None) -> int:
    return said if type(said) is int and said in _NAMES else _OTHER


def _check_count(fields: msgspec.Raw, fields_max: int) -> None:
    try:
        count = len(_decode_members(fields) or ())
    except REFUSALS as error:
        raise RemoteProtocolError(f"JSON header: extFields: {error}") from None
    if count > fields_max:
        raise RemoteProtocolError(f"JSON header: {count} fields exceed fields_max {fields_max}")


_decode_members = json.Decoder(dict[str, msgspec.Raw] | None).decode

JSON = JsonCodec()
"""The codec of type byte 0."""
