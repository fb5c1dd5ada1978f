from __future__ import annotations

import hashlib
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given, strategies as st
from tests.proto.apache_messages import manifest, stored_messages

from cometmq.proto.compression import (
    PLAIN_SIZE_MAX,
    Compression,
    compress,
    compression_of,
    decompress,
)
from cometmq.proto.errors import MessageError, MissingLibraryError

KINDS = pytest.mark.parametrize("kind", Compression)


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (0x0, None),
        (0x300, None),
        (0x1, Compression.ZLIB),
        (0x301, Compression.ZLIB),
        (0x101, Compression.LZ4),
        (0x201 | 0x30, Compression.ZSTD),
    ],
)
def test_the_flags_say_how_a_body_is_compressed(flags: int, kind: Compression | None) -> None:
    assert compression_of(flags) is kind


@pytest.mark.parametrize("flags", [0x401, 0x501, 0x701])
def test_unknown_types_are_malformed(flags: int) -> None:
    with pytest.raises(MessageError, match="compression type"):
        decompress(b"", flags, 10)


@given(st.sampled_from(Compression), st.binary(max_size=100), st.integers(1, 50))
def test_bodies_round_trip(kind: Compression, pattern: bytes, times: int) -> None:
    body = pattern * times
    compressed, flags = compress(body, kind)
    assert len(compressed) <= len(body)
    assert flags == (kind | 0x1 if len(compressed) < len(body) else 0)
    assert decompress(compressed, flags, len(body)) == body


@KINDS
def test_bodies_of_many_blocks_round_trip(kind: Compression) -> None:
    body = b"".join(hashlib.sha512(b"%d" % n).digest()[:40] + bytes(24) for n in range(20_000))
    compressed, flags = compress(body, kind)
    assert len(compressed) > len(body) // 2
    assert decompress(compressed, flags, len(body)) == body
    assert decompress(compressed, flags, 2 * len(body)) == body


def test_without_isal_zlib_keeps_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.proto.compression._zlib", zlib)
    compressed, flags = compress(bytes(50_000), Compression.ZLIB)
    assert decompress(compressed, flags, 50_000) == bytes(50_000)
    for bad in (compressed[:-1], compressed + b"more", b"not compressed"):
        with pytest.raises(MessageError, match="ZLIB"):
            decompress(bad, flags, 50_000)
    with pytest.raises(MessageError, match="more than 49999"):
        decompress(compressed, flags, 49_999)


def test_zlib_bodies_of_old_clients_have_no_type() -> None:
    assert decompress(zlib.compress(b"body"), 0x1, 10) == b"body"


@KINDS
def test_a_body_that_does_not_get_smaller_stays_as_it_is(kind: Compression) -> None:
    assert compress(b"short", kind) == (b"short", 0)


@KINDS
def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(kind: Compression) -> None:
    compressed, flags = compress(bytes(50_000), kind)
    assert len(decompress(compressed, flags, 50_000)) == 50_000
    with pytest.raises(MessageError, match="49999 bytes"):
        decompress(compressed, flags, 49_999)
    with pytest.raises(MessageError, match="more than 0 bytes"):
        decompress(compressed, flags, 0)


@KINDS
def test_a_bomb_is_refused_without_its_memory(kind: Compression) -> None:
    compressed, flags = compress(bytes(1 << 26), kind)
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match="1000 bytes"):
            decompress(compressed, flags, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_zstd_stream_that_does_not_announce_its_size_keeps_to_the_limit() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    compressed = stream.compress(bytes(50_000)) + stream.flush()
    assert zstandard.frame_content_size(compressed) == -1
    assert len(decompress(compressed, 0x201, 50_000)) == 50_000
    with pytest.raises(MessageError, match="49999 bytes"):
        decompress(compressed, 0x201, 49_999)
    with pytest.raises(MessageError, match="at most 1000 bytes"):
        decompress(compressed, 0x201, 1000)


@KINDS
def test_a_stream_cut_anywhere_is_malformed(kind: Compression) -> None:
    compressed, flags = compress(b"one two three " * 20, kind)
    for size in range(len(compressed)):
        with pytest.raises(MessageError, match=f"body: .*{kind.name}"):
            decompress(compressed[:size], flags, 1000)


@KINDS
def test_what_follows_a_stream_is_malformed(kind: Compression) -> None:
    compressed, flags = compress(bytes(1000), kind)
    with pytest.raises(MessageError, match=f"body: .*{kind.name}"):
        decompress(compressed + b"more", flags, 1000)


@KINDS
def test_what_is_no_such_stream_is_malformed(kind: Compression) -> None:
    with pytest.raises(MessageError, match=f"body: not an? .*{kind.name}"):
        decompress(b"certainly not compressed", kind | 0x1, 1000)


@pytest.mark.parametrize(
    ("kind", "library"), [(Compression.LZ4, "lz4.frame"), (Compression.ZSTD, "zstandard")]
)
def test_a_missing_library_is_named_with_the_way_to_get_it(
    kind: Compression, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'cometmq\[broker\]'"):
        compress(bytes(1000), kind)
    with pytest.raises(MissingLibraryError, match=library):
        decompress(b"", kind | 0x1, 10)


def test_bodies_that_apaches_client_compressed_decompress_to_what_it_sent() -> None:
    seen: set[Compression | None] = set()
    expected = {message["physicalOffset"]: message for message in manifest("clean")["messages"]}
    for physical_offset, message in stored_messages("clean"):
        account = expected[physical_offset].get("client")
        if not account or message.is_inner_batch:
            continue
        plain = decompress(message.body, message.sys_flag, 1 << 22)
        assert hashlib.sha256(plain).hexdigest() == account[0]["bodySha256"]
        seen.add(compression_of(message.sys_flag))
    assert seen == {None, *Compression}


@KINDS
def test_the_largest_limit_costs_no_memory(kind: Compression) -> None:
    body, flags = compress(b"x" * 5000, kind)
    tracemalloc.start()
    try:
        assert decompress(body, flags, PLAIN_SIZE_MAX) == b"x" * 5000
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


@KINDS
@pytest.mark.parametrize("size_max", [-1, -(2**40), PLAIN_SIZE_MAX + 1, 2**63, 2**100])
def test_a_limit_that_no_body_can_have_is_a_value_error(kind: Compression, size_max: int) -> None:
    body, flags = compress(b"x" * 5000, kind)
    with pytest.raises(ValueError, match="is not within 0 to 2147483647"):
        decompress(body, flags, size_max)


def test_a_body_that_lz4_makes_in_many_steps_keeps_to_the_limit() -> None:
    plain = bytes(8_000_000)
    body, flags = compress(plain, Compression.LZ4)
    assert len(body) < 40_000, "more comes out than is asked for at once"
    assert decompress(body, flags, len(plain)) == plain
    assert decompress(body, flags, len(plain) + 1) == plain
    with pytest.raises(MessageError, match="more than 7999999 bytes"):
        decompress(body, flags, len(plain) - 1)
    for bad, problem in ((body[:-1], "cut short"), (body + b"m", "1 bytes after")):
        with pytest.raises(MessageError, match=problem):
            decompress(bad, flags, len(plain))


def test_a_small_limit_does_not_let_a_stream_ask_for_a_large_window() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = stream.compress(b"x") + stream.flush()
    with pytest.raises(MessageError, match="not a complete ZSTD frame"):
        decompress(body, 0x201, 1 << 20)
