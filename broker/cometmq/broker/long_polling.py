"""Pulls that wait for a message: held until a message for them comes or their time is over.

A held pull is an entry in three tables, by queue, by peer and by deadline; it needs no task and no
timer. When new messages of a queue become readable, the pulls held there look again, once a turn.
If a pull's filter takes none of them, it stays held and next looks at what comes after them. At its
deadline a pull looks a last time and answers whatever it finds. An answered pull leaves all three
tables at once, so nothing is left to sweep up when thousands of pulls a second are answered early.
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
"""Pulls are grouped by deadline in steps of this length: a wait of 15 s spans some 120 steps."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """One held pull."""

    peer: Peer
    request: Command
    topic: str
    queue_id: int
    deadline_ms: int
    look: Callable[[bool], Command | Frame | Later | None]
    """Looks again; the argument says whether it is the last time. Returns the answer, LATER if that
    comes by another way, or None if there is nothing yet."""


class LongPolling:
    """All held pulls."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._of_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._due: dict[int, dict[HeldPull, None]] = {}  # by deadline, in steps
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; return False if there are too many already."""
        if self._count >= self._held_max:
            return False
        self._count += 1
        self._held.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._of_peer.setdefault(pull.peer, {})[pull] = None
        self._due.setdefault(pull.deadline_ms // DUE_STEP_MS, {})[pull] = None
        return True

    def readable(self, runs: Runs) -> None:
        """Have the pulls held at queues with new messages look again."""
        if self._count:
            for queue, _, _ in runs:
                self.arrived(queue.topic, queue.queue_id)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Have the pulls held at a queue look again."""
        waiting = self._held.get((topic, queue_id))
        if waiting is not None:
            for pull in tuple(waiting):
                self._look(pull, is_last=False)

    def tick(self, now_ms: int) -> None:
        """Answer the pulls whose deadline has passed."""
        for step in [step for step in self._due if step * DUE_STEP_MS <= now_ms]:
            for pull in tuple(self._due.get(step, ())):
                if pull.deadline_ms <= now_ms and pull in self._of_peer.get(pull.peer, ()):
                    self._look(pull, is_last=True)

    def leave(self, peer: Peer) -> None:
        """Forget the pulls of a peer that is gone."""
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
