"""The ConsumeQueue: for each message of one queue, where its record is in the CommitLog.

Entry `n` is the message with queue offset `n`; see `entry_files` for how entries reach the disk.

==  ====  ===============================================================================
at  size  field (big-endian)
==  ====  ===============================================================================
0   8     physical offset of the record
8   4     size of the record; 0x7FFFFFFF in a pre-blank entry
12  8     tags code: Java's hash of the TAGS property, sign-extended, 0 without tags; in
          SCHEDULE_TOPIC_XXXX the time at which the message is due, in ms; if at most
          -2147483649, the address of a unit in the extension, see `consume_queue_ext`
==  ====  ===============================================================================

Three offsets follow a message through a queue: `next_offset` moves when a put gets its offset,
`max_offset` when the entry is appended, which the store does when consumers may read it, and
`min_offset` when the beginning of the log expires.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, Final

from cometmq.store.queues.entry_files import EntryFiles
from cometmq.store.queues.entry_search import GONE_SIZE, PRE_BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY: Final = Struct(">qiq")
ENTRY_SIZE: Final = ENTRY.size
assert ENTRY_SIZE == 20

_pack = ENTRY.pack


class Boundary(Enum):
    """Which message a lookup by time means if none has exactly that time."""

    LOWER = "lower"
    """The first message stored at or after the time."""
    UPPER = "upper"
    """The last message stored at or before the time."""


class ConsumeQueue(EntryFiles):
    """The entries of one queue of one topic."""

    __slots__ = ()

    def load(self, cut: int | None) -> None:
        """Find the entries on disk, see `EntryFiles.load`."""
        super().load(cut)
        self.next_offset = self.end

    @property
    def max_offset(self) -> int:
        """The end of what can be read: one past the last message's offset."""
        return self.end

    min_offset = EntryFiles.min_entry
    """The first message that is still in the log; `max_offset` if none is."""

    def append(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Make the next message readable. Entries come in the order of their records."""
        self.extend(_pack(physical_offset, size, tags_code), 1)

    def place(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Put the entry of a record that was read back from the log where the record says.

        For recovery and replicas, which may see the same record twice: an entry that is there
        already stays, and False is returned. An entry that differs is erased with all after it:
        they belong to a topic that was deleted and recreated, or to a tail that was lost.
        """
        if queue_offset == self.end:
            self.append(physical_offset, size, tags_code)
            self.next_offset = self.end
            return True
        entry = _pack(physical_offset, size, tags_code)
        if self.start <= queue_offset < self.end:
            if self.read_entries(queue_offset, 1) == entry:
                return False
            self.cut_to(queue_offset)
        if queue_offset != self.end:  # It may be the end by now.
            self._check_no_gap(self.end, queue_offset, physical_offset)
            self.restart_at(queue_offset)
        self.extend(entry, 1)
        self.next_offset = self.end
        return True

    def hold_at(self, queue_offset: int) -> None:
        """Continue at an offset, though no message before it is left.

        The file of the message before the offset is recreated: its name, and blank entries, keep
        the offset. If the log has lost its first bytes, the last entry is like that of a record
        there, because Apache's brokers add nothing to a queue that ends with a pre-blank entry
        while the log is shorter than the size in that entry.
        """
        is_gone = self._shelf.disk.min_physical_offset > 0
        size = GONE_SIZE if is_gone else PRE_BLANK_SIZE
        self.restart_behind(self._shelf.heads.pack(0, size), queue_offset)
        self.next_offset = self.end

    def read(self, queue_offset: int, count: int) -> bytes:
        """Return up to `count` entries from a queue offset on, never across two files.

        Empty outside `min_offset` and `max_offset`, and if the file is gone. An entry whose size is
        0 was lost from its file.
        """
        if queue_offset < self.min_entry:
            return b""
        return self.read_entries(queue_offset, count)

    def read_cached(self, queue_offset: int, count: int) -> bytes | bytearray | None:
        """Return what `read` does, or None if that would have to wait for the disk."""
        if queue_offset < self.min_entry:
            return b""
        return self.read_entries_cached(queue_offset, count)

    def offset_by_time(
        self, timestamp: int, boundary: Boundary, store_time_of: Callable[[int, int], int]
    ) -> int:
        """Return the queue offset for a store timestamp.

        `store_time_of` takes a record's physical offset and size, and returns a negative number if
        the record cannot be read: the result is then the first message. Store times only grow, as
        far as the clock does. Past the end `LOWER` gives `max_offset`, and before the start `UPPER`
        gives `min_offset`.
        """
        low, high = self.min_offset, self.end
        while low < high:
            middle = (low + high) // 2
            time = store_time_of(*self.head(middle))
            if time < 0:
                return self.min_offset
            if time < timestamp or (time == timestamp and boundary is Boundary.UPPER):
                low = middle + 1
            else:
                high = middle
        return low if boundary is Boundary.LOWER else max(self.min_offset, low - 1)
