from __future__ import annotations

import sys
import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError
from cometmq.proto.frame import KEPT_SIZE_MIN, Frame, FrameParser, frame_head


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    return frame_head(serialize_type, len(header), len(body)) + header + body


def frames(parser: FrameParser) -> list[Frame]:
    found: list[Frame] = []
    while (one := parser.next_frame()) is not None:
        found.append(one)
    return found


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Cut a stream into pieces of these sizes, with the rest as one piece."""
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [*pieces, stream]


FRAMES = st.lists(
    st.tuples(st.integers(0, 255), st.binary(max_size=20), st.binary(max_size=30)), max_size=6
)


@settings(deadline=None, max_examples=300)
@given(FRAMES, st.lists(st.integers(0, 40), max_size=20), st.booleans())
def test_any_cut_of_a_stream_gives_the_same_frames(
    sent: list[tuple[int, bytes, bytes]], sizes: list[int], drained: bool
) -> None:
    stream = b"".join(frame(header, body, kind) for kind, header, body in sent)
    parser = FrameParser()
    found: list[Frame] = []
    arrived = 0
    for piece in filter(None, cut(stream, sizes)):
        parser.receive_data(piece)
        arrived += len(piece)
        if drained:
            found += frames(parser)
            given_out = sum(8 + len(h) + len(b or b"") for _, h, b in found)
            assert parser.pending_size == arrived - given_out
            assert parser.offset == given_out
    found += frames(parser)
    assert found == [(kind, header, body or None) for kind, header, body in sent]
    assert parser.pending_size == 0
    assert parser.offset == len(stream)


BREACHES = [
    ("00000003 00000000", "a header of 0 bytes in a frame of length 3"),
    ("00000000 00000000", "a header of 0 bytes in a frame of length 0"),
    ("00000010 0000000d", "a header of 13 bytes in a frame of length 16"),
    ("000000fd 00000001", "257 bytes exceed frame_size_max 256"),
    ("ffffffff 00000001", "4294967299 bytes exceed frame_size_max 256"),
    ("80000000 00000001", "2147483652 bytes exceed frame_size_max 256"),
    ("00000050 00000041", "a header of 65 bytes exceeds header_size_max 64"),
]


@pytest.mark.parametrize(("head", "problem"), BREACHES)
@pytest.mark.parametrize("step", [1, 3, 300])
@pytest.mark.parametrize("behind", [b"", bytes(200)])
def test_a_breach_says_what_and_where(head: str, problem: str, step: int, behind: bytes) -> None:
    good = frame(b"header", b"body")
    stream = good + bytes.fromhex(head) + behind
    parser = FrameParser(frame_size_max=256, header_size_max=64)
    found: list[Frame] = []
    said = ""
    for at in range(0, len(stream), step):
        parser.receive_data(stream[at : at + step])
        try:
            while (one := parser.next_frame()) is not None:
                found.append(one)
        except RemoteProtocolError as error:
            said = str(error)
            break
    assert said == f"frame at byte {len(good)}: {problem}"
    assert found == [(0, b"header", b"body")]
    parser.receive_data(good)
    with pytest.raises(RemoteProtocolError, match=str(len(good))):
        parser.next_frame()


def test_frames_of_exactly_the_limits_pass() -> None:
    parser = FrameParser(frame_size_max=256, header_size_max=64)
    largest = frame(bytes(64), bytes(256 - 8 - 64), 2)
    parser.receive_data(largest)
    parser.receive_data(largest[:100])
    parser.receive_data(largest[100:])
    assert len(frames(parser)) == 2


def test_the_largest_frame_is_the_one_that_apache_takes() -> None:
    size = 16 * 1024 * 1024
    parser = FrameParser()
    stream = frame(b"h", bytes(size - 9))
    assert len(stream) == size
    parser.receive_data(stream)
    assert len(frames(parser)) == 1
    parser.receive_data(frame(b"h", bytes(size - 8)))
    with pytest.raises(RemoteProtocolError, match="16777217 bytes exceed frame_size_max 16777216"):
        parser.next_frame()


def test_a_header_of_more_than_24_bits_cannot_be_sent() -> None:
    assert frame_head(7, 2**24 - 1, 0) == bytes.fromhex("01000003 07ffffff")
    with pytest.raises(LocalProtocolError):
        frame_head(7, 2**24, 0)


def test_a_claimed_length_costs_no_memory() -> None:
    parsers: list[FrameParser] = []
    tracemalloc.start()
    try:
        for _ in range(100):
            parser = FrameParser()
            parser.receive_data(frame_head(0, 100, 16_000_000) + bytes(10))
            assert parser.next_frame() is None
            parsers.append(parser)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_drained_parser_does_not_hold_what_it_read() -> None:
    parser = FrameParser()
    data = frame(b"header", bytes(1000))
    before = sys.getrefcount(data)
    parser.receive_data(data)
    frames(parser)
    assert sys.getrefcount(data) == before


def test_a_body_is_the_same_type_however_the_stream_was_cut() -> None:
    stream = frame(b"header", bytes(range(256)) * 4096)
    for sizes in ([], [100_000] * 10):
        parser = FrameParser()
        for piece in cut(stream, sizes):
            parser.receive_data(piece)
        ((_, header, body),) = frames(parser)
        assert header == b"header"
        assert type(body) is bytes
        assert body == bytes(range(256)) * 4096


PIECES = st.sampled_from([1, 7, 100, KEPT_SIZE_MIN - 1, KEPT_SIZE_MIN, KEPT_SIZE_MIN + 1, 60_000])


@settings(deadline=None, max_examples=100)
@given(st.lists(PIECES, max_size=12), st.sampled_from([0, 5, 20_000]))
def test_large_frames_are_the_same_however_they_are_cut(sizes: list[int], header_size: int) -> None:
    rng = Random(1)
    sent = [(rng.randbytes(header_size), rng.randbytes(size)) for size in (70_000, 10, 90_000)]
    stream = b"".join(frame(header, body) for header, body in sent)
    parser = FrameParser()
    arrived = 0
    for piece in filter(None, cut(stream, sizes)):
        parser.receive_data(piece)
        arrived += len(piece)
        assert parser.pending_size == arrived
    assert [(header, body) for _, header, body in frames(parser)] == sent


def test_the_beginning_of_a_frame_does_not_keep_a_whole_read_alive() -> None:
    parsers: list[FrameParser] = []
    tracemalloc.start()
    try:
        for _ in range(50):
            parser = FrameParser()
            parser.receive_data(
                frame(b"header", bytes(200_000)) + frame(b"", bytes(60_000))[:20_000]
            )
            frames(parser)
            parsers.append(parser)
        assert tracemalloc.get_traced_memory()[0] < 50 * 30_000
    finally:
        tracemalloc.stop()


def test_after_a_breach_nothing_that_comes_is_kept() -> None:
    parser = FrameParser(frame_size_max=100)
    parser.receive_data(frame(b"", bytes(200))[:50])
    parser.receive_data(b"more" * 100)
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match="exceed frame_size_max"):
            parser.next_frame()
        parser.receive_data(b"still more")
        assert parser.pending_size <= 8


def seconds_by_bytes(body_size: int) -> float:
    stream = frame(b"header", bytes(body_size))
    pieces = [bytes([byte]) for byte in stream]
    parser = FrameParser()
    found: list[Frame] = []
    started = time.process_time()
    for piece in pieces:
        parser.receive_data(piece)
        if (one := parser.next_frame()) is not None:
            found.append(one)
    seconds = time.process_time() - started
    assert len(found) == 1
    return seconds


def test_a_body_that_comes_byte_by_byte_costs_linear_time() -> None:
    small = min(seconds_by_bytes(10_000) for _ in range(3))
    large = min(seconds_by_bytes(80_000) for _ in range(3))
    assert large / small < 8 * 3, "eight times the bytes: 64 would be quadratic"


@pytest.mark.slow
def test_four_mib_that_come_byte_by_byte_cost_linear_time() -> None:
    small = min(seconds_by_bytes(2**18) for _ in range(2))
    assert seconds_by_bytes(2**22) / small < 16 * 3


def seconds_by_frames(count: int) -> float:
    stream = frame(b"header", b"body") * count
    parser = FrameParser()
    started = time.process_time()
    parser.receive_data(stream)
    assert len(frames(parser)) == count
    return time.process_time() - started


def test_ten_thousand_frames_in_one_read_cost_linear_time() -> None:
    small = min(seconds_by_frames(1_250) for _ in range(5))
    large = min(seconds_by_frames(10_000) for _ in range(5))
    assert large / small < 8 * 3


@pytest.mark.parametrize("size", [1, 7, 8, 13])
def test_a_stream_that_ends_within_a_frame_is_a_breach_behind_the_whole_ones(size: int) -> None:
    whole = frame(b"header", b"body")
    parser = FrameParser()
    parser.receive_data(whole + whole[:size])
    parser.receive_data(b"")
    parser.receive_data(b"")
    parser.receive_data(whole)
    assert parser.is_over
    assert parser.next_frame() == (0, b"header", b"body")
    with pytest.raises(RemoteProtocolError, match=f"at byte 18: the stream ends {size} bytes into"):
        parser.next_frame()


def test_a_stream_that_ends_between_frames_is_over_without_a_breach() -> None:
    parser = FrameParser()
    parser.receive_data(frame(b"header"))
    assert not parser.is_over
    parser.receive_data(b"")
    assert parser.is_over
    assert len(frames(parser)) == 1
    assert parser.breach is None


def test_a_stopped_parser_drops_what_has_come_and_takes_nothing_more() -> None:
    parser = FrameParser()
    parser.receive_data(frame(b"header") * 2 + b"rest")
    parser.stop()
    parser.receive_data(frame(b"header"))
    assert parser.is_over
    assert frames(parser) == []
    assert parser.pending_size == 0


def test_limits_hold_in_a_read_that_is_larger_than_they_are() -> None:
    small, large = frame(b"h", bytes(40)), frame(b"h", bytes(300))
    for stream, problem in (
        (small * 10 + large, "309 bytes exceed frame_size_max 256"),
        (small * 10 + frame(bytes(65)) + small, "65 bytes exceeds header_size_max 64"),
    ):
        parser = FrameParser(frame_size_max=256, header_size_max=64)
        parser.receive_data(stream)
        assert len(parser.frames) == 10
        parser.frames.clear()
        with pytest.raises(RemoteProtocolError, match=f"frame at byte 490: .*{problem}"):
            parser.next_frame()
