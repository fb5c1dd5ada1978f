"""Groups that are ahead of their queues, because a power cut took messages that they had read.

Without sync flush, a group may read messages that the disk does not have yet. If a power cut takes
them, their numbers are given out again. Members that go on at their old places would miss the new
messages below these, without a word. So the first pull of each queue after a start is compared with
where the queue ended then. This is for groups that had committed there: a new one may well begin
later, at the end of that moment.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.proto.commands.pull import PullMessage
    from cometmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

LOOK_FOR_MS: Final = 600_000
"""How long after a start pulls are looked at: by then, whoever was ahead has come back."""


class Rewound:
    """Where all queues ended at the start, and which of them each group has pulled since."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets, elapsed_ms: int) -> None:
        """Call it before anything is put."""
        self.pulled: dict[tuple[str, str], set[int]] = {pair: set() for pair in offsets.pairs()}
        """By group and topic, as of the start; empty once there is nothing more to look for."""
        self._store = store
        self._offsets = offsets
        self._log_end = store.end_offset
        self._until_ms = elapsed_ms + LOOK_FOR_MS

    def look(self, header: PullMessage) -> None:
        """Reset a group to the former end of a queue, if its first pull is from after that."""
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        pulled = self.pulled.get((group, topic))
        if pulled is None or queue_id in pulled:
            return
        pulled.add(queue_id)
        if queue_id not in self._offsets.of(group, topic):
            return
        if (group, topic, queue_id) in self._offsets.resets:
            return
        end = self._former_end(topic, queue_id, header.queue_offset)
        if header.queue_offset > end:
            log.warning(
                "group %s has read queue %d of %s up to %d, but this broker had it up to %d when it"
                " started: messages were lost; the group continues there",
                *(group, queue_id, topic, header.queue_offset, end),
            )
            self._offsets.reset(group, topic, queue_id, end)

    def _former_end(self, topic: str, queue_id: int, asked: int) -> int:
        """Return where a queue ended at the start, or what was asked if that is not beyond it."""
        queue = self._store.queues.find(topic, queue_id)
        if queue is None:
            return asked
        first, end = queue.min_offset, queue.max_offset

        def place(queue_offset: int) -> int:
            return queue.head(queue_offset)[0]

        if asked <= first or (asked <= end and place(asked - 1) < self._log_end):
            return asked
        return first + bisect_left(range(first, end), self._log_end, key=place)

    def expire(self, elapsed_ms: int) -> None:
        """End the look once it is time."""
        if self.pulled and elapsed_ms >= self._until_ms:
            self.pulled = {}
