"""Queues that have fewer entries than they are known to have had: found, and made again.

A start looks at the last entry of each queue that the list of `queue_ends` names, which takes some
10 µs, and one place on the disk, for each. A queue that does not have it, or whose file has not the
size of one, has lost files, or bytes of them. All that is left of it is removed, and its entries
are made again from the log's first record on; the other queues stay as they are. If the log has no
message of it any more, the queue goes on at the offset that was next: none is given out twice.

A start that is cut off finds the same queues again: the list says where they ended until a
checkpoint has them on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.store.errors import CorruptionError
from cometmq.store.queue_ends import save_queue_ends

if TYPE_CHECKING:
    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.entry_disk import Shelf
    from cometmq.store.filesystem import FileSystem
    from cometmq.store.queue_ends import Ends, QueueEnd, QueueKey
    from cometmq.store.recovery import Start
    from cometmq.store.segments import Segments

NAMED_MAX: Final = 8
"""Queues that are named in what a start says; of the rest there is the number."""


def lost_queues(queues: ConsumeQueues, ends: Ends, start: Start, segments: Segments) -> Ends:
    """Return those queues whose last known entry is not in their files.

    Where the whole log is read back, only those matter of which it has no record.
    """
    first_offset = segments.first_offset
    is_all_read = start.replay_from <= first_offset
    simple, batch = queues.simple.shelf, queues.batch.shelf
    return {
        key: end
        for key, end in ends.items()
        if not (is_all_read and end.physical_offset >= first_offset)
        and not _has_entry(batch if key.is_batch else simple, key, end)
    }


def forget_cut(
    filesystem: FileSystem, root: str, queues: ConsumeQueues, lost: Ends, recover_from: int
) -> None:
    """Take queues from the list whose last entry is about to be cut, and made again from the log.

    A start that is cut off behind that must not miss it: it reads the log back from there.
    """
    known = queues.ends.known
    kept = {
        key: end for key, end in known.items() if end.physical_offset < recover_from or key in lost
    }
    if len(kept) < len(known):
        save_queue_ends(filesystem, root, kept)
        queues.ends.known = kept


def _has_entry(shelf: Shelf, key: QueueKey, end: QueueEnd) -> bool:
    number, place = divmod(end.entries - 1, shelf.file_entries)
    path = shelf.path(key.topic, key.queue_id, number)
    try:
        file = shelf.disk.filesystem.open(path, read_only=True)
    except FileNotFoundError:
        return False
    try:
        entry = file.read(shelf.entry_size, place * shelf.entry_size)
        size = file.size()
        # A start that is cut off while it cuts a queue leaves a short file.
        has_size = size == shelf.file_size or (size < shelf.file_size and not shelf.disk.clean)
        return has_size and end.is_of(entry)
    finally:
        file.close()


def hold_offsets(queues: ConsumeQueues, lost: Ends, segments: Segments) -> None:
    """Let lost queues go on where they would have, once the log was read for them.

    `CorruptionError` when the log has messages of one, but not its last.
    """
    for key, end in lost.items():
        table = queues.batch if key.is_batch else queues.simple
        queue = table.get(key.topic, key.queue_id)
        if queue.max_offset >= end.next_offset:
            continue
        if queue.min_entry < queue.end:
            segment = segments.at(end.physical_offset)
            raise CorruptionError(
                segments.directory if segment is None else segment.path,
                end.physical_offset % segments.size,
                f"the last of the {end.next_offset} messages of {key.topic}/{key.queue_id} was"
                f" here, and the log has it no more, only those up to {queue.max_offset - 1};"
                " restore the log from a copy, or let the queue go on behind these with"
                " `cometmq store rebuild`",
            )
        queue.hold_at(end.next_offset)


def lost_text(lost: Ends) -> str:
    """Say which queues a start made again."""
    names = [
        f"{key.topic}/{key.queue_id} ({end.next_offset} messages)" for key, end in lost.items()
    ]
    rest = len(names) - NAMED_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"{', '.join(names[:NAMED_MAX])}{more}"
