"""The messages of one queue that are here: waiting, in hand or settled.

The committed offset is the one before which everything is settled. So an unsettled message holds it
back, even if later messages are settled: after a crash some are delivered again, but none is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._core.queues import Queue

SPAN_MAX = 2000
"""The largest distance in offsets from the first unsettled message to the last: Apache's limit."""


class ProcessQueue:
    """The state of one queue of a consumer, from its assignment until it is dropped."""

    __slots__ = (
        "_unsettled", "committed", "committed_ms", "fetched_ms", "is_busy", "is_dropped",
        "is_in_hand", "is_parting", "next_offset", "queue", "settled_ms", "size",
    )  # fmt: skip

    def __init__(self, queue: Queue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.committed = next_offset
        self.committed_ms = 0  # when, by the monotonic clock
        self.size = 0
        self.fetched_ms = 0  # when something was last fetched or settled, by the wall clock
        self.settled_ms = 0
        self.is_dropped = False
        self.is_busy = False  # in order: one of its messages is in the line, in hand or set aside
        self.is_in_hand = False  # in order: one of its messages is in hand
        self.is_parting = False  # in order: goes to another member once that message is settled
        self._unsettled: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._unsettled)

    def add(self, offset: int, size: int) -> None:
        """Note a message that was fetched; called in the order of offsets."""
        self._unsettled[offset] = size
        self.size += size

    def settle(self, offset: int) -> int:
        """Note that a message is settled; return its size, or 0 if it was already settled."""
        size = self._unsettled.pop(offset, 0)
        self.size -= size
        return size

    def has_room(self, count_max: int) -> bool:
        """Whether more messages may be fetched from it."""
        unsettled = self._unsettled
        return not unsettled or (
            len(unsettled) < count_max and self.next_offset - next(iter(unsettled)) <= SPAN_MAX
        )

    @property
    def commit_offset(self) -> int:
        """The offset before which everything is settled."""
        return next(iter(self._unsettled), self.next_offset)

    def forget(self) -> None:
        """Forget the messages that are here, as if they had not been fetched."""
        self.next_offset = self.commit_offset
        self._unsettled.clear()
        self.size = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one message."""

    is_consumed: bool
    error: Exception | None = None


class DirectQueue(ProcessQueue):
    """The queue of a message that an operator sent directly, outside of any queue."""

    __slots__ = ("_told", "outcome")

    def __init__(self, queue: Queue, told: Callable[[Outcome], None]) -> None:
        super().__init__(queue, 0)
        self.outcome = Outcome(is_consumed=True)
        self._told = told

    def settle(self, offset: int) -> int:
        """Report the outcome, and settle the message."""
        self._told(self.outcome)
        return super().settle(offset)
