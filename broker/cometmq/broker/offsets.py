"""How far each group has consumed each queue, and the file that this is kept in.

Commits change memory only: the file is written every `save_interval_ms` and at the end, as Apache
does, so a process that is killed repeats the messages of the last seconds to their groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.saved_table import SavedTable
from cometmq.proto.bodies import DataVersion
from cometmq.store.errors import StoreFormatError
from cometmq.store.tables import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.store.filesystem import FileSystem

_SECTION: Final = "offsetTable"


class ConsumerOffsets:
    """The offsets of all groups."""

    def __init__(self, config: BrokerConfig, filesystem: FileSystem) -> None:
        self.file = SavedTable(
            filesystem, f"{config.store_path}/config", CONSUMER_OFFSETS, on_change=lambda: None
        )
        self._offsets_max = config.offsets_max
        self._count = 0
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._changed: set[tuple[str, str]] = set()

    def load(self) -> None:
        """Read the file; `StoreFormatError` when it is damaged."""
        tree = self.file.load()
        self.file.set_member("dataVersion", DataVersion())
        try:
            for name, queues in tree.get(_SECTION, {}).items():
                topic, _, group = name.partition("@")
                kept = {int(queue): int(offset) for queue, offset in queues.items()}
                self._offsets[group, topic] = kept
                self._count += len(kept)
                self.file.put(_SECTION, name, kept)
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreFormatError(f"{CONSUMER_OFFSETS}: {error}") from error
        self.file.loaded()

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a group goes on in a queue, None where it has not been."""
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where a group goes on. Beyond `offsets_max` a new queue is not noted."""
        key = (group, topic)
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues:
            if self._count >= self._offsets_max:
                return
            self._count += 1
            if queues is None:
                queues = self._offsets[key] = {}
        queues[queue_id] = offset
        self._changed.add(key)

    def flush(self) -> None:
        """Put what has changed into the table that is saved."""
        for group, topic in self._changed:
            queues: dict[int, Any] = self._offsets.get((group, topic), {})
            self.file.put(_SECTION, f"{topic}@{group}", dict(queues))
        self._changed.clear()
