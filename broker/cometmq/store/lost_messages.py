"""What a cut of the log takes from the queues, as far as these say: told, kept, and remembered."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from cometmq.store.batch_consume_queue import BATCH_ENTRY, BATCH_ENTRY_SIZE, BatchEntry
from cometmq.store.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.entry_search import BLANK_SIZE
from cometmq.store.inspection import queue_folders
from cometmq.store.log_repair import CUT_FOLDER
from cometmq.store.queue_ends import NO_RECORD, QueueEnd, QueueKey
from cometmq.store.queue_files import QueueFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.filesystem import FileSystem
    from cometmq.store.inspection import Inspected
    from cometmq.store.queue_ends import Ends


@dataclass(frozen=True, slots=True)
class LostMessages:
    """The messages that one queue loses."""

    topic: str
    queue_id: int
    is_batch: bool
    first_offset: int
    next_offset: int
    """Behind the last."""
    has_others: bool
    """Whether the log keeps messages of it: then the next one gets `first_offset` again."""
    entries: bytes
    """As they stand in its files."""


def lost_messages(store: Inspected, cut_at: int) -> Iterator[LostMessages]:
    """Return what the queues have of records at or behind an offset."""
    first = store.segments.first_offset
    for folder, entry_size, file_size in (
        (SIMPLE_FOLDER, ENTRY_SIZE, store.config.consume_queue_file_size),
        (BATCH_FOLDER, BATCH_ENTRY_SIZE, store.config.batch_consume_queue_file_size),
    ):
        for topic, queue_id, path in queue_folders(store.filesystem, f"{store.root}/{folder}"):
            files = QueueFiles(store.filesystem, path, file_size, entry_size)
            behind: list[tuple[int, bytes]] = []
            has_others = False
            for index, entry in files.entries_outside([]):
                offset, size = int.from_bytes(entry[:8], "big"), int.from_bytes(entry[8:12], "big")
                if size != BLANK_SIZE and offset >= cut_at:
                    behind.append((index, entry))
                has_others |= size != BLANK_SIZE and first <= offset < cut_at
            files.close()
            if behind:
                yield LostMessages(
                    topic,
                    queue_id,
                    entry_size == BATCH_ENTRY_SIZE,
                    _span(*behind[0])[0],
                    _span(*behind[-1])[1],
                    has_others,
                    b"".join(entry for _, entry in behind),
                )


def _span(index: int, entry: bytes) -> tuple[int, int]:
    """Return the queue offset of an entry's first message, and that behind its last."""
    if len(entry) == ENTRY_SIZE:
        return index, index + 1
    batch = BatchEntry._make(BATCH_ENTRY.unpack(entry))
    return batch.base_offset, batch.end_offset


def ends_to_keep(lost: list[LostMessages]) -> Ends:
    """Return where queues have to go on of which the log keeps no message."""
    return {
        QueueKey(each.is_batch, each.topic, each.queue_id): QueueEnd(
            1 if each.is_batch else each.next_offset, NO_RECORD, each.next_offset
        )
        for each in lost
        if not each.has_others
    }


def keep_entries(filesystem: FileSystem, root: str, cut_at: int, lost: list[LostMessages]) -> str:
    """Write what the queues had into a file of its own, one JSON line a queue; returns its path."""
    folder = f"{root}/{CUT_FOLDER}"
    filesystem.make_directories(folder)
    number = 0
    while filesystem.exists(path := f"{folder}/{cut_at:020d}-queues-{number}"):
        number += 1
    file = filesystem.open(path, create=True)
    try:
        position = 0
        for each in lost:
            line = {
                "topic": each.topic,
                "queue_id": each.queue_id,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "entry_size": BATCH_ENTRY_SIZE if each.is_batch else ENTRY.size,
                "entries": b64encode(each.entries).decode(),
            }
            data = msgspec.json.encode(line) + b"\n"
            file.write(data, position)
            position += len(data)
        file.sync()
    finally:
        file.close()
    filesystem.sync_directory(folder)
    filesystem.sync_directory(root)
    return path
