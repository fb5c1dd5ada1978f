"""Rebuilding the ConsumeQueues and the index of a store from its log.

The new folders are written beside the old ones (`rebuilding/`), synced, and then swapped with them,
see `swap`: a process that is killed in the middle leaves each folder wholly old or wholly new, and
either is right. The list of the queues' ends stays until all folders are in place: until then it
still shows which queues are lost. Foreign files in the old folders move over (`foreign_files`).
The next run removes what an interrupted one left.

If the store was not shut down, the records at the end that nobody promised are left to the next
start: it judges whether they are whole and follow in their queues, syncs them, and gives the queues
their entries. Nothing that a power cut may still take is promised here.

What only the queues knew is taken over from them: a queue whose messages have all expired keeps its
files, because their names keep its offset; and an entry with the address of a unit in an extension
keeps it, if the unit is the record's.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import MessageError
from cometmq.store.checking.head_check import HeadCheck
from cometmq.store.checking.known_ends import check_not_given_twice, has_end, keep_offsets
from cometmq.store.disk.names import is_index_file
from cometmq.store.errors import (
    CorruptionError,
    MissingEntriesError,
    StoreFilesError,
    StoreFormatError,
)
from cometmq.store.index.index import Index
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_off import forget_off
from cometmq.store.log.fillers import is_filler
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.findings import Progress
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.mending.accepted_gaps import claims_behind_a_kill
from cometmq.store.mending.extended_entries import ExtendedEntries
from cometmq.store.mending.foreign_files import (
    InTheWay,
    check_folders,
    check_misplaced,
    clear_beside,
)
from cometmq.store.mending.kept_queues import keep_expired
from cometmq.store.mending.made_again import MadeAgain
from cometmq.store.messages.dispatch import note_record, place_record
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER, ConsumeQueues
from cometmq.store.queues.entry_journal import EntryJournal
from cometmq.store.queues.queue_ends import UNKNOWN, save_queue_ends
from cometmq.store.starting.folder import queue_folders
from cometmq.store.starting.found import is_ours
from cometmq.store.starting.recovery import gap_in_log
from cometmq.store.starting.swap import BESIDE, FOLDERS, remove_tree, swap
from cometmq.store.tables import TOPICS
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, CheckpointFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.upkeep.checkpoint import Claims

BUILD_RECORDS: Final = 4096
STEP_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did."""

    records: int = 0
    queues: int = 0
    entries: int = 0
    index_files: int = 0
    kept_queues: int = 0
    """Queues without a message in the log, whose files were taken over."""
    deleted_topics: Counter[str] = field(default_factory=Counter[str])
    """Topics that are gone, and how many of their records the log still has."""
    left_records: int = 0
    """Records that were not known to be on the disk: the next start decides about them."""
    fillers: int = 0
    """Records that a repair put in the place of damaged bytes."""
    gaps: list[str] = field(default_factory=list[str])
    """Queues whose numbers continue after a gap, and which now begin there."""
    swapped: list[str] = field(default_factory=list[str])


def check_rebuildable(store: Inspected) -> None:
    """Refuse to rebuild if the log may not be read, or the new index files' shape is unknown.

    If it is known, a file of another size is replaced like all others. Also refuse folders that
    cannot be replaced, what is in the place of a known queue, and a damaged table of topics, which
    alone says that some topics were deleted, or have batch queues.
    """
    check_folders(store.filesystem, store.root)
    path = f"{store.root}/config/{TOPICS}"
    if (damage := store.damaged_tables.refused.get(path)) is not None:
        raise StoreFormatError(damage.removeprefix(f"{path}: "), path)
    InTheWay(store.filesystem, store.root).refuse_known(store.ends)
    for segment in store.segments:
        store.filesystem.open(segment.path, read_only=True).close()
    files = store.filesystem.list(f"{store.root}/{INDEX_FOLDER}")
    shape = store.config.index_shape
    for entry in () if store.is_index_shape_known else files:
        if is_index_file(entry) and entry.size not in (0, shape.file_size):
            raise StoreFormatError(
                f"its {entry.size} bytes do not tell the shape of the index; give what the"
                f" broker is set to, by default --index-slots {shape.slots} --index-items"
                f" {shape.items}",
                f"{store.root}/{INDEX_FOLDER}/{entry.name}",
            )


