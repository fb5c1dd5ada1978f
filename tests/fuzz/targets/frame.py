"""The frame parser: any cut of a stream gives the same frames, or the same breach.

The first byte says how many bytes come at once.
"""

from __future__ import annotations

from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.frame import Frame, FrameParser


def check(data: bytes) -> None:
    """Cut the stream once whole and once in pieces."""
    if not data:
        raise RemoteProtocolError("no stream")
    whole = cut(data[1:], len(data))
    assert cut(data[1:], data[0] % 32 + 1) == whole
    if whole[1]:
        raise RemoteProtocolError(whole[1])


def cut(stream: bytes, step: int) -> tuple[list[Frame], str | None, int]:
    """Give the frames, the breach and the bytes that are left over."""
    parser = FrameParser(frame_size_max=2048, header_size_max=512)
    frames: list[Frame] = []
    for at in range(0, len(stream), step):
        parser.receive_data(stream[at : at + step])
        try:
            while (frame := parser.next_frame()) is not None:
                frames.append(frame)
        except RemoteProtocolError as error:
            return frames, str(error), 0
    return frames, None, parser.pending_size
