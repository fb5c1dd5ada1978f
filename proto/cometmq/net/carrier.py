"""The interface of a driver to its peer, and the measure of how long bytes have been unsent.

How it works. A look marks all bytes that are unsent at that time, by counting them. Later bytes
queue up after these, so some marked bytes are still unsent as long as more bytes are unsent than
were added since. Once all marked bytes are sent, the next look marks again. So a peer that keeps
reading is never called slow, however much is always waiting, and nothing waits longer than twice
the allowed time. Only a peer with unsent bytes at a look costs the count of bytes added since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


class Carrier:
    """The socket of one connection, as its peer sees it."""

    __slots__ = ("_has_marked", "_marked_ms", "_since_marked")

    def __init__(self) -> None:
        self._has_marked = False
        self._marked_ms = self._since_marked = 0

    def unread_ms(self, now_ms: int) -> int:
        """Look how long some bytes have been unsent, as far as earlier looks can tell."""
        unsent = self._unsent_size()
        if self._has_marked and unsent > self._since_marked:
            return now_ms - self._marked_ms
        self._has_marked = unsent > 0
        self._marked_ms, self._since_marked = now_ms, 0
        return 0

    # Implemented by each driver.

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
