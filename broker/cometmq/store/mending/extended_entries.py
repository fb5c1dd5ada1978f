"""Entries with the address of a unit in an extension, which a rebuild takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.looking.queue_files import files_of
from cometmq.store.messages.dispatch import entry_tags_code, has_entry
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt, is_address
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from cometmq.proto.message import StoredMessage
    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.queue_files import QueueFiles


class ExtendedEntries:
    """The addresses that the old entries have instead of tags codes."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        self._extension = ConsumeQueueExt(store.filesystem, store.root)
        self._exists = self._extension.exists()
        self._files: dict[tuple[str, int], QueueFiles] = {}

    def address(self, message: StoredMessage, levels: DelayLevels) -> int | None:
        """Return the address in a record's entry, if there is one and it is right."""
        if not self._exists or not has_entry(message):
            return None
        store, topic, queue_id = self._store, message.topic, message.queue_id
        files = self._files.get((topic, queue_id))
        if files is None:
            files = files_of(store, QueueKey(is_batch=False, topic=topic, queue_id=queue_id))
            self._files[topic, queue_id] = files
        entry = files.read(message.queue_offset, 1)
        files.close()
        physical_offset, size, code = ENTRY.unpack(entry)
        if (physical_offset, size) != (message.physical_offset, message.size):
            return None
        unit = self._extension.unit(topic, queue_id, code) if is_address(code) else None
        if unit is None or unit.store_time != message.store_timestamp:
            return None
        return code if unit.tags_code == entry_tags_code(message, levels) else None

    def close(self) -> None:
        """Close every file."""
        self._extension.close()
