"""Finding how many entries at the front of a queue's file can be trusted.

After a power cut, bytes that were written but not synced may be there, be zeros, or be torn at any
512-byte sector. The search is for the last stretch in which every entry is whole, ordered and below
a cut. Every window of 64 entries has some that are inside one sector, and so are either zeros or
what was really written. A window after the synced part therefore never looks good, and searching
by windows finds the border.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.disk.filesystem import File
    from cometmq.store.queues.entry_disk import EntryDisk, Shelf
    from cometmq.store.queues.entry_files import EntryFiles
    from cometmq.store.queues.queue_ends import QueueEnd
    from cometmq.store.queues.readable_entries import ReadableEntries

WINDOW_ENTRIES: Final = 64
"""Entries judged together: more than two sectors' worth."""
_HEADS: Final = 4096
"""Entries read at once if all entries of a queue are looked at."""
PRE_BLANK_SIZE: Final = 0x7FFFFFFF
"""The record size in a pre-blank entry: one before a queue's first entry, never served."""
GONE_SIZE: Final = 1
"""The record size in an entry that leads to the log's first byte, which has expired, as if a record
were there: the entry keeps an offset, like a pre-blank one."""
KEEPS_OFFSET: Final = frozenset((PRE_BLANK_SIZE, GONE_SIZE))
"""The sizes in a last entry that belongs to no message."""

NO_CUT: Final = (1 << 63) - 1


