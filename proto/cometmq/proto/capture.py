"""Single frames, from a packet capture, a log or a test vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.connection import FIELDS_MAX
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.frame import FRAME_SIZE_MAX, HEADER_SIZE_MAX, FrameParser
from cometmq.proto.header_codecs import DECODERS

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command


def decode_frame(
    data: Buffer,
    *,
    frame_size_max: int = FRAME_SIZE_MAX,
    header_size_max: int = HEADER_SIZE_MAX,
    fields_max: int = FIELDS_MAX,
) -> Command:
    """Read the command of exactly one frame.

    Raises a RemoteProtocolError for a malformed or incomplete frame, and for anything after it: a
    stream of frames is for `Connection`, which matches answers to requests.
    """
    parser = FrameParser(frame_size_max=frame_size_max, header_size_max=header_size_max)
    if data:
        parser.receive_data(data)
    frame = parser.next_frame()
    if frame is None:
        raise RemoteProtocolError(f"frame cut short: {len(bytes(data))} bytes of it")
    if rest := parser.pending_size:
        raise RemoteProtocolError(f"{rest} bytes after the frame, which ends at {parser.offset}")
    serialize_type, header, body = frame
    return DECODERS[serialize_type](header, body, fields_max)
