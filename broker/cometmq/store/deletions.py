"""Which topics were deleted, and when: what no start must bring back.

The records of a deleted topic stay in the log until they expire, so a start that reads the log back
would make its queues again, and so would `cometmq store rebuild`. A mark says that the records of a
topic in front of a physical offset are gone. The log in front of it is synced first: where a power
cut took a part of that, another broker could write messages of a topic that was made again, and the
mark would hide them. It is on the disk before the queues are removed, and forgotten once the log
begins behind it: then a checkpoint was taken since, which made sure of their removal. Where the log
begins right at it, none may have been, and a power cut bring them back.

The file, see `checked_json`::

    {"crc32":3632233996,"topics":{"Orders":123456},"version":1}

Apache's brokers have no such marks: one that finds the store not shut down brings back the topics
that were deleted behind its checkpoint, here as in its own stores. Of those that one deleted before
it was shut down, or noted its queues as safe, the table of topics tells, and a start makes the
marks.
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
    """The marks of one store; changes are on the disk when the verb that makes them returns."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        """`StoreFormatError` when the file is damaged, or of a newer version."""
        self.path = f"{root}/{DELETIONS_NAME}"
        self._filesystem = filesystem
        self._root = root
        self.offsets: dict[bytes, int] = {
            topic.encode(): offset for topic, offset in self._load().items()
        }
        """By topic: its records in front of this physical offset are gone."""
        self._gone: list[str] = []
        """Topics that another program deleted, and that have no mark on the disk yet."""

    def covers(self, message: StoredMessage) -> bool:
        """Whether a record is of a topic that was deleted behind it."""
        return message.physical_offset < self.offsets.get(message.topic_raw, 0)

    def deleted_to(self, topic: str) -> int:
        """Return in front of which offset in the log the records of a topic are gone; 0 of none."""
        return self.offsets.get(topic.encode(), 0)

    def add(self, topics: Iterable[str], end_offset: int, first_offset: int) -> None:
        """Mark topics whose records all lie in front of the end of the log as deleted.

        No record in front of `first_offset` may come back: marks in front of it are forgotten.
        An `OSError` leaves it open whether the marks are on the disk: it has to be tried again.
        """
        marked = {topic.encode(): end_offset for topic in topics}
        self._replace(self._kept(first_offset, end_offset) | marked)

    def note_gone(self, topics: Iterable[str], end_offset: int) -> None:
        """Count topics as deleted that another program deleted; `save_noted` makes it last."""
        gone = set(topics)
        self._gone = sorted(gone.union(self._gone))
        self.offsets = self.offsets | {topic.encode(): end_offset for topic in gone}

    def save_noted(self) -> None:
        """Return once the disk has what `note_gone` was told."""
        if self._gone:
            log.warning(
                "%s: messages in the log are of topics that another broker deleted, for these have"
                " neither an entry in config/topics.json nor a file: %s; they stay so",
                self._root,
                some_of(self._gone),
            )
            self._replace(self.offsets)

    def note_made_again(self, topic: str, offset: int) -> None:
        """Count what a topic has in front of an offset as deleted; `save` makes it last."""
        self.offsets = self.offsets | {topic.encode(): max(offset, self.deleted_to(topic))}

    def save(self) -> None:
        """Return once the disk has all marks."""
        self._replace(self.offsets)

    def settle(self, first_offset: int, end_offset: int) -> None:
        """Forget marks in front of the log, and let none reach behind its end.

        What is put there next is of topics that were made again.
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
                f"damaged ({error}); restore it from a copy, or remove it, and delete"
                " topics again that come back",
                self.path,
            ) from error

    def _replace(self, offsets: dict[bytes, int]) -> None:
        topics = {topic.decode(): offset for topic, offset in offsets.items()}
        _FILE.save(self._filesystem, self._root, msgspec.json.encode(topics, order="sorted"))
        self.offsets, self._gone = offsets, []
