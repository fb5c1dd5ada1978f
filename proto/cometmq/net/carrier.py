"""What a driver does for its peer, and for how long it has had what the peer does not read.

How it works. At some look all that is unsent is marked, by how much it is. What is sent later
stands behind it, so as long as more is unsent than came since, some of what was marked is. When
none is, the next look marks anew. So nobody is called slow who keeps reading, however much always
waits; and nothing waits for longer than two such times. Only who has something unsent at a look
costs the count of what comes since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


class Carrier:
    """One connection's socket, as its peer sees it."""

    __slots__ = ("_has_marked", "_marked_ms", "_since_marked")

    def __init__(self) -> None:
        self._has_marked = False
        self._marked_ms = self._since_marked = 0

    def unread_ms(self, now_ms: int) -> int:
        """Look how long some bytes have been unsent, as far as looks before this one have seen."""
        unsent = self._unsent_size()
        if self._has_marked and unsent > self._since_marked:
            return now_ms - self._marked_ms
        self._has_marked = unsent > 0
        self._marked_ms, self._since_marked = now_ms, 0
        return 0

    # What each driver has its own of.

    def _write(self, data: Buffer) -> None:
        raise NotImplementedError

    def _write_all(self, buffers: list[Buffer]) -> None:
        raise NotImplementedError

    def _pause_reading(self) -> None:
        raise NotImplementedError

    def _resume_reading(self) -> None:
        raise NotImplementedError

    def _unsent_size(self) -> int:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    def _abort(self) -> None:
        raise NotImplementedError
