"""Searching for records that are not the messages that they say, for the tools that write."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from cometmq.store.checking.batch_queue_check import BatchQueueCheck
from cometmq.store.checking.queue_check import QueueCheck
from cometmq.store.looking.findings import Report
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.starting.folder import queue_folders

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage, LogCheck


class HeadCheck:
    """Takes the records of a log in order, and returns those that are not what they say."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        self._queues = QueueCheck(store, Report(0))
        self._batches = BatchQueueCheck(store, Report(0), self._queues.heads)
        self._topics: dict[bytes, tuple[str, QueueCheck | BatchQueueCheck]] = {}
        """By the bytes of a topic's name: the name, and which of the two checks is for it."""

    def take(self, message: StoredMessage) -> None:
        """Take the next sound record."""
        raw, topics, deletions = message.topic_raw, self._topics, self._store.deletions
        if raw not in topics:
            topic = message.topic
            is_batch = self._store.is_batch_topic(topic)
            topics[raw] = topic, self._batches if is_batch else self._queues
        if not (deletions.offsets and deletions.covers(message)):
            topic, check = topics[raw]
            check.take(message, topic)

    def finish(self, log: LogCheck) -> dict[int, Damage]:
        """Return the records that are not what they say, by their offsets."""
        store = self._store
        simple, batch = (
            queue_folders(store.filesystem, f"{store.root}/{each}")
            for each in (SIMPLE_FOLDER, BATCH_FOLDER)
        )
        queues = self._queues.finish(log.damages, log.end_offset, simple)
        for _ in chain(queues, self._batches.finish(log.damages, batch)):
            pass
        return dict(sorted(self._queues.heads.found.items()))
