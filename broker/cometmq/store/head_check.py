"""Looking for records that are not the messages they say, for the tools that write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.consume_queues import SIMPLE_FOLDER
from cometmq.store.findings import Report
from cometmq.store.folder import queue_folders
from cometmq.store.queue_check import QueueCheck

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.inspection import Inspected
    from cometmq.store.log_check import Damage, LogCheck


class HeadCheck:
    """Takes the records of a log in their order, and says which are not what they say."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        self._queues = QueueCheck(store, Report(0))
        self._topics: dict[bytes, str | None] = {}
        """Names by their bytes; None of batch topics, whose entries have no place by number."""

    def take(self, message: StoredMessage) -> None:
        """Take the next sound record."""
        raw, topics, deletions = message.topic_raw, self._topics, self._store.deletions
        if raw not in topics:
            topics[raw] = None if self._store.is_batch_topic(message.topic) else message.topic
        topic = topics[raw]
        if topic is not None and not (deletions.offsets and deletions.covers(message)):
            self._queues.take(message, topic)

    def finish(self, log: LogCheck) -> dict[int, Damage]:
        """Return the records that are not what they say, by where they begin."""
        store = self._store
        folders = queue_folders(store.filesystem, f"{store.root}/{SIMPLE_FOLDER}")
        for _ in self._queues.finish(log.damages, log.end_offset, folders):
            pass
        return dict(sorted(self._queues.heads.found.items()))
