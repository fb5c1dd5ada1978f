"""The ConsumeQueue of a batch topic: one entry for each record, which may hold many messages.

An entry's index does not give its queue offset, so entries are searched for by base offset.

==  ====  ==============================================================================
at  size  field (big-endian)
==  ====  ==============================================================================
0   8     physical offset of the record
8   4     size of the record
12  8     tags code; 0 for an inner batch
20  8     store timestamp of the record, ms
28  8     base: the queue offset of the record's first message
36  2     batch size: how many messages the record holds, 1 for an ordinary one
38  4     compacted offset, -1
42  4     reserved, 0
==  ====  ==============================================================================
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from cometmq.store.disk.cold import Cold
from cometmq.store.queues.consume_queue import Boundary
from cometmq.store.queues.entry_files import EntryFiles
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.queues.entry_disk import Shelf

BATCH_ENTRY: Final = Struct(">qiqqqhii")
BATCH_ENTRY_SIZE: Final = BATCH_ENTRY.size
assert BATCH_ENTRY_SIZE == 46

NOT_COMPACTED: Final = -1


class BatchEntry(NamedTuple):
    """One entry; a tuple, because a read returns many."""

    physical_offset: int
    size: int
    tags_code: int
    store_time: int
    base_offset: int
    batch_size: int
    compacted_offset: int = NOT_COMPACTED
    reserved: int = 0

    @classmethod
    def read(cls, data: bytes) -> BatchEntry:
        """Read an entry from its bytes in a file."""
        return cls._make(BATCH_ENTRY.unpack(data))

    @property
    def end_offset(self) -> int:
        """The queue offset after the record's last message."""
        return self.base_offset + self.batch_size


