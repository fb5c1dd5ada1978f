"""What whoever has a store open took away while it was verified: no damage, though it is missed.

The mark of a topic that is deleted is on the disk before its queues are removed, see `deletions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.deletions import Deletions
from cometmq.store.disk.filesystem import read_whole
from cometmq.store.disk.names import some_of
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.findings import Finding
    from cometmq.store.looking.inspection import Inspected


class GoneMeanwhile:
    """Looks again at the marks of deleted topics, before a finding is reported."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        self._before = self._now = store.deletions.offsets
        self._read: bytes | None = None
        """What the marks were read from: they are the same while that is."""
        self._topics: set[str] = set()
        self._folders = [f"{store.root}/{each}/" for each in (SIMPLE_FOLDER, BATCH_FOLDER)]

    def explains(self, finding: Finding) -> bool:
        """Whether a finding is of a topic that was deleted since the store was looked at."""
        topic = finding.topic or self._topic_of(finding.path)
        if topic is None or topic in self._topics:
            return topic is not None
        name = topic.encode()
        if self._marks().get(name) == self._before.get(name):
            return False
        self._topics.add(topic)
        return True

    def _marks(self) -> dict[bytes, int]:
        """Return the marks as they are now; those of before where they cannot be read."""
        filesystem = self._store.filesystem
        data = read_whole(filesystem, self._store.deletions.path)
        if data != self._read:
            self._read = data
            try:
                self._now = Deletions(filesystem, self._store.root).offsets
            except StoreFormatError:
                self._now = self._before
        return self._now

    def notes(self) -> Iterator[str]:
        """Say what was left out."""
        if self._topics:
            yield f"deleted while this ran, and not checked: {some_of(sorted(self._topics))}"

    def _topic_of(self, path: str) -> str | None:
        for folder in self._folders:
            if path.startswith(folder):
                return path.removeprefix(folder).partition("/")[0]
        return None
