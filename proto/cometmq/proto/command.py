"""One request or response, whatever codec its header travels in.

A command that we make carries its fields typed (a `Header`), one that was received carries them
as they came until somebody reads them::

    request = connection.request(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))
    ...
    offset = response.expect(ResponseCode.SUCCESS).read(OffsetResponse).offset

Fields beyond the header class (a signature, a trace, `bname`) travel as `extras`. Who gets what:

=======================  ==========  ======================  =======================
a command                read(cls)   ext_fields              ext_fields_as(cls)
=======================  ==========  ======================  =======================
made, with a header      the header  all, extras too         the same
made, with a map         parsed      all, extras too         the same
came in JSON, ROCKETMQ   parsed      all, as they came       the same
came in MessagePack,     from the    extras only: the array  all, named by the class
with a header            array       has no names
came in MessagePack,     parsed      all                     the same
with a map
=======================  ==========  ======================  =======================

One that came in MessagePack and was read in one pass (`header_typed.py`) is as one made with a
header. So a server that looks at all fields of a request, as for a signature, asks for
`ext_fields_as`. That gives what `read` gives, and no other: a field that stands in two places,
where a checker could see one value and a handler the other, is refused by both.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from cometmq.proto.buffer import Buffer
from cometmq.proto.codes import Language, ResponseCode, response_name
from cometmq.proto.command_repr import describe
from cometmq.proto.errors import FieldError, LocalProtocolError, RefusedError
from cometmq.proto.header import Header, from_texts, to_texts
from cometmq.proto.version import CURRENT_VERSION

if TYPE_CHECKING:
    from cometmq.proto.header import H

# The bits of `Command.flag`.
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
_PYTHON = int(Language.PYTHON)
_SUCCESS = int(ResponseCode.SUCCESS)
_STR_ONLY = frozenset({str})


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


class ReceivedFields:
    """Fields as they came, undecoded until somebody reads them; each codec that does so has one.

    A base class and not a Protocol, and no struct, so that telling it apart costs nothing.
    """

    __slots__ = ()

    header: Header | None = None
    """What they have been read as already."""

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read them as a header class; a FieldError names the one that is wrong."""
        raise NotImplementedError

    def ext_fields(self) -> dict[str, str]:
        """Give those that have names, as strings."""
        raise NotImplementedError

    @property
    def nameless(self) -> Sequence[Any]:
        """Values that `ext_fields` does not give, for only a header class tells their names."""
        return ()


Fields = Header | Mapping[str, str] | ReceivedFields | None
"""What a command has as its fields: `Command` says when which."""


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
        """Make a request; `opaque` is what its answer will be known by.

        `Connection.request` makes one that is numbered.
        """
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
        """Make the response to this request, in the codec of this request.

        That of a one-way request may be made, so that a handler need not look, but not sent: its
        sender would drop it. Whoever sends asks `is_oneway`. A response has no response.
        """
        if self.flag & RESPONSE_FLAG:
            raise LocalProtocolError(f"an answer to an answer: {self!r}")
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
        """Read the fields as a header class; a FieldError names the one that is wrong.

        Of an answer that says no, it also has the code and the remark: `expect` comes first.
        """
        fields = self.fields
        if type(fields) is cls:
            return fields
        try:
            if isinstance(fields, ReceivedFields):
                header = fields.header
                return header if type(header) is cls else fields.read(cls, self.extras)
            if isinstance(fields, cls):
                return fields
            return from_texts(cls, self.ext_fields)
        except FieldError as error:
            if not self.flag & RESPONSE_FLAG or self.code == _SUCCESS:
                raise
            problem = f"{error.problem}; {self._refusal()}"
            raise FieldError(error.command, error.field, problem) from None

    def expect(self, *codes: int) -> Self:
        """Give this response itself if it has one of these codes; none named means SUCCESS.

        Otherwise a RefusedError with the code, its name and the remark.
        """
        if not self.flag & RESPONSE_FLAG:
            raise LocalProtocolError(f"no answer: {self!r}")
        if self.code in (codes or (_SUCCESS,)):
            return self
        raise self._refusal()

    def _refusal(self) -> RefusedError:
        return RefusedError(self.code, response_name(self.code), self.remark)

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
        """Give all fields as strings by name, whatever the codec: what signatures are made of.

        Fields that came by name are given as they came; those of an array, as they are written by
        name. A FieldError, as of `read`, for what cannot be read as this class.
        """
        header = self.read(cls)
        fields = self.fields
        if isinstance(fields, ReceivedFields) and fields.nameless:
            return to_texts(header) | self.ext_fields
        return self.ext_fields

    def texts_to_send(self) -> dict[str, str]:
        """Give `ext_fields` for a codec to write: a LocalProtocolError if they are not all texts.

        And for fields that came in MessagePack, which would be lost: read them as their class.
        """
        fields = self.fields
        if isinstance(fields, ReceivedFields) and fields.nameless:
            raise LocalProtocolError(
                f"command {self.code}: fields that came without names have no form by name"
            )
        try:
            texts = self.ext_fields
        # FieldError: of fields that came, and that nobody has read yet.
        except (TypeError, ValueError, FieldError) as error:
            raise LocalProtocolError(f"command {self.code}: fields: {error}") from None
        refuse_non_texts(self.code, texts)
        return texts

    def check_extras(self, names: Container[str]) -> None:
        """Refuse extras that are fields of the header too: codecs would differ on who wins."""
        for name in self.extras or ():
            if name in names:
                raise LocalProtocolError(f"command {self.code}: field {name!r} is an extra, too")

    def __repr__(self) -> str:
        return describe(self)


def remark_to_send(command: Command) -> str:
    """Give a remark that is there for a codec to write, or refuse one that is no text."""
    remark = command.remark
    if isinstance(remark, str):
        return remark
    raise LocalProtocolError(f"command {command.code}: the remark is no str: {remark!r}")


def refuse_non_texts(code: int, texts: Mapping[Any, Any]) -> None:
    """Refuse fields by name that are no strings: a LocalProtocolError names the first."""
    if _STR_ONLY.issuperset(map(type, texts.values())) and _STR_ONLY.issuperset(map(type, texts)):
        return
    for name, text in texts.items():
        # A member of a StrEnum is a str, and written as one.
        if not isinstance(name, str) or not isinstance(text, str):
            raise LocalProtocolError(
                f"command {code}: field {name!r} is {type(text).__name__}, not str"
            )
