"""The messages of one queue that are here: which wait, are in hand, or are settled.

What is committed is the offset before which everything is settled: a message that is not yet holds
back those behind it, however many of them are done. So a crash delivers some again, and loses none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._core.queues import Queue

SPAN_MAX = 2000
"""How far the first unsettled message may lie behind the last that is here: Apache's limit."""


class ProcessQueue:
    """One queue as its consumer sees it, from being assigned it to being dropped."""

    __slots__ = (
        "_unsettled", "committed", "fetched_ms", "is_busy", "is_dropped", "is_in_hand",
        "is_parting", "next_offset", "queue", "settled_ms", "size",
    )  # fmt: skip

    def __init__(self, queue: Queue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.committed = next_offset
        self.size = 0
        self.fetched_ms = 0  # when something was last fetched or settled, by the wall clock
        self.settled_ms = 0
        self.is_dropped = False
        self.is_busy = False  # in order: one of its messages is in the line, in hand or set aside
        self.is_in_hand = False  # in order: one is in hand
        self.is_parting = False  # in order: another's, as soon as what is in hand is done with
        self._unsettled: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._unsettled)

    def add(self, offset: int, size: int) -> None:
        """Note a message that has come, in the order of their offsets."""
        self._unsettled[offset] = size
        self.size += size

    def settle(self, offset: int) -> int:
        """Note that a message is done with; its size, or 0 when it was already."""
        size = self._unsettled.pop(offset, 0)
        self.size -= size
        return size

    def has_room(self, count_max: int) -> bool:
        """Whether more of it may be fetched."""
        unsettled = self._unsettled
        return not unsettled or (
            len(unsettled) < count_max and self.next_offset - next(iter(unsettled)) <= SPAN_MAX
        )

    @property
    def commit_offset(self) -> int:
        """Before which offset everything is settled."""
        return next(iter(self._unsettled), self.next_offset)

    def move(self, offset: int) -> None:
        """Go on somewhere else; what is here of it counts no more."""
        self._unsettled.clear()
        self.size = 0
        self.next_offset = offset


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one message."""

    is_consumed: bool
    error: Exception | None = None


class DirectQueue(ProcessQueue):
    """The queue of a message that came outside any queue: by an operator's hand."""

    __slots__ = ("_told", "outcome")

    def __init__(self, queue: Queue, told: Callable[[Outcome], None]) -> None:
        super().__init__(queue, 0)
        self.outcome = Outcome(is_consumed=True)
        self._told = told

    def settle(self, offset: int) -> int:
        """Tell what came of it."""
        self._told(self.outcome)
        return super().settle(offset)
