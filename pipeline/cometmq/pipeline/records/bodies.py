"""Bodies that are stored in another form: compressed, or as a batch of messages.

zlib comes from Python; LZ4 and ZSTD come from Arrow, which has them in every build.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import pyarrow as pa

from cometmq.pipeline.records.layout import SIZE_MAX
from cometmq.pipeline.records.properties import decode

COMPRESSED: Final = 0x1
INNER_BATCH: Final = 0xC0
"""If both bits are set, the body is a batch, stored as one record, that a reader must unwrap."""

_KINDS: Final = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}
_KIND_MASK: Final = 0x700
_ITEM: Final = struct.Struct(">I8xiI")
assert _ITEM.size == 20
_PROPERTIES_SIZE: Final = 2


class BodyError(Exception):
    """A body is not what its flags say."""


def decompressed(body: bytes, sys_flag: int, size_max: int) -> bytes:
    """Return the body as it was before compression.

    Raise `BodyError` if it is not such a stream, is incomplete, or would exceed `size_max` bytes.
    """
    kind = _KINDS.get(sys_flag & _KIND_MASK)
    if kind is None:
        raise BodyError(f"compression type {(sys_flag & _KIND_MASK) >> 8} is not 1, 2 or 3")
    if not body:
        raise BodyError("it is empty")
    try:
        plain = _inflated(body, size_max) if kind == "zlib" else _arrow(body, kind, size_max)
    except (zlib.error, OSError, ValueError) as error:
        raise BodyError(f"not a whole {kind} stream: {error}") from None
    if len(plain) > size_max:
        raise BodyError(f"{kind} inflates to more than {size_max} bytes")
    return plain


def _inflated(body: bytes, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, size_max + 1)
    if len(plain) <= size_max and (not stream.eof or stream.unused_data):
        raise ValueError("it is cut short" if not stream.eof else "something follows it")
    return plain


def _arrow(body: bytes, kind: str, size_max: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(body), kind) as stream:
        return stream.read(size_max + 1)


def split_batch(body: bytes, properties: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return the flag, body and properties of each message of an inner batch.

    Raise `BodyError` if their lengths do not agree, or their number is not the one in the record's
    properties.
    """
    items: list[tuple[int, bytes, bytes]] = []
    start: int = 0
    size: int
    flag: int
    body_size: int
    while start < len(body):
        try:
            size, flag, body_size = _ITEM.unpack_from(body, start)
            body_end = start + _ITEM.size + body_size
            properties_start = body_end + _PROPERTIES_SIZE
            properties_size = body[body_end] << 8 | body[body_end + 1]
        except (struct.error, IndexError):
            raise BodyError(f"its message at {start} is cut short") from None
        if properties_size > SIZE_MAX:
            raise BodyError(f"its message at {start} has {properties_size} bytes of properties")
        end = properties_start + properties_size
        if end - start != size or end > len(body):
            raise BodyError(f"the lengths of its message at {start} do not agree")
        items.append((flag, body[start + _ITEM.size : body_end], body[properties_start:end]))
        start = end
    announced = decode(properties).get("INNER_NUM")
    if not items or announced != str(len(items)):
        raise BodyError(f"it has {len(items)} messages, but announces {announced}")
    return items
