"""The loop's turn: the requests found by one look at the sockets, finished with one `end_turn`.

How it works. The drivers call `found` after the requests of each read. The first read of a turn
asks the loop to call `end` soon, which the loop does once it has handled all sockets that were
ready at the time; until then, reads add to the turn. `end` lets the owner finish (one write to the
log for all records), and then each peer's answers leave in one write.

A single busy connection need not wait for others: if two successive reads are from the same
connection and no turn is open, the second read is a whole turn and ends at once.

So answers never leave before `end_turn` has returned, and wait for nothing but the end of the turn
in which they were given.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net.peer import Peer

_log = logging.getLogger("cometmq.net")


class Turn:
    """The turns of one owner's connections. `call_soon` is the loop's."""

    __slots__ = ("_call_soon", "_end_turn", "_is_open", "_last", "_waiting", "is_handling")

    def __init__(
        self, end_turn: Callable[[], None], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._end_turn = end_turn
        self._call_soon = call_soon
        self._is_open = False  # `end` is going to be called
        self.is_handling = False  # requests of a read are being handled: `found` comes next
        self._last: Peer | None = None  # whose requests came last
        self._waiting: list[Peer] = []  # with something to send

    def found(self, peer: Peer) -> None:
        """Note that a read of this peer had requests in it, all handled by now."""
        if self._is_open:
            self._last = peer
        elif peer is self._last:
            self.end()
        else:
            self._last = peer
            self._open()

    def release(self, peer: Peer) -> None:
        """Note that this peer has something to send; called once before each `flush`."""
        self._waiting.append(peer)
        if not self._is_open and not self.is_handling:
            self._open()

    def end(self) -> None:
        """End the turn now; also called after many answers were given outside a turn."""
        self._is_open = True  # Answers given by end_turn need no turn of their own.
        try:
            self._end_turn()
        except Exception:
            _log.exception("end_turn failed; this is a bug")
        self._is_open = False
        if waiting := self._waiting:
            self._waiting = []
            for peer in waiting:
                try:
                    peer.flush()
                except Exception:
                    _log.exception("%s: the data to be sent is not bytes; this is a bug", peer.host)
                    peer.drop("its answers could not be written")

    def leave(self, peer: Peer) -> None:
        """Forget a peer that is gone."""
        if self._last is peer:
            self._last = None

    def _open(self) -> None:
        self._is_open = True
        self._call_soon(self.end)
