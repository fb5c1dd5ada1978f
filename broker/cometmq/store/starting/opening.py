"""Opening a store: lock it, take stock, repair, replay, and put the parts together.

Until `taking_stock` accepts the store, only the lock is touched: a refusal leaves every byte as it
was. Then `abort` is written, then a checkpoint that holds whatever happens next, and only then is
anything cut, erased or rewritten. If another program shut the store down, the checkpoint comes
first: with `abort` alone, the store would count as killed, and topics that the other program
deleted would come back.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from cometmq.store.disk.lock import RunningMark, acquire_lock, give_up_lock, sign_lock
from cometmq.store.disk.sync import Jobs, Syncer
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import settle_off
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_scan import NEVER
from cometmq.store.log.zero_ahead import ZeroAhead
from cometmq.store.messages.appending import Appender
from cometmq.store.messages.reading import QueueReader
from cometmq.store.opened import Opened
from cometmq.store.queues.consume_queues import SIMPLE_FOLDER
from cometmq.store.queues.entry_journal import EntryJournal
from cometmq.store.queues.queue_ends import remove_queue_ends
from cometmq.store.starting.catching_up import CatchUp, index_from
from cometmq.store.starting.folder import LOG_FOLDER, check_root
from cometmq.store.starting.foresight import forget_behind
from cometmq.store.starting.found import History
from cometmq.store.starting.log_repair import repairing
from cometmq.store.starting.rocksdb import refuse_rocksdb
from cometmq.store.starting.swap import finish_swap
from cometmq.store.starting.taking_stock import take_stock
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, CheckpointFile, Claims
from cometmq.store.upkeep.checkpointing import Checkpointer, first_longs
from cometmq.store.upkeep.expiry import Expiry
from cometmq.store.upkeep.retention import Retention
from cometmq.store.upkeep.sealing import Sealing

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.starting.found import Found
    from cometmq.store.upkeep.checkpoint import Longs


class Opening:
    """One opening of a store for writing."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        config: StoreConfig,
        *,
        is_batch_topic: Callable[[str], bool | None],
        on_locked: Callable[[], None],
        on_change: Callable[[], None],
        now_ms: int,
        process_id: int,
        threads: bool,
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._config = config
        self._says_batch = is_batch_topic
        self._on_locked = on_locked
        self._on_change = on_change
        self._now_ms = now_ms
        self._process_id = process_id
        self._has_threads = threads
        self._checkpoint_file = CheckpointFile(filesystem, f"{root}/{CHECKPOINT_NAME}")
        self._claims: Claims
        self._longs: Longs
        self._is_accepted = False
        self._looked_at = ExitStack()
        """Closes what was opened for a look, if the store is refused."""

    def run(self) -> Opened:
        """Open the store, or leave it as it was found."""
        check_root(self._filesystem, self._root)
        refuse_rocksdb(self._filesystem, self._root)
        is_lock_made = not self._filesystem.exists(f"{self._root}/lock")
        if is_lock_made:
            with self._looked_at:
                self._take_stock()  # A store that is refused does not even get a lock.
        self._filesystem.make_directories(self._root)
        lock = acquire_lock(self._filesystem, self._root)
        self._mark = RunningMark(self._filesystem, self._root)
        try:
            finish_swap(self._filesystem, self._root)
            self._on_locked()
            opened = self._open(lock)
        except BaseException:
            self._looked_at.close()
            if not self._is_accepted:
                self._mark.take_back()
            is_made = is_lock_made and not self._is_accepted
            give_up_lock(self._filesystem, self._root, lock, is_made=is_made)
            raise
        self._looked_at.pop_all()
        return opened

    def _take_stock(self) -> Found:
        return take_stock(
            self._filesystem,
            self._root,
            self._config,
            says_batch=self._says_batch,
            looked_at=self._looked_at,
        )

    def _open(self, lock: File) -> Opened:
        found = self._take_stock()
        self._config = found.config
        is_of_others = found.history is History.FOREIGN and found.checkpoint.claims is None
        if not is_of_others:
            self._mark.put(self._process_id)
        catch_up = CatchUp(
            found,
            unsynced_size_max=self._config.unsynced_size_max,
            on_replay_all=lambda: self._promise_only_log(found),
            now_ms=self._now_ms,
        )
        replay_from = found.complete_to
        if found.history is not History.COMPLETE:
            replay_from = min(replay_from, index_from(self._filesystem, self._root, found))
        if found.checkpoint.is_of_others:
            remove_queue_ends(self._filesystem, self._root)  # From before another program wrote.
        found.deletions.save_noted()  # Once there is a checkpoint of ours, nothing else shows them.
        claims = self._first_claims(found, replay_from)
        # If the sync of the folder fails, nobody knows whether the checkpoint is there. If it is, a
        # store that counted as killed for lack of one would count as shut down without `abort`.
        self._is_accepted = CHECKPOINT_NAME in found.lost_notes
        self._promise(found, claims)
        if is_of_others:
            self._mark.put(self._process_id)
        self._is_accepted = True
        if found.history is History.BROKEN_OFF:
            # Not from where only the index is read back: the queues are cut where theirs begins.
            self._forget_behind(found, found.start.replay_from)
        sign_lock(lock)
        found.segments.remove_spare()
        off_from = 0 if found.checkpoint.claims is None else found.complete_to
        settle_off(self._filesystem, self._root, found.key_index, off_from, found.end.offset)
        self._journal = EntryJournal(self._filesystem, self._root)
        self._make_folders(found)
        # The last process may have made or removed segments without syncing that.
        found.segments.settle()
        if found.history is not History.COMPLETE:
            found.integrity.drop(found.sealed.end)
        found.sealed.resume(found.start)
        at, end = catch_up.run(replay_from)
        found = found._replace(end=end)
        with repairing(
            self._filesystem,
            self._root,
            found.segments,
            found.start,
            end,
            clean=found.history is not History.BROKEN_OFF,
            turn_size_max=self._config.turn_size_max,
            threads=self._has_threads,
        ) as kept:
            catch_up.finish(at)
        self._checkpoint_file.note_synced(end.offset)
        # Not earlier: if the log had been refused, a repair would have needed the journals.
        self._journal.remove_others(claims.journal)
        first_offset = found.segments.first_offset
        found.deletions.settle(first_offset, end.offset)
        found.levels.change(end.offset, self._config.delay_levels_ms, first_offset)
        return self._assemble(lock, found, kept)

    def _first_claims(self, found: Found, replay_from: int) -> Claims:
        """Return claims that hold from now on, while records from an offset on are read back."""
        start, end, noted = found.start, found.end.offset, found.checkpoint.claims
        journal = None
        if found.journal is not None and noted is not None and noted.journal is not None:
            journal = noted.journal._replace(end=replay_from)
        return Claims(
            recover_from=min(start.replay_from, replay_from),
            journal=journal,
            verify_from=min(start.scan_from, replay_from),
            synced_offset=found.synced_to(replay_from),
            segment_size=found.segments.size,
            ours_from=min(start.ours_from, end),
            checked_from=min(start.checked_from, end) if self._config.record_crc else NEVER,
            queue_file_size=found.queues.simple.file_size,
            batch_queue_file_size=found.queues.batch.file_size,
            index_shape=self._config.index_shape,
        )

    def _promise(self, found: Found, claims: Claims) -> None:
        """Write a checkpoint; it describes whatever a power cut may leave after that."""
        self._claims, self._longs = claims, first_longs(found.checkpoint, claims, found.key_index)
        self._checkpoint_file.write(self._longs, claims)

    def _promise_only_log(self, found: Found) -> None:
        """Promise nothing about the queues: the entries of all records are about to be erased."""
        first_offset = found.segments.first_offset
        self._promise(found, replace(self._claims, recover_from=first_offset, journal=None))
        self._forget_behind(found, first_offset)

    def _forget_behind(self, found: Found, recover_from: int) -> None:
        forget_behind(self._filesystem, self._root, self._config, found, recover_from)

    def _make_folders(self, found: Found) -> None:
        """Make empty folders, too, so that one that is missing at the next start was removed."""
        folders = [LOG_FOLDER, SIMPLE_FOLDER]
        if found.key_index is not None:
            folders.append(INDEX_FOLDER)
        for folder in folders:
            self._filesystem.make_directories(f"{self._root}/{folder}")
        self._filesystem.sync_directory(self._root)

    def _assemble(self, lock: File, found: Found, kept: str | None) -> Opened:
        config, queues, index = self._config, found.queues, found.key_index
        file = self._checkpoint_file
        end = found.end.offset
        found.segments.synced_offset = end
        syncer = Syncer(end, note=file.note_synced, on_change=self._on_change)
        jobs = Jobs()
        zeros = ZeroAhead.of(self._filesystem, syncer, config)
        log = CommitLog(found.segments, syncer, end, hot_size=config.hot_size, zeros=zeros)
        appender = Appender(
            log,
            syncer,
            queues,
            config,
            found.levels,
            is_batch_topic=found.is_batch_topic,
            journal=self._journal,
            on_published=(lambda _, __: None) if index is None else index.add_many,
            has_numpy=lambda: index is not None and index.is_loaded,
        )
        checkpointer = Checkpointer(
            appender,
            syncer,
            queues,
            index,
            file,
            self._journal,
            self._claims,
            self._longs,
            config,
            jobs,
        )
        sealing = Sealing(self._filesystem, found.integrity, log, syncer, jobs, config)
        return Opened(
            lock=lock,
            log=log,
            segments=found.segments,
            syncer=syncer,
            jobs=jobs,
            zeros=zeros,
            queues=queues,
            index=index,
            journal=self._journal,
            appender=appender,
            checkpointer=checkpointer,
            sealing=sealing,
            expiry=self._expiry(found, sealing, jobs, checkpointer),
            checkpoint_file=file,
            deletions=found.deletions,
            delay_levels=found.levels,
            reader=QueueReader(log, queues, config),
            kept=kept,
            made_queues=0 if found.has_queues else _count(queues),
            lost_notes=found.lost_notes,
        )

    def _expiry(
        self, found: Found, sealing: Sealing, jobs: Jobs, checkpointer: Checkpointer
    ) -> Expiry:
        filesystem, segments, config = self._filesystem, found.segments, self._config
        retention = Retention(
            filesystem,
            segments,
            config,
            paths=(segments.directory, self._root),
            follow=found.queues.correct_min,
            settled_offset=lambda: checkpointer.claims.recover_from,
            on_held=checkpointer.bring_queues_to_files,
        )
        return Expiry(
            filesystem, retention, segments, found.queues, found.key_index, sealing, jobs, config
        )


def _count(queues: ConsumeQueues) -> int:
    """Return how many ordinary queues there are."""
    return sum(len(queues.simple.queues(topic)) for topic in queues.simple.topics())