def rebuild(
    store: Inspected,
    rebuilt: Rebuilt,
    now_ms: int,
    *,
    accept_restarts: bool = False,
    accept_gaps: bool = False,
) -> Iterator[Progress]:
    """Rebuild the queues and the index, one slice a step; the caller holds the store's lock.

    Raise `CorruptionError`, with nothing changed, if the log is damaged, or `StoreFormatError` if
    it has two messages of one number, though their topic was not deleted; with `accept_restarts`
    the later ones count. Also raise `CorruptionError` if the log lacks messages of a queue, or a
    record is not the message it says; with `accept_gaps` a queue begins after its last gap.
    """
    filesystem, beside = store.filesystem, f"{store.root}/{BESIDE}"
    clear_beside(filesystem, store.root)
    filesystem.make_directories(beside)
    try:
        work = _Work(store, beside, rebuilt, now_ms, accept_restarts, accept_gaps)
        with closing(work):
            yield from work.replay()
            yield Progress("sync", 0, 1)
            work.finish()
    except BaseException:
        remove_tree(filesystem, beside)
        raise
    yield Progress("swap", 0, 1)
    work.promise()
    work.correct_ends()
    for folder in FOLDERS:
        if filesystem.exists(f"{beside}/{folder}"):
            swap(filesystem, store.root, folder)
            rebuilt.swapped.append(folder)
    work.note_complete()
    forget_off(filesystem, store.root)
    clear_beside(filesystem, store.root)
    filesystem.sync_directory(store.root)


