"""Queues without a message in the log: a rebuild keeps them, because their files keep offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.store.errors import StoreFormatError
from cometmq.store.log.log_scan import NEVER
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER, ConsumeQueues
from cometmq.store.queues.entry_search import expired_end, is_in_order
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.queues.record_check import read_record
from cometmq.store.queues.topic_folders import has_files
from cometmq.store.starting.deleted_queues import is_gone
from cometmq.store.starting.folder import queue_folders

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.noted_ends import QueueEnds
    from cometmq.store.queues.queue_table import QueueTable

_COPY_SIZE: Final = 1 << 20


def keep_expired(store: Inspected, beside: str, ends: QueueEnds, limit: int) -> int:
    """Copy the queues that have files and are not among the new ones; return how many.

    Their ends are noted. Records from `limit` on are left to the next start.
    """
    filesystem, root = store.filesystem, store.root
    kept: list[QueueKey] = []
    for folder in (SIMPLE_FOLDER, BATCH_FOLDER):
        for topic, queue_id, path in list(queue_folders(filesystem, f"{root}/{folder}")):
            target = f"{beside}/{folder}/{topic}/{queue_id}"
            if has_files(filesystem, path) and not filesystem.exists(target):
                _copy_tree(filesystem, path, target)
                filesystem.sync_directory(target.rpartition("/")[0])
                kept.append(QueueKey(folder == BATCH_FOLDER, topic, queue_id))
    return _note_kept(store, beside, ends, limit, kept)


def _note_kept(
    store: Inspected, beside: str, ends: QueueEnds, limit: int, kept: list[QueueKey]
) -> int:
    """Note the ends of the copied queues for the list, and erase what follows them.

    A queue that is damaged, or does not end where it is known to have ended, just continues there.
    A queue that only has entries of records that are left to the next start is left out, and so is
    one that continues at 0, like any new queue, or belongs to a deleted topic. A copy of another
    queue stays as it is and is not noted, so that it may be moved elsewhere afterwards.
    """
    queues = ConsumeQueues(store.filesystem, beside, store.config, clean=store.is_clean)
    queues.correct_min(store.segments.first_offset)
    count = 0
    for key in kept:
        table, known = queues.table(is_batch=key.is_batch), store.ends.get(key)
        queue = _loaded(store, beside, table, key)
        if _is_copy(store, table, queue):
            continue
        mark = store.deletions.offsets.get(key.topic.encode())
        if mark is not None and known is None and is_gone(queue, mark):
            table.destroy(key.topic, key.queue_id)
            continue
        if limit < NEVER and known is None:
            # The log has no record of the queue up to `limit`: entries that lead into it are torn.
            queue.cut_to(expired_end(queue, store.segments.first_offset))
            if queue.end == queue.start:
                table.destroy(key.topic, key.queue_id)
                continue
        elif limit < NEVER:
            queue.truncate(limit)
        next_offset = queue.max_offset if known is None else known.next_offset
        if not next_offset:
            table.destroy(key.topic, key.queue_id)
            continue
        if queue.max_offset != next_offset or not is_in_order(queue):
            queue.hold_at(next_offset)
        queue.erase_rest()
        ends.note_loaded(queue)
        count += 1
    queues.take_unsynced().sync()
    queues.close()
    return count


def _loaded(
    store: Inspected, beside: str, table: QueueTable[Any], key: QueueKey
) -> ConsumeQueue | BatchConsumeQueue:
    """Return a copied queue, empty if its files are odd and it is known where it ended."""
    queue: ConsumeQueue | BatchConsumeQueue
    try:
        queue = table.get(key.topic, key.queue_id)
    except StoreFormatError as error:  # A file of an odd size.
        if key not in store.ends:
            path = (error.path or "").replace(beside, store.root, 1)
            raise StoreFormatError(error.problem, path) from error
        table.discard(key.topic, key.queue_id)
        queue = table.get(key.topic, key.queue_id)
    return queue


def _is_copy(
    store: Inspected, table: QueueTable[Any], queue: ConsumeQueue | BatchConsumeQueue
) -> bool:
    """Whether the last entry of a queue is, in the same place, that of the record's own queue."""
    last = queue.end - 1
    physical_offset, size = queue.head(last) if queue.end > queue.start else (-1, 0)
    segments = store.segments
    if not segments.first_offset <= physical_offset < segments.end_offset:
        return False
    record = read_record(segments, physical_offset, size)
    original = None if record is None else table.find(record.topic, record.queue_id)
    if original is None or original is queue or not original.start <= last < original.end:
        return False
    return bool(original.read_entries(last, 1) == queue.read_entries(last, 1))


def _copy_tree(filesystem: FileSystem, source: str, target: str) -> None:
    """Copy the files of a folder, keeping them sparse, and sync them."""
    filesystem.make_directories(target)
    for entry in filesystem.list(source):
        if entry.is_directory:
            continue
        old = filesystem.open(f"{source}/{entry.name}", read_only=True)
        new = filesystem.open(f"{target}/{entry.name}", create=True)
        try:
            new.resize(entry.size)
            for position in range(0, entry.size, _COPY_SIZE):
                data = old.read(_COPY_SIZE, position)
                if any(data):
                    new.write(data, position)
            new.sync()
        finally:
            old.close()
            new.close()
    filesystem.sync_directory(target)
