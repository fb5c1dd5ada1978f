"""One request or response, whatever codec its header travels in.

A command that we make carries its fields typed (a `Header`). A received one carries them as they
came, until somebody reads them::

    request = connection.request(RequestCode.GET_MAX_OFFSET, GetMaxOffset("T", 0))
    ...
    offset = response.expect(ResponseCode.SUCCESS).read(OffsetResponse).offset

Fields beyond the header class (a signature, a trace, `bname`) travel as `extras`. What each method
returns:

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

A command that came in MessagePack and was read in one pass (`header_typed.py`) is like one made
with a header. So a server that looks at all fields of a request, as for a signature, asks for
`ext_fields_as`. That returns the same values as `read`: a field in two places, where a checker
could see one value and a handler the other, is refused by both.
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
    """One encoding of headers; the type byte of each frame says which it is."""

    serialize_type: int
    name: str

    def decode(self, raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        """Read a frame's header; raise a RemoteProtocolError if it is malformed."""
        ...

    def encode(self, command: Command) -> bytes:
        """Write a command's header; raise a LocalProtocolError if this codec cannot express it."""
        ...


class ReceivedFields:
    """Fields as they came, undecoded until somebody reads them; codecs derive their own class.

    It is a base class, and neither a Protocol nor a struct, so that recognizing it costs nothing.
    """

    __slots__ = ()

    header: Header | None = None
    """The header that they have already been read as, if any."""

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:
        """Read the fields as a header class; a FieldError names a wrong field."""
        raise NotImplementedError

    def ext_fields(self) -> dict[str, str]:
        """Return the fields that have names, as strings."""
        raise NotImplementedError

    @property
    def nameless(self) -> Sequence[Any]:
        """The values that `ext_fields` leaves out, because only a header class has their names."""
        return ()


Fields = Header | Mapping[str, str] | ReceivedFields | None
"""The fields of a command, in the forms that `Command` describes."""


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or response.

    `fields` is a typed header or a map of strings if we made the command, else whatever the codec
    leaves for `read`. `body` is None if it has no bytes; `parts` are more buffers of the body that
    are sent after it, uncopied (slices of a log). `codec` is the one in which it came or is to be
    sent; None leaves that to the connection. `language` and `version` are those of its maker.
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
        """Make a request; its answer will have the same `opaque`.

        `Connection.request` makes one with a number.
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
        """Make the response to this request, in its codec.

        For a one-way request it may be made, so that a handler need not look, but must not be sent:
        the peer would drop it. The sender checks `is_oneway`. A response has no response.
        """
        if self.flag & RESPONSE_FLAG:
            raise LocalProtocolError(f"an answer cannot be answered: {self!r}")
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
        """Read the fields as a header class; a FieldError names a wrong field.

        For an answer other than SUCCESS, the error also has the code and the remark: call `expect`
        first.
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
        """Return this response if it has one of these codes; without any, SUCCESS is expected.

        Otherwise raise a RefusedError with the code, its name and the remark.
        """
        if not self.flag & RESPONSE_FLAG:
            raise LocalProtocolError(f"not an answer: {self!r}")
        if self.code in (codes or (_SUCCESS,)):
            return self
        raise self._refusal()

    def _refusal(self) -> RefusedError:
        return RefusedError(self.code, response_name(self.code), self.remark)

    @property
    def ext_fields(self) -> dict[str, str]:
        """The fields as strings by name, in a new dict.

        Fields of a header class that came in MessagePack have no names: `ext_fields_as` has all.
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
        """Return all fields as strings by name, in any codec, as signatures need them.

        Fields that came by name are returned as they came; fields of an array, as they would be
        written by name. Like `read`, raises a FieldError if they cannot be read as this class.
        """
        header = self.read(cls)
        fields = self.fields
        if isinstance(fields, ReceivedFields) and fields.nameless:
            return to_texts(header) | self.ext_fields
        return self.ext_fields

    def texts_to_send(self) -> dict[str, str]:
        """Return `ext_fields` for a codec to write; raise a LocalProtocolError for a non-text.

        Also raises it for fields that came in MessagePack, which would be lost: read them first.
        """
        fields = self.fields
        if isinstance(fields, ReceivedFields) and fields.nameless:
            raise LocalProtocolError(
                f"command {self.code}: fields that came without names cannot be sent by name"
            )
        try:
            texts = self.ext_fields
        # FieldError: from received fields that nobody has read yet.
        except (TypeError, ValueError, FieldError) as error:
            raise LocalProtocolError(f"command {self.code}: fields: {error}") from None
        refuse_non_texts(self.code, texts)
        return texts

    def check_extras(self, names: Container[str]) -> None:
        """Refuse extras that are also fields of the header: codecs would differ on which wins."""
        for name in self.extras or ():
            if name in names:
                raise LocalProtocolError(f"command {self.code}: field {name!r} is also an extra")

    def __repr__(self) -> str:
        return describe(self)


def remark_to_send(command: Command) -> str:
    """Return the remark of a command that has one, for a codec to write; refuse a non-text."""
    remark = command.remark
    if isinstance(remark, str):
        return remark
    raise LocalProtocolError(f"command {command.code}: the remark is not a str: {remark!r}")


def refuse_non_texts(code: int, texts: Mapping[Any, Any]) -> None:
    """Refuse fields by name that are not strings; the LocalProtocolError names the first."""
    if _STR_ONLY.issuperset(map(type, texts.values())) and _STR_ONLY.issuperset(map(type, texts)):
        return
    for name, text in texts.items():
        # A member of a StrEnum is a str, and written as one.
        if not isinstance(name, str) or not isinstance(text, str):
            raise LocalProtocolError(
                f"command {code}: field {name!r} is {type(text).__name__}, not str"
            )