class BatchConsumeQueue(EntryFiles):
    """The entries of one queue of a batch topic."""

    is_batch: ClassVar[bool] = True

    __slots__ = ("_max_of", "_max_offset")

    def __init__(self, shelf: Shelf, topic: str, queue_id: int) -> None:
        super().__init__(shelf, topic, queue_id)
        self._max_offset: int = 0
        self._max_of: int = 0  # The `end` that `_max_offset` belongs to.

    def load(self, cut: int | None) -> None:
        """Find the entries on disk, see `EntryFiles.load`."""
        super().load(cut)
        self._max_of = -1
        self.next_offset = self.max_offset

    @property
    def max_offset(self) -> int:
        """The end of what can be read: one past the last message's offset."""
        if self._max_of != self.end:
            self._max_offset = self.entry(self.end - 1).end_offset if self.end > self.start else 0
            self._max_of = self.end
        return self._max_offset

    @property
    def min_offset(self) -> int:
        """The first message that is still in the log; `max_offset` if none is.

        Raise `CorruptionError` if its entry cannot be right: the caller would skip messages.
        """
        index = self.min_entry
        return self.max_offset if index == self.end else self._base_offset(index, 0)

    @property
    def cold_front(self) -> Cold | None:
        """What has to be fetched so that `min_offset` can be found without waiting."""
        found = self.without_waiting(lambda: self.min_offset)
        if not isinstance(found, Cold):
            return None
        return super().cold_front or found

    def index_of(self, queue_offset: int) -> int:
        """Return the index of the entry of a message, as far as the other entries show it."""
        places = range(self.end)
        return bisect_right(places, queue_offset, lo=self.min_entry, key=self._end_offset)

    def entry(self, index: int) -> BatchEntry:
        """Return one entry by its index."""
        data = self.read_entries(index, 1)
        if len(data) < BATCH_ENTRY_SIZE:
            return BatchEntry(0, 0, 0, 0, 0, 0)
        return BatchEntry.read(data)

    def append(self, entry: BatchEntry) -> None:
        """Make the next record's messages readable. Entries come in the order of their records."""
        self.extend(BATCH_ENTRY.pack(*entry), 1)
        self._max_offset, self._max_of = entry.end_offset, self.end

    def place(self, entry: BatchEntry) -> bool:
        """Put the entry of a record that was read back from the log where the record says.

        As in `ConsumeQueue.place`: False if it is there already; entries that differ are erased.
        """
        if entry.base_offset < self.max_offset:
            index = bisect_right(
                range(self.end), entry.base_offset, lo=self.start, key=self._end_offset
            )
            if self.entry(index) == entry:
                return False
            self.cut_to(index)
        self._check_no_gap(self.max_offset, entry.base_offset, entry.physical_offset)
        self.append(entry)
        self.next_offset = self.max_offset
        return True

    def hold_at(self, queue_offset: int) -> None:
        """Continue at an offset, though no message before it is left: a blank entry keeps it."""
        blank = BatchEntry(0, PRE_BLANK_SIZE, 0, 0, queue_offset, 0)
        self.restart_behind(BATCH_ENTRY.pack(*blank), 1)
        self._max_of = -1
        self.next_offset = self.max_offset

    def read(self, queue_offset: int, count: int) -> list[BatchEntry]:
        """Return up to `count` entries of one file, the first being the one that has the message.

        Empty outside `min_offset` and `max_offset`. Raise `CorruptionError` if the entry is lost.
        """
        if not self.min_offset <= queue_offset < self.max_offset:
            return []
        for end_offset in (self._end_offset, self._end_offset_or_beyond):
            # Missing entries may have led the search past the message.
            places = range(self.end)
            index = bisect_right(places, queue_offset, lo=self.min_entry, key=end_offset)
            data = self.read_entries(index, count)
            entries = [BatchEntry._make(fields) for fields in BATCH_ENTRY.iter_unpack(data)]
            if entries and entries[0].base_offset <= queue_offset < entries[0].end_offset:
                behind = self._behind(index + len(entries) - 1)
                found = [*_in_a_row(entries, behind, self.max_offset)]
                if found:
                    return found
        self.check_files()
        raise self.damaged(index, f"no entry leads to message {queue_offset}")

    def offset_by_time(self, timestamp: int, boundary: Boundary) -> int:
        """Return the queue offset for a store timestamp: the base of the record that it means.

        The store time is in the entry, so no record is read. Past the end `LOWER` gives
        `max_offset`, and before the start `UPPER` gives `min_offset`. Raise `CorruptionError` if
        the entry that is found cannot be right.
        """
        first, least = self.min_entry, self.min_offset
        places = range(self.end)
        if boundary is Boundary.LOWER:
            index = bisect_left(places, timestamp, lo=first, key=self._store_time)
            return self._base_offset(index, least) if index < self.end else self.max_offset
        index = bisect_right(places, timestamp, lo=first, key=self._store_time) - 1
        return self._base_offset(index, least) if index >= first else least

    def _base_offset(self, index: int, least: int) -> int:
        """Return where an entry's messages begin; raise `CorruptionError` if they cannot."""
        entry = self.entry(index)
        if not least <= entry.base_offset <= entry.end_offset <= self._behind(index):
            raise self.damaged(
                index,
                f"messages {entry.base_offset} to {entry.end_offset} do not fit the entries"
                " around them",
            )
        return entry.base_offset

    def _behind(self, index: int) -> int:
        """Return where the messages after those of an entry begin; if unknown, the queue's end."""
        following = self.entry(index + 1) if index + 1 < self.end else None
        if following and following.size:
            return min(following.base_offset, self.max_offset)
        return self.max_offset

    def _end_offset(self, index: int) -> int:
        return self.entry(index).end_offset

    def _end_offset_or_beyond(self, index: int) -> int:
        """The same, but for a missing entry an offset after all messages."""
        entry = self.entry(index)
        return entry.end_offset if entry.size else self.max_offset

    def _store_time(self, index: int) -> int:
        return self.entry(index).store_time


def _in_a_row(entries: list[BatchEntry], behind: int, max_offset: int) -> Iterator[BatchEntry]:
    """Yield the first entry and those that follow it without a gap; the next read meets the rest.

    An entry's number of messages is damaged if they reach into those of the next entry, past
    `behind`, where the messages after these entries begin, or past the queue, whatever the next
    entry says: then it is not yielded.
    """
    base_offset = entries[0].base_offset
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        limit = min(following.base_offset, max_offset) if following and following.size else behind
        if entry.base_offset != base_offset or not base_offset < entry.end_offset <= limit:
            return
        yield entry
        base_offset = entry.end_offset
