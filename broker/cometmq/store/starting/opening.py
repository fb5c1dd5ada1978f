"""Opening a store: lock it, find the end of its log, repair, replay, and put the parts together.

Until the log is accepted, by `find_end` and `foresight`, nothing but the lock is touched: a refusal
leaves every byte as it was. Then `abort` is written, then a checkpoint that is true whatever
happens next, and only then is anything cut, erased or written again.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.store.delay_levels import load_delay_levels
from cometmq.store.deletions import Deletions
from cometmq.store.disk.lock import (
    RunningMark,
    acquire_lock,
    give_up_lock,
    sign_lock,
)
from cometmq.store.disk.sync import Jobs, Syncer
from cometmq.store.index.index import INDEX_FOLDER, Index
from cometmq.store.index.index_folder import refuse_shortened_index
from cometmq.store.index.index_off import load_off, settle_off
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_scan import NEVER
from cometmq.store.log.zero_ahead import ZeroAhead
from cometmq.store.messages.appending import Appender
from cometmq.store.messages.reading import QueueReader
from cometmq.store.opened import Opened
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.entry_journal import EntryJournal
from cometmq.store.queues.queue_ends import (
    listed_to,
    load_queue_ends,
    remove_queue_ends,
    without_deleted,
)
from cometmq.store.starting.catching_up import CatchUp
from cometmq.store.starting.folder import (
    LOG_FOLDER,
    check_root,
    check_writable,
    load_queues,
    load_segments,
)
from cometmq.store.starting.foresight import Foresight, forget_behind
from cometmq.store.starting.found import Found, History, find_journal, was_left_clean
from cometmq.store.starting.log_repair import repairing
from cometmq.store.starting.lost_queues import queues_to_make, refuse_shortened
from cometmq.store.starting.recovery import choose_start, find_end, queues_end
from cometmq.store.starting.swap import finish_swap
from cometmq.store.starting.tail_check import Successions
from cometmq.store.upkeep.checkpoint import CheckpointFile, Claims, Longs, load_checkpoint
from cometmq.store.upkeep.checkpointing import Checkpointer, first_longs
from cometmq.store.upkeep.expiry import Expiry
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.retention import Retention
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER, SealedTail, Sealing

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.queues.consume_queues import ConsumeQueues

_OF_QUEUES: Final = (LOG_FOLDER, SIMPLE_FOLDER, BATCH_FOLDER)


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
        self._is_batch_topic: Callable[[str], bool]
        self._index: Index | None = None
        self._checkpoint_file = CheckpointFile(filesystem, f"{root}/checkpoint")
        self._claims: Claims
        self._longs: Longs
        self._is_accepted = False
        self._has_queues = True
        self._looked_at = ExitStack()
        """Closes what was only looked at, should the store be refused."""

    def run(self) -> Opened:
        """Open the store, or leave it as it was found."""
        check_root(self._filesystem, self._root)
        is_lock_made = not self._filesystem.exists(f"{self._root}/lock")
        if is_lock_made:
            with self._looked_at:
                self._inspect()  # A store that is refused does not even get a lock.
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

    def _open(self, lock: File) -> Opened:
        found = self._inspect()
        self._mark.put(self._process_id)
        replay_from, noted = found.complete_to, found.checkpoint.claims
        catch_up = CatchUp(
            self._filesystem,
            self._root,
            found,
            self._index,
            self._levels,
            is_batch_topic=self._is_batch_topic,
            unsynced_size_max=self._config.unsynced_size_max,
            on_replay_all=lambda: self._promise_only_log(found),
            now_ms=self._now_ms,
        )
        if found.history is not History.COMPLETE:
            replay_from = min(replay_from, catch_up.index_from())
        if found.checkpoint.is_of_others:
            remove_queue_ends(self._filesystem, self._root)  # Of before another program wrote.
        journal = None
        if found.journal is not None and noted is not None and noted.journal is not None:
            journal = noted.journal._replace(end=replay_from)
        claims = Claims(
            recover_from=min(found.start.replay_from, replay_from),
            journal=journal,
            verify_from=min(found.start.scan_from, replay_from),
            synced_offset=found.synced_to(replay_from),
            segment_size=found.segments.size,
            ours_from=min(found.start.ours_from, found.end.offset),
            checked_from=min(found.start.checked_from, found.end.offset)
            if self._config.record_crc
            else NEVER,
            queue_file_size=found.queues.simple.file_size,
            batch_queue_file_size=found.queues.batch.file_size,
            index_shape=self._config.index_shape,
        )
        self._promise(found, claims)
        if found.history is History.BROKEN_OFF:
            # Not of what is read for the index alone: the queues are cut where theirs begins.
            self._forget_behind(found, found.start.replay_from)
        self._is_accepted = True
        sign_lock(lock)
        found.segments.remove_spare()
        off_from = 0 if noted is None else found.complete_to
        settle_off(self._filesystem, self._root, self._index, off_from, found.end.offset)
        self._journal = EntryJournal(self._filesystem, self._root)
        self._make_folders()
        # The last process may have made or removed segments without coming to sync that.
        found.segments.sync_names()
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
        self._journal.remove_others(journal)  # If the log is refused meanwhile, a repair asks them.
        found.deletions.settle(found.segments.first_offset, end.offset)
        self._levels.change(end.offset, self._config.delay_levels_ms, found.segments.first_offset)
        return self._assemble(lock, found, kept)

    def _promise(self, found: Found, claims: Claims) -> None:
        """Write a checkpoint; behind that a power cut leaves nothing that it does not describe."""
        self._claims, self._longs = claims, first_longs(found.checkpoint, claims, self._index)
        self._checkpoint_file.write(self._longs, claims)

    def _promise_only_log(self, found: Found) -> None:
        """Promise nothing of the queues: the entries of all records are about to be erased."""
        first_offset = found.segments.first_offset
        self._promise(found, replace(self._claims, recover_from=first_offset, journal=None))
        self._forget_behind(found, first_offset)

    def _forget_behind(self, found: Found, recover_from: int) -> None:
        forget_behind(self._filesystem, self._root, self._config, found, recover_from)

    def _inspect(self) -> Found:
        """Find out what there is; changes nothing."""
        filesystem, root, config = self._filesystem, self._root, self._config
        checkpoint = load_checkpoint(filesystem, f"{root}/checkpoint")
        clean = was_left_clean(filesystem, root, checkpoint)
        segments = load_segments(filesystem, root, config, checkpoint)
        self._looked_at.callback(segments.close)
        queues = load_queues(filesystem, root, config, checkpoint, clean=clean)
        self._looked_at.callback(queues.close)
        deletions = Deletions(filesystem, root)
        is_ours, delays = checkpoint.claims is not None, config.delay_levels_ms
        if not checkpoint.is_of_others:
            self._take_ends(queues, deletions)
        self._is_batch_topic = queues.kinds(self._says_batch, deletions.offsets)
        self._levels = load_delay_levels(filesystem, root, delays, is_ours=is_ours)
        start = choose_start(segments, checkpoint)
        start = start.with_promise(listed_to(queues.ends.known), clean=clean)
        start = start.with_witnesses(queues, segments, clean=clean)
        integrity = Integrity(filesystem, f"{root}/{INTEGRITY_FOLDER}", segments.size)
        sealed = SealedTail(integrity, segments, is_ours=not checkpoint.is_of_others)
        if config.integrity:
            start = start.with_promise(sealed.promised_to, clean=clean)
        history = History.BROKEN_OFF
        if clean and checkpoint.claims is None:
            # Apache dispatches in the order of the log and stops when all is dispatched.
            dispatched = queues_end(queues)
            history = History.FOREIGN
            start = start._replace(synced_offset=dispatched or None, replay_from=dispatched)
        # None of what was promised may be cut any more.
        successions = Successions(start, checkpoint.claims, deletions, self._is_batch_topic)
        end = find_end(
            segments,
            start,
            clean=clean,
            unsynced_size_max=config.unsynced_size_max,
            look_at=successions.look_at,
        )
        sealed.check(start, end.offset, verify=config.integrity)
        if history is History.FOREIGN and start.replay_from > end.offset:
            # What Apache cut from the log is still in its queues, or one entry is damaged.
            history = History.BROKEN_OFF
            start = start._replace(replay_from=segments.first_offset)
        elif clean and history is not History.FOREIGN and start.replay_from == end.offset:
            history = History.COMPLETE
        start = start._replace(
            replay_from=min(max(start.replay_from, segments.first_offset), end.offset)
        )
        off = load_off(filesystem, root)
        if config.index:
            self._index = Index(filesystem, root, config, clean=clean and off is None)
        self._has_queues = filesystem.exists(f"{root}/{SIMPLE_FOLDER}")
        if not self._has_queues:
            history = History.BROKEN_OFF
            start = start._replace(replay_from=segments.first_offset)
        elif config.index and not (off is None and filesystem.exists(f"{root}/{INDEX_FOLDER}")):
            history = History.FOREIGN if history is History.COMPLETE else history
        is_broken_off, journal = history is History.BROKEN_OFF, None
        to_make = queues_to_make(queues, segments, start.replay_from, clean=not is_broken_off)
        if is_broken_off and checkpoint.claims is not None and not to_make:
            claims = checkpoint.claims
            journal = find_journal(filesystem, root, segments, claims, start, end, deletions)
        parts = integrity, sealed, deletions, successions.unpromised
        found = Found(history, checkpoint, segments, queues, start, end, *parts, to_make, journal)
        self._foresee(found, successions, clean=clean)
        check_writable(filesystem, root, config)
        return found

    def _foresee(self, found: Found, successions: Successions, *, clean: bool) -> None:
        """Refuse what would be refused later, or by nobody."""
        if found.history is History.FOREIGN and found.checkpoint.claims is None:
            placed, is_batch_topic = successions.placed, self._is_batch_topic
            refuse_shortened(found.queues, found.segments, placed, is_batch_topic)
        if not clean and self._config.index and found.checkpoint.claims is not None:
            refuse_shortened_index(self._filesystem, self._root, self._config, found.complete_to)
        foresight = Foresight(
            self._filesystem,
            self._root,
            self._config,
            found,
            self._levels,
            says_batch=self._says_batch,
            is_batch_topic=self._is_batch_topic,
            clean=clean,
        )
        foresight.check(successions.promised)

    def _take_ends(self, queues: ConsumeQueues, deletions: Deletions) -> None:
        """Let the queues know where they ended."""
        ends = load_queue_ends(self._filesystem, self._root)
        if ends is not None:
            known = without_deleted(ends, deletions, self._says_batch)
            queues.ends.begin_with(ends, known)
        elif not any(self._filesystem.exists(f"{self._root}/{name}") for name in _OF_QUEUES):
            queues.ends.is_whole = True  # A list of no queue: the first checkpoint brings one.

    def _make_folders(self) -> None:
        """Make what is empty, too: a folder that is missing at the next start was removed."""
        folders = [LOG_FOLDER, SIMPLE_FOLDER]
        if self._index is not None:
            folders.append(INDEX_FOLDER)
        for folder in folders:
            self._filesystem.make_directories(f"{self._root}/{folder}")
        self._filesystem.sync_directory(self._root)

    def _assemble(
        self,
        lock: File,
        found: Found,
        kept: str | None,
    ) -> Opened:
        config, queues, index = self._config, found.queues, self._index
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
            self._levels,
            is_batch_topic=self._is_batch_topic,
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
            delay_levels=self._levels,
            reader=QueueReader(log, queues, config),
            kept=kept,
            made_queues=0 if self._has_queues else _count(queues),
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
            filesystem, retention, segments, found.queues, self._index, sealing, jobs, config
        )


def _count(queues: ConsumeQueues) -> int:
    """Return how many ordinary queues there are."""
    return sum(len(queues.simple.queues(topic)) for topic in queues.simple.topics())
