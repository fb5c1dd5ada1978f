"""Requests whose fields will be read, in one pass: the header and its typed fields together.

A broker knows which requests are its daily bread, and that it will read their fields. For these
codes one decoder of msgspec goes over the header once, finds the class by the code and fills it.
The general way goes over the fields twice and back into Python in between.

A ROCKETMQ header has a size in front of each name and value. Those of headers that are equally long
mostly stand at the same places, so these are remembered, and one look tells whether all that is no
value is as it was (`_Layout`).

Whatever this decoder does not take, or the rules of `header.py` would read otherwise than msgspec
does, goes the general way, which costs it 0.6 µs more. So the result is the same, sooner; but for
a MessagePack request, whose fields now have names: it is a command with a header as if made here.
"""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import msgspec
from msgspec import json, msgpack
from msgspec.structs import astuple

from cometmq.proto.command import (  # msgspec looks at the annotations.
    Command,
    HeaderCodec,
    ReceivedFields,
)
from cometmq.proto.header import I32, REFUSALS, Header, plan_of
from cometmq.proto.header_codecs import decoders_with
from cometmq.proto.header_json import FIELD_SIZE_MIN, JSON, LANGUAGE_NUMBERS
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ, places_of_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.header import H
    from cometmq.proto.header_codecs import HeaderDecoder


_NUMBERS = Struct(">hBhii")  # See `header_rocketmq`: code, language, version, opaque, flag.
LAYOUTS_MAX = 1024
"""ROCKETMQ layouts that are remembered."""
LAYOUT_FIELDS_MAX = 32
"""Fields of a header whose layout is worth to be remembered."""

# KeyError: of a language that is not known.
_REFUSALS = (*REFUSALS, KeyError)


class TypedFields(ReceivedFields, msgspec.Struct, frozen=True, gc=False):
    """Fields that were read as the class of their code, and the header that they came in."""

    header: Header | None
    raw: bytes
    codec: HeaderCodec

    def read(self, cls: type[H], extras: Mapping[str, str] | None) -> H:  # noqa: ARG002  # none come
        """Read another class than that of the code: the general way."""
        return self._general().read(cls)

    def ext_fields(self) -> dict[str, str]:
        """Give the fields as strings by name."""
        return self._general().ext_fields

    def _general(self) -> Command:
        return self.codec.decode(self.raw, None, len(self.raw))


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
                ROCKETMQ.serialize_type: _rocketmq_decoder(kinds),
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
            TypedFields(header, raw, JSON),
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


class _Layout(NamedTuple):
    """Where the values stand in ROCKETMQ headers of one code that are equally long."""

    kind: _Kind
    frame_of: Callable[[bytes], tuple[bytes, ...]]
    """Gives all between the numbers in front and the values: sizes and names."""
    frame: tuple[bytes, ...]
    values_of: Callable[[str], tuple[str, ...]]
    names: tuple[str, ...]


def _layout_of(raw: bytes, kind: _Kind, fields_max: int) -> _Layout | None:
    """Learn from a header that the general way has read; None from one that is not worth it."""
    found = places_of_pairs(raw)
    if found is None or not 2 <= len(found) <= min(fields_max, LAYOUT_FIELDS_MAX):
        return None
    ends = [_NUMBERS.size, *(end for _, _, end in found)]
    between = [slice(*each) for each in zip(ends, (start for _, start, _ in found), strict=False)]
    frame_of = itemgetter(*between)
    values_of = itemgetter(*(slice(start, end) for _, start, end in found))
    return _Layout(kind, frame_of, frame_of(raw), values_of, tuple(name for name, _, _ in found))


def _rocketmq_decoder(kinds: Sequence[_Kind]) -> HeaderDecoder:
    kind_of = {kind.code: kind for kind in kinds}
    layouts: dict[tuple[int, int], _Layout] = {}
    unpack = _NUMBERS.unpack_from

    def decode(raw: bytes, body: Buffer | None, fields_max: int) -> Command:
        size = len(raw)
        if size < _NUMBERS.size:
            return ROCKETMQ.decode(raw, body, fields_max)
        code, language, version, opaque, flag = unpack(raw)
        layout = layouts.get((code, size))
        if layout is None or layout.frame_of(raw) != layout.frame:
            command = ROCKETMQ.decode(raw, body, fields_max)
            if (kind := kind_of.get(code)) and (layout := _layout_of(raw, kind, fields_max)):
                if len(layouts) >= LAYOUTS_MAX:
                    layouts.clear()
                layouts[code, size] = layout
            return command
        kind, _, _, values_of, names = layout
        values = values_of(raw.decode("latin-1"))  # Each byte is a character: places are the same.
        if len(names) > fields_max or not "".join(values).isascii():
            return ROCKETMQ.decode(raw, body, fields_max)
        try:
            header = kind.convert(dict(zip(names, values, strict=True)))
        except REFUSALS:
            return ROCKETMQ.decode(raw, body, fields_max)
        return Command(
            code,
            TypedFields(header, raw, ROCKETMQ),
            flag,
            opaque,
            None,
            body,
            (),
            None,
            ROCKETMQ,
            language,
            version,
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
        self.convert = plan.convert_texts

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
