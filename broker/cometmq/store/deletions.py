"""Which topics were deleted, and when: no start may bring them back.

The records of a deleted topic stay in the log until they expire, so a start that reads the log back
would recreate its queues, and so would `cometmq store rebuild`. A mark says that the records of a
topic before a physical offset are gone. The log before the mark is synced first: if a power cut
took part of that log, another broker could write messages of a recreated topic there, and the mark
would hide them. The mark is on the disk before the queues are removed. It is forgotten once the log
begins after it: by then a checkpoint has made sure that the queues are removed. While the log
begins right at the mark, there may be no such checkpoint, and a power cut could bring them back.

The file, see `checked_json`::

    {"crc32":3632233996,"topics":{"Orders":123456},"version":1}

Apache's brokers have no such marks. If one of them finds a store that was not shut down, it brings
back the topics that were deleted after its checkpoint, here as in its own stores. Topics that it
deleted before it was shut down, or before it noted its queues as safe, are missing in the table of
topics, and a start makes the marks for them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto.errors import BodyError
from cometmq.store.disk.checked_json import CheckedJson
from cometmq.store.disk.names import some_of
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.proto.message import StoredMessage
    from cometmq.store.disk.filesystem import FileSystem

log = logging.getLogger(__name__)

DELETIONS_NAME: Final = "deleted_topics.json"
VERSION: Final = 1

_FILE: Final = CheckedJson(DELETIONS_NAME, "topics", VERSION)


class Deletions:
    """The marks of one store; a change is on the disk when the method that makes it returns."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        """Raise `StoreFormatError` if the file is damaged, or of a newer version."""
        self.path = f"{root}/{DELETIONS_NAME}"
        self._filesystem = filesystem
        self._root = root
        self.offsets: dict[bytes, int] = {
            topic.encode(): offset for topic, offset in self._load().items()
        }
        """By topic: its records before this physical offset are gone."""
        self._gone: list[str] = []
        """Topics that another program deleted and that have no mark on the disk yet."""

    def covers(self, message: StoredMessage) -> bool:
        """Whether the topic of a record was deleted after it."""
        return message.physical_offset < self.offsets.get(message.topic_raw, 0)

    def deleted_to(self, topic: str) -> int:
        """Return the log offset before which a topic's records are gone; 0 if none are."""
        return self.offsets.get(topic.encode(), 0)

    def add(self, topics: Iterable[str], end_offset: int, first_offset: int) -> None:
        """Mark topics as deleted whose records are all before the end of the log.

        No record before `first_offset` may come back: marks before it are forgotten. After an
        `OSError` it is open whether the marks are on the disk: the call has to be repeated.
        """
        marked = {topic.encode(): end_offset for topic in topics}
        self._replace(self._kept(first_offset, end_offset) | marked)

    def note_gone(self, topics: Iterable[str], end_offset: int) -> None:
        """Count topics that another program deleted as deleted; `save_noted` writes their marks."""
        gone = set(topics)
        self._gone = sorted(gone.union(self._gone))
        self.offsets = self.offsets | {topic.encode(): end_offset for topic in gone}

    def save_noted(self) -> None:
        """Return once the disk has the marks from `note_gone`."""
        if self._gone:
            log.warning(
                "%s: the log has messages of topics that another broker deleted, as they have"
                " neither an entry in config/topics.json nor a file: %s; they stay deleted",
                self._root,
                some_of(self._gone),
            )
            self._replace(self.offsets)

    def note_made_again(self, topic: str, offset: int) -> None:
        """Count a topic's records before an offset as deleted; `save` writes the mark."""
        self.offsets = self.offsets | {topic.encode(): max(offset, self.deleted_to(topic))}

    def save(self) -> None:
        """Return once the disk has all marks."""
        self._replace(self.offsets)

    def settle(self, first_offset: int, end_offset: int) -> None:
        """Forget marks before the log, and move marks beyond its end back to the end.

        Records that are put there next belong to recreated topics.
        """
        kept = self._kept(first_offset, end_offset)
        if kept != self.offsets:
            self._replace(kept)

    def _kept(self, first_offset: int, end_offset: int) -> dict[bytes, int]:
        return {
            topic: min(offset, end_offset)
            for topic, offset in self.offsets.items()
            if offset >= first_offset
        }

    def _load(self) -> dict[str, int]:
        try:
            return _FILE.load(self._filesystem, self._root, dict[str, int]) or {}
        except BodyError as error:
            raise StoreFormatError(
                f"damaged ({error}); restore it from a copy, or remove it and delete again the"
                " topics that come back",
                self.path,
            ) from error

    def _replace(self, offsets: dict[bytes, int]) -> None:
        topics = {topic.decode(): offset for topic, offset in offsets.items()}
        _FILE.save(self._filesystem, self._root, msgspec.json.encode(topics, order="sorted"))
        self.offsets, self._gone = offsets, []
