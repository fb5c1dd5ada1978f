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

How it works: a read is cut when it comes, each header and body copied once into bytes of its own,
which for the usual sizes is faster than a memoryview and lets go of the read. A frame that its
read does not hold whole is gathered in one growing buffer, so its cost is linear however it is
cut, and memory follows what has come, never what a length claims: ten times as much at the worst,
for frames of nothing but eight bytes that nobody takes.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer

_HEAD = Struct(">II")  # length; type and size of the header
HEAD_SIZE = 8
"""Of the bytes that stand before a header."""
assert _HEAD.size == HEAD_SIZE
HEADER_SIZE_LAYOUT_MAX = 0xFFFFFF  # 24 bits, and the mask of them
_unpack_head = _HEAD.unpack_from
pack_head = _HEAD.pack
"""`frame_head` for who has looked at the sizes: what follows, type << 24 | size of the header."""

# Defaults of `FrameParser`: Apache's for a frame, and for a header that of ours.
FRAME_SIZE_MAX = 16 * 1024 * 1024
HEADER_SIZE_MAX = 1024 * 1024
KEPT_SIZE_MIN = 16 * 1024
"""Bytes of a frame that are kept where they were read, and not copied, until all have come."""

# Type byte, header, body: a plain tuple, for a named one takes 0.2 µs to make.
Frame = tuple[int, bytes, bytes | None]


def frame_head(serialize_type: int, header_size: int, body_size: int) -> bytes:
    """Make the eight bytes that stand before a header."""
    if header_size > HEADER_SIZE_LAYOUT_MAX:
        raise LocalProtocolError(f"a header of {header_size} bytes: the size has 24 bits")
    return pack_head(4 + header_size + body_size, serialize_type << 24 | header_size)


