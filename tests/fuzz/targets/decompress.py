"""Compressed bytes, as the first byte says how, are a body within the limit or `MessageError`."""

from __future__ import annotations

from cometmq.proto.compression import Compression, compression_of, decompress

SIZE_MAX = 100_000


def check(data: bytes) -> None:
    flags = (data[0] if data else 0) << 8 & 0x700 | 0x1
    plain = decompress(data[1:], flags, SIZE_MAX)
    assert len(plain) <= SIZE_MAX
    assert compression_of(flags) in tuple(Compression)
