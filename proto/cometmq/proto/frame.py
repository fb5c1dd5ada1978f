"""Frames: cutting a stream of bytes into headers and bodies.

======  ====  =====  ====================================================
offset  size  type   field
======  ====  =====  ====================================================
     0     4  u32    bytes that follow: 4 + size of header + size of body
     4     1  u8     type of the header (`header_codecs.py`)
     5     3  u24    size of the header
     8     …         header
     …     …         body: the rest; if that is empty, there is no body
======  ====  =====  ====================================================

How it works: a read is cut as soon as it comes, and each header and body is copied once into
separate bytes. For the usual sizes this is faster than a memoryview, and it does not keep the read
alive. A frame that is not complete in its read is gathered in one growing buffer, so its cost is
linear however it is cut. Memory follows the bytes received, never a claimed length: at worst it is
ten times as much, for frames of only eight bytes that nobody takes.
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
"""The size of the bytes before a header."""
assert _HEAD.size == HEAD_SIZE
HEADER_SIZE_LAYOUT_MAX = 0xFFFFFF  # 24 bits, and the mask of them
_unpack_head = _HEAD.unpack_from
pack_head = _HEAD.pack
"""`frame_head` for checked sizes: the bytes that follow, and type << 24 | size of the header."""

# Defaults of `FrameParser`: for a frame Apache's, for a header our own.
FRAME_SIZE_MAX = 16 * 1024 * 1024
HEADER_SIZE_MAX = 1024 * 1024
KEPT_SIZE_MIN = 16 * 1024
"""The smallest piece of a frame that is kept in its read, uncopied, until all have come."""

# Type byte, header, body: a plain tuple, because a named one takes 0.2 µs to make.
Frame = tuple[int, bytes, bytes | None]


def frame_head(serialize_type: int, header_size: int, body_size: int) -> bytes:
    """Make the eight bytes before a header."""
    if header_size > HEADER_SIZE_LAYOUT_MAX:
        raise LocalProtocolError(f"a header of {header_size} bytes: the size must fit into 24 bits")
    return pack_head(4 + header_size + body_size, serialize_type << 24 | header_size)


class FrameParser:
    """Bytes in, frames out; however the stream is cut, the frames are the same.

    `frames` are the complete frames that nobody has taken yet; `next_frame` takes one.
    `frame_size_max` counts a whole frame with its length field, as Apache's
    `com.rocketmq.remoting.frameMaxLength` does. Once the parser `is_over`, no more frames come: the
    stream has ended, or the next frame cannot be found in it. Then `breach` is what is wrong, if
    anything: a broken limit or layout, or an end within a frame.
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
        self._offset = 0  # in the stream, of the first byte not cut yet
        self._head = b""  # the first bytes, eight at most, of an incomplete frame
        self._begun: list[bytearray | memoryview] = []  # its bytes after those
        self._begun_size = 0  # how many bytes those are
        self._wanted_size = 0  # how many they will be; 0 while the head is incomplete

    def receive_data(self, data: Buffer) -> None:
        """Take the next bytes of the stream, and cut the frames in them; no bytes mean its end.

        A bytearray or a view is copied, so that it may be read into again. Anything else is a
        TypeError, even None, which does not mean the end of the stream.
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
        """Drop everything received and take nothing more, after a frame that cannot be read."""
        self.is_over = True
        self.frames.clear()
        self._forget_begun()

    def next_frame(self) -> Frame | None:
        """Return the next frame, None if more bytes are needed; raise if there is a breach."""
        if self.frames:
            return self.frames.popleft()
        if self.breach is not None:
            raise RemoteProtocolError(self.breach)
        return None

    @property
    def offset(self) -> int:
        """Where in the stream the next frame begins."""
        return self._offset - self._waiting_size()

    @property
    def pending_size(self) -> int:
        """The number of received bytes that are not part of a frame that was taken."""
        return self._waiting_size() + len(self._head) + self._begun_size

    def _waiting_size(self) -> int:
        return sum(HEAD_SIZE + len(header) + len(body or b"") for _, header, body in self.frames)

    def _end(self) -> None:
        """Take the end of the stream, unless the parser is over already."""
        if not self.is_over and (begun := len(self._head) + self._begun_size):
            self._break(f"the stream ends {begun} bytes into it")
        self.is_over = True

    def _break(self, problem: str) -> None:
        self.is_over = True
        self.breach = f"frame at byte {self._offset}: {problem}"

    def _gather(self, data: memoryview, read_size: int) -> int:
        """Add to the incomplete frame, or begin one; return how many bytes that took.

        `read_size` is the size of the whole read, of which `data` is the rest.
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
        """Keep a part of a frame, uncopied if it is most of a large read, which it keeps alive."""
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
        """Return what is wrong with a frame, by its head, or None."""
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
    """Join the pieces of a frame, copying each byte once: half of the cost from 1 MiB on."""
    header_size = word & HEADER_SIZE_LAYOUT_MAX
    first = memoryview(pieces[0])
    if len(first) < header_size:
        first, pieces = memoryview(b"".join(pieces)), pieces[:1]
    body = b"".join((first[header_size:], *pieces[1:]))
    return word >> 24, bytes(first[:header_size]), body or None
