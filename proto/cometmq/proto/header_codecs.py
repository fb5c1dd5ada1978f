"""The header codecs by the type byte of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.header_json import JSON
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.header_rocketmq import ROCKETMQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command, HeaderCodec

    HeaderDecoder = Callable[[bytes, Buffer | None, int], Command]

HEADER_CODECS: Final[dict[int, HeaderCodec]] = {
    codec.serialize_type: codec for codec in (JSON, ROCKETMQ, MESSAGEPACK)
}
"""All codecs by the type byte of a frame."""


def decoders_with(others: dict[int, HeaderDecoder]) -> tuple[HeaderDecoder, ...]:
    """Return the header decoders for all 256 type bytes: these, otherwise those of the codecs.

    Call it once for many connections.
    """
    known = {number: codec.decode for number, codec in HEADER_CODECS.items()} | others
    return tuple(known.get(number) or _refusal(number) for number in range(256))


def _refusal(number: int) -> HeaderDecoder:
    def refuse(_raw: bytes, _body: Buffer | None, _fields_max: int) -> NoReturn:
        raise RemoteProtocolError(f"header type {number} is unknown")

    return refuse


DECODERS: Final = decoders_with({})
"""The header decoders by the type byte of a frame; for an unknown type one that refuses."""
