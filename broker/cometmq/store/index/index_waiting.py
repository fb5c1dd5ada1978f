"""Records that wait for the index to extract their keys, in the order of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.index.index_keys import NotedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.index.index_keys import Noted


class WaitingRecords:
    """Records and batches of records, and their total number."""

    def __init__(self) -> None:
        self._noted: list[Noted] = []
        self.count = 0
        """How many records wait."""

    def add(self, noted: Sequence[Noted], count: int) -> None:
        """Add `count` records."""
        self._noted += noted
        self.count += count

    def take(self, count_max: int) -> list[Noted]:
        """Return and forget the first `count_max` records, or some more to the end of a batch."""
        noted = self._noted
        if self.count <= count_max:
            self._noted, self.count = [], 0
            return noted
        elements, count = count_max, count_max
        if self.count != len(noted):
            elements = count = 0
            while count < count_max:
                each = noted[elements]
                count += each.record_count if isinstance(each, NotedBatch) else 1
                elements += 1
        taken = noted[:elements]
        del noted[:elements]
        self.count -= count
        return taken

    @property
    def first_offset(self) -> int | None:
        """The physical offset of the first record that waits, if any."""
        return self._noted[0][0] if self._noted else None
