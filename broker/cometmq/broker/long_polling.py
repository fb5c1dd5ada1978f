"""Pulls that wait for a message: held until one comes for them, or their time is over.

A held pull is an entry in three tables, by queue, by peer and by when its time is over: no task and
no timer. When messages of a queue can be read, those that wait there look again, once a turn; a
pull whose filter none of them passes stays held, and goes on looking behind them. The last look, at
the deadline, answers whatever it finds. One that is answered is gone from all three at once: where
pulls are answered early, thousands in a second, nothing has to be swept up later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.net import LATER

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.net import Frame, Later, Peer
    from cometmq.proto.command import Command
    from cometmq.store.log.turn import Runs

_Key = TypeVar("_Key")
DUE_STEP_MS: Final = 128
"""Deadlines are kept together that are so near: of a wait of 15 s there are some 120 such steps."""


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
        self._due: dict[int, dict[HeldPull, None]] = {}  # by deadline, in steps
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; False when there are too many."""
        if self._count >= self._held_max:
            return False
        self._count += 1
        self._held.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._of_peer.setdefault(pull.peer, {})[pull] = None
        self._due.setdefault(pull.deadline_ms // DUE_STEP_MS, {})[pull] = None
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
        for step in [step for step in self._due if step * DUE_STEP_MS <= now_ms]:
            for pull in tuple(self._due.get(step, ())):
                if pull.deadline_ms <= now_ms and pull in self._of_peer.get(pull.peer, ()):
                    self._look(pull, is_last=True)

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
        _remove(pull, self._held, (pull.topic, pull.queue_id))
        _remove(pull, self._of_peer, pull.peer)
        _remove(pull, self._due, pull.deadline_ms // DUE_STEP_MS)


def _remove(pull: HeldPull, table: dict[_Key, dict[HeldPull, None]], key: _Key) -> None:
    together = table[key]
    del together[pull]
    if not together:
        del table[key]
