"""Pulls that wait for a message: held until one comes for them, or their time is over.

A held pull is an entry in a table by queue and a deadline in a heap, no task and no timer. When
messages of a queue can be read, those that wait there look again, once a turn; a pull whose filter
none of them passes stays held, and goes on looking behind them. The last look, at the deadline,
answers whatever it finds.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.net import LATER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net import Frame, Later, Peer
    from cometmq.proto.command import Command
    from cometmq.store.turn import Runs


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull that waits."""

    peer: Peer
    request: Command
    topic: str
    queue_id: int
    deadline_ms: int
    look: Callable[[bool], Command | Frame | Later | None]
    """Looks again, for the last time or not: the answer, LATER when it comes by another way, None
    when there is nothing yet."""


class LongPolling:
    """All pulls that wait."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._of_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._count = 0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; False when there are too many."""
        if self._count >= self._held_max:
            return False
        self._count += 1
        self._number += 1
        self._held.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._of_peer.setdefault(pull.peer, {})[pull] = None
        heapq.heappush(self._deadlines, (pull.deadline_ms, self._number, pull))
        return True

    def readable(self, runs: Runs) -> None:
        """Have those look again that wait for any of the queues that got messages."""
        if self._count:
            for queue, _, _ in runs:
                self.arrived(queue.topic, queue.queue_id)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Have those that wait for a queue look again."""
        waiting = self._held.get((topic, queue_id))
        if waiting is not None:
            for pull in tuple(waiting):
                self._look(pull, is_last=False)

    def tick(self, now_ms: int) -> None:
        """Answer those whose time is over."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            pull = heapq.heappop(self._deadlines)[2]
            if pull in self._of_peer.get(pull.peer, ()):
                self._look(pull, is_last=True)
        # What was answered early leaves its deadline behind.
        if len(self._deadlines) > 1000 + 4 * self._count:
            self._deadlines = [
                each for each in self._deadlines if each[2] in self._of_peer.get(each[2].peer, ())
            ]
            heapq.heapify(self._deadlines)

    def leave(self, peer: Peer) -> None:
        """Forget what a peer that is gone was waiting for."""
        for pull in tuple(self._of_peer.get(peer, ())):
            self._let_go(pull)

    def _look(self, pull: HeldPull, *, is_last: bool) -> None:
        response = pull.look(is_last)
        if response is None:
            return
        self._let_go(pull)
        if response is not LATER:
            pull.peer.answer(pull.request, response)

    def _let_go(self, pull: HeldPull) -> None:
        self._count -= 1
        key = (pull.topic, pull.queue_id)
        waiting = self._held[key]
        del waiting[pull]
        if not waiting:
            del self._held[key]
        own = self._of_peer[pull.peer]
        del own[pull]
        if not own:
            del self._of_peer[pull.peer]
