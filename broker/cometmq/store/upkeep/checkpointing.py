"""Taking checkpoints of an open store, in the background and in slices.

A checkpoint says from where on an unclean start must read the log. It moves on in these steps:

1. the log is synced up to a mark, its end at that moment;
2. what waits in memory for the ConsumeQueues and the index, up to the mark, is written to files;
3. these files are synced, in a thread;
4. only then is the checkpoint written.

With very many queues, steps 2 and 3 mostly concern only the index: the queues' entries are in a
journal (see `entry_journal`), which is one file to sync, and the checkpoint names it. A whole
checkpoint, which brings the queues to their files, is taken if much waits for them, or if the last
one was long ago. A journal begins at the mark of a whole checkpoint: it has every entry that the
queues' files may lack when that is taken.

Each step leaves a store that the previous checkpoint describes. Work continues meanwhile: what is
written after the mark may or may not be in the files, and is read back.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.sync import Errand
from cometmq.store.errors import disk_error_text
from cometmq.store.upkeep.checkpoint import Longs
from cometmq.store.upkeep.write_behind import WriteBehind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.sync import Jobs, Syncer
    from cometmq.store.disk.unsynced import Unsynced
    from cometmq.store.index.index import Index
    from cometmq.store.messages.appending import Appender
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal, UnsyncedJournal
    from cometmq.store.upkeep.checkpoint import Checkpoint, CheckpointFile, Claims
    from cometmq.store.upkeep.write_behind import Moment

log = logging.getLogger(__name__)

INDEXED_A_TICK: Final = 512
"""Records, at some 0.5 µs each, plus 100 µs for numpy's calls, whatever their size."""
INDEXED_A_TICK_MAX: Final = 2 * INDEXED_A_TICK
"""Records if this many wait already: 375 µs instead of twice 250."""
INDEXED_AFTER_MS: Final = 100
"""Fewer records than a tick takes wait this long for others; a query or a checkpoint does not."""
PREPARED_AFTER_MS: Final = 500
"""Counted from the first tick: before that, the start has the processor to itself."""
WHOLE_AFTER_BYTES: Final = 8
"""Times `checkpoint_bytes`: log whose entries only a journal has. An unclean start reads this much
if the journal is damaged, and so does Apache's, which knows no journals."""
WHOLE_AFTER_TIME: Final = 10
"""Times `checkpoint_interval_ms`: how long entries may be only in a journal."""
BORDERS: Final = 4
"""Record borders noted within the size that a start verifies, so that it can begin at one."""
SETTLED_A_TICK: Final = 4
"""Queues looked at after an unclean start, at 50 to 130 µs each."""
SETTLED_A_TICK_MAX: Final = 16
"""Queues if too much log is without a checkpoint: none is taken before all are looked at."""


def longs_for(
    recover_from: int, timestamp: int, index: Index | None, master_flushed_offset: int
) -> Longs:
    """Return Apache's numbers for a store that is complete up to an offset, and to a store time.

    After an unclean stop Apache removes each index file that ends later than its index timestamp,
    and reads the log from `queues_offset` on; before 5.5 from its queues timestamp on. So that it
    refills everything that it removed, the index timestamp is the end of the files that are final,
    and the other two are no later than the first record of the next file.
    """
    index_timestamp, unsealed = timestamp, None
    if index is not None:
        index_timestamp, unsealed = index.sealed_below(recover_from)
    if unsealed is None:
        unsealed = recover_from
    else:
        timestamp = min(timestamp, index_timestamp)
    return Longs(
        log_timestamp=timestamp,
        queues_timestamp=timestamp,
        index_timestamp=index_timestamp,
        master_flushed_offset=master_flushed_offset,
        confirm_offset=recover_from,
        queues_offset=max(1, min(recover_from, unsealed)),  # To Apache, 0 means none.
    )


