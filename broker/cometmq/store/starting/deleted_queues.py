"""Queues of deleted topics whose removal the last process could not make sure of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.queues.entry_search import KEEPS_OFFSET

if TYPE_CHECKING:
    from cometmq.store.deletions import Deletions
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_files import EntryFiles


def destroy_deleted(queues: ConsumeQueues, deletions: Deletions, recover_from: int = 0) -> None:
    """Remove queues of deleted topics, if all that they have is from before the deletion.

    A queue that continues after the mark is of a topic that Apache brought back; one that only
    keeps an offset may be of a recreated topic, and so may a damaged one, which concerns only that
    queue: these stay. A queue without an entry keeps nothing, and would hide the queue of a topic
    that is recreated as one of the other kind. It stays only if the mark is before `recover_from`,
    so that the disk has the removal: then its entries are lost, and do not begin just anywhere.
    """
    tables = queues.simple, queues.batch
    marks = {topic.decode(): mark for topic, mark in deletions.offsets.items()}
    for table in tables if marks else ():
        table.doubt_removal(marks)
    for topic, mark in marks.items():
        for table in tables:
            for queue_id in table.queues(topic):
                queue = table.find_sound(topic, queue_id)
                if queue is not None and is_gone(queue, mark, recover_from):
                    table.destroy(topic, queue_id)


def is_gone(queue: EntryFiles, mark: int, recover_from: int = 0) -> bool:
    """Whether everything in a queue is of a topic that was deleted at a mark."""
    if queue.end <= queue.start:
        return not queue.end and mark >= recover_from
    last_offset, size = queue.head(queue.end - 1)
    return last_offset < mark and size not in KEEPS_OFFSET
