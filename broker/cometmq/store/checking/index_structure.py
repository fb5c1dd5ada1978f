"""Checking that an index file agrees with itself: chains, slots, header, no bytes after items."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.store.disk.data_end import data_end_of
from cometmq.store.index.index_format import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from cometmq.store.looking.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.index_items import IndexedFile, IndexItems, Items

FINDINGS_MAX: Final = 10_000
"""For each kind and file: one bad slot shows in few places, a bad page in thousands."""


def check_structure(
    filesystem: FileSystem,
    file: IndexedFile,
    items: IndexItems,
    items_end: int,
    notes: list[str],
    *,
    is_hot: bool,
) -> Iterator[Finding]:
    """Yield what is wrong with the items up to a number, and with what is derived from them.

    Notes say how many more there are. `is_hot` leaves out what an index that was not closed may
    lack.
    """
    shape = items.shape
    newest = np.zeros(shape.slots, np.int32)
    count = 0
    for first, chunk in items.chunks(file, items_end):
        expected = _chain(newest, chunk, first)
        wrong = np.flatnonzero(chunk.previous != expected)
        named = wrong[: max(0, FINDINGS_MAX - count)]
        count += len(wrong)
        for at in named:
            yield Finding(
                kind=Kind.INDEX_CHAIN,
                path=file.path,
                position=items.position(first + int(at)) + 16,
                problem=f"item {first + int(at)} leads on to item {int(chunk.previous[at])}",
                expected=str(int(expected[at])),
                physical_offset=int(chunk.offsets[at]),
            )
    items.close()
    _note_more(file, "items that lead on to wrong ones", count, notes)
    if not is_hot:
        yield from _check_slots(filesystem, file, items, newest, notes)
        yield from _check_header(file, int(np.count_nonzero(newest)))


def _chain(newest: npt.NDArray[np.int32], items: Items, first: int) -> npt.NDArray[np.int32]:
    """Return the item to which each item of a chunk must lead, and note the newest of each slot.

    A stable sort by slot puts items of one slot next to each other, in order.
    """
    slots = items.hashes % np.int32(len(newest))
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    expected = np.empty(len(slots), np.int32)
    before = newest[ordered]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    before[again] = order[again - 1] + first
    expected[order] = before
    newest[slots] = np.arange(first, first + len(slots))  # The last item of a slot stays.
    return expected


def _note_more(file: IndexedFile, what: str, count: int, notes: list[str]) -> None:
    if (more := count - FINDINGS_MAX) > 0:
        notes.append(
            f"{file.path} has {more} more {what}, behind the first {FINDINGS_MAX}: these alone are"
            " counted as findings"
        )


def _check_slots(
    filesystem: FileSystem,
    file: IndexedFile,
    items: IndexItems,
    newest: npt.NDArray[np.int32],
    notes: list[str],
) -> Iterator[Finding]:
    shape = items.shape
    with closing(filesystem.open(file.path, read_only=True)) as opened:
        data = opened.read(shape.slots * SLOT_SIZE, HEADER_SIZE)
        first_item = opened.read(ITEM_SIZE, shape.items_at)
        end = data_end_of(opened, opened.size())
    if not data:
        return  # A file that was created and never written.
    stored = np.frombuffer(data.ljust(shape.slots * SLOT_SIZE, b"\0"), ">i4")
    wrong = np.flatnonzero(stored != newest)
    _note_more(file, "slots that lead to wrong items", len(wrong), notes)
    for slot in wrong[:FINDINGS_MAX]:
        yield Finding(
            kind=Kind.INDEX_CHAIN,
            path=file.path,
            position=HEADER_SIZE + int(slot) * SLOT_SIZE,
            problem=f"slot {int(slot)} leads to item {int(stored[slot])}",
            expected=str(int(newest[slot])),
        )
    used = max(items.position(file.header.next_item), HEADER_SIZE)
    if any(first_item):
        problem, position = "item 0, which is never used, is not zero", shape.items_at
    elif end > used and end > items.position(1):
        problem, position = "there is data after the last item", max(used, items.position(1))
    else:
        return
    yield Finding(kind=Kind.EXTRA_ITEM, path=file.path, position=position, problem=problem)


def _check_header(file: IndexedFile, used_slots: int) -> Iterator[Finding]:
    header = file.header
    if header.next_item == 1:
        return
    fields = (
        (0, "begin time", header.begin_time, file.first_time),
        (8, "end time", header.end_time, file.end_time),
        (16, "first physical offset", header.begin_offset, file.first_offset),
        (24, "last physical offset", header.end_offset, file.last_offset),
        (32, "number of used slots", header.used_slots, used_slots),
    )
    for position, name, found, expected in fields:
        if expected is not None and found != expected:
            yield Finding(
                kind=Kind.INDEX_HEADER,
                path=file.path,
                position=position,
                problem=f"the {name} is {found}",
                expected=str(expected),
            )
