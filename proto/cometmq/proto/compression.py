"""Compressed bodies: producers compress, consumers decompress, brokers only pass them on.

zlib is always available. lz4 and zstandard come with the `broker` extra and are imported when first
needed; without them, a body that needs them raises a `MissingLibraryError`. A body from the network
is decompressed up to a limit, and never takes memory beyond it.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from importlib import import_module
from typing import Any, Final

from cometmq.proto.checksum import fastest_zlib
from cometmq.proto.errors import MessageError, MissingLibraryError
from cometmq.proto.sysflag import COMPRESSION_MASK, SysFlag

ZSTD_WINDOW_SIZE_MAX: Final = 1 << 23
"""The window that a zstd stream may require: 8 MiB, which the format asks of every decoder."""

PLAIN_SIZE_MAX: Final = (1 << 31) - 1
"""No body is larger than this: its size is a signed number of 32 bits."""

_LZ4_FIRST_SIZE: Final = 1 << 16

_zlib = fastest_zlib()


class Compression(IntEnum):
    """How a body is compressed: the values are its sysFlag bits, together with `COMPRESSED`."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compression_of(sys_flag: int) -> Compression | None:
    """Return how the body is compressed, according to the flags.

    Old clients set no type, and use zlib.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return None
    kind = sys_flag & COMPRESSION_MASK
    if not kind:
        return Compression.ZLIB
    try:
        return Compression(kind)
    except ValueError:
        raise MessageError(f"body: compression type {kind >> 8} is not 1, 2 or 3") from None


def compress(body: bytes, kind: Compression, level: int = 5) -> tuple[bytes, int]:
    """Return the body and its flags: compressed if that makes it smaller, else unchanged and 0.

    The level is zlib's or zstd's; LZ4 is used only in its fast form, as by Apache's clients.
    """
    match kind:
        case Compression.ZLIB:
            compressed = zlib.compress(body, level)
        case Compression.LZ4:
            compressed = _library("lz4.frame").compress(body)
        case _:
            compressed = _library("zstandard").ZstdCompressor(level=level).compress(body)
    if len(compressed) >= len(body):
        return body, 0
    return compressed, SysFlag.COMPRESSED.value | kind.value


def decompress(body: bytes, sys_flag: int, size_max: int) -> bytes:
    """Return the decompressed body; the body itself if it is not compressed.

    Raises a `MessageError` if the stream is malformed or incomplete, if anything follows it, or if
    it would make more than `size_max` bytes. Raises a `ValueError` if `size_max` is below 0 or
    above `PLAIN_SIZE_MAX`.
    """
    kind = compression_of(sys_flag)
    if kind is None:
        return body
    if not 0 <= size_max <= PLAIN_SIZE_MAX:
        raise ValueError(f"size_max {size_max} is not within 0 to {PLAIN_SIZE_MAX}")
    return _DECOMPRESS[kind](body, size_max)


def _decompress_zlib(body: bytes, size_max: int) -> bytes:
    stream = _zlib.decompressobj()
    try:
        plain: bytes = stream.decompress(body, size_max + 1)
    except _zlib.error as error:
        raise MessageError(f"body: not a ZLIB stream: {error}") from None
    return _checked("ZLIB", plain, size_max, stream.eof, stream.unused_data)


def _decompress_lz4(body: bytes, size_max: int) -> bytes:
    stream = _library("lz4.frame").LZ4FrameDecompressor()
    # The library allocates as much as it may return, so this limit grows with the output.
    plain = b""
    step = max(_LZ4_FIRST_SIZE, 4 * len(body))
    try:
        while True:
            wanted = min(step, size_max + 1 - len(plain))
            made: bytes = stream.decompress(body, wanted)
            plain = plain + made if plain else made
            if stream.eof or len(made) < wanted or len(plain) > size_max:
                break
            body, step = b"", 2 * step
    except RuntimeError as error:
        raise MessageError(f"body: not an LZ4 frame: {error}") from None
    return _checked("LZ4", plain, size_max, stream.eof, stream.unused_data)


def _checked(kind: str, plain: bytes, size_max: int, eof: bool, rest: bytes | None) -> bytes:
    if len(plain) > size_max:
        raise MessageError(f"body: {kind} inflates to more than {size_max} bytes")
    if not eof:
        raise MessageError(f"body: {kind} stream is cut short")
    if rest:
        raise MessageError(f"body: {len(rest)} bytes after the {kind} stream")
    return plain


def _decompress_zstd(body: bytes, size_max: int) -> bytes:
    zstandard = _library("zstandard")
    # A one-shot call trusts the frame's claimed size more than the limit: check that size first.
    window = max(ZSTD_WINDOW_SIZE_MAX, size_max)
    decompressor = zstandard.ZstdDecompressor(max_window_size=window)
    try:
        if zstandard.frame_content_size(body) > size_max:
            raise MessageError(f"body: ZSTD inflates to more than {size_max} bytes")
        plain: bytes = decompressor.decompress(
            body, max_output_size=size_max + 1, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise MessageError(
            f"body: not a complete ZSTD frame of at most {size_max} bytes: {error}"
        ) from None
    return _checked("ZSTD", plain, size_max, True, None)


_DECOMPRESS: Final = {
    Compression.ZLIB: _decompress_zlib,
    Compression.LZ4: _decompress_lz4,
    Compression.ZSTD: _decompress_zstd,
}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingLibraryError(
            f"body: {name} is not installed; try: pip install 'cometmq[broker]'"
        ) from None