def first_longs(checkpoint: Checkpoint, claims: Claims, index: Index | None) -> Longs:
    """Return Apache's numbers while the store is being opened: they claim no more than `claims`."""
    before = checkpoint.longs
    ours = checkpoint.claims
    is_as_before = ours is not None and ours.recover_from == claims.recover_from
    # Without timestamps, an Apache version without this offset begins with the first segment.
    timestamp = before.log_timestamp if is_as_before else 0
    longs = longs_for(claims.recover_from, timestamp, index, before.master_flushed_offset)
    if is_as_before:
        return longs
    return replace(
        longs, confirm_offset=0, queues_offset=min(before.queues_offset, longs.queues_offset)
    )


class Checkpointer:
    """Writes behind what puts left in memory, and takes checkpoints."""

    def __init__(
        self,
        appender: Appender,
        syncer: Syncer,
        queues: ConsumeQueues,
        index: Index | None,
        file: CheckpointFile,
        journal: EntryJournal,
        claims: Claims,
        longs: Longs,
        config: StoreConfig,
        jobs: Jobs,
    ) -> None:
        self._appender = appender
        self._syncer = syncer
        self._queues = queues
        self._index = index
        self._file = file
        self._claims = claims
        self._longs = longs
        self._config = config
        self._jobs = jobs
        self._reading = Errand(jobs)
        self._settling: Iterator[None] = queues.settle(self._reading.begin)
        self._is_settled = False
        self._journal = journal
        self.write_behind = WriteBehind(appender, queues, config, journal)
        """Brings the entries of the queues to their files."""
        self._last_ms: int | None = None
        self._whole_ms = 0
        self._mark: tuple[Moment, int] | None = None  # With the last store timestamp then.
        self._is_whole_wanted = False
        self._is_whole = True  # Otherwise a checkpoint that names a journal is being taken.
        self._is_syncing = False
        self._preparing = Errand(jobs)
        self._opened_ms: int | None = None
        self._indexed_ms = -INDEXED_AFTER_MS
        self._borders = deque([claims.verify_from])  # Between records, in ascending order.
        self._is_refused = False  # And that was logged.

    @property
    def claims(self) -> Claims:
        """What the checkpoint on the disk claims."""
        return self._claims

    def tick(self, now_ms: int) -> bool:
        """Do a slice of what waits, at most some 500 µs; return whether more is waiting."""
        more = self._write_behind(now_ms)
        published = self._appender.published_offset
        if published - self._borders[-1] >= self._config.verify_size // BORDERS:
            self._borders.append(published)
        if self._is_syncing:
            return more
        if self._mark is None and self._is_due(now_ms):
            self._begin(now_ms)
            return True  # Only the next tick looks for what waits before the mark.
        if self._mark is not None:
            moment, timestamp = self._mark
            if self._is_written_to(moment.end_offset):
                self._sync((moment.end_offset, timestamp), now_ms)
        return more

    def _is_written_to(self, offset: int) -> bool:
        """Whether the entries and keys of all records before a mark are in their files.

        Later puts do not count: under load some of them always wait.
        """
        waiting = [self._queues.unwritten_from if self._is_whole else None]
        if self._index is not None:
            waiting.append(self._index.settled_offset)
        return all(each is None or each >= offset for each in waiting)

    def bring_queues_to_files(self) -> None:
        """Take a whole checkpoint now, unless the last has everything: retention waits for it."""
        self._is_whole_wanted = self._appender.published_offset > self._claims.recover_from

    def _write_behind(self, now_ms: int) -> bool:
        more = self._settle_some() | self._index_some(now_ms)
        mark = self._mark[0] if self._mark is not None and self._is_whole else None
        return not self.write_behind.step(now_ms, mark) or more

    def _settle_some(self) -> bool:
        """Look at some queues that an unclean start left; return whether more are left."""
        if not self._is_settled:
            try:
                for _ in range(SETTLED_A_TICK_MAX if self._is_much_unclaimed else SETTLED_A_TICK):
                    if not self._reading.is_under_way:
                        next(self._settling)
            except StopIteration:
                self._is_settled = True
        return not self._is_settled

    @property
    def _unclaimed(self) -> int:
        """How much log there is after the checkpoint, or after the journal that it names."""
        return self._appender.published_offset - self._claims.complete_to

    @property
    def _is_much_unclaimed(self) -> bool:
        return self._unclaimed >= self._config.checkpoint_bytes

    def _index_some(self, now_ms: int) -> bool:
        """Index a slice; return whether more waits. A thread must first prepare what that needs.

        It does so for the first record or, to be ready for it, once the start is over.
        """
        index = self._index
        if index is None:
            return False
        if not index.needs_preparation:
            is_recent = 0 <= now_ms - self._indexed_ms < INDEXED_AFTER_MS
            if index.waiting < INDEXED_A_TICK and self._mark is None and is_recent:
                return False
            self._indexed_ms = now_ms
            is_behind = index.waiting >= INDEXED_A_TICK_MAX
            return not index.build(INDEXED_A_TICK_MAX if is_behind else INDEXED_A_TICK, now_ms)
        if self._opened_ms is None:
            self._opened_ms = now_ms
        is_started = not 0 <= now_ms - self._opened_ms < PREPARED_AFTER_MS
        if (index.waiting or is_started) and not self._preparing.is_under_way:
            self._preparing.begin(index.prepare)
        return False

    def _is_due(self, now_ms: int) -> bool:
        if self._last_ms is None or now_ms < self._last_ms:
            self._last_ms = now_ms
        waited = now_ms - self._last_ms >= self._config.checkpoint_interval_ms
        if self._is_whole_wanted or (self._journal.is_recording and self.write_behind.is_much):
            return True
        # Until all queues were looked at, a checkpoint claims no more than the previous one.
        return (self._is_settled and self._is_much_unclaimed) or (self._unclaimed > 0 and waited)

    def _begin(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._is_whole = self._is_whole_due(now_ms)
        if self._is_whole:
            self._whole_ms, self._is_whole_wanted = now_ms, False
            if self._queues.changed_count < self._config.consume_queue_journal_queues_min:
                self._journal.end()
            else:
                self._journal.begin(self._appender.published_offset)
            self._queues.ends.begin(self._appender.published_offset)
        self._mark = (self.write_behind.now, self._appender.published_timestamp)
        self._syncer.request(self._appender.end_offset)

    def _is_whole_due(self, now_ms: int) -> bool:
        config, recover_from = self._config, self._claims.recover_from
        return (
            self._is_whole_wanted
            or not self._journal.covers(recover_from)
            or self.write_behind.is_much
            or self._queues.changed_count < config.consume_queue_journal_queues_min
            or self._appender.published_offset - recover_from
            >= WHOLE_AFTER_BYTES * config.checkpoint_bytes
            or not 0 <= now_ms - self._whole_ms < WHOLE_AFTER_TIME * config.checkpoint_interval_ms
        )

    def _sync(self, mark: tuple[int, int], now_ms: int) -> None:
        """Submit the rest to a thread, once the log is synced up to the mark."""
        if self._syncer.synced_offset < mark[0]:
            return
        if self._is_whole:
            job = self._job(mark)
        else:
            self._journal.write(self._appender.published_offset, now_ms)
            if not self._journal.is_recording:  # The disk refused it.
                self._begin(now_ms)
                return
            job = self._journal_job()
        self._is_syncing = True
        self._mark = None
        self._jobs.submit(job)

    def finish(self) -> bool:
        """Take the last checkpoint; return whether it covers everything. Waits for the disk."""
        end = self._appender.published_offset
        self._journal.end()
        self._job((end, self._appender.published_timestamp), last=True)()
        return self._claims.recover_from == end and self._syncer.failure is None

    def _job(self, mark: tuple[int, int], *, last: bool = False) -> Callable[[], None]:
        """Return a job that syncs the files as they are now and then writes the checkpoint."""
        unsynced: list[Unsynced | UnsyncedJournal] = [self._queues.take_unsynced()]
        if last:
            self._queues.ends.begin(mark[0])
        ends = self._queues.take_ends()
        # The list of the queues' ends leaves out what was written of records after the mark.
        bounds = [mark[0], self._queues.settled_offset, self._bound(unsynced)]
        reached = min(bound for bound in bounds if bound is not None)
        recover_from, journal = max(reached, self._claims.recover_from), self._claims.journal
        if journal is not None and journal.end <= recover_from:
            journal = None
        claims = replace(self._claims, recover_from=recover_from, journal=journal)
        longs = self._longs
        if recover_from >= mark[0]:
            timestamp = mark[1] or longs.log_timestamp  # If nothing was put since the start.
            index = None if last else self._index  # After a clean stop Apache removes nothing.
            longs = longs_for(recover_from, timestamp, index, longs.master_flushed_offset)
        return self._syncing(unsynced, longs, claims, ends)

    def _journal_job(self) -> Callable[[], None]:
        """Return a job that syncs the journal as it is and then writes a checkpoint that names it.

        Apache's numbers stay as they are: it knows no journals.
        """
        journal = self._journal.take_unsynced()
        unsynced: list[Unsynced | UnsyncedJournal] = [journal]
        end = max(min(self._bound(unsynced), journal.claim.end), self._claims.complete_to)
        claims = replace(self._claims, journal=journal.claim._replace(end=end))
        return self._syncing(unsynced, self._longs, claims)

    def _bound(self, unsynced: list[Unsynced | UnsyncedJournal]) -> int:
        """Return how far the log is synced and indexed, once `unsynced` is synced, too."""
        bound = min(self._syncer.synced_offset, self._appender.published_offset)
        if self._index is not None:
            unsynced.append(self._index.take_unsynced())
            settled = self._index.settled_offset
            if settled is not None:
                bound = min(bound, settled)
        return bound

    def _syncing(
        self,
        unsynced: list[Unsynced | UnsyncedJournal],
        longs: Longs,
        claims: Claims,
        ends: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Return a job that syncs all of that and then writes a checkpoint.

        Before the checkpoint it writes the list of the queues' ends, if their files are synced.
        """
        claims = replace(
            claims,
            verify_from=self._verify_from(claims.complete_to),
            synced_offset=self._syncer.synced_offset,
        )

        def sync() -> None:
            try:
                for each in unsynced:
                    each.sync()
            except OSError as error:
                self._syncer.fail(error)
            else:
                self._write(longs, claims, ends)
            self._is_syncing = False

        return sync

    def _verify_from(self, complete_to: int) -> int:
        """Return where the next start begins to verify: at some record, far enough back."""
        known = self._borders
        while len(known) > 1 and known[1] <= complete_to - self._config.verify_size:
            known.popleft()
        return known[0]

    def _write(self, longs: Longs, claims: Claims, ends: Callable[[], None] | None) -> None:
        """Replace the checkpoint. If the disk refuses it, the previous one still holds.

        After a failed sync no checkpoint is written any more: the files of that sync are not among
        those that were changed since, so a later sync that succeeds proves nothing about them.
        """
        if self._syncer.failure is not None:
            return
        try:
            if ends is not None:
                ends()
            self._file.write(longs, claims)
        except OSError as error:
            if not self._is_refused:
                text = disk_error_text(error)
                log.error(
                    "the checkpoint cannot be written, to be retried with the next one: %s", text
                )
            self._is_refused = True
        else:
            if self._is_refused:
                log.warning("the checkpoint is written again")
            self._is_refused = False
            self._claims, self._longs = claims, longs
            self._journal.remove_others(claims.journal)
