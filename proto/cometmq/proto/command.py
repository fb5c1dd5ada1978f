"""One request or response, whatever codec its header travels in.

A command that we make carries its fields typed (a `Header`), one that was received carries them
as they came until somebody reads them::

    request = Command.request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest("T", 0))
    ...
    offset = response.read(GetMaxOffsetResponse).offset

Fields beyond the header class (a signature, a trace, `bname`) travel as `extras`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from cometmq.proto.codes import Language
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.header import Header, from_texts, to_texts
from cometmq.proto.version import CURRENT_VERSION

if TYPE_CHECKING:
    from cometmq.proto.header import H

Buffer = bytes | bytearray | memoryview

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
_PYTHON = int(Language.PYTHON)


class HeaderCodec(Protocol):
    """One way of writing a header; the type byte of each frame says which."""

    serialize_type: int
    name: str

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a frame's header; a RemoteProtocolError for what is not one."""
        ...

    def encode(self, command: Command) -> bytes:
        """Write a command's header; a LocalProtocolError for what has no form in this codec."""
        ...


class ReceivedFields(msgspec.Struct, frozen=True, gc=False):
    """Fields as they came, undecoded until somebody reads them; each codec that does so has one.

    A base class and not a Protocol, so that telling it apart costs nothing.
    """

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read them as a header class; a FieldError names the one that is wrong."""
        raise NotImplementedError

    def ext_fields(self) -> dict[str, str]:
        """Give those that have names, as strings."""
        raise NotImplementedError


Fields = Header | Mapping[str, str] | ReceivedFields | None


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or response.

    `fields` is a typed header or a map of strings when we made the command, else what the codec
    left for `read`. `body` is None when there are no bytes of it; `parts` are more buffers of it
    that go out after it, uncopied (slices of a log). `codec` is how it came or shall go; None
    leaves that to the connection. `language` and `version` are those of who made it.
    """

    code: int
    fields: Fields = None
    flag: int = 0
    opaque: int = 0
    remark: str | None = None
    body: Buffer | None = None
    parts: Sequence[Buffer] = ()
    extras: Mapping[str, str] | None = None
    codec: HeaderCodec | None = None
    language: int = _PYTHON
    version: int = CURRENT_VERSION

    @classmethod
    def request(
        cls,
        code: int,
        fields: Header | Mapping[str, str] | None = None,
        *,
        body: Buffer | None = None,
        opaque: int = 0,
        oneway: bool = False,
        extras: Mapping[str, str] | None = None,
        codec: HeaderCodec | None = None,
    ) -> Command:
        """Make a request; `opaque` is what its answer will be known by."""
        flag = ONEWAY_FLAG if oneway else 0
        return cls(code, fields, flag, opaque, None, body, (), extras, codec)

    def answer(
        self,
        code: int,
        fields: Header | Mapping[str, str] | None = None,
        *,
        remark: str | None = None,
        body: Buffer | None = None,
        parts: Sequence[Buffer] = (),
        extras: Mapping[str, str] | None = None,
    ) -> Command:
        """Make the response to this request, in the codec of this request."""
        return Command(
            code,
            fields,
            RESPONSE_FLAG,
            self.opaque,
            remark,
            body,
            parts,
            extras,
            self.codec,
        )

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of the receiver."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether this request wants no answer."""
        return self.flag & (ONEWAY_FLAG | RESPONSE_FLAG) == ONEWAY_FLAG

    def read(self, cls: type[H]) -> H:
        """Read the fields as a header class; a FieldError names the one that is wrong."""
        fields = self.fields
        if isinstance(fields, ReceivedFields):
            return fields.read(cls, self.extras)
        if isinstance(fields, cls):
            return fields
        return from_texts(cls, self.ext_fields)

    @property
    def ext_fields(self) -> dict[str, str]:
        """Give the fields as strings by name, in a dict of the caller's own.

        Those of a header class that came in MessagePack have no names: `ext_fields_as` has all.
        """
        fields = self.fields
        if isinstance(fields, Header):
            texts = to_texts(fields)
        elif isinstance(fields, ReceivedFields):
            texts = fields.ext_fields()
        else:
            texts = dict(fields or {})
        if self.extras:
            self.check_extras(texts)
            texts.update(self.extras)
        return texts

    def ext_fields_as(self, cls: type[Header]) -> dict[str, str]:
        """Give all fields as strings by name, whatever the codec: what signatures are made of."""
        return to_texts(self.read(cls)) | self.ext_fields

    def check_extras(self, names: Container[str]) -> None:
        """Refuse extras that are fields of the header too: codecs would differ on who wins."""
        for name in self.extras or ():
            if name in names:
                raise LocalProtocolError(f"command {self.code}: field {name!r} is an extra, too")
