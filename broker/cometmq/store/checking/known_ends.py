"""How the offline tools use the list of the queues' ends, see `queue_ends`."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from cometmq.store.errors import REBUILD, CorruptionError, StoreFormatError
from cometmq.store.looking.findings import Kind
from cometmq.store.looking.queue_files import AboutQueue, files_of
from cometmq.store.messages.dispatch import batch_entry, has_entry
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.queue_ends import NO_RECORD, QUEUE_ENDS_NAME, QueueKey, load_queue_ends
from cometmq.store.starting.folder import queue_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_files import EntryFiles
    from cometmq.store.queues.queue_ends import QueueEnd

_NO_FILE: Final = (errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""The errors if a folder or a pipe is in a file's place, or a file in the place of its folder."""


def check_ends(store: Inspected, report: Report) -> Iterator[None]:
    """Report queues that lost their end, and whose messages have all expired; one a step.

    For other queues the records show it.
    """
    path, is_ours = f"{store.root}/{QUEUE_ENDS_NAME}", not store.checkpoint.is_of_others
    is_there = is_ours and store.filesystem.exists(path)
    if is_there and load_queue_ends(store.filesystem, store.root) is None:
        problem = (
            "does not match its checksum: the next start cannot tell which queues lost files,"
            " and writes it anew"
        )
        report.find(Kind.QUEUE_ENDS, path, 0, problem)
    for key, end in store.ends.items():
        yield
        if end.physical_offset >= store.segments.first_offset or end.lacks_from is not None:
            continue
        if end.physical_offset == NO_RECORD and not store.is_clean:
            continue  # A repair gave up its messages, and the next start does the rest.
        if not has_end(store, key, end):
            report.add(
                AboutQueue(key.topic, key.queue_id, files_of(store, key)).finding(
                    Kind.MISSING_ENTRY,
                    end.entries - 1,
                    f"the queue had {end.next_offset} messages, all expired, but its last entry"
                    " is missing; `cometmq store rebuild` lets it go on after them",
                    "",
                    max(0, end.physical_offset),
                )
            )


def check_openable(store: Inspected, report: Report) -> Iterator[None]:
    """Report queues that have their end, but that the next start would not accept; one a step.

    The records do not show a hole before them, nor what follows a queue's end.
    """
    settled = store.settled_offset
    queues = store.open_queues(clean=store.is_clean)
    queues.ends.known = {
        key: end
        for key, end in store.ends.items()
        if settled is None or NO_RECORD < end.reaches < settled
    }
    if store.is_clean and not store.checkpoint.is_of_others:
        queues.expect_whole()
    queues.correct_min(store.segments.first_offset)
    told = set(report.paths)
    folders = told | {path.rpartition("/")[0] for path in told}
    for key in queue_keys(store):
        end = store.ends.get(key)
        try:
            if end is None or _is_made_again(store, end) or has_end(store, key, end):
                queue = queues.table(is_batch=key.is_batch).find(key.topic, key.queue_id)
                if queue is not None:
                    _check_first(store, key, queue, end, report)
            elif (folder := store.place_of(key)[0]) not in folders:
                problem = (
                    f"the queue had {end.next_offset} messages, but its last entry is missing,"
                    f" or its last file has a wrong size; {REBUILD}"
                )
                report.find(Kind.QUEUE_FILE, folder, 0, problem)
        except CorruptionError as error:
            if error.path not in told:
                report.find(Kind.WRONG_ENTRY, error.path, error.position, error.problem)
        except StoreFormatError as error:
            path = error.path or store.place_of(key)[0]
            if path not in told:
                report.find(Kind.QUEUE_FILE, path, 0, error.problem)
        yield
    queues.close()


def _check_first(
    store: Inspected, key: QueueKey, queue: EntryFiles, end: QueueEnd | None, report: Report
) -> None:
    """Report a hole where a queue begins for its readers: they are refused there.

    In a store that was not shut down, the next start removes a hole after a queue's known end.
    """
    index = queue.min_entry
    known = queue.end if store.is_clean else min(queue.end, 0 if end is None else end.entries)
    if index >= known or queue.head(index)[1] > 0:
        return
    about = AboutQueue(key.topic, key.queue_id, files_of(store, key))
    if about.files.place(index)[0] not in report.paths:
        problem = f"no entry, and nothing says that its message has expired; {REBUILD}"
        report.add(about.finding(Kind.MISSING_ENTRY, index, problem))


def _is_made_again(store: Inspected, end: QueueEnd) -> bool:
    """Whether the next start rebuilds a queue that does not have its end."""
    settled = store.settled_offset
    if settled is None:
        return False
    return end.physical_offset == NO_RECORD or settled <= store.segments.first_offset


def queue_keys(store: Inspected) -> Iterator[QueueKey]:
    """Walk the queues that have a folder, and those that are only known to have existed."""
    found: set[QueueKey] = set()
    for folder, is_batch in ((SIMPLE_FOLDER, False), (BATCH_FOLDER, True)):
        for topic, queue_id, _ in queue_folders(store.filesystem, f"{store.root}/{folder}"):
            found.add(key := QueueKey(is_batch, topic, queue_id))
            yield key
    yield from (key for key in store.ends if key not in found)


def has_end(store: Inspected, key: QueueKey, end: QueueEnd) -> bool:
    """Whether the last entry of a queue is in its files."""
    try:
        return end.is_in(store.filesystem, *store.place_of(key), clean=store.is_clean)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return False  # Something else is in their place.


def keep_offsets(store: Inspected, queues: ConsumeQueues) -> None:
    """Let rebuilt queues without a message in the log continue where they would have.

    Leave out those that still have their last entry: their files are taken over. A topic may have
    changed to the other kind since.
    """
    for key, end in store.ends.items():
        is_batch = store.is_batch_topic(key.topic)
        table = queues.table(is_batch=is_batch)
        if key.queue_id in table.queues(key.topic):
            continue
        if is_batch != key.is_batch or not has_end(store, key, end):
            table.get(key.topic, key.queue_id).hold_at(end.next_offset)


def check_not_given_twice(
    store: Inspected, queues: ConsumeQueues, message: StoredMessage, *, is_batch: bool
) -> None:
    """Refuse a record whose queue offset an earlier record has, if we alone wrote both.

    We note the deletion of a topic, so this is not a recreated topic.
    """
    if not has_entry(message):
        return
    topic, queue_id, ours_from = message.topic, message.queue_id, store.start.ours_from
    number, table = message.queue_offset, queues.table(is_batch=is_batch)
    if message.physical_offset < ours_from or (queue := table.find(topic, queue_id)) is None:
        return
    if is_batch:
        number = batch_entry(message, store.delay_levels).base_offset
    if number >= queue.max_offset or queue.head(queue.end - 1)[0] < ours_from:
        return
    raise StoreFormatError(
        f"{topic}/{queue_id}: the record at physical offset {message.physical_offset} is message"
        f" {number}, but {queue.max_offset} come before it in the log, though the topic was not"
        " deleted: the queue was lost, and its offsets were given out again. It can keep only"
        f" the later ones: look at the earlier ones (`cometmq store dump --topic {topic}`), send"
        " again what is needed, and run `cometmq store rebuild --accept-restarts`"
    )
