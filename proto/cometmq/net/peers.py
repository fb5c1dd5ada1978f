"""All connections of one owner: which there are, what they hold together, which are silent.

How it works. There are no timers. The owner calls `tick(now_ms)` about every second, and this finds
what is overdue. Unfinished frames are in a table in the order in which they began; our waiting
requests are in a heap by deadline. Of the peers, each tick looks at a share, so that each peer is
looked at some ten times within the shorter of two times: that for which it may be silent, and that
for which sent data may stay unread. A peer that is heard from copies `now_ms`, so activity costs no
call of a clock.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from cometmq.net.limits import Limits
from cometmq.net.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.net.owner import Owner
    from cometmq.net.peer import Peer
    from cometmq.proto.header_typed import RequestReader

_log = logging.getLogger("cometmq.net")

# Looks at each peer within that time.
_LOOKS = 10

DROPS_LOGGED_MAX = 20
"""Dropped connections that are logged singly in each `DROPS_WINDOW_MS`."""
DROPS_WINDOW_MS = 10_000


class Peers:
    """The connections of one owner, over any number of listening sockets and either driver.

    `call_soon` is the loop's; everything is called on the loop's thread. `request_reader` is for
    the requests whose fields the owner will read. The attributes `*_count` and `*_size` are for
    metrics.
    """

    def __init__(
        self,
        owner: Owner,
        limits: Limits | None = None,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        request_reader: RequestReader | None = None,
        now_ms: int = 0,
    ) -> None:
        self.owner = owner
        self.limits = Limits() if limits is None else limits
        self.turn = Turn(owner.end_turn, call_soon)
        self.call_soon = call_soon
        self.request_reader = request_reader
        self.now_ms = now_ms
        self.refused_count = 0  # connections beyond connections_max
        self.receiving_size = 0  # bytes of frames begun and not finished
        self._peers: OrderedDict[Peer, None] = OrderedDict()
        self._receiving: dict[Peer, int] = {}  # since when a frame has been incomplete
        self._numbers = itertools.count()
        # A heap: time, a number that breaks ties, the request's own number, the peer.
        self._deadlines: list[tuple[int, int, int, Peer]] = []
        self._looked_ms = now_ms
        self._full = False
        self._drops = 0  # of this window
        self._drops_since_ms = now_ms

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._peers))

    def admit(self, peer: Peer) -> bool:
        """Admit a new connection; return False if there are too many."""
        if len(self._peers) >= self.limits.connections_max:
            self.refused_count += 1
            if not self._full:  # One line for each flood.
                _log.warning(
                    "connections_max %d reached: %s and all further connections are closed",
                    self.limits.connections_max,
                    peer.host,
                )
            self._full = True
            return False
        self._full = False
        self._peers[peer] = None
        return True

    def leave(self, peer: Peer) -> bool:
        """Forget a connection that is gone; return False if it was never admitted."""
        if peer not in self._peers:
            return False
        del self._peers[peer]
        self.turn.leave(peer)
        return True

    def note_receiving(self, peer: Peer, grown: int) -> bool:
        """Note that an unfinished frame has grown; return False if all together are too large."""
        self._receiving.setdefault(peer, self.now_ms)
        self.receiving_size += grown
        return self.receiving_size <= self.limits.receiving_bytes_max

    def note_received(self, peer: Peer, size: int) -> None:
        """Note that a frame, counted with `size` bytes so far, is finished or given up."""
        self._receiving.pop(peer, None)
        self.receiving_size -= size

    def note_dropped(self, peer: Peer, reason: str) -> None:
        """Log why a connection was dropped; in a flood of bad ones only their number is logged."""
        self._drops += 1
        if self._drops <= DROPS_LOGGED_MAX:
            _log.warning("%s: dropped: %s", peer.host, reason)

    def note_deadline(self, peer: Peer, opaque: int, timeout_ms: int) -> None:
        """Note when to give up a request of ours."""
        due_ms = self.now_ms + timeout_ms
        heapq.heappush(self._deadlines, (due_ms, next(self._numbers), opaque, peer))

    def tick(self, now_ms: int) -> None:
        """Give up what is overdue at this time of a monotonic clock."""
        self.now_ms = now_ms
        if now_ms - self._drops_since_ms >= DROPS_WINDOW_MS:
            self._end_drops()
        self._end_slow_frames()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, opaque, peer = heapq.heappop(self._deadlines)
            peer.expire(opaque)
        self._end_idle()

    def close(self, reason: str) -> None:
        """Close every connection, each once the answers given until now have left."""
        self.turn.end()
        for peer in self:
            peer.close(reason)

    def _end_drops(self) -> None:
        more = self._drops - DROPS_LOGGED_MAX
        if more > 0:
            _log.warning("%d more connections were dropped in %d s", more, DROPS_WINDOW_MS // 1000)
        self._drops = 0
        self._drops_since_ms = self.now_ms

    def _end_slow_frames(self) -> None:
        timeout_ms = self.limits.frame_timeout_ms
        overdue: list[Peer] = []
        for peer, since_ms in self._receiving.items():
            if self.now_ms - since_ms < timeout_ms:
                break
            overdue.append(peer)
        for peer in overdue:
            peer.drop(f"a frame was not finished within frame_timeout_ms {timeout_ms}")

    def _end_idle(self) -> None:
        timeout_ms = min(self.limits.idle_timeout_ms, self.limits.unsent_timeout_ms)
        share = len(self._peers) * (self.now_ms - self._looked_ms) * _LOOKS // timeout_ms
        if not share and self.now_ms - self._looked_ms < timeout_ms // _LOOKS:
            return
        self._looked_ms = self.now_ms
        # At least one, because few peers and short ticks would round to none.
        for _ in range(min(share + 1, len(self._peers))):
            peer = next(iter(self._peers))
            self._peers.move_to_end(peer)
            self._look_at(peer)

    def _look_at(self, peer: Peer) -> None:
        limits = self.limits
        if self.now_ms - peer.heard_ms >= limits.idle_timeout_ms:
            if peer.is_paused or peer.closed_because is not None:
                peer.drop(f"nothing read for idle_timeout_ms {limits.idle_timeout_ms}")
            else:
                peer.close(f"no byte for idle_timeout_ms {limits.idle_timeout_ms}")
        elif peer.unread_ms(self.now_ms) >= limits.unsent_timeout_ms:
            peer.drop(
                f"bytes sent to it were unread for unsent_timeout_ms {limits.unsent_timeout_ms}"
            )
