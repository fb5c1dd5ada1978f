"""How far the delivery of delayed messages has come, in each stretch that is in order of time.

All messages of a level wait equally long, so its queue is in order of time, until the level's delay
is made shorter: what is put then is due before what waits in front of it. From there on the queue
has another run, which is delivered beside the one in front of it. A run that is delivered to its
end is forgotten once the one in front of it is.

What Apache knows of a level is one offset, in front of which everything is delivered: that of the
first run.
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
"""Of a level: behind more messages that cannot be delivered the others wait, too."""


@dataclass(slots=True, eq=False)
class Run:
    """Messages of one level that are in order of time."""

    queue_id: int
    begin: int
    """The queue offset where it begins, as far as anybody has to know."""
    delay_ms: int
    """How long its messages wait, as far as is known: who reads one that waits longer says so."""
    next_offset: int
    """Of the message that is delivered next."""
    saved_offset: int
    """The same, as far as the disk has confirmed deliveries."""
    end: int | None = None
    """Where the next run begins; None for the last."""
    due_ms: int = 0
    """Before when no message is due, as far as it was looked at: one that comes waits, too."""


@dataclass(slots=True)
class DelayRuns:
    """The runs of all levels."""

    store: MessageStore
    all: list[Run] = field(default_factory=list[Run])
    """By level, and in the order of the queue."""

    def load(self, offsets: Mapping[int, int], ahead: Iterable[tuple[int, int, int]]) -> None:
        """Begin with what a file says, and with where the store says that delays were changed.

        `offsets` has that of each level's first run, by the level's number; `ahead` has level,
        begin and offset of others.
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
        """Give the queue offsets from which on a level waits shorter than in front of them."""
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
        """Follow the store's levels, whose delays have just changed."""
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
        """Return the queue of a level, if it ever had a message and its files are not damaged."""
        return self.store.queues.simple.find_sound(SCHEDULE_TOPIC, queue_id)

    def damaged(self) -> dict[int, str]:
        """Why nothing can be delivered of a level, by the numbers of those where it is so."""
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
        """Note a message that a start finds delivered: those in front of it that are not, wait."""
        behind = run if queue_offset <= run.next_offset else self.divide(run, queue_offset)
        if behind is not None:
            behind.next_offset = max(behind.next_offset, queue_offset + 1)

    def divide(self, run: Run, begin: int) -> Run | None:
        """End a run in front of a message, so that what cannot be delivered now keeps no others.

        Returns the run that begins there; None if there is one, or its level has too many.
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
        """Return the run that a message is in; None for one that was delivered long ago."""
        for run in self.of_queue(queue_id):
            if run.begin <= queue_offset and (run.end is None or queue_offset < run.end):
                return run
        return None

    def forget_done(self) -> None:
        """Forget the runs in front of which, and in which, everything is delivered for good."""
        for run, following in pairwise(list(self.all)):
            is_first = self.of_queue(run.queue_id)[0] is run
            is_done = run.end is not None and run.saved_offset >= run.end
            if is_first and is_done and following.queue_id == run.queue_id:
                self.all.remove(run)

    def offsets(self) -> dict[int, int]:
        """How far each level has come that ever had a message, by its number."""
        return {
            queue_id + 1: self.of_queue(queue_id)[0].next_offset
            for queue_id in sorted({run.queue_id for run in self.all})
            if self.queue(queue_id) is not None
        }

    def saved(self) -> tuple[dict[int, int], list[list[int]]]:
        """Give what `load` takes: the deliveries that the disk has confirmed."""
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
    """Whether a level may wait shorter since a change; one that was none meanwhile, too."""
    if queue_id >= len(now.delays_ms):
        return False
    return queue_id >= len(before.delays_ms) or (
        now.delays_ms[queue_id] < before.delays_ms[queue_id]
    )


def _first_from(queue: ConsumeQueue, physical_offset: int) -> int:
    """Return the queue offset of the first message that is not in front of a place in the log."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.read(middle, 1)
        if entry and ENTRY.unpack(entry)[0] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
