"""The types of buffers that all modules share, and their sizes."""

from __future__ import annotations

import mmap
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from cometmq.proto.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a body. A view must be contiguous, of any item size."""

RecordBuffer: TypeAlias = bytes | mmap.mmap
"""Buffers in which stored records are read in place: their slices are separate `bytes`."""

_VIEWS = frozenset({memoryview})
_view_size: Callable[[Buffer], int] = attrgetter("nbytes")
_is_contiguous: Callable[[Buffer], bool] = attrgetter("c_contiguous")


def body_size_of(body: Buffer | None, parts: Sequence[Buffer]) -> int:
    """Return the size in bytes of a whole body, or refuse it."""
    size = 0 if body is None else len(body) if type(body) is bytes else _size_of(body)
    if not parts:
        return size
    if len(parts) > 1 and _VIEWS.issuperset(map(type, parts)):
        try:
            if all(map(_is_contiguous, parts)):
                # For many slices of a log this is nearly as fast as their len.
                return sum(map(_view_size, parts), size)
        except ValueError:
            pass  # One has been released: `_size_of` reports it.
    return sum(map(_size_of, parts), size)


def _size_of(buffer: object) -> int:
    """Return the size in bytes of one buffer of a body, or refuse it."""
    if isinstance(buffer, bytes | bytearray):
        return len(buffer)
    if isinstance(buffer, memoryview):
        try:
            if buffer.c_contiguous:
                return buffer.nbytes
        except ValueError:
            pass  # It has been released.
        raise LocalProtocolError("a body or part is a view that is released or not contiguous")
    raise LocalProtocolError(f"a body or part is {type(buffer).__name__}, not bytes")