def sound_entries(file: File, shelf: Shelf, cut: int) -> int:
    """Return how many entries at the front of a file are whole, ordered and below the cut."""
    good, step = -1, 1  # The last window known to be good; searched by doubling steps,
    bad = -(-shelf.file_entries // WINDOW_ENTRIES)  # then by halving.
    in_part = 0
    while good + 1 < bad:
        probe = good + step if step and good + step < bad else (good + bad) // 2
        count, whole = _judge(file, shelf, probe, cut)
        if whole:
            good, step = probe, step * 2
        else:
            bad, step, in_part = probe, 0, count
    return min(bad * WINDOW_ENTRIES + in_part, shelf.file_entries)


def _judge(file: File, shelf: Shelf, window: int, cut: int) -> tuple[int, bool]:
    """Return how many good entries a window starts with, and whether all of it is good."""
    size = shelf.entry_size
    start = window * WINDOW_ENTRIES
    expected = min(WINDOW_ENTRIES, shelf.file_entries - start)
    data = file.read(expected * size, start * size)
    least = count = 0
    whole = len(data) // size * size
    for physical_offset, record_size in shelf.heads.iter_unpack(data[:whole]):
        if record_size <= 0 or not least <= physical_offset < cut:
            break
        if record_size != PRE_BLANK_SIZE:
            least = physical_offset + record_size
        count += 1
    return count, count == expected


def backed_end(queue: EntryFiles, disk: EntryDisk, known: QueueEnd | None) -> tuple[int, bool]:
    """Return a queue's end without trailing entries of no record, and if a message is last then.

    Torn entries may lead below any cut. `disk.backs` says whether an entry's record exists; without
    it every entry counts. An entry after the `known` end leads to a record after the known one, or
    else is old content of the disk, for example of a deleted topic's files, which may lead to an
    expired record.
    """
    end, start, backs = queue.end, queue.start, disk.backs
    while end > start:
        offset, size = queue.head(end - 1)
        if size in KEEPS_OFFSET:
            return end, False
        if known is not None and end > known.entries and offset <= known.physical_offset:
            end -= 1
            continue
        if backs is None:
            return end, True
        # After a hole, an entry of an expired record may be torn, unless it is the known last one.
        before, size_before = queue.head(end - 2) if end - 1 > start else (0, PRE_BLANK_SIZE)
        is_next = size_before == PRE_BLANK_SIZE or 0 < size_before <= offset - before
        if known is not None and offset < disk.min_physical_offset:
            is_next |= (end, offset) == (known.entries, known.physical_offset)
        if is_next and backs(queue.topic, queue.queue_id, offset, size):
            return end, True
        end -= 1
    return end, False


def count_leftovers(file: Callable[[int], File], shelf: Shelf, numbers: list[int], cut: int) -> int:
    """Count the expired files before a gap: a power cut undid their removal, but not the next one.

    It is 0 if the power cut lost the file in the gap: then what follows was not synced either. If a
    synced file is lost, the result is wrong; so use this only if nobody noted a queue's first file.
    """
    size = shelf.entry_size
    for at in range(len(numbers) - 1, 0, -1):
        before, behind = numbers[at - 1], numbers[at]
        if behind == before + 1:
            continue
        last = file(before).read(size, shelf.file_size - size)
        first = file(behind).read(size, 0)
        if not len(last) == len(first) == size:
            continue
        (last_offset, _), (offset, record_size) = map(shelf.heads.unpack, (last, first))
        if 0 <= last_offset < shelf.disk.min_physical_offset and record_size > 0 and offset < cut:
            return at
    return 0


def first_kept(queue: ReadableEntries, low: int, offset: int) -> int:
    """Return the first entry, from `low` on, whose record is not before an offset in the log.

    A damaged entry that leads to an expired record may have sent the search past the right one. So
    the entries before the one found must be in order: of these, an entry that does not come after
    all others, or that leads into the log, has not expired.
    """
    last_offset, last_size = queue.head(queue.end - 1) if queue.end > queue.start else (0, 0)
    limit = last_offset if last_offset >= 0 and 0 < last_size < PRE_BLANK_SIZE else NO_CUT
    place_of = partial(_record_place, queue, limit=limit)
    if low >= queue.end or place_of(low) >= offset:
        return low
    found, behind = queue.end, NO_CUT
    while True:
        at = bisect_left(range(found), offset, lo=low, key=place_of)
        behind = place_of(at) if at < found else behind
        found, last, reached = at, at - 1, 0
        for index, place, size in _heads(queue, max(low, at - WINDOW_ENTRIES), at):
            end = place + size
            if _is_entry(place, size, limit) and size < PRE_BLANK_SIZE and reached < end <= behind:
                last, reached = index, end
                if place >= offset:
                    found, behind = index, place
                    break
        if found == at:
            return last + 1


class Front(NamedTuple):
    """Where a queue's first kept entry is searched for: a view of the queue for any thread."""

    shelf: Shelf
    topic: str
    queue_id: int
    low: int
    written: int
    """Entries from here to the end are in memory."""
    end: int
    offset: int

    def warm(self) -> None:
        """Read what `first_kept` and `let_go` look at, so that they need not wait for the disk.

        Errors are left for them to report.
        """
        shelf, per_file = self.shelf, self.shelf.file_entries
        files: dict[int, File] = {}
        with suppress(OSError), ExitStack() as opened:

            def place_of(index: int) -> int:
                if index >= self.written:
                    return NO_CUT
                number, place = divmod(index, per_file)
                if (file := files.get(number)) is None:
                    path = shelf.path(self.topic, self.queue_id, number)
                    file = shelf.disk.filesystem.open(path, read_only=True)
                    files[number] = opened.enter_context(closing(file))
                data = file.read(shelf.entry_size, place * shelf.entry_size)
                place_in_log, _ = shelf.heads.unpack(data.ljust(shelf.entry_size, b"\0"))
                return int(place_in_log)

            at = bisect_left(range(self.end), self.offset, lo=self.low, key=place_of)
            starts = range(self.low // per_file * per_file, at + 1, per_file)
            for index in (self.low, at - WINDOW_ENTRIES, at - 1, at, self.end - 1, *starts):
                if self.low <= index < self.end:
                    place_of(index)


def _heads(queue: ReadableEntries, index: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Walk some entries: the index, the physical offset and the record size of each."""
    while index < end:
        for physical_offset, size in queue.heads(index, end - index):
            yield index, physical_offset, size
            index += 1


def _record_place(queue: ReadableEntries, index: int, *, limit: int) -> int:
    """Return the physical offset of an entry's record; -1 for a blank entry, as if it had expired.

    For bytes that are no entry, and for the entry after them, which may be half missing, return
    that of the next entry: if its record has expired, so have theirs; if not, theirs may exist. No
    entry of the queue leads beyond the `limit`.
    """
    is_trusted = index == queue.start or _is_entry(*queue.head(index - 1), limit)
    count = 1
    while index < queue.end:
        for physical_offset, size in queue.heads(index, count):
            is_entry = _is_entry(physical_offset, size, limit)
            if is_entry and (is_trusted or index == queue.end - 1):
                return -1 if size == PRE_BLANK_SIZE else physical_offset
            is_trusted = is_entry
            index += 1
        count = WINDOW_ENTRIES
    return NO_CUT


def _is_entry(physical_offset: int, size: int, limit: int) -> bool:
    return size > 0 and 0 <= physical_offset <= limit


def expired_end(queue: ReadableEntries, offset: int) -> int:
    """Return the index after the last entry whose record is before an offset in the log.

    An entry that keeps a queue offset without a record counts as such.
    """
    index = end = queue.start
    while index < queue.end:
        for physical_offset, size in queue.heads(index, _HEADS):
            index += 1
            if size in KEEPS_OFFSET or (size > 0 and 0 <= physical_offset < offset):
                end = index
    return end


def is_in_order(queue: ReadableEntries) -> bool:
    """Whether every entry of a queue exists, and leads past the record of the previous entry."""
    least, index = 0, queue.start
    while index < queue.end:
        for physical_offset, size in queue.heads(index, _HEADS):
            if size <= 0 or physical_offset < least:
                return False
            if size != PRE_BLANK_SIZE:
                least = physical_offset + size
            index += 1
    return True
