"""Which parts of the log are in memory, besides the hot ones: the kernel is asked block by block.

A fault on a page that only the disk has holds up the whole process. Copying the data out of the
page cache, which can be refused, makes a pull a tenth more expensive than sending it from the map.
So the kernel is asked whether it has all of a block. The answer holds for every read of that block
until `forget` is called, some milliseconds later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.store.log.segments import Segment, Segments

BLOCK_SIZE: Final = 512 * 1024
"""Asking about a block takes 1.9 µs; about the 33 KiB of a pull, 1.5."""


class WarmBlocks:
    """Which blocks of the segments are in memory."""

    __slots__ = ("_known", "_segments")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._known: dict[int, bool] = {}  # By the physical offset at which each block begins.

    def hold(self, segment: Segment, position: int, size: int) -> bool:
        """Whether a whole range of a segment is in memory."""
        end = position + size
        at = position - position % BLOCK_SIZE
        known = self._known
        while at < end:
            is_warm = known.get(segment.start + at)
            if is_warm is None:
                room = min(BLOCK_SIZE, segment.length - at)
                is_warm = self._segments.file(segment).is_cached(room, at)
                known[segment.start + at] = is_warm
            if not is_warm:
                return False
            at += BLOCK_SIZE
        return True

    def forget(self) -> None:
        """Forget the answers: the kernel takes memory back when it is needed elsewhere."""
        if self._known:
            self._known.clear()
