"""The frame parser gives the same frames, or the same breach, however a stream is cut.

The first byte is the number of bytes that come at once.
"""

from __future__ import annotations

from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.frame import Frame, FrameParser


def check(data: bytes) -> None:
    """Compare the stream parsed whole with the stream parsed in pieces."""
    if not data:
        raise RemoteProtocolError("no stream")
    whole = cut(data[1:], len(data))
    assert cut(data[1:], data[0] % 32 + 1) == whole
    if whole[1]:
        raise RemoteProtocolError(whole[1])


def cut(stream: bytes, step: int) -> tuple[list[Frame], str | None, int]:
    """Return the frames, the breach and the number of bytes left over."""
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
