"""Requests whose fields will be read, in one pass: the header and its typed fields together.

A broker knows which requests are its daily bread, and that it will read their fields. For these
codes one decoder of msgspec goes over the header once, finds the class by the code and fills it.
The general way goes over the fields twice and back into Python in between.

Whatever this decoder does not take, or the rules of `header.py` would read otherwise than msgspec
does, goes the general way, which costs it 0.6 µs more. So the result is the same, sooner; but for
a MessagePack request, whose fields now have names: it is a command with a header as if made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import msgspec
from msgspec import json, msgpack
from msgspec.structs import astuple

from cometmq.proto.command import Command, ReceivedFields
from cometmq.proto.header import I32, REFUSALS, Header, plan_of
from cometmq.proto.header_codecs import decoders_with
from cometmq.proto.header_json import FIELD_SIZE_MIN, JSON, LANGUAGE_NUMBERS
from cometmq.proto.header_msgpack import MESSAGEPACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.header import H
    from cometmq.proto.header_codecs import HeaderDecoder


# KeyError: of a language that is not known.
_REFUSALS = (*REFUSALS, KeyError)


class TypedJsonFields(ReceivedFields, msgspec.Struct, frozen=True, gc=False):
    """Fields that were read as the class of their code, and the header that they came in."""

    header: Header | None
    raw: bytes

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:  # noqa: ARG002  # none come
        """Read another class than that of the code: the general way."""
        return self._general().read(cls)

    def ext_fields(self) -> dict[str, str]:
        """Give the fields as strings by name."""
        return self._general().ext_fields

    def _general(self) -> Command:
        return JSON.decode(self.raw, None, len(self.raw))


class RequestReader:
    """Reads headers as the codecs' `decode` does, those of some requests in one pass.

    One serves all connections: `decoders` has what reads a header, by the type byte of its frame.
    """

    def __init__(self, classes: Mapping[int, type[Header]]) -> None:
        kinds = [_Kind(int(code), cls) for code, cls in classes.items()]
        self.decoders = decoders_with(
            {
                JSON.serialize_type: _json_decoder(kinds),
                MESSAGEPACK.serialize_type: _messagepack_decoder(kinds),
            }
        )


# Closures and not methods of the reader: what they need is then at hand, which saves 0.1 of 2.5 µs.


def _json_decoder(kinds: Sequence[_Kind]) -> HeaderDecoder:
    kind_of = {kind.json_struct(): kind for kind in kinds}
    decode_outer: Callable[[bytes], Any] = json.Decoder(_union(kind_of), strict=False).decode

    def decode(raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        size = len(raw)
        if size > fields_max and size > fields_max * FIELD_SIZE_MIN:
            return JSON.decode(raw, body, fields_max)
        try:
            outer = decode_outer(raw)
            kind = kind_of[type(outer)]
            header = outer.extFields
            if kind.has_true(header):
                kind.check_words(raw)
            language = LANGUAGE_NUMBERS[outer.language]
        except _REFUSALS:
            return JSON.decode(raw, body, fields_max)
        return Command(
            kind.code,
            TypedJsonFields(header, raw),
            outer.flag,
            outer.opaque,
            outer.remark,
            body,
            (),
            None,
            JSON,
            language,
            outer.version,
        )

    return decode


def _messagepack_decoder(kinds: Sequence[_Kind]) -> HeaderDecoder:
    kind_of = {kind.array_struct(): kind for kind in kinds}
    decode_outer: Callable[[bytes], Any] = msgpack.Decoder(_union(kind_of)).decode

    def decode(raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        # A header too short to break the limit needs no counting.
        if len(raw) > fields_max:
            return MESSAGEPACK.decode(raw, body, fields_max)
        try:
            outer = decode_outer(raw)
        except REFUSALS:
            return MESSAGEPACK.decode(raw, body, fields_max)
        kind = kind_of[type(outer)]
        return Command(
            kind.code,
            kind.header(*astuple(outer.fields)),
            outer.flag,
            outer.opaque,
            outer.remark,
            body,
            (),
            None,
            MESSAGEPACK,
            outer.language,
            outer.version,
        )

    return decode


def _union(structs: Iterable[type[msgspec.Struct]]) -> Any:
    """Make the type of whichever of these the code says."""
    return Union[tuple(structs)]  # noqa: UP007  # a tuple of types, not two


class _Kind:
    """The requests of one code."""

    def __init__(self, code: int, header: type[Header]) -> None:
        plan = plan_of(header)
        words = msgspec.defstruct(header.__name__, [("extFields", plan.words_struct)], gc=False)
        self.code = code
        self.header = header
        # msgspec takes 1 for true, Java does not: as in `HeaderPlan.read_json`.
        self.has_true = plan.has_true
        self.check_words = json.Decoder(words).decode

    def json_struct(self) -> type[msgspec.Struct]:
        """Make the class of the whole header in JSON."""
        members: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("extFields", self.header),
            ("flag", I32, 0),
            ("language", str, ""),
            ("opaque", I32, 0),
            ("remark", str | None, None),
            ("version", I32, 0),
        ]
        return msgspec.defstruct(
            self.header.__name__, members, tag_field="code", tag=self.code, gc=False
        )

    def array_struct(self) -> type[msgspec.Struct]:
        """Make that of the whole header in MessagePack: with fields, without extras, no longer."""
        exactly: dict[str, Any] = {"array_like": True, "forbid_unknown_fields": True, "gc": False}
        name = self.header.__name__
        members: list[tuple[str, Any]] = [
            ("flag", I32),
            ("opaque", I32),
            ("language", I32),
            ("version", I32),
            ("remark", str | None),
            ("fields", msgspec.defstruct(name, plan_of(self.header).items, **exactly)),
            ("extras", None),
        ]
        return msgspec.defstruct(name, members, tag_field="code", tag=self.code, **exactly)
