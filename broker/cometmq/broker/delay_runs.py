"""Progress in the delivery of delayed messages, by runs of messages that are in order of time.

All messages of a level wait equally long, so its queue is in order of time, until the level's delay
is made shorter: messages put then are due before some that are already waiting. A new run begins
with them, and is delivered beside the run before it. A run that has been delivered to its end is
forgotten once the run before it is.

Apache knows only one offset for a level, before which everything is delivered: that of its first
run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.store.config import DELAY_LEVELS_MAX
from cometmq.store.delay_levels import Change
from cometmq.store.messages.dispatch import SCHEDULE_TOPIC
from cometmq.store.queues.consume_queue import ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cometmq.store.message_store import MessageStore
    from cometmq.store.queues.consume_queue import ConsumeQueue


RUNS_MAX: Final = 256
"""Runs of one level. They also divide it at messages that cannot be delivered; with too many of
these, later messages have to wait for them."""


@dataclass(slots=True, eq=False)
class Run:
    """Messages of one level that are in order of time."""

    queue_id: int
    begin: int
    """The queue offset where it begins; messages before it are delivered or in earlier runs."""
    delay_ms: int
    """How long its messages wait, as far as is known; corrected when a waiting one is read."""
    next_offset: int
    """The offset of the message to be delivered next."""
    saved_offset: int
    """The same, counting only deliveries that the disk has confirmed."""
    end: int | None = None
    """Where the next run begins; None for the last run."""
    due_ms: int = 0
    """No message is due before this time, as far as is known; new messages are not, either."""


@dataclass(slots=True)
class DelayRuns:
    """The runs of all levels."""

    store: MessageStore
    all: list[Run] = field(default_factory=list[Run])
    """By level, and in the order of its queue."""

    def load(self, offsets: Mapping[int, int], ahead: Iterable[tuple[int, int, int]]) -> None:
        """Set up the runs from the file, and from the changes of delays that the store knows.

        `offsets` has the offset of each level's first run, by the number of the level; `ahead` has
        the level, begin and offset of other runs.
        """
        levels = self.store.delay_levels
        stored = self.store.queues.simple.queues(SCHEDULE_TOPIC)
        counts = [len(change.delays_ms) for change in levels.changes]
        count = min(max([*counts, *(queue_id + 1 for queue_id in stored)]), DELAY_LEVELS_MAX)
        known = [(level - 1, begin, offset) for level, begin, offset in ahead]
        for queue_id in range(count):
            base = offsets.get(queue_id + 1, 0)
            here = [(begin, offset) for at, begin, offset in known if at == queue_id]
            begins = {*self._shortened(queue_id), *(begin for begin, _ in here)}
            for begin in [base, *sorted(each for each in begins if each > base)]:
                passed = [offset for at, offset in here if at <= begin < offset]
                self._append(queue_id, begin, levels.current, max([begin, *passed]))

    def _shortened(self, queue_id: int) -> Iterator[int]:
        """Yield the queue offsets from which on messages of a level wait shorter than before."""
        queue = self.queue(queue_id)
        if queue is not None:
            for before, now in pairwise(self.store.delay_levels.changes):
                if _is_shorter(queue_id, before, now):
                    yield _first_from(queue, now.begin)

    def _append(self, queue_id: int, begin: int, delays: tuple[int, ...], offset: int) -> None:
        delay_ms = delays[queue_id] if queue_id < len(delays) else 0
        of_queue = self.of_queue(queue_id)
        if of_queue:
            of_queue[-1].end = begin
        run = Run(queue_id, begin, delay_ms, offset, offset)
        self.all.append(run)
        self.all.sort(key=lambda each: (each.queue_id, each.begin))

    def change(self) -> None:
        """Follow a change of the delays of the store's levels."""
        *_, before, now = Change(0, ()), *self.store.delay_levels.changes
        for queue_id, delay_ms in enumerate(now.delays_ms):
            runs, queue = self.of_queue(queue_id), self.queue(queue_id)
            end = 0 if queue is None else queue.next_offset
            if not runs:
                self._append(queue_id, 0, now.delays_ms, 0)
            elif runs[-1].next_offset < end and _is_shorter(queue_id, before, now):
                self._append(queue_id, end, now.delays_ms, end)
            elif runs[-1].next_offset < end:
                runs[-1].delay_ms = max(runs[-1].delay_ms, delay_ms)
            else:
                runs[-1].delay_ms = delay_ms

    def queue(self, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of a level; None if it never had a message or its files are damaged."""
        return self.store.queues.simple.find_sound(SCHEDULE_TOPIC, queue_id)

    def damaged(self) -> dict[int, str]:
        """Return the levels of which nothing can be delivered, by number, with the reasons."""
        table = self.store.queues.simple
        for queue_id in table.queues(SCHEDULE_TOPIC):
            self.queue(queue_id)
        return {
            queue_id + 1: problem
            for (topic, queue_id), problem in table.problems.items()
            if topic == SCHEDULE_TOPIC
        }

    def of_queue(self, queue_id: int) -> list[Run]:
        """Return the runs of a level."""
        return [run for run in self.all if run.queue_id == queue_id]

    def delivered(self, run: Run, queue_offset: int) -> None:
        """Note a message that a start finds delivered; undelivered ones before it still wait."""
        behind = run if queue_offset <= run.next_offset else self.divide(run, queue_offset)
        if behind is not None:
            behind.next_offset = max(behind.next_offset, queue_offset + 1)

    def divide(self, run: Run, begin: int) -> Run | None:
        """End a run before a message, so that those now undeliverable do not hold up the rest.

        Returns the new run, which begins there; None if one does already, or the level has too
        many.
        """
        is_end = run.end is not None and begin >= run.end
        if is_end or len(self.of_queue(run.queue_id)) >= RUNS_MAX:
            return None
        rest = Run(run.queue_id, begin, run.delay_ms, begin, begin, end=run.end)
        run.end = begin
        self.all.append(rest)
        self.all.sort(key=lambda each: (each.queue_id, each.begin))
        return rest

    def at(self, queue_id: int, queue_offset: int) -> Run | None:
        """Return the run of a message; None for one that was delivered long ago."""
        for run in self.of_queue(queue_id):
            if run.begin <= queue_offset and (run.end is None or queue_offset < run.end):
                return run
        return None

    def forget_done(self) -> None:
        """Forget the first runs of levels, as far as everything in them is delivered for good."""
        for run, following in pairwise(list(self.all)):
            is_first = self.of_queue(run.queue_id)[0] is run
            is_done = run.end is not None and run.saved_offset >= run.end
            if is_first and is_done and following.queue_id == run.queue_id:
                self.all.remove(run)

    def offsets(self) -> dict[int, int]:
        """Return the progress of each level that ever had a message, by its number."""
        return {
            queue_id + 1: self.of_queue(queue_id)[0].next_offset
            for queue_id in sorted({run.queue_id for run in self.all})
            if self.queue(queue_id) is not None
        }

    def saved(self) -> tuple[dict[int, int], list[list[int]]]:
        """Return the arguments of a later `load`: deliveries that the disk has confirmed."""
        offsets: dict[int, int] = {}
        ahead: list[list[int]] = []
        for run in self.all:
            level = run.queue_id + 1
            if level not in offsets:
                offsets[level] = run.saved_offset
            elif run.saved_offset > run.begin:
                ahead.append([level, run.begin, run.saved_offset])
        return offsets, ahead


def _is_shorter(queue_id: int, before: Change, now: Change) -> bool:
    """Whether a change may have shortened a level's delay; also true for a level that is new."""
    if queue_id >= len(now.delays_ms):
        return False
    return queue_id >= len(before.delays_ms) or (
        now.delays_ms[queue_id] < before.delays_ms[queue_id]
    )


def _first_from(queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the queue offset of the first message at or after a place in the log."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.read(middle, 1)
        if entry and ENTRY.unpack(entry)[0] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
