"""When entries of the ConsumeQueues that wait in memory are written to their files.

An entry is written when it is one interval old, so that a busy queue writes many at a time; it is
written at once if a checkpoint needs it, or if more than half of what may wait does. If still more
waits than may, as with many queues on a slow disk, puts are refused.

While a journal has the entries as well, because very many queues are written to, age does not
count: they wait until a checkpoint needs them all in their files, see `checkpointing`.

The log's readable end serves as age, and the number of records published since the last moment with
everything written says how much waits: so a put pays nothing for this.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.errors import StoreBusyError
from cometmq.store.queues.consume_queue import ENTRY_SIZE

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig
    from cometmq.store.messages.committing import Committer
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal

WRITES_A_TICK: Final = 32
"""Writes of some 5 µs each."""
HURRIED_WRITES_A_TICK: Final = 256


class Moment(NamedTuple):
    """What was published at some moment."""

    end_offset: int = 0
    """The readable end of the log."""
    records: int = 0
    """The number of records since the start."""


class WriteBehind:
    """Writes the entries of one store's queues some time after its puts."""

    def __init__(
        self,
        committer: Committer,
        queues: ConsumeQueues,
        config: StoreConfig,
        journal: EntryJournal,
    ) -> None:
        self._committer = committer
        self._journal = journal
        self._queues = queues
        self._config = config
        self._ages: deque[tuple[int, Moment]] = deque()
        self._aged = Moment()  # One interval ago.
        self._written = Moment()

    @property
    def now(self) -> Moment:
        """What is published by now."""
        return Moment(self._committer.published_offset, self._committer.published_count)

    @property
    def waiting_size(self) -> int:
        """Bytes of entries that may wait in memory, at 20 bytes a record."""
        return (self._committer.published_count - self._written.records) * ENTRY_SIZE

    @property
    def refusal(self) -> StoreBusyError | None:
        """Why puts are to be refused until some entries are written."""
        size_max = self._config.consume_queue_unwritten_size_max
        if self.waiting_size <= size_max:
            return None
        return StoreBusyError(
            f"{self.waiting_size} bytes of ConsumeQueue entries wait for the disk, over the"
            f" limit of {size_max} (consume_queue_unwritten_size_max); try again"
        )

    @property
    def is_much(self) -> bool:
        """Whether so much waits (a journal has it, too) that all of it is to be written."""
        return self.waiting_size > self._config.consume_queue_unwritten_size_max // 2

    def step(self, now_ms: int, mark: Moment | None) -> bool:
        """Write a slice of what is old enough, or before a mark; return whether all is written."""
        self._age(now_ms)
        journal, writes = self._journal, WRITES_A_TICK
        if journal.is_due(now_ms, self._config.consume_queue_write_interval_ms):
            journal.write(self._committer.published_offset, now_ms)
        up_to = self._aged if mark is None else mark
        if mark is None and journal.is_recording:
            up_to = Moment()
        size_max = self._config.consume_queue_unwritten_size_max
        if self.waiting_size > (size_max // 4 * 3 if journal.is_recording else size_max // 2):
            up_to, writes = self.now, HURRIED_WRITES_A_TICK
        is_done = self._queues.write_behind(up_to.end_offset, writes)
        if is_done and up_to.records > self._written.records:
            self._written = up_to
        return is_done

    def _age(self, now_ms: int) -> None:
        ages = self._ages
        if ages and now_ms < ages[-1][0]:  # The clock was set back.
            ages.clear()
        if not ages or ages[-1][1].end_offset != self._committer.published_offset:
            ages.append((now_ms, self.now))
        while ages and ages[0][0] <= now_ms - self._config.consume_queue_write_interval_ms:
            self._aged = ages.popleft()[1]
