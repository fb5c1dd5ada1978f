"""Reading entry journals back: after an unclean stop, or in a store that another process has open.

A journal that a checkpoint names is good as a whole, or else the log is read instead, from where
the files of the queues end. What a running broker has written after that is good as far as its
blocks match their checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

import numpy as np

from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY, BATCH_ENTRY_SIZE, BatchEntry
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE
from cometmq.store.queues.entry_journal import (
    BLOCK_HEAD,
    CRC,
    FILE_HEAD,
    MAGIC,
    NAME,
    VERSION,
    block_crc,
    journal_path,
    journals_in,
)
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.queues.record_check import RecordCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import JournalClaim

RECORDS_CHECKED: Final = 64
"""Entries whose records are checked before a journal is believed to belong to this log."""


class QueueEntries(NamedTuple):
    """The entries of one queue in a journal."""

    topic: str
    queue_id: int
    is_batch: bool
    number: int
    """The index of the first entry in a simple queue; of no meaning in a queue of batches."""
    offset: int
    """The physical offset of the first entry's record."""
    data: bytes

    @property
    def following(self) -> int:
        """The queue offset after the last message."""
        if not self.is_batch:
            return self.number + len(self.data) // ENTRY_SIZE
        return BatchEntry.read(self.data[-BATCH_ENTRY_SIZE:]).end_offset


