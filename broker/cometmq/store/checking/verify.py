"""Verifying a store: every record, every ConsumeQueue entry, every index item, every block.

One pass over the log checks each record by itself and collects what it calls for in the queues and
in the index; these are compared on the way, see `queue_check` and `index_check`. Nothing is
changed, and memory is bounded by the number of queues, not of messages.

Damage that no checksum covers goes unseen: fields of a record's head that lead nowhere (born time
and host, store host, flags, reconsume times), unless the record ends with its own checksum or is in
a block that has one.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from cometmq.store.checking.batch_queue_check import BatchQueueCheck
from cometmq.store.checking.block_check import BLOCKS_A_STEP, checksum_notes, sealed_blocks
from cometmq.store.checking.gone_meanwhile import GoneMeanwhile
from cometmq.store.checking.index_check import IndexCheck
from cometmq.store.checking.known_ends import check_ends, check_openable, queue_keys
from cometmq.store.checking.queue_check import QueueCheck
from cometmq.store.checking.start_check import check_start
from cometmq.store.disk.names import has_place_of, in_place_of, is_offset_file, some_of
from cometmq.store.looking.findings import ALIKE_KEPT, Kind, Progress, Report
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.looking.unlisted import unlisted_of, unlisted_text
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.entry_journal import JOURNAL_FOLDER
from cometmq.store.queues.record_check import LIGHT_QUEUE_PREFIX
from cometmq.store.starting.folder import queue_folders
from cometmq.store.starting.recovery import missing_files
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected

STEP_BYTES: Final = 4 << 20
"""Bytes of log between two reports of progress."""


def verify(store: Inspected, report: Report) -> Iterator[Progress]:
    """Verify a store into a report, one slice a step.

    If a process that has the store open removes a file meanwhile, end with what was found so far.
    """
    try:
        yield from _verify(store, report)
    except FileNotFoundError as error:
        if store.opened_by is None:
            raise
        report.is_complete = False
        report.notes.append(
            f"{error.filename} was removed while this ran, as retention does: the rest is not"
            " checked; run it again"
        )


def _verify(store: Inspected, report: Report) -> Iterator[Progress]:
    report.first_offset = store.segments.first_offset
    _note_state(store, report)
    gone = GoneMeanwhile(store)
    if store.opened_by is not None:
        report.is_explained = gone.explains
    log = LogCheck(store)
    pass_over = _Pass(store, report)
    yield from pass_over.run(log)
    _report_log(store, log, report)
    yield from _verify_blocks(store, report)
    yield from pass_over.finish(log)
    report.notes += gone.notes()
    if report.is_sound and store.opened_by is None and not store.in_rocksdb:
        yield Progress("start", 0, 1)
        check_start(store, report)
        yield Progress("start", 1, 1)


def _note_state(store: Inspected, report: Report) -> None:
    if store.opened_by is not None:
        report.notes.append(
            f"the store is open in process {store.opened_by}: what it has not written to the"
            " disk yet is left out"
        )
    elif not store.is_clean:
        report.notes.append(
            "the store was not shut down cleanly: the next start rebuilds its last entries"
        )
    report.notes += store.damaged_tables.notes()
    if unlisted := unlisted_of(store):
        report.notes.append(unlisted_text(unlisted))
    _find_refused(store, report)
    for entry in store.filesystem.list(f"{store.root}/{JOURNAL_FOLDER}"):
        if has_place_of(entry, is_offset_file):
            problem = f"a start refuses it: {in_place_of(entry, 'file')}: move it elsewhere"
            path = f"{store.root}/{JOURNAL_FOLDER}/{entry.name}"
            report.find(Kind.MISPLACED, path, 0, problem)
    path = f"{store.root}/{CHECKPOINT_NAME}"
    if not store.filesystem.exists(path):
        report.notes.append("there is no checkpoint: the next start reads the whole log")
    elif store.checkpoint.is_damaged:
        report.find(
            Kind.CHECKPOINT,
            path,
            0,
            "does not match its checksum, or is not a checkpoint; the next start reads the"
            " whole log, and nothing is lost by removing the file",
        )


def _find_refused(store: Inspected, report: Report) -> None:
    for path, problem in store.in_rocksdb.items():
        report.find(Kind.ROCKSDB, path, 0, f"a start refuses it: {problem}")
    if store.in_rocksdb:
        report.notes.append("the queues are in RocksDB, or old: nothing of them is checked")
    for path, problem in store.damaged_tables.refused.items():
        what = problem.removeprefix(f"{path}: ")
        report.find(Kind.CONFIG_FILE, path, 0, f"a start refuses it: {what}")


class _Pass:
    """The one pass over the log."""

    def __init__(self, store: Inspected, report: Report) -> None:
        self._store = store
        self._report = report
        self._queues = QueueCheck(store, report)
        self._batches = BatchQueueCheck(store, report, self._queues.heads)
        self._index = IndexCheck(store, report, self._queues.journal.settled_offset)
        self._topics: dict[bytes, tuple[str, bool]] = {}

    def run(self, log: LogCheck) -> Iterator[Progress]:
        """Take every record."""
        store, first = self._store, self._report.first_offset
        noted = store.start.synced_offset if store.is_clean else None
        total = max(first + 1, noted or store.segments.end_offset)
        yield Progress("log", 0, total - first)  # The first record may come long after a hole.
        step = first + STEP_BYTES
        has_queues = not store.in_rocksdb
        take_index, take_queue = self._index.take, self._queues.take
        topics, deletions = self._topics, store.deletions
        records = size = 0
        for message in log:
            records += 1
            size += message.size
            raw = message.topic_raw
            topic, is_batch = topics[raw] if raw in topics else self._learn(message)
            if deletions.offsets and deletions.covers(message):
                self._report.records_of_deleted_topics += 1
            elif not has_queues:
                pass
            elif is_batch:
                self._batches.take(message, topic)
            else:
                take_queue(message, topic)
            take_index(message)
            offset = message.physical_offset
            if offset >= step:
                step = offset + STEP_BYTES
                yield Progress("log", offset - first, total - first)
        self._report.records, self._report.log_bytes = records, size

    def _learn(self, message: StoredMessage) -> tuple[str, bool]:
        """Find out about a topic that is seen for the first time."""
        topic = message.topic
        known = self._topics[message.topic_raw] = (topic, self._store.is_batch_topic(topic))
        return known

    def finish(self, log: LogCheck) -> Iterator[Progress]:
        """Report what only the end of the log shows."""
        store = self._store
        if not store.in_rocksdb:
            yield from self._finish_queues(log)
        yield from _counted("index", self._index.finish(log.damages), self._index.file_count)
        if not store.in_rocksdb:
            ends = chain(check_ends(store, self._report), check_openable(store, self._report))
            total = len(store.ends) + sum(1 for _ in queue_keys(store))
            yield from _counted("ends of queues", ends, total)

    def _finish_queues(self, log: LogCheck) -> Iterator[Progress]:
        store = self._store
        simple, batch = (
            list(queue_folders(store.filesystem, f"{store.root}/{folder}"))
            for folder in (SIMPLE_FOLDER, BATCH_FOLDER)
        )
        found = len(simple)
        simple = [each for each in simple if not each[0].startswith(LIGHT_QUEUE_PREFIX)]
        if len(simple) < found:
            self._report.notes.append(
                f"Apache's light queues ({LIGHT_QUEUE_PREFIX}), {found - len(simple)} here, are"
                " not checked: their entries lead to records of other topics"
            )
        queues = chain(
            self._queues.finish(log.damages, log.end_offset, iter(simple)),
            self._batches.finish(log.damages, iter(batch)),
        )
        yield from _counted("queues", queues, len(simple) + len(batch))
        for _, head in sorted(self._queues.heads.found.items()):
            problem = f"a sound record, but not of this message: {head.problem}"
            _find_in_log(store, self._report, head.start, problem)
        self._report.notes += chain(self._queues.notes(), self._batches.notes())
        gaps = chain(self._queues.gaps(), self._batches.gaps())
        for gap in gaps if not log.damages else ():
            self._report.queues_with_gaps += 1
            if self._report.queues_with_gaps <= ALIKE_KEPT:
                self._report.notes.append(gap)
        if mixed := self._queues.mixed():
            self._report.notes.append(
                f"{some_of(mixed)}: after a kill, an Apache broker brought old messages of the"
                " topic back behind later ones, and a start of ours after a kill refuses that:"
                " have the queue consumed, delete the topic, and create it again"
            )


def _counted(stage: str, steps: Iterable[None], total: int) -> Iterator[Progress]:
    yield Progress(stage, 0, total)
    for number, _ in enumerate(steps, 1):
        yield Progress(stage, number, total)


def _report_log(store: Inspected, log: LogCheck, report: Report) -> None:
    report.end_offset = log.end_offset
    for damage in log.damages:
        size = damage.end - damage.start
        behind = "nothing sound follows" if damage.is_last else f"{size} bytes are lost"
        problem = f"no sound record begins here: {damage.problem}; {behind}"
        _find_in_log(store, report, damage.start, problem)
    missing_end = log.missing_end()
    if missing_end is not None:
        place, problem = missing_files(store.segments, missing_end)
        _find_in_log(store, report, place, f"{problem}: files are missing")
    # If a process has the store open, it is writing there.
    if log.torn_problem is not None and store.opened_by is None:
        report.torn_bytes = log.data_end - log.end_offset
        report.torn_records = log.torn_records
        sound = f", with {log.torn_records} sound records not known to be on the disk"
        report.notes.append(
            f"a torn tail of {report.torn_bytes} bytes follows the end of the log at"
            f" {log.end_offset} ({log.torn_problem}){sound * bool(log.torn_records)}: this is no"
            " damage; the next start keeps a copy and cuts it off"
        )


def _find_in_log(
    store: Inspected, report: Report, offset: int, problem: str, kind: Kind = Kind.RECORD
) -> None:
    report.find(kind, *store.segments.place_of(offset), problem, physical_offset=offset)


def _verify_blocks(store: Inspected, report: Report) -> Iterator[Progress]:
    """Compare the sealed blocks with their checksums, if there are any."""
    report.notes += checksum_notes(store)
    start, end = store.segments.first_offset, store.segments.end_offset
    for number, block in enumerate(sealed_blocks(store, report.end_offset)):
        if block.is_sound is not None:
            report.blocks += 1
        if block.is_sound is False:
            behind = block.physical_offset + block.size
            problem = (
                f"{block.size} bytes differ from their checksum; `cometmq store dump --physical"
                f" {block.physical_offset}..{behind} {store.root}` shows its records"
            )
            _find_in_log(store, report, block.physical_offset, problem, Kind.BLOCK)
        if number % BLOCKS_A_STEP == 0:
            yield Progress("blocks", block.physical_offset - start, end - start)
