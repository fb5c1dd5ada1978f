"""Records of batch topics that are sound by themselves, but not the messages that they say.

This is `wrong_heads` for batch topics. An entry of a batch queue says more: a record counts as what
the entry says only if it then calls for all of it, including the time and the number of messages.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from contextlib import closing
from typing import TYPE_CHECKING

from cometmq.store.looking.queue_files import files_of
from cometmq.store.looking.right_heads import Place, placed
from cometmq.store.messages.dispatch import batch_entry, has_entry
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY, BatchEntry
from cometmq.store.queues.consume_queue import ENTRY
from cometmq.store.queues.queue_ends import QueueKey
from cometmq.store.queues.record_check import read_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.proto.message import StoredMessage
    from cometmq.store.looking.inspection import Inspected

Expected = dict[tuple[str, int], dict[int, bytes]]
"""By queue and physical offset, the entries that records call for, in the order of the log."""


class BatchHeads:
    """Looks at the entries of batch queues that no record calls for."""

    def __init__(self, store: Inspected, expected: Expected) -> None:
        self._store = store
        self._expected = expected
        self._there: dict[tuple[str, int], frozenset[bytes]] = {}
        self._places: dict[tuple[str, int], list[int]] = {}
        """Both are filled when needed: all entries of a queue may be those of another queue."""

    def wrong_head(
        self, place: Place, entry: bytes, right: Sequence[BatchEntry]
    ) -> StoredMessage | None:
        """Return the record that an entry leads to, if it is that message, though it says another.

        `right` are the right entries of the queue. The numbers must agree with that: some are
        missing here, or these do not follow there.
        """
        found = BatchEntry.read(entry)
        offset, store = found.physical_offset, self._store
        record = read_record(store.segments, offset, found.size)
        if record is None or not self._calls_for(record, place, entry):
            return None
        said = record.topic_raw.decode("utf-8", "replace"), record.queue_id
        if self._has_entry(record, said):
            return None
        at = bisect(right, offset, key=lambda each: each.physical_offset)
        follows = at > 0 and right[at - 1].end_offset == found.base_offset
        is_followed = at < len(right) and right[at].base_offset == found.end_offset
        is_first = not (at or found.base_offset or store.segments.first_offset)
        if (follows or is_first) and is_followed:
            return record
        is_one_here = follows or is_followed or is_first
        return record if is_one_here and self._is_jump(offset, said) else None

    def _calls_for(self, record: StoredMessage, place: Place, entry: bytes) -> bool:
        """Whether a record calls for exactly this entry, if it says what the entry does."""
        message = placed(record, place)
        if message is None or not has_entry(message):
            return False
        return BATCH_ENTRY.pack(*batch_entry(message, self._store.delay_levels)) == entry

    def _has_entry(self, record: StoredMessage, said: tuple[str, int]) -> bool:
        """Whether the record has an entry where it says that it is."""
        topic, queue_id = said
        is_batch = self._store.is_batch_topic(topic)
        if said not in self._there:
            with closing(files_of(self._store, QueueKey(is_batch, topic, queue_id))) as files:
                if not is_batch:
                    there = ENTRY.unpack(files.read(record.queue_offset, 1))
                    return there[:2] == (record.physical_offset, record.size)
                self._there[said] = frozenset(entry for _, entry in files.entries_outside([]))
        return self._expected.get(said, {}).get(record.physical_offset) in self._there[said]

    def _is_jump(self, offset: int, said: tuple[str, int]) -> bool:
        """Whether a record's numbers do not follow where it says, or are not followed there."""
        held = self._expected.get(said, {})
        if offset not in held:
            return False  # That queue is of the other kind.
        if said not in self._places:
            self._places[said] = list(held)
        places = self._places[said]
        at = bisect_left(places, offset)
        before = places[max(at - 1, 0) : at]
        around = [BatchEntry.read(held[each]) for each in before]
        here = BatchEntry.read(held[offset])
        begins = 0 if self._store.segments.first_offset == 0 else here.base_offset
        expected = around[0].end_offset if around else begins
        behind = places[at + 1 : at + 2]
        is_followed = all(
            BatchEntry.read(held[each]).base_offset == here.end_offset for each in behind
        )
        return here.base_offset != expected or not is_followed
