"""Which topics were deleted, and when: what no start must bring back.

The records of a deleted topic stay in the log until they expire, so a start that reads the log back
would make its queues again, and so would `cometmq store rebuild`. A mark says that the records of a
topic in front of a physical offset are gone. It is on the disk before the queues are removed, and
forgotten once the log begins behind it.

The file is JSON on one line, and replaced as a whole; `crc32` is that of the text of `topics`::

    {"crc32":3632233996,"topics":{"Orders":123456},"version":1}

Apache's brokers have no such marks: one that finds the store not shut down brings back the topics
that were deleted behind its checkpoint, here as in its own stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.proto.checksum import crc32
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.proto.message import StoredMessage
    from cometmq.store.filesystem import FileSystem

DELETIONS_NAME: Final = "deleted_topics.json"
VERSION: Final = 1

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class _Version(msgspec.Struct):
    version: int = VERSION


class _Content(msgspec.Struct):
    crc32: int
    topics: dict[str, int]
    version: int


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

    def covers(self, message: StoredMessage) -> bool:
        """Whether a record is of a topic that was deleted behind it."""
        return message.physical_offset < self.offsets.get(message.topic_raw, 0)

    def add(self, topics: Iterable[str], end_offset: int, first_offset: int) -> None:
        """Mark topics whose records all lie in front of the end of the log as deleted.

        An `OSError` leaves it open whether the marks are on the disk: it has to be tried again.
        """
        marked = {topic.encode(): end_offset for topic in topics}
        self._replace(self._kept(first_offset, end_offset) | marked)

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
            if offset > first_offset
        }

    def _load(self) -> dict[str, int]:
        if not self._filesystem.exists(self.path):
            return {}
        file = self._filesystem.open(self.path, read_only=True)
        try:
            data = file.read(file.size(), 0)
        finally:
            file.close()
        try:
            version = msgspec.json.decode(data, type=_Version).version
            if version > VERSION:
                raise StoreFormatError(
                    f"{self.path}: version {version}, but this program knows up to {VERSION};"
                    " use a newer one"
                )
            content = msgspec.json.decode(data, type=_Content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from error
        is_intact = content.crc32 == crc32(_encode(content.topics)) and _encode(content) == data
        if content.version != VERSION or not is_intact:
            raise self._damaged("its checksum is wrong")
        return content.topics

    def _damaged(self, problem: str) -> StoreFormatError:
        return StoreFormatError(
            f"{self.path}: damaged ({problem}); restore it from a copy, or remove it, and delete"
            " topics again that come back"
        )

    def _replace(self, offsets: dict[bytes, int]) -> None:
        topics = {topic.decode(): offset for topic, offset in offsets.items()}
        content = _Content(crc32(_encode(topics)), topics, VERSION)
        beside = f"{self.path}.new"
        file = self._filesystem.open(beside, create=True)
        try:
            file.resize(0)
            file.write(_encode(content), 0)
            file.sync()
        finally:
            file.close()
        self._filesystem.rename(beside, self.path)
        self._filesystem.sync_directory(self._root)
        self.offsets = offsets