class Journal(NamedTuple):
    """What was read from a journal."""

    start: int
    blocks: list[bytes]

    def queues(
        self, low: int, high: int, deleted: Mapping[bytes, int] | None = None
    ) -> list[QueueEntries]:
        """Return queues' entries of records from `low` to `high`, in the order of first records.

        Leave out records before the deletion of their topic.
        """
        found: list[QueueEntries] = []
        for entry_size in (ENTRY_SIZE, BATCH_ENTRY_SIZE):
            found += _Kind(self.blocks, entry_size).queues(low, high, deleted or {})
        found.sort(key=lambda each: each.offset)
        return found

    def samples(self, segments: Segments, low: int, high: int) -> Iterator[bool]:
        """Yield, for a sample of the entries, whether each leads to a record of its queue."""
        check = RecordCheck(segments)
        queues = self.queues(low, high)
        for each in queues[:: max(1, len(queues) // RECORDS_CHECKED)]:
            size = int.from_bytes(each.data[8:12], "big")
            yield check(each.topic, each.queue_id, each.offset, size)


class _Kind:
    """The entries of one kind of queue in the blocks of a journal."""

    def __init__(self, blocks: Iterable[bytes], entry_size: int) -> None:
        self._entry_size = entry_size
        self._names: dict[int, tuple[bytes, int, int]] = {}
        numbers: list[npt.NDArray[np.int64]] = []
        counts: list[npt.NDArray[np.int64]] = []
        entries: list[bytes] = []
        for block in blocks:
            _, names, runs, size = BLOCK_HEAD.unpack_from(block)
            if size != entry_size:
                continue
            at = BLOCK_HEAD.size + CRC.size
            for _ in range(names):
                number, queue_id, index, length = NAME.unpack_from(block, at)
                at += NAME.size + length
                self._names[number] = (block[at - length : at], queue_id, index)
            for columns in (numbers, counts):
                columns.append(np.frombuffer(block, ">u4", runs, at).astype(np.int64))
                at += 4 * runs
            entries.append(block[at:])
        self._numbers = np.repeat(_joined(numbers), _joined(counts))
        self._rows = np.frombuffer(b"".join(entries), f"V{entry_size}")

    def queues(self, low: int, high: int, deleted: Mapping[bytes, int]) -> Iterator[QueueEntries]:
        if not len(self._rows):
            return
        order = self._numbers.argsort(kind="stable")
        numbers, rows = self._numbers[order], self._rows[order]
        size = self._entry_size
        head = np.ndarray(len(rows), ">i8", rows, 0, (size,))
        offsets = head.astype(np.int64)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        data = rows.tobytes()
        for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            topic, queue_id, index = self._names[int(numbers[first])]
            least = max(low, deleted.get(topic, 0))
            begin, stop = first, end
            if offsets[first] < least or offsets[end - 1] >= high:
                begin += int(offsets[first:end].searchsorted(least))
                stop = first + int(offsets[first:end].searchsorted(high))
            if begin < stop:
                yield QueueEntries(
                    topic.decode(),
                    queue_id,
                    size == BATCH_ENTRY_SIZE,
                    index + begin - first,
                    int(offsets[begin]),
                    data[begin * size : stop * size],
                )


def _joined(columns: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def load_journal(
    filesystem: FileSystem, root: str, start: int, size: int | None = None
) -> Journal | None:
    """Read a journal; None if it does not exist, is damaged, or is of a newer version.

    If a checkpoint claims a `size`, none of these bytes may be missing.
    """
    path = journal_path(root, start)
    try:
        file = filesystem.open(path, read_only=True)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise StoreFormatError("a folder in place of a file: move it elsewhere", path) from None
    try:
        data = file.read(file.size() if size is None else size, 0)
    finally:
        file.close()
    head = FILE_HEAD.pack(MAGIC, VERSION, start)
    head += CRC.pack(crc32(head))
    if not data.startswith(head) or (size is not None and len(data) < size):
        return None
    blocks: list[bytes] = []
    at = len(head)
    while (block := _block_at(data, at, start)) is not None:
        blocks.append(block)
        at += len(block)
    return None if size is not None and at != size else Journal(start, blocks)


def _block_at(data: bytes, at: int, start: int) -> bytes | None:
    behind_head = at + BLOCK_HEAD.size + CRC.size
    if behind_head > len(data):
        return None
    head = data[at : at + BLOCK_HEAD.size]
    size = BLOCK_HEAD.unpack(head)[0]
    body = data[behind_head : behind_head + size]
    (crc,) = CRC.unpack_from(data, behind_head - CRC.size)
    if len(body) < size or crc != block_crc(head, body, start, at):
        return None
    return data[at : behind_head + size]


def place_entries(queues: ConsumeQueues, found: Iterable[QueueEntries]) -> None:
    """Give the queues of a store that is being opened the entries that they had at a checkpoint.

    Raise `MissingEntriesError` if a queue has lost the entries before those.
    """
    for each in found:
        key = QueueKey(each.is_batch, each.topic, each.queue_id)
        if not queues.can_take(key, each.offset, each.following):
            continue
        if each.is_batch:
            batch_queue = queues.batch.get(each.topic, each.queue_id)
            for fields in BATCH_ENTRY.iter_unpack(each.data):
                batch_queue.place(BatchEntry._make(fields))
            continue
        queue = queues.simple.get(each.topic, each.queue_id)
        if each.number == queue.end:
            queue.extend(each.data, len(each.data) // ENTRY_SIZE)
            queue.next_offset = queue.end
            continue
        for number, fields in enumerate(ENTRY.iter_unpack(each.data), each.number):
            queue.place(number, *fields)


def claimed_journal(
    filesystem: FileSystem,
    root: str,
    segments: Segments,
    claim: JournalClaim | None,
    low: int,
    end_offset: int,
) -> Journal | None:
    """Return the journal that a checkpoint names, if it is whole and belongs to this log.

    The queues have the entries of all records before `low`.
    """
    if claim is None or not claim.start <= low < claim.end <= end_offset:
        return None
    journal = load_journal(filesystem, root, claim.start, claim.size)
    if journal is None or not all(journal.samples(segments, low, claim.end)):
        return None
    return journal


def journals_of_others(filesystem: FileSystem, root: str) -> Iterator[Journal]:
    """Read what there is of the journals of a store that another process has open."""
    for start in journals_in(filesystem, root):
        journal = load_journal(filesystem, root, start)
        if journal is not None:
            yield journal