class FrameParser:
    """Bytes in, frames out; any cut of the stream gives the same frames.

    `frames` are those that have come whole and that nobody has taken yet; `next_frame` takes one.
    `frame_size_max` counts a whole frame with its length field, as Apache's
    `com.rocketmq.remoting.frameMaxLength` does. When the parser `is_over` no more frames come: the
    stream has ended, or what came of it is nothing that a next frame could be found behind.
    `breach` is what is wrong then: a limit or the layout broken, or an end within a frame.
    """

    def __init__(
        self, *, frame_size_max: int = FRAME_SIZE_MAX, header_size_max: int = HEADER_SIZE_MAX
    ) -> None:
        self.frame_size_max = frame_size_max
        self.header_size_max = header_size_max
        self.frames: deque[Frame] = deque()
        self.is_over = False
        self.breach: str | None = None
        self._harmless_size = min(frame_size_max, header_size_max)  # nothing in it is too large
        self._offset = 0  # in the stream, of what is not cut yet
        self._head = b""  # of a frame that its read did not hold: its first bytes, eight at most
        self._begun: list[bytearray | memoryview] = []  # what came behind them
        self._begun_size = 0  # how many bytes those are
        self._wanted_size = 0  # how many they are when all have come; 0 while the head has not

    def receive_data(self, data: Buffer) -> None:
        """Take the next bytes of the stream, and cut the frames in them; none at all are its end.

        A bytearray or a view is copied, so that it may be read into again. Anything else is a
        TypeError, None too: it is not the end of a stream.
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        if not data or self.is_over:
            self._end()
            return
        size = len(data)
        start = at = self._gather(memoryview(data), size) if self._head else 0
        is_harmless = size <= self._harmless_size
        heads_end = size - HEAD_SIZE
        while at <= heads_end:
            length, word = _unpack_head(data, at)
            header_start = at + HEAD_SIZE
            body_start = header_start + (word & HEADER_SIZE_LAYOUT_MAX)
            end = at + 4 + length
            if not body_start <= end <= size:
                break
            if not is_harmless and self._problem(length, word):
                break
            self.frames.append(
                (word >> 24, data[header_start:body_start], data[body_start:end] or None)
            )
            at = end
        self._offset += at - start
        if at < size:
            self._gather(memoryview(data)[at:], size)

    def stop(self) -> None:
        """Drop what has come and take nothing more: a frame was none that can be understood."""
        self.is_over = True
        self.frames.clear()
        self._forget_begun()

    def next_frame(self) -> Frame | None:
        """Give the next frame, None when more bytes are needed, or raise what the breach is."""
        if self.frames:
            return self.frames.popleft()
        if self.breach is not None:
            raise RemoteProtocolError(self.breach)
        return None

    @property
    def offset(self) -> int:
        """Where in the stream the frame begins that is next."""
        return self._offset - self._waiting_size()

    @property
    def pending_size(self) -> int:
        """How many bytes have come that are not part of a frame given out."""
        return self._waiting_size() + len(self._head) + self._begun_size

    def _waiting_size(self) -> int:
        return sum(HEAD_SIZE + len(header) + len(body or b"") for _, header, body in self.frames)

    def _end(self) -> None:
        """Take the end of the stream, unless it is over anyway."""
        if not self.is_over and (begun := len(self._head) + self._begun_size):
            self._break(f"the stream ends {begun} bytes into it")
        self.is_over = True

    def _break(self, problem: str) -> None:
        self.is_over = True
        self.breach = f"frame at byte {self._offset}: {problem}"

    def _gather(self, data: memoryview, read_size: int) -> int:
        """Add to the frame that was begun, or begin one; tell how many bytes that took.

        `read_size` is that of the whole read that the data is the rest of.
        """
        taken = 0
        if not self._wanted_size:
            taken = HEAD_SIZE - len(self._head)
            self._head += data[:taken]
            if len(self._head) < HEAD_SIZE:
                return len(data)
            length, word = _unpack_head(self._head)
            if problem := self._problem(length, word):
                self._break(problem)
                return len(data)
            self._wanted_size = length + 4 - HEAD_SIZE
        end = taken + self._wanted_size - self._begun_size
        self._keep(data[taken:end], read_size)
        if end > len(data):
            return len(data)
        self.frames.append(_cut(_unpack_head(self._head)[1], self._begun))
        self._offset += HEAD_SIZE + self._wanted_size
        self._forget_begun()
        return end

    def _keep(self, piece: memoryview, read_size: int) -> None:
        """Keep a part of a frame, by itself if it is most of a large read, which it keeps alive."""
        size = len(piece)
        self._begun_size += size
        if size >= KEPT_SIZE_MIN and size * 2 >= read_size:
            self._begun.append(piece)
            return
        last = self._begun[-1] if self._begun else None
        if not isinstance(last, bytearray):
            self._begun.append(last := bytearray())
        last += piece

    def _forget_begun(self) -> None:
        self._head = b""
        self._begun = []
        self._begun_size = self._wanted_size = 0

    def _problem(self, length: int, word: int) -> str | None:
        """Tell what is wrong with a frame by its head."""
        size = length + 4
        header_size = word & HEADER_SIZE_LAYOUT_MAX
        if size > self.frame_size_max:
            return f"{size} bytes exceed frame_size_max {self.frame_size_max}"
        if header_size + 4 > length:
            return f"a header of {header_size} bytes in a frame of length {length}"
        if header_size > self.header_size_max:
            return f"a header of {header_size} bytes exceeds header_size_max {self.header_size_max}"
        return None


def _as_bytes(data: Buffer) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without a type checker
        raise TypeError(f"receive_data takes bytes, not {type(data).__name__}")
    return bytes(data)


def _cut(word: int, pieces: list[bytearray | memoryview]) -> Frame:
    """Put a frame together, each byte copied once: from 1 MiB on that is half of what it costs."""
    header_size = word & HEADER_SIZE_LAYOUT_MAX
    first = memoryview(pieces[0])
    if len(first) < header_size:
        first, pieces = memoryview(b"".join(pieces)), pieces[:1]
    body = b"".join((first[header_size:], *pieces[1:]))
    return word >> 24, bytes(first[:header_size]), body or None
