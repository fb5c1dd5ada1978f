"""What the entry journal of a killed store says about its queues, for tools that read all of it.

With very many queues the last entries of each are only in the journal, see `entry_journal`. If the
checkpoint names a journal, that has every entry which the files may lack, up to where it was
synced. A repair that was interrupted leaves a checkpoint without that name: then the blocks that
match their checksums show which messages there were, and nothing more. Nothing is written here.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.store.errors import StoreFormatError
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.queue_files import QueueFiles, files_of
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.entry_journal import journals_in
from cometmq.store.queues.queue_ends import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.journal_reading import Journal, QueueEntries


class JournalWitness:
    """The entries of a store's journals, by queue."""

    def __init__(self, store: Inspected) -> None:
        self.settled_offset = store.settled_offset
        """Records from here on may have an entry neither in the files nor in the journal."""
        self.batch_topics: set[str] = set()
        """Batch topics that nothing else shows to be such yet: the next start makes their queues.

        Nothing is said about their entries.
        """
        self._queues: dict[QueueKey, list[QueueEntries]] = {}
        self._store = store
        if store.is_clean or store.opened_by is not None or store.checkpoint.is_of_others:
            return
        claims, low = store.checkpoint.claims, store.start.replay_from
        claim = None if claims is None else claims.journal
        for journal in self._journals():
            is_claimed = claim is not None and journal.start == claim.start
            if claim is not None and is_claimed and claim.start <= low < claim.end:
                self.settled_offset = min(claim.end, store.start.unpromised_from)
            self._take(journal)

    @property
    def keys(self) -> Iterable[QueueKey]:
        """The queues of which there are entries."""
        return self._queues.keys()

    def files(self, key: QueueKey) -> QueueFiles:
        """Return the files of an ordinary queue, with these entries in them."""
        store, parts = self._store, self._queues.get(key)
        if not parts:
            return files_of(store, key)
        return _Filled(store.filesystem, *store.place_of(key), clean=store.is_clean).fill(parts)

    def entries(
        self, key: QueueKey, in_files: Iterable[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of a queue's files and these entries, in the order of the log.

        Each comes with its index, which has no meaning in a batch queue.
        """
        mine = list(self._entries(key))
        places = [_offset(entry) for _, entry in mine]
        done = 0
        for index, entry in in_files:
            at = bisect_right(places, _offset(entry))
            yield from mine[done:at]
            done = max(done, at)
            if not at or mine[at - 1][1] != entry:
                yield index, entry
        yield from mine[done:]

    def _entries(self, key: QueueKey) -> Iterator[tuple[int, bytes]]:
        size, reached = BATCH_ENTRY_SIZE if key.is_batch else ENTRY_SIZE, -1
        for part in self._queues.get(key, ()):
            for place in range(0, len(part.data), size):
                entry = part.data[place : place + size]
                if _offset(entry) > reached:
                    reached = _offset(entry)
                    yield part.number + place // size, entry

    def _journals(self) -> Iterator[Journal]:
        """Read what counts: the journal that the checkpoint names, or else all journals."""
        store = self._store
        claims = store.checkpoint.claims
        if claims is not None and claims.journal is not None:
            sizes: dict[int, int | None] = {claims.journal.start: claims.journal.size}
        else:
            sizes = dict.fromkeys(sorted(journals_in(store.filesystem, store.root)))
        for start, size in sizes.items():
            from cometmq.store.queues.journal_reading import load_journal  # It needs numpy.

            journal = None
            with suppress(OSError, StoreFormatError):  # With a bad sector, say, it does not count.
                journal = load_journal(store.filesystem, store.root, start, size)
            if journal is not None and self._is_of_this_log(journal):
                yield journal

    def _is_of_this_log(self, journal: Journal) -> bool:
        """Whether at least half of the sampled entries lead to records of their queues."""
        segments = self._store.segments
        fitting = list(journal.samples(segments, segments.first_offset, NEVER))
        return 2 * sum(fitting) >= len(fitting)

    def _take(self, journal: Journal) -> None:
        store = self._store
        # Before that the files have every entry: a rebuild may have rebuilt them since.
        low, high = store.start.replay_from, store.start.unpromised_from
        for each in journal.queues(low, high, store.deletions.offsets):
            key = QueueKey(each.is_batch, each.topic, each.queue_id)
            if each.is_batch and not store.is_batch_topic(each.topic):
                self.batch_topics.add(each.topic)
                continue
            self._queues.setdefault(key, []).append(each)


class _Filled(QueueFiles):
    """The files of a queue with the entries of a journal in them."""

    _parts: tuple[QueueEntries, ...] = ()

    def fill(self, parts: Iterable[QueueEntries]) -> QueueFiles:
        """Add entries at their indexes, even in files that do not exist."""
        self._parts = tuple(parts)
        for part in self._parts:
            first, last = part.number, part.following - 1
            for number in range(first // self._file_entries, last // self._file_entries + 1):
                self._numbers[number] = None
        self._numbers = dict.fromkeys(sorted(self._numbers))
        return self

    def read(self, index: int, count: int) -> bytes:
        """Return entries, as `QueueFiles` does."""
        data = bytearray(super().read(index, count))
        for part in self._parts:
            first, last = max(index, part.number), min(index + count, part.following)
            if first < last:
                here, there = (first - index) * ENTRY_SIZE, (first - part.number) * ENTRY_SIZE
                size = (last - first) * ENTRY_SIZE
                data[here : here + size] = part.data[there : there + size]
        return bytes(data)


def _offset(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "big")
