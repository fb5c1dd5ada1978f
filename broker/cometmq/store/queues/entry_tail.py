"""The entries of a queue that are only in memory, one after another.

If there are very many queues, most get one entry between two writes of their files. Then the tail
is that entry itself: with a separate buffer, each put would touch two more places that no cache
holds. The tail becomes a buffer when more entries follow.
"""

from __future__ import annotations

from typing import TypeAlias

Tail: TypeAlias = "bytes | bytearray"


def behind(tail: Tail, count: int) -> Tail:
    """Return a tail without its first `count` bytes; a buffer is shortened in place."""
    if count == len(tail):
        return b""
    rest = tail if type(tail) is bytearray else bytearray(tail)
    del rest[:count]
    return rest
