"""Which topics of a store another program deleted: those that nothing in it names any more.

A broker writes its table of topics whenever it creates or deletes one. So a topic that is not in
the table, and has no file of a queue, is gone with the records that had entries, and neither a
start nor a repair brings these back. Records that may have no entry yet do count: a kill came
first, and their topic may be too new for the table.

If the table is lost, or is an older one, or if no queue is left, nobody can tell: the table may be
of another time, as in a half-copied store. Then no topic counts as gone.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.topic_folders import has_any_queue, has_queue_files
from cometmq.store.table_contents import listed_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import FileSystem


class GoneTopics:
    """What a store shows about the topics of the records in its log."""

    def __init__(
        self, filesystem: FileSystem, root: str, *, missed: Collection[str], made_to: int
    ) -> None:
        """`missed` are topics in the list of the queues' ends: they lost their files.

        `made_to` is the offset up to which each record had its entry, see
        `recovery.entries_made_to`.
        """
        self._filesystem, self._root = filesystem, root
        self._missed = missed
        self.made_to = made_to if has_any_queue(filesystem, f"{root}/{SIMPLE_FOLDER}") else 0
        """From here on, records are of no topic that is gone; 0 if nobody knows."""
        self._found: dict[str, bool] = {}

    def gone_to(self, topic: str) -> int:
        """Return the offset before which a topic's records are gone with it, or 0."""
        if topic not in self._found:
            self._found[topic] = bool(self.made_to) and self._is_gone(topic)
        return self.made_to if self._found[topic] else 0

    def mark(self, topics: Iterable[str], deletions: Deletions, end_offset: int) -> None:
        """Mark topics that are gone as deleted on the disk, because no later start can tell.

        `end_offset` is where the log ends.
        """
        deletions.note_gone(topics, min(self.made_to, end_offset))
        deletions.save_noted()

    def _is_gone(self, topic: str) -> bool:
        if topic in self._missed or self._listed is None or topic in self._listed:
            return False
        return not any(
            has_queue_files(self._filesystem, f"{self._root}/{folder}/{topic}")
            for folder in (SIMPLE_FOLDER, BATCH_FOLDER)
        )

    @cached_property
    def _listed(self) -> frozenset[str] | None:
        """The topics in the table, which mostly need not be read."""
        return listed_topics(self._filesystem, self._root)
