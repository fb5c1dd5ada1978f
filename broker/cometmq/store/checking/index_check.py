"""Checking the index against the log: every key has its item, every item its key.

Items are in the order of the log, so the items that the records call for are compared with those of
the files as two sequences, thousands at a time, with numpy. They are aligned one by one only where
they differ. In addition each file must agree with itself: its chains, slots and header follow from
its items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.proto.sysflag import TRANSACTION_MASK, TransactionType
from cometmq.store.checking.index_structure import check_structure
from cometmq.store.disk.names import has_place_of, in_place_of, is_index_file
from cometmq.store.index.index_file import seconds_behind
from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_format import SECONDS_MAX, IndexShape
from cometmq.store.index.index_hash import Hashed, hash_noted
from cometmq.store.index.index_items import IndexItems, read_headers
from cometmq.store.index.index_off import load_off
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.findings import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from cometmq.proto.message import StoredMessage
    from cometmq.store.index.index_items import IndexedFile
    from cometmq.store.index.index_keys import Noted
    from cometmq.store.looking.findings import Report
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.looking.log_check import Damage

NOTED_MAX: Final = 4096
"""Records whose keys are hashed and compared together."""
_LOOK_AHEAD: Final = 8
"""How far the alignment looks for the next item that fits."""


class IndexCheck:
    """The check of all index files of a store."""

    def __init__(self, store: Inspected, report: Report, settled_offset: int | None) -> None:
        """The next start rebuilds items of records from `settled_offset` on; none if it is None."""
        self._store = store
        self._report = report
        self._noted: list[Noted] = []
        shape = store.config.index_shape
        folder = f"{store.root}/{INDEX_FOLDER}"
        self._files = read_headers(store.filesystem, folder, shape)
        self._items = IndexItems(store.filesystem, self._files, shape)
        self._extras: list[tuple[str, int, int, int]] = []
        """Items without a record: path, number, hash and physical offset."""
        self._settled = settled_offset if settled_offset is not None else NEVER
        self._off = load_off(store.filesystem, store.root)
        self._is_closed = store.is_clean and self._off is None
        if self._off is not None:
            self._settled = min(self._settled, self._off)
        self._settled_to: tuple[int, int] | None = None
        """The file, and the item in it, from which on the next start rebuilds all items."""
        self._last: tuple[int, frozenset[int]] = (-1, frozenset())
        """The last record that the log gave, and the hashes of its keys that have an item."""
        self._began = False
        self._unindexed: list[int] = []  # Count, first and last record before the first item.
        self._filled_from = store.start.ours_from
        """From here on all keys are in the index, except by `index_off`: we always fill it."""
        if not self._files and not store.filesystem.exists(folder):
            self._filled_from = NEVER  # The next start makes the index from the whole log.
        for entry in store.filesystem.list(folder):
            if has_place_of(entry, is_index_file):
                problem = f"{in_place_of(entry, 'file')}: move it elsewhere"
                self._report.find(Kind.MISPLACED, f"{folder}/{entry.name}", 0, problem)
        self._is_readable = self._check_files(shape)

    def _check_files(self, shape: IndexShape) -> bool:
        """Check whether there are files, and whether they can be read at all."""
        if not self._files:
            self._report.notes.append("there is no index: nothing to check")
            return False
        is_readable = True
        for file in self._files:
            half_made = not self._is_closed and file.size < shape.file_size
            if file.size != shape.file_size and not half_made:
                is_readable = False
                self._report.find(
                    Kind.INDEX_FILE,
                    file.path,
                    0,
                    f"has {file.size} bytes, but {shape.slots} slots and {shape.items} items"
                    f" make {shape.file_size}; `cometmq store rebuild` rebuilds the index",
                )
        if not is_readable:
            return False
        is_told = self._store.is_index_shape_known or (
            # A power cut may leave a header that is newer than the items, or older.
            not self._is_closed and any(file.size == shape.file_size for file in self._files)
        )
        if not is_told and any(file.header.next_item > 1 for file in self._files):
            self._tell_unknown_shape(self._files[-1])
            return False
        self._items.skip_expired(self._store.segments.first_offset, is_closed=self._is_closed)
        return True

    def _tell_unknown_shape(self, file: IndexedFile) -> None:
        """Report that the index cannot be read: after a power cut that is no damage."""
        problem = (
            f"the header counts {file.header.next_item - 1} items, but no number of slots fits"
            " where the file holds them"
        )
        if self._is_closed:
            self._report.find(Kind.INDEX_HEADER, file.path, 0, problem)
        else:
            self._report.notes.append(
                f"the index is not checked: {file.path}: {problem}, as a power cut may leave it;"
                " give its shape with --index-slots and --index-items to have it checked"
            )

    @property
    def file_count(self) -> int:
        """The number of files, each of which is a step of `finish`."""
        return len(self._files)

    def take(self, message: StoredMessage) -> None:
        """Take the next record of the log."""
        if message.sys_flag & TRANSACTION_MASK == TransactionType.ROLLED_BACK:
            return
        if not self._is_readable:
            self._look_for_file(message)
            return
        self._noted.append(
            (
                message.physical_offset,
                message.topic_raw,
                message.properties_raw,
                message.store_timestamp,
            )
        )
        if len(self._noted) >= NOTED_MAX:
            self._compare()

    def _look_for_file(self, message: StoredMessage) -> None:
        """Report that all files are gone, at the first record whose keys must have been in one."""
        offset = message.physical_offset
        is_missed = not self._files and self._filled_from <= offset < self._settled
        if is_missed and (message.unique_id or message.keys or message.tags):
            self._filled_from = NEVER
            path = f"{self._store.root}/{INDEX_FOLDER}"
            problem = (
                "the file is missing, though the records have keys; `cometmq store rebuild`"
                " makes it"
            )
            self._report.find(Kind.INDEX_FILE, path, 0, problem, "", offset)

    def _compare(self) -> None:
        hashed = hash_noted(self._noted) if self._noted else None
        self._noted.clear()
        if hashed is None:
            return
        settled = int(hashed.offsets.searchsorted(self._settled))
        self._compare_settled(hashed.first(settled))
        if (unsettled := hashed.behind(settled)) is not None:
            self._count_unsettled(unsettled)

    def _count_unsettled(self, called: Hashed) -> None:
        """Count the items that already exist, and those that the next start makes."""
        if self._settled_to is None:
            self._settled_to = self._items.passed
        found = self._items.peek(len(called.hashes))
        count = len(found.hashes)
        same = (found.hashes == called.hashes[:count]) & (found.offsets == called.offsets[:count])
        there = count if same.all() else int(same.argmin())
        self._items.advance(there)
        self._report.items += there
        self._report.unsettled_items += len(called.hashes) - there

    def _compare_settled(self, called: Hashed) -> None:
        found = self._items.peek(len(called.hashes))
        count = len(found.hashes)
        if (
            count == len(called.hashes)
            and np.array_equal(found.hashes, called.hashes)
            and np.array_equal(found.offsets, called.offsets)
        ):
            self._accept(called, count)
        else:
            self._align(called)

    def _accept(self, called: Hashed, count: int) -> None:
        """Accept items with the right hashes and offsets, and check their times."""
        self._began = True
        self._report.items += count
        self._remember(called.first(count))
        done = 0
        while done < count:
            file, first, here = self._items.run(count - done)
            times = called.times[done : done + here]
            if first == 1:
                file.first_time, file.first_offset = int(times[0]), int(called.offsets[done])
            file.last_time = int(times[-1])
            file.last_offset = int(called.offsets[done + here - 1])
            self._check_seconds(file, first, times)
            self._items.advance(here)
            done += here

    def _remember(self, called: Hashed) -> None:
        if not len(called.offsets):
            return
        offset = int(called.offsets[-1])
        hashes = frozenset(called.hashes[called.offsets.searchsorted(offset) :].tolist())
        before, earlier = self._last
        self._last = (offset, hashes | earlier if offset == before else hashes)

    def _check_seconds(self, file: IndexedFile, first: int, times: npt.NDArray[np.int64]) -> None:
        begin = file.header.begin_time if file.first_time is None else file.first_time
        seconds = seconds_behind(times, begin)
        if first == 1:
            before = self._items.end_time_before(file)
            if before is None:
                seconds[0] = self._items.peek(1).seconds[0]  # The previous file has expired.
            else:
                passed = (int(times[0]) - before) // 1000 if before > 0 else 0
                seconds[0] = min(max(passed, 0), SECONDS_MAX)
        stored = self._items.peek(len(times)).seconds
        for at in np.flatnonzero(stored != seconds)[:1000]:
            number = first + int(at)
            self._report.find(
                Kind.WRONG_ITEM,
                file.path,
                self._items.position(number) + 12,
                f"item {number} is of {int(stored[at])} s after the begin time of the file",
                str(int(seconds[at])),
            )

    # Where they differ

    def _align(self, called: Hashed) -> None:
        """Compare one by one, stepping over items that are wrong, missing or extra."""
        at = 0
        while at < len(called.hashes):
            found = self._items.peek(1 + _LOOK_AHEAD)
            pair = (int(called.hashes[at]), int(called.offsets[at]))
            there = list(zip(found.hashes.tolist(), found.offsets.tolist(), strict=True))
            if there and there[0] == pair:
                here = slice(at, at + 1)
                self._accept(
                    Hashed(called.hashes[here], called.offsets[here], called.times[here]), 1
                )
                at += 1
                continue
            ahead = [
                (int(called.hashes[n]), int(called.offsets[n]))
                for n in range(at + 1, min(at + 1 + _LOOK_AHEAD, len(called.hashes)))
            ]
            if pair in there:
                self._report_extra(there[0])
            elif not there or there[0] in ahead or there[0][1] > pair[1] + (1 << 40):
                at = self._miss(called, at, bool(there))
            elif set(there[1:]) & set(ahead):
                at = self._report_wrong(there[0], called, at)
            elif there[0][1] > pair[1]:
                at = self._miss(called, at, True)
            elif self._last[0] <= there[0][1] < pair[1]:  # Its record is no longer in the log.
                self._report_extra(there[0])
            else:
                at = self._report_wrong(there[0], called, at)

    def _miss(self, called: Hashed, at: int, has_more: bool) -> int:
        offset = int(called.offsets[at])
        self._pass(offset)
        if not self._began and has_more and offset < self._filled_from:
            self._note_unindexed(offset)
        else:
            path, number = self._items.where()
            self._report.find(
                Kind.MISSING_ITEM,
                path,
                self._items.position(number),
                f"a key of the record (hash {int(called.hashes[at])}) has no item",
                "",
                offset,
            )
        return at + 1

    def _note_unindexed(self, offset: int) -> None:
        if not self._unindexed:
            self._unindexed = [0, offset, offset]
        self._unindexed[0] += 1
        self._unindexed[2] = offset

    def _report_wrong(self, there: tuple[int, int], called: Hashed, at: int) -> int:
        file, number, _ = self._items.run(1)
        offset = int(called.offsets[at])
        self._pass(offset)
        file.last_time, file.last_offset = int(called.times[at]), offset
        self._report.find(
            Kind.WRONG_ITEM,
            file.path,
            self._items.position(number),
            f"item {number} has hash {there[0]} and physical offset {there[1]}",
            f"hash {int(called.hashes[at])} and physical offset {offset}",
            offset,
        )
        self._items.advance(1)
        return at + 1

    def _pass(self, offset: int) -> None:
        if offset != self._last[0]:
            self._last = (offset, frozenset())

    def _report_extra(self, there: tuple[int, int]) -> None:
        """Note an item that no key calls for; a kill may leave Apache a record's items twice."""
        file, number, _ = self._items.run(1)
        offset, hashes = self._last
        if there[1] != offset or there[0] not in hashes:
            self._extras.append((file.path, number, *there))
            file.last_time = file.last_offset = None  # The log does not say what its record is.
        self._items.advance(1)

    # The end

    def finish(self, damages: list[Damage]) -> Iterator[None]:
        """Report what is left over, and files that contradict themselves; one file a step."""
        if not self._is_readable:
            return
        self._compare()
        while self._is_closed and len((found := self._items.peek(1)).hashes):
            self._report_extra((int(found.hashes[0]), int(found.offsets[0])))
        if self._off is not None:
            self._report.notes.append(
                f"the index was turned off at {self._off}: keys of records from there on are in"
                " no index file; the next start with index=true, or `cometmq store rebuild`,"
                " adds them"
            )
        lost = 0
        for path, number, key_hash, offset in self._extras:
            if any(damage.start <= offset < damage.end for damage in damages):
                lost += 1
                continue
            self._report.find(
                Kind.EXTRA_ITEM,
                path,
                self._items.position(number),
                f"item {number} has hash {key_hash}, which no key of a record there has",
                "",
                offset,
            )
        if lost:
            self._report.notes.append(f"{lost} items of the index lead to damaged records")
        if self._unindexed:
            count, first, last = self._unindexed
            self._report.notes.append(
                f"{count} keys of records from {first} to {last} are in no index file: the index"
                " begins after them"
            )
        self._items.close()
        yield from self._check_structures()

    def _check_structures(self) -> Iterator[None]:
        if self._off is not None and self._off <= self._store.segments.first_offset:
            return  # Nothing in it counts, and a power cut may have left anything.
        last, settled = self._settled_to or self._items.passed
        for number, file in enumerate(self._files):
            is_last = not self._is_closed and number == last
            for finding in check_structure(
                self._store.filesystem,
                file,
                self._items,
                settled if is_last else file.header.next_item,
                self._report.notes,
                is_hot=not self._is_closed and number >= last - 1,
            ):
                self._report.add(finding)
            yield
            if is_last:
                break  # The next start rebuilds what follows.
