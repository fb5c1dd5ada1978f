"""Whether the records that nobody promised follow one another in their queues.

Without a checksum of the whole record, a power cut may tear the head of one and leave its body
whole: its queue, or its number in the queue, are then others. Such a record would take the place of
messages that were promised, or leave a gap in front of those behind it. So the tail behind what was
known to be synced is a tail up to the first record that is not the next one of its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.sysflag import TRANSACTION_MASK
from cometmq.store.dispatch import RECORDS_WITHOUT_ENTRY, batch_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.proto.message import StoredMessage
    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.deletions import Deletions


def first_contradiction(
    records: Iterable[StoredMessage],
    queues: ConsumeQueues,
    deletions: Deletions,
    is_batch_topic: Callable[[str], bool],
    *,
    is_from_first: bool,
) -> int | None:
    """Return the physical offset of the first record that is not the next one of its queue.

    The queues hold all records in front of these. Where the log has lost its front, not
    `is_from_first`, a queue without any may begin with any number.
    """
    following: dict[tuple[bytes, int], int] = {}
    for message in records:
        if message.sys_flag & TRANSACTION_MASK in RECORDS_WITHOUT_ENTRY:
            continue
        if deletions.offsets and deletions.covers(message):
            continue
        key = (message.topic_raw, message.queue_id)
        is_batch = is_batch_topic(message.topic)
        number, count = message.queue_offset, 1
        if is_batch:
            entry = batch_entry(message, ())
            assert entry is not None
            number, count = entry.base_offset, entry.batch_size
        expected = following.get(key)
        if expected is None:
            table = queues.batch if is_batch else queues.simple
            queue = table.find(message.topic, message.queue_id)
            if queue is not None and queue.end > queue.start:
                expected = queue.max_offset
            else:
                expected = 0 if is_from_first else number
        if number != expected:
            return message.physical_offset
        following[key] = number + count
    return None
