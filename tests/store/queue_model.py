"""A log of records and the queues that must follow from it, for queue tests to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.crash.disk import SimulatedFileSystem

from cometmq.store.config import StoreConfig
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from cometmq.store.queues.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "/store"
EVERYTHING = 1 << 62


def at_once(work: Callable[[], None]) -> None:
    """Do what a thread would do."""
    work()


def small_config(file_entries: int, open_files: int = 4) -> StoreConfig:
    """Settings of a store whose ConsumeQueue files hold so many entries."""
    return StoreConfig(
        consume_queue_file_size=file_entries * ENTRY_SIZE,
        batch_consume_queue_file_size=file_entries * BATCH_ENTRY_SIZE,
        consume_queue_files_max=open_files,
    )


class Logged(NamedTuple):
    """A record in the log, as far as its queue is concerned."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int

    @property
    def entry(self) -> tuple[int, int, int]:
        return self.physical_offset, self.size, self.tags_code


@dataclass
class Log:
    """The records of one topic, in order."""

    records: list[Logged] = field(default_factory=list[Logged])
    end: int = 0

    def add(self, queue_id: int, queue_offset: int, size: int, tags_code: int) -> Logged:
        record = Logged(queue_id, queue_offset, self.end, size, tags_code)
        self.records.append(record)
        self.end += size
        return record

    def of(self, queue_id: int) -> list[Logged]:
        return [record for record in self.records if record.queue_id == queue_id]

    def cut(self, end: int) -> None:
        """Lose the records from `end` on, where a record starts."""
        self.records = [record for record in self.records if record.physical_offset < end]
        self.end = end


def open_queues(
    filesystem: SimulatedFileSystem, config: StoreConfig, root: str = ROOT, *, clean: bool = True
) -> ConsumeQueues:
    return ConsumeQueues(filesystem, root, config, clean=clean)


def all_entries(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    """Every entry that can be read, from the first to the last."""
    found: list[tuple[int, int, int]] = []
    offset = queue.min_offset
    while data := queue.read(offset, 7):
        found += ENTRY.iter_unpack(data)
        offset += len(data) // ENTRY_SIZE
    return found


def files_below(filesystem: SimulatedFileSystem, path: str) -> dict[str, bytes]:
    """The content of every file below a folder."""
    found: dict[str, bytes] = {}
    for entry in filesystem.list(path):
        inner = f"{path}/{entry.name}"
        if entry.is_directory:
            found |= files_below(filesystem, inner)
        else:
            found[inner] = filesystem.open(inner).read(entry.size, 0)
    return found
