"""The commit of a turn of puts: its limits, its write, and when its messages become readable.

`commit` writes the turn. With `Flush.ASYNC` its messages can be read from then on, with
`Flush.SYNC` once the disk has confirmed them: `advance` publishes what is confirmed. A commit that
is refused takes back every offset of its turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.store.config import Flush
from cometmq.store.errors import (
    MessageIllegalError,
    PutRefusedError,
    StoreBusyError,
    SyncFailedError,
)
from cometmq.store.log.turn import BLANK_SIZE, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.index.index_keys import Noted
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.turn import Runs
    from cometmq.store.queues.entry_journal import EntryJournal

_NEVER: Final = 1 << 62


class Committer:
    """The turn that is being collected, and those that wait for the disk."""

    def __init__(
        self,
        log: CommitLog,
        syncer: Syncer,
        config: StoreConfig,
        *,
        journal: EntryJournal,
        on_published: Callable[[list[Noted], int], None],
    ) -> None:
        """`journal`, while it is being written, gets the entries of each turn once readable.

        `on_published` gets the turn's records, for the index, and their number.
        """
        self.published_offset = log.end_offset
        """The end of what can be read."""
        self.published_count = 0
        """How many records have become readable since the start."""
        self.published_timestamp = 0
        """The store timestamp of the last record that can be read; 0 before the first."""
        self._log = log
        self._syncer = syncer
        self._config = config
        self._on_published = on_published
        self._journal = journal
        self._is_sync = config.flush is Flush.SYNC
        self._unsynced: deque[tuple[int, Runs, list[Noted], int]] = deque()
        self._turn = Turn(log.end_offset, log.segments.size, record_crc=config.record_crc)
        self._record_size_max = log.segments.size - BLANK_SIZE
        self._on_readable: Callable[[Runs], None] = lambda _: None
        self._refusal: PutRefusedError | None = None
        self._limit = self._quick_limit = self._renewed_at = 0
        self._notice_at = _NEVER
        self._notice: Callable[[int], None] = lambda _: None
        self._set_limit()

    def tell_readers(self, on_readable: Callable[[Runs], None]) -> None:
        """From now on, call this with the queues that got readable entries."""
        self._on_readable = on_readable

    @property
    def pending_size(self) -> int:
        """Bytes that wait for the commit; a loop that has collected too many may commit."""
        return self._turn.end - self._turn.start

    @property
    def refusal(self) -> PutRefusedError | None:
        """Why all puts are refused; None while they are taken."""
        return self._refusal

    @property
    def end_offset(self) -> int:
        """The end of the log, without what waits for its commit."""
        return self._log.end_offset

    def _place(self, size: int) -> int:
        """Return the offset of the next record, which needs at most `size` bytes.

        The turn stays as it is: the record may still be refused.
        """
        turn = self._turn
        if turn.end + size > self._limit or size > self._record_size_max:
            self._set_limit()  # The limit may be that of an earlier turn.
            if turn.end + size > self._limit or size > self._record_size_max:
                self._refuse(size)
        return turn.place(size)

    def _add(self, physical_offset: int, size: int, pieces: Sequence[Buffer]) -> None:
        """Add records that were made for the place that comes next."""
        self._turn.add(physical_offset, size, pieces)
        if physical_offset > self._quick_limit:
            self._set_limit()  # The turn has moved on to the next segment.

    def _refuse(self, size: int) -> None:
        if self._refusal is not None:
            raise self._refusal
        if size > self._record_size_max:
            raise MessageIllegalError(
                f"record of {size} bytes, over the {self._record_size_max} that a file of the"
                " log holds (segment_size)"
            )
        raise StoreBusyError("too much is waiting to be written or synced; try again")

    def commit(self) -> int:
        """Write the turn; return the end of the log, which a sync must reach for its messages.

        Raise `PutRefusedError` if nothing of the turn is stored.
        """
        turn = self._turn
        records = turn.records
        if not records:
            return self._log.end_offset
        try:
            self._log.append(turn)
        except PutRefusedError:
            turn.take_back()
            self.advance()
            raise
        end, runs, count = turn.end, turn.runs, len(records) + turn.in_batches
        for queue, _, _ in runs:
            queue.run = None
        turn.go_on()
        if self._is_sync:
            self._unsynced.append((end, runs, records, count))
            self._syncer.request(end)
        else:
            self._publish(end, runs, records, count)
        if end > self._renewed_at:
            self._set_limit()
        if end >= self._notice_at:
            self._notice_at = _NEVER
            self._notice(end)
        return end

    def tell_at(self, offset: int, notice: Callable[[int], None]) -> None:
        """Call this once, with the end of the log, as soon as that has reached an offset."""
        self._notice_at, self._notice = offset, notice

    def take_back(self) -> None:
        """Forget what was put since the last commit."""
        self._turn.take_back()
        self._set_limit()

    def advance(self) -> int:
        """Publish what the disk has confirmed; return how far that is."""
        synced = self._syncer.synced_offset
        self._log.segments.synced_offset = synced
        while self._unsynced and self._unsynced[0][0] <= synced:
            self._publish(*self._unsynced.popleft())
        if self._syncer.failure is not None and not isinstance(self._refusal, SyncFailedError):
            self.refuse(SyncFailedError(f"a sync failed, and is final: {self._syncer.failure}"))
        self._set_limit()
        return synced

    def _publish(self, end: int, runs: Runs, records: list[Noted], count: int) -> None:
        if self._journal.waiting is not None:
            self._journal.waiting.append(runs)
        for queue, _, entries in runs:
            queue.extend(entries[0] if len(entries) == 1 else b"".join(entries), len(entries))
        self.published_offset = end
        self.published_count += count
        self.published_timestamp = records[-1][3]
        self._on_published(records, count)
        self._on_readable(runs)

    def _drop_waiting(self, topic: str) -> None:
        """Give messages of a topic that wait for the disk no entries in its queues."""
        for _, runs, _, _ in self._unsynced:
            runs[:] = [run for run in runs if run[0].topic != topic]

    def refuse(self, refusal: PutRefusedError | None) -> None:
        """Refuse all puts from now on, for this reason; None takes them again."""
        if not isinstance(self._refusal, SyncFailedError):
            self._refusal = refusal
        self._set_limit()

    def _set_limit(self) -> None:
        """Compute where a put must end, for whatever reason, so that it compares only once.

        `_quick_limit` also includes the end of the segment: a put beyond it has to look closer.
        In later turns both may be too low, until half of the room that they leave is used; before a
        put is refused because of them, they are computed again.
        """
        if self._refusal is not None:
            self._limit = self._quick_limit = -1
            self._renewed_at = _NEVER
            return
        turn, config = self._turn, self._config
        of_turn = turn.start + config.turn_size_max
        of_disk = self._syncer.synced_offset + config.unsynced_size_max
        limit = self._limit = min(of_turn, of_disk)
        self._quick_limit = min(limit, turn.room_end)
        self._renewed_at = (turn.start + self._quick_limit) // 2