class _Work:
    """The new folders while they are being made."""

    def __init__(
        self,
        store: Inspected,
        beside: str,
        rebuilt: Rebuilt,
        now_ms: int,
        accept_restarts: bool,
        accept_gaps: bool,
    ) -> None:
        self._store = store
        self._beside = beside
        self._rebuilt = rebuilt
        self._now_ms = now_ms
        self._is_batch = cache(store.is_batch_topic)
        self._gone: set[str] = set()
        """Topics without a mark whose records get no entry."""
        self._queues = ConsumeQueues(store.filesystem, beside, store.config, clean=True)
        self._index = Index(store.filesystem, beside, store.config, clean=True)
        self._made_again = MadeAgain(store, self._queues, self._is_batch, rebuilt)
        self._extended = ExtendedEntries(store)
        self._in_the_way = InTheWay(store.filesystem, store.root)
        self._taken_to = store.segments.first_offset
        self._complete_to: int | None = None
        self._accepts_restarts = accept_restarts
        self._heads = None if accept_gaps else HeadCheck(store)
        self._refusal: StoreFilesError | None = None
        """The error for numbers that do not follow, unless a record turns out to be wrong."""
        self._limit = store.promised_to
        self._claims = store.checkpoint.claims
        self._queues.ends.is_whole = True
        self._queues.correct_min(store.segments.first_offset)

    def replay(self) -> Iterator[Progress]:
        """Take every record of the log."""
        store, rebuilt = self._store, self._rebuilt
        log = LogCheck(store)
        first, total = store.segments.first_offset, store.segments.end_offset
        step = first + STEP_BYTES
        for message in log:
            if log.damages:
                break
            if message.physical_offset >= self._limit:
                rebuilt.left_records += 1
                self._made_again.look_at(message)
                continue
            if self._heads is not None:
                self._heads.take(message)
            try:
                self._take(message)
            except MessageError as error:
                raise _damaged(store, message.physical_offset, str(error)) from error
            rebuilt.records += 1
            self._taken_to = message.physical_offset + message.size
            if message.physical_offset >= step:
                step = message.physical_offset + STEP_BYTES
                self._queues.write_behind(message.physical_offset, NEVER)
                self._raise_failure()
                yield Progress("log", message.physical_offset - first, total - first)
        self._refuse(log)
        if self._limit < NEVER:
            # Not the end of a segment that may come after it: nobody promised that, either.
            self._complete_to = self._taken_to
        elif log.torn_problem is None:
            self._complete_to = log.end_offset

    def _refuse(self, log: LogCheck) -> None:
        """Refuse a log that is damaged, or whose records do not follow in their queues."""
        store = self._store
        for damage in log.damages[:1]:
            raise _damaged(store, damage.start, damage.problem)
        if (missing_end := log.missing_end()) is not None:
            problem = f"files are missing, it went up to {missing_end}"
            raise _damaged(store, store.segments.data_limit, problem)
        for head in () if self._heads is None else self._heads.finish(log).values():
            raise _damaged(
                store, head.start, head.problem, "this record is not the message that it says it is"
            )
        if self._refusal is not None:
            raise self._refusal

    def _take(self, message: StoredMessage) -> None:
        topic = message.topic
        if is_filler(message):
            self._rebuilt.fillers += 1
            return
        if self._store.deletions.covers(message):
            self._rebuilt.deleted_topics[topic] += 1
        elif message.physical_offset < self._store.gone_topics.gone_to(topic):
            self._rebuilt.deleted_topics[topic] += 1
            self._gone.add(topic)
        else:
            self._place(message)
        note_record(self._index, message)
        if self._index.waiting >= BUILD_RECORDS:
            self._index.build(BUILD_RECORDS, self._now_ms)

    def _place(self, message: StoredMessage) -> None:
        name, is_batch = f"{message.topic}/{message.queue_id}", self._is_batch(message.topic)
        self._in_the_way.refuse(message.topic, message.queue_id, is_batch=is_batch)
        if not self._accepts_restarts and name not in self._rebuilt.gaps:
            try:
                check_not_given_twice(self._store, self._queues, message, is_batch=is_batch)
            except StoreFormatError as error:
                self._refusal = self._refusal or error
        levels = self._store.delay_levels
        address = self._extended.address(message, levels)
        for _ in range(2):
            try:
                if address is not None:
                    queue = self._queues.simple.get(message.topic, message.queue_id)
                    placed = queue.place(
                        message.queue_offset, message.physical_offset, message.size, address
                    )
                else:
                    placed = place_record(self._queues, message, self._is_batch, levels)
            except MissingEntriesError as gap:
                # Then what comes before the gap is out of reach. It may be of a topic that was
                # deleted and recreated by a broker that kept counting; or a number is wrong.
                if self._heads is not None:
                    self._refusal = self._refusal or gap_in_log(self._store.segments, gap)
                self._queues.destroy(message.topic, message.queue_id)
                self._rebuilt.gaps.append(name)
                continue
            self._rebuilt.entries += placed
            return

    def finish(self) -> None:
        """Take over what the log does not have, and bring everything to the disk."""
        store, rebuilt = self._store, self._rebuilt
        keep_offsets(store, self._queues)
        self._queues.write_behind(NEVER, NEVER)
        self._index.finish(self._now_ms)
        self._raise_failure()
        check_misplaced(store.filesystem, store.root, self._beside)
        ends = self._queues.ends
        rebuilt.kept_queues += keep_expired(store, self._beside, ends, self._limit)
        self._queues.take_unsynced().sync()
        self._index.take_unsynced().sync()
        for folder in FOLDERS:
            path = f"{self._beside}/{folder}"
            is_there = store.filesystem.exists(f"{store.root}/{folder}")
            if is_there and not store.filesystem.exists(path):
                store.filesystem.make_directories(path)  # An empty folder replaces it.
        store.filesystem.sync_directory(self._beside)
        store.filesystem.sync_directory(store.root)
        # An expired segment must not come back, with records from before the new queues.
        store.filesystem.sync_directory(store.segments.directory)
        for folder in (SIMPLE_FOLDER, BATCH_FOLDER):
            rebuilt.queues += len(list(queue_folders(store.filesystem, f"{self._beside}/{folder}")))
        rebuilt.index_files = len(store.filesystem.list(f"{self._beside}/{INDEX_FOLDER}"))

    def _raise_failure(self) -> None:
        for error in (self._queues.write_error, self._index.write_error):
            if error is not None:
                raise error

    def promise(self) -> None:
        """Note how far the log is synced: perhaps only the list says so, and will soon say less.

        Also note the new shape of the index, and which topics are gone: some of their records may
        have got entries, by which the topic would be back.
        """
        before, store = self._claims, self._store
        self._made_again.mark()
        # With marks, a store without a checkpoint would count as ours.
        if before is not None or store.checkpoint.is_of_others:
            store.gone_topics.mark(self._gone, store.deletions, self._taken_to)
        if before is None:
            return
        claims = replace(before, index_shape=store.config.index_shape)
        if self._limit < NEVER:
            claims = replace(claims, synced_offset=self._limit)
        if claims != before:
            self._note(claims)

    def correct_ends(self) -> None:
        """Remove from the list of the queues' ends what does not hold for the new folders.

        The list stays until these are in place, so that a start notices a queue that is lost now,
        and knows which queues only keep an offset. The index may get another shape. New queues
        begin where the log does, not where the old ones did.
        """
        store = self._store
        ends = {key: end._replace(kept_from=UNKNOWN) for key, end in store.ends.items()}
        if self._accepts_restarts:
            first_offset = store.segments.first_offset
            ends = {key: end for key, end in ends.items() if end.physical_offset < first_offset}
        else:
            # The index of a batch topic's entry depends on how many have expired.
            beside = replace(store, root=self._beside)
            ends = {
                key: end
                for key, end in ends.items()
                if has_end(beside, key, end) or not has_end(store, key, end)
            }
        if ends != store.ends or store.listed_sizes not in (None, store.sizes):
            save_queue_ends(store.filesystem, store.root, ends, store.sizes)

    def note_complete(self) -> None:
        """Let the next start read the log only from after what is in the new folders."""
        store, claims = self._store, self._claims
        # The list vouches for the log, too, so it must be known how far that is synced.
        is_safe = store.is_clean or self._limit < NEVER
        # With a list, a store without a checkpoint counts as our killed one.
        is_of_us = claims is not None or is_ours(store.filesystem, store.root)
        is_true = is_safe and is_of_us and not store.checkpoint.is_of_others
        if self._rebuilt.gaps and claims is None and not store.is_clean:
            claims = claims_behind_a_kill(store, self._taken_to)
            self._complete_to, is_true = self._taken_to, True
        if is_true:
            self._queues.ends.take().save(store.filesystem, store.root)
        if claims is not None and self._complete_to is not None:
            recover_from = max(claims.recover_from, self._complete_to)
            self._note(replace(claims, recover_from=recover_from))
        # Journals that a repair left say what was in the place of damaged bytes.
        EntryJournal(store.filesystem, store.root).remove_others(claims.journal if claims else None)

    def _note(self, claims: Claims) -> None:
        store, self._claims = self._store, claims
        file = CheckpointFile(store.filesystem, f"{store.root}/{CHECKPOINT_NAME}")
        file.write(store.checkpoint.longs, claims)
        file.close()

    def close(self) -> None:
        """Close every file."""
        self._queues.close()
        self._extended.close()
        self._index.close()


def _damaged(
    store: Inspected, offset: int, problem: str, what: str = "no sound record begins here"
) -> CorruptionError:
    problem = f"{what} ({problem}); run `cometmq store repair` first"
    return CorruptionError(*store.segments.place_of(offset), problem)
