from __future__ import annotations

import pytest
from tests.proto.wire_vectors import VECTORS

from cometmq.proto import Command, Connection, RemoteProtocolError, decode_frame
from cometmq.proto.commands import GetMaxOffset
from cometmq.proto.header_codecs import HEADER_CODECS

ASKED = GetMaxOffset("T", 3)
FRAME = b"".join(Connection().send(Command.request(30, ASKED, opaque=7, body=b"body")))


def test_each_captured_frame_is_one_command() -> None:
    for vector in VECTORS:
        assert decode_frame(vector.frame).code == vector.header["code"]


def test_a_frame_of_each_codec_is_read() -> None:
    for codec in HEADER_CODECS.values():
        frame = b"".join(Connection().send(Command.request(30, ASKED, codec=codec)))
        for data in (frame, bytearray(frame), memoryview(frame)):
            command = decode_frame(data)
            assert (command.codec, command.read(GetMaxOffset)) == (codec, ASKED)


@pytest.mark.parametrize("size", range(len(FRAME)))
def test_a_part_of_a_frame_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"cut short: {size} bytes"):
        decode_frame(FRAME[:size])


@pytest.mark.parametrize("more", [b"x", FRAME])
def test_what_stands_behind_a_frame_is_refused(more: bytes) -> None:
    with pytest.raises(
        RemoteProtocolError, match=f"{len(more)} bytes after .* ends at {len(FRAME)}"
    ):
        decode_frame(FRAME + more)


def test_what_is_no_frame_or_over_a_limit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="header type 7 is unknown"):
        decode_frame(bytes.fromhex("00000005 07000001 21"))
    with pytest.raises(RemoteProtocolError, match="frame_size_max 64"):
        decode_frame(FRAME, frame_size_max=64)
