"""Queues that have fewer entries than they are known to have had.

A start looks at the last entry of each queue in the list of `queue_ends`, which takes some 10 µs
and one place on the disk each: 2 s for 80,000 queues, 8 s from a cold disk. A queue without that
entry, or with a file of a wrong size, has lost files, or bytes of them. No crash does that, because
what is listed was synced. So the start is refused before it changes anything, and `cometmq store
rebuild` restores the queues.

Lost queues are rebuilt, from nothing, only if the whole log is read for all queues anyway. A queue
of which the log has no record any more then continues at the offset that was next, so that no
offset is given out twice. So do queues whose messages a repair gave up (`NO_RECORD` in the list):
after an unclean stop their blank entries may be half there, so these are always rebuilt.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import NAMED_MAX, is_offset_file, some_of
from cometmq.store.errors import CorruptionError, LostQueuesError
from cometmq.store.queues.entry_search import NO_CUT
from cometmq.store.queues.noted_ends import end_of
from cometmq.store.queues.queue_ends import NO_RECORD, QueueEnd, QueueKey
from cometmq.store.queues.record_check import RecordCheck
from cometmq.store.queues.topic_folders import has_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_disk import Shelf
    from cometmq.store.queues.queue_ends import Ends
    from cometmq.store.starting.tail_check import Succession

LOOK_QUEUES: Final = 1024
"""Queues that one thread looks at in a row."""
LOOK_THREADS: Final = 8


def lost_queues(queues: ConsumeQueues) -> Ends:
    """Return the queues whose last known entry is not in their files.

    If there are many, several threads look: a cold disk answers more than one read at a time.
    """
    known = list(queues.ends.known.items())
    if len(known) <= LOOK_QUEUES:
        return dict(_lost_of(queues, known))
    lots = (known[first : first + LOOK_QUEUES] for first in range(0, len(known), LOOK_QUEUES))
    with ThreadPoolExecutor(LOOK_THREADS, "cometmq-look") as pool:
        return dict(chain.from_iterable(pool.map(partial(_lost_of, queues), lots)))


def _lost_of(
    queues: ConsumeQueues, known: Iterable[tuple[QueueKey, QueueEnd]]
) -> list[tuple[QueueKey, QueueEnd]]:
    return [
        (key, end)
        for key, end in known
        if not _has_entry(queues.table(is_batch=key.is_batch).shelf, key, end)
    ]


def queues_to_make(
    queues: ConsumeQueues, segments: Segments, replay_from: int, *, clean: bool
) -> Ends:
    """Return the queues of which nothing on the disk counts: this start rebuilds them.

    Raise `LostQueuesError` if there are lost queues for which it does not read the log.
    """
    known = queues.ends.known
    given_up = {key: end for key, end in known.items() if end.physical_offset == NO_RECORD}
    to_make = {} if clean else given_up
    lost = lost_queues(queues)
    if not clean and replay_from <= segments.first_offset:
        return to_make | lost
    # A queue that is known to lack entries reports that itself, at a put or a read.
    refused = {
        key: end
        for key, end in lost.items()
        if key not in to_make and (end.lacks_from is None or not _has_files(queues, key))
    }
    _refuse(queues, refused)
    return to_make


def refuse_shortened(
    queues: ConsumeQueues,
    segments: Segments,
    dispatched: Succession,
    is_batch_topic: Callable[[str], bool],
) -> None:
    """Refuse a store that another program shut down, if queues do not end where the log says.

    Such a program leaves no list. But a queue must not end before a number that the log has, as far
    as it was read, nor before an entry of its own: between are zeros, or a damaged entry. A queue
    without files may be of a deleted topic, which such a program notes nowhere. Nor may a queue end
    after the last number: Apache's brokers leave the entries of records that they cut from the log
    in the files, and take them for messages again once the log is as long as it was.
    """
    backs = RecordCheck(segments)
    short = _cut_short(chain(queues.simple.loaded(), queues.batch.loaded()), backs, NO_CUT)
    for (raw, queue_id), following in () if dispatched.has_gap else dispatched.following.items():
        topic = raw.decode()
        key = QueueKey(is_batch_topic(topic), topic, queue_id)
        found = queues.table(is_batch=key.is_batch).find_sound(topic, queue_id)
        if found is None or not _has_files(queues, key):
            continue
        if found.max_offset < following:
            short[key] = QueueEnd(found.end + 1, NO_RECORD, following)
        elif found.max_offset > following:
            last = found.end - 1
            if not backs(topic, queue_id, *found.head(last)):
                of = f"message {found.max_offset - 1} of {topic}/{queue_id}"
                problem = f"not the entry of {of}: the log has messages up to {following - 1}"
                raise found.damaged(last, problem)
    _refuse(queues, short)


def refuse_cut_short(
    queues: ConsumeQueues, segments: Segments, below: int, read_back: Collection[tuple[bytes, int]]
) -> None:
    """Refuse a killed store without a list, if queues end before entries of their own.

    Only entries of records below an offset count: they were synced, so none is torn. If records of
    a queue are read back, they show a gap, for which all queues are rebuilt.
    """
    seen = (
        queue
        for queue in queues.walk_sound()
        if queue is not None and (queue.topic.encode(), queue.queue_id) not in read_back
    )
    _refuse(queues, _cut_short(seen, RecordCheck(segments), below))


def _cut_short(
    queues: Iterable[ConsumeQueue | BatchConsumeQueue], backs: RecordCheck, below: int
) -> Ends:
    """Return the queues that have entries of messages after their end."""
    short: dict[QueueKey, QueueEnd] = {}
    for queue in queues:
        for index, offset, size in queue.behind_end():
            if offset < below and backs(queue.topic, queue.queue_id, offset, size):
                following = queue.max_offset + index + 1 - queue.end  # For batches, at least.
                short[queue.key] = QueueEnd(index + 1, offset, following)
    return short


def _refuse(queues: ConsumeQueues, refused: Ends) -> None:
    if refused:
        folder = queues.table(is_batch=next(iter(refused)).is_batch).root
        raise LostQueuesError(
            f"{folder}: the last entries of {_text(queues, refused)} are lost; nothing was"
            " changed: restore the folder from a copy, or run `cometmq store rebuild`, which"
            " rebuilds the queues from the log"
        )


def forget_cut(
    filesystem: FileSystem,
    root: str,
    queues: ConsumeQueues,
    recover_from: int,
    look: Callable[[], ConsumeQueues] | None,
) -> None:
    """Remove from the list the entries that are about to be cut and rebuilt from the log.

    If this start is then interrupted, the next one must not count these as lost: it reads the log
    back from there. Earlier entries must stay in the list; to find them, `look` returns the queues
    as they are after the cut. It is None if the log begins there: then the log itself says with
    which number each queue continues. The same holds for a queue that keeps nothing earlier: what
    it has there has expired, and may go.
    """
    known = queues.ends.known
    cut = {key: end for key, end in known.items() if end.physical_offset >= recover_from}
    if not cut:
        return
    kept = {key: end for key, end in known.items() if key not in cut}
    if look is not None:
        with closing(look()) as on_disk:
            for key, end in cut.items():
                table = on_disk.table(is_batch=key.is_batch)
                queue = table.find_sound(key.topic, key.queue_id)
                before = None if queue is None else end_of(queue)
                if before is not None and before.entries > end.kept_from:
                    kept[key] = before._replace(kept_from=end.kept_from)
    queues.ends.save(kept, filesystem, root)


def _has_files(queues: ConsumeQueues, key: QueueKey) -> bool:
    shelf = queues.table(is_batch=key.is_batch).shelf
    return has_files(shelf.disk.filesystem, f"{shelf.root}/{key.topic}/{key.queue_id}")


def name_lacking(queues: ConsumeQueues) -> None:
    """Report the queues that lack entries which an earlier start could not give them."""
    for key, end in queues.ends.known.items():
        if end.lacks_from is not None:
            queues.table(is_batch=key.is_batch).find_sound(key.topic, key.queue_id)


def _has_entry(shelf: Shelf, key: QueueKey, end: QueueEnd) -> bool:
    folder, disk = f"{shelf.root}/{key.topic}/{key.queue_id}", shelf.disk
    return end.is_in(
        disk.filesystem,
        folder,
        shelf.file_size,
        shelf.entry_size,
        clean=disk.clean,
        read_only=disk.read_only,
    )


def hold_offsets(queues: ConsumeQueues, made: Ends, segments: Segments) -> None:
    """Let queues without a record continue where they would have; the log was read for them.

    Raise `CorruptionError` if the log does have messages of one, but not its last.
    """
    for key, end in made.items():
        if end.physical_offset >= segments.first_offset:
            continue
        queue = queues.table(is_batch=key.is_batch).get(key.topic, key.queue_id)
        if queue.max_offset >= end.next_offset:
            continue
        if queue.min_entry < queue.end:
            if end.physical_offset == NO_RECORD:
                continue  # Its topic was deleted since, and recreated.
            raise CorruptionError(
                segments.directory,  # Before its first file.
                end.reaches % segments.size,
                f"the last of the {end.next_offset} messages of {key.topic}/{key.queue_id} was"
                f" here, but the log now has only those up to {queue.max_offset - 1}; restore"
                " the log from a copy, or let the queue go on after these with `cometmq store"
                " rebuild`",
            )
        queue.hold_at(end.next_offset)


def _text(queues: ConsumeQueues, lost: Ends) -> str:
    named = [
        f"{key.topic}/{key.queue_id} ({end.next_offset} messages"
        f"{_wrong_size(queues, key) if number < NAMED_MAX else ''})"
        for number, (key, end) in enumerate(lost.items())
    ]
    return some_of(named)


def _wrong_size(queues: ConsumeQueues, key: QueueKey) -> str:
    """Name the last file of a queue with a wrong length; empty if there is none."""
    shelf = queues.table(is_batch=key.is_batch).shelf
    files = shelf.disk.filesystem.list(f"{shelf.root}/{key.topic}/{key.queue_id}")
    for entry in reversed([entry for entry in files if is_offset_file(entry)]):
        if entry.size != shelf.file_size:
            wanted = f"where files of queues have {shelf.file_size}"
            return f"; {entry.name} has {entry.size} bytes, {wanted}"
    return ""
