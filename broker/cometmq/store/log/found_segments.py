"""The CommitLog's files as found in its folder, and which findings are refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.names import OFFSET_DIGITS, has_place_of, in_place_of, is_offset_file
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import Entry, FileSystem

PAGE_SIZE: Final = 4096


def found_segments(
    filesystem: FileSystem,
    directory: str,
    asked: int,
    known_size: int | None,
    *,
    may_end_short: bool,
) -> tuple[int, dict[int, int]]:
    """Return the size of a segment, and the length of each file by its start, in order.

    The size is `known_size` if the store noted it down, else that of its files, else the size
    `asked` for. Raise `StoreFormatError` if a file does not belong to the row or has another size;
    but if the size is known and it `may_end_short`, the last file may be too short.
    """
    entries = _entries(filesystem, directory)
    size = known_size or _size_of(directory, entries, asked) or asked
    zeros = (
        f"zeros (`truncate -s {size}`), and run `cometmq store repair --dry-run`, which says what"
        " is lost"
    )
    lengths: dict[int, int] = {}
    for entry in entries:
        start, length, path = int(entry.name), entry.size, f"{directory}/{entry.name}"
        is_short = length < size
        # If the size is a guess, a wrong length may have led to it.
        if start % size and (known_size is not None or length == size):
            raise StoreFormatError(
                f"no segment of {size} bytes begins at this offset; move it elsewhere", path
            )
        is_left = may_end_short and known_size is not None and entry is entries[-1]
        if length != size and not (is_short and is_left):
            cut = (
                f"save what follows that elsewhere, cut it off (`truncate -s {size}`), and run"
                " `cometmq store verify`"
            )
            raise StoreFormatError(
                f"{length} bytes, but the segments of this store have {size};"
                " restore it from a copy, or move it elsewhere if it is not of this store;"
                f" without a copy, {f'fill it up with {zeros}' if is_short else cut}",
                path,
            )
        if lengths and start - size not in lengths:
            raise StoreFormatError(
                f"missing, while {start:020d} after it is there; restore it from a copy, or move"
                " what comes after it elsewhere if it is not of this store; without a copy,"
                f" make it of {size} {zeros}",
                f"{directory}/{start - size:020d}",
            )
        lengths[start] = length
    return size, lengths


def _entries(filesystem: FileSystem, directory: str) -> list[Entry]:
    entries: list[Entry] = []
    for entry in filesystem.list(directory):
        if has_place_of(entry, is_offset_file):
            raise StoreFormatError(
                f"{in_place_of(entry, 'segment')}; move it elsewhere, and restore the file from a"
                " copy",
                f"{directory}/{entry.name}",
            )
        if not entry.is_directory:
            entries.append(entry)
    for entry in entries:
        if not is_offset_file(entry):
            raise StoreFormatError(
                f"not a segment, as its name is not an offset of {OFFSET_DIGITS} digits; move it"
                " elsewhere",
                f"{directory}/{entry.name}",
            )
    if entries and entries[-1].size == 0:
        entries.pop()  # Apache names a file before it has a length. `rename` replaces it.
    return entries


def _size_of(directory: str, entries: list[Entry], asked: int) -> int | None:
    if not entries:
        return None
    counts = Counter(entry.size for entry in entries)
    size = max(counts, key=lambda size: (counts[size], size))  # One of them may be cut short.
    # If there is only one file, nothing else shows that it is whole.
    if size == 0 or (len(entries) == 1 and size % PAGE_SIZE and size != asked):
        raise StoreFormatError(
            f"{size} bytes are not the size of a whole file; its end is missing: restore it from"
            " a copy",
            f"{directory}/{entries[0].name}",
        )
    return size
