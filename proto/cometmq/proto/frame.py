"""Frames: how a stream of bytes is cut into headers and bodies.

======  ====  =====  ====================================================
offset  size  type   field
======  ====  =====  ====================================================
     0     4  u32    bytes that follow: 4 + size of header + size of body
     4     1  u8     type of the header (`header_codecs.py`)
     5     3  u24    size of the header
     8     …         header
     …     …         body, what is left; no bytes mean that there is none
======  ====  =====  ====================================================

How it works: a read that holds whole frames is cut in place, each header and body copied once
into bytes of its own, which for the usual sizes is faster than a memoryview and lets go of the
read. A frame that its read does not hold is gathered in one growing buffer, so its cost is linear
however it is cut, and memory follows what has come, never what a length claims.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError

_HEAD = Struct(">II")  # length; type and size of the header
HEAD_SIZE = 8
assert _HEAD.size == HEAD_SIZE
_HEADER_SIZE_MASK = 0xFFFFFF
_unpack_head = _HEAD.unpack_from

FRAME_SIZE_MAX = 16 * 1024 * 1024
HEADER_SIZE_MAX = 1024 * 1024

# Type byte, header, body: a plain tuple, for a named one takes 0.2 µs to make.
Frame = tuple[int, bytes, bytes | None]


def frame_head(serialize_type: int, header_size: int, body_size: int) -> bytes:
    """Make the eight bytes that stand before a header."""
    if header_size > _HEADER_SIZE_MASK:
        raise LocalProtocolError(f"a header of {header_size} bytes: the size has 24 bits")
    return _HEAD.pack(4 + header_size + body_size, serialize_type << 24 | header_size)


class FrameParser:
    """Bytes in, frames out; any cut of the stream gives the same frames.

    `frame_size_max` counts a whole frame with its length field, as Apache's
    `com.rocketmq.remoting.frameMaxLength` does. A breach of a limit or of the layout raises
    RemoteProtocolError, and raises it again at each further call: the next frame cannot be found.
    """

    def __init__(
        self, *, frame_size_max: int = FRAME_SIZE_MAX, header_size_max: int = HEADER_SIZE_MAX
    ) -> None:
        self.frame_size_max = frame_size_max
        self.header_size_max = header_size_max
        self._data = b""
        self._size = 0  # of _data
        self._start = 0  # in _data, of what is not cut yet
        self._offset = 0  # in the stream, of the beginning of _data
        self._reads: deque[bytes] = deque()  # behind _data
        self._gathered = bytearray()  # the beginning of a frame that its read did not hold
        self._breach: str | None = None

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes of the stream. They are kept, not copied, until they are cut."""
        # Behind a gathered beginning nothing waits in _data: next_frame relies on it.
        if self._start == self._size and not self._reads and not self._gathered:
            self._offset += self._size
            self._data = data
            self._size = len(data)
            self._start = 0
        elif data and self._breach is None:
            self._reads.append(data)

    def next_frame(self) -> Frame | None:
        """Give the next frame, or None when more bytes are needed."""
        start = self._start
        size = self._size
        if size - start >= HEAD_SIZE:
            data = self._data
            length, word = _unpack_head(data, start)
            end = start + 4 + length
            if end <= size and length + 4 <= self.frame_size_max:
                header_size = word & _HEADER_SIZE_MASK
                body_start = start + HEAD_SIZE + header_size
                if body_start <= end and header_size <= self.header_size_max:
                    self._start = end
                    return (
                        word >> 24,
                        data[start + HEAD_SIZE : body_start],
                        data[body_start:end] or None,
                    )
        elif start == size and not self._gathered and not self._reads:
            self._data = b""  # An idle connection must not hold its last read.
            return None
        return self._gather()

    @property
    def offset(self) -> int:
        """Where in the stream the frame begins that is next."""
        return self._offset + self._start - len(self._gathered)

    @property
    def pending_size(self) -> int:
        """How many bytes have come that are not part of a frame given out."""
        waiting = sum(map(len, self._reads))
        return len(self._gathered) + self._size - self._start + waiting

    def _gather(self) -> Frame | None:
        """Go on with a frame that no read holds whole, or say what is wrong with it."""
        if self._breach is not None:
            raise RemoteProtocolError(self._breach)
        size = self._wanted_size()
        while len(self._gathered) < size:
            if not self._take(size - len(self._gathered)):
                return None
            size = self._wanted_size()
        return self._cut()

    def _wanted_size(self) -> int:
        """Tell how many bytes the frame has, or its head while that is all that is known."""
        if len(self._gathered) < HEAD_SIZE:
            return HEAD_SIZE
        length, word = _unpack_head(self._gathered)
        header_size = word & _HEADER_SIZE_MASK
        if length + 4 > self.frame_size_max:
            self._break(f"{length + 4} bytes exceed frame_size_max {self.frame_size_max}")
        if header_size + 4 > length:
            self._break(f"a header of {header_size} bytes in a frame of length {length}")
        if header_size > self.header_size_max:
            self._break(
                f"a header of {header_size} bytes exceeds header_size_max {self.header_size_max}"
            )
        return int(length) + 4

    def _break(self, problem: str) -> None:
        self._breach = f"frame at byte {self.offset}: {problem}"
        self._data, self._size, self._start = b"", 0, 0
        self._reads.clear()
        raise RemoteProtocolError(self._breach)

    def _take(self, wanted: int) -> bool:
        """Move up to so many bytes from the reads to the gathered ones; False if none is left."""
        if self._start == self._size:
            data = self._reads.popleft() if self._reads else b""
            self._offset += self._size
            self._data, self._size, self._start = data, len(data), 0
            if not data:
                return False
        end = min(self._start + wanted, self._size)
        self._gathered += memoryview(self._data)[self._start : end]
        self._start = end
        return True

    def _cut(self) -> Frame:
        gathered, self._gathered = self._gathered, bytearray()
        word = _unpack_head(gathered)[1]
        view = memoryview(gathered)
        body_start = HEAD_SIZE + (word & _HEADER_SIZE_MASK)
        # A copy, so that a body is the same type however the stream was cut.
        body = bytes(view[body_start:]) or None
        return word >> 24, bytes(view[HEAD_SIZE:body_start]), body
