"""What an open store consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import File
    from cometmq.store.disk.sync import BackgroundThread, Jobs, Syncer
    from cometmq.store.index.index import Index
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.segments import Segments
    from cometmq.store.log.zero_ahead import ZeroAhead
    from cometmq.store.messages.appending import Appender
    from cometmq.store.messages.reading import QueueReader
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal
    from cometmq.store.upkeep.checkpoint import CheckpointFile
    from cometmq.store.upkeep.checkpointing import Checkpointer
    from cometmq.store.upkeep.expiry import Expiry
    from cometmq.store.upkeep.sealing import Sealing


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The parts of an open store."""

    lock: File
    log: CommitLog
    segments: Segments
    syncer: Syncer
    jobs: Jobs
    zeros: ZeroAhead | None
    queues: ConsumeQueues
    index: Index | None
    journal: EntryJournal
    appender: Appender
    checkpointer: Checkpointer
    sealing: Sealing
    expiry: Expiry
    checkpoint_file: CheckpointFile
    deletions: Deletions
    delay_levels: DelayLevels
    reader: QueueReader
    kept: str | None
    """Where the torn tail that the start cut off is kept."""
    made_queues: int
    """Queues that were rebuilt from the log, because their whole folder was missing."""
    lost_notes: tuple[str, ...]
    """Files of the store's own notes that this start found damaged or missing and recreated."""

    @property
    def threads(self) -> list[BackgroundThread]:
        """The background threads; if none are started, their steps are taken in this order."""
        zeros = [] if self.zeros is None else [self.zeros.thread]
        return [*zeros, self.jobs.thread, self.syncer.thread]

    def change_delays(self, delays_ms: tuple[int, ...]) -> None:
        """Let the delay levels have these delays from the log's end on. Waits for the disk.

        Call it between turns; `commit` ends a turn. The log is synced first: if a power cut took
        part of it, another broker could write records before the place that is noted.
        """
        end = self.log.end_offset
        self.syncer.finish(end)
        self.delay_levels.change(end, delays_ms, self.log.first_offset)

    def close(self) -> None:
        """Close every file; the lock comes last."""
        self.queues.close()
        self.journal.close()
        if self.index is not None:
            self.index.close()
        self.sealing.close()
        if self.zeros is not None:
            self.zeros.close()
        self.checkpoint_file.close()
        self.segments.close()
        self.lock.close()
