"""Which topics of a store another program deleted: those that nothing of it names any more.

A broker writes its table of topics with each that it makes, and each that it deletes. So a topic
that is in no table, and has no file of a queue, is gone with what had its entries, and neither a
start nor a repair brings that back. What may have no entry yet counts: a kill came before, and its
topic may be too new for the table.

Nobody can tell where the table is lost, or an older one, or where no queue is left: then it may be
of another time, as in a store that was copied by halves. No topic is gone there.
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
    """What a store tells of the topics that its log has records of."""

    def __init__(
        self, filesystem: FileSystem, root: str, *, missed: Collection[str], made_to: int
    ) -> None:
        """`missed` are topics that the list of the queues' ends names: they lost their files.

        `made_to` is up to where each record had its entry, see `recovery.entries_made_to`.
        """
        self._filesystem, self._root = filesystem, root
        self._missed = missed
        self.made_to = made_to if has_any_queue(filesystem, f"{root}/{SIMPLE_FOLDER}") else 0
        """Records from here on are of no topic that is gone; 0 where nobody knows."""
        self._found: dict[str, bool] = {}

    def gone_to(self, topic: str) -> int:
        """Return in front of which offset the records of a topic are of one that is gone; or 0."""
        if topic not in self._found:
            self._found[topic] = bool(self.made_to) and self._is_gone(topic)
        return self.made_to if self._found[topic] else 0

    def mark(self, topics: Iterable[str], deletions: Deletions, end_offset: int) -> None:
        """Have topics that are gone marked as deleted on the disk, for later no start can tell.

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
        """The topics of the table; mostly nobody has to read it."""
        return listed_topics(self._filesystem, self._root)
