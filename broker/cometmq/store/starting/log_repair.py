"""Making the log on the disk what a start found it to be.

What is cut is first copied to a separate file, then erased. The tail that no sync was known to
cover is rewritten and synced, and so are zeros after the end: after a failed sync the kernel shows
bytes that the disk does not have.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.store.log.commit_log import NO_ROOM, erase

if TYPE_CHECKING:
    from collections.abc import Generator

    from cometmq.store.disk.filesystem import File, FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.starting.recovery import LogEnd, Start

_CHUNK_SIZE: Final = 4 << 20
CUT_FOLDER: Final = "cut"


def cut_behind(filesystem: FileSystem, root: str, segments: Segments, end: LogEnd) -> str | None:
    """Copy what follows the end to a separate file, and erase it; return the path of the copy."""
    if end.data_end <= end.offset:
        return None
    kept = keep(filesystem, root, segments, end)
    _cut(segments, end)
    return kept


@contextmanager
def repairing(
    filesystem: FileSystem,
    root: str,
    segments: Segments,
    start: Start,
    end: LogEnd,
    *,
    clean: bool,
    turn_size_max: int,
    threads: bool,
) -> Generator[str | None]:
    """Make the log on the disk what it was found to be; yield where the part that is cut is kept.

    Unless it was left cleanly, the disk has what is read only once this has ended. A caller that
    reads the log back meanwhile makes entries, which no checkpoint promises yet. Without threads
    the disk is brought up to date after that: what a power cut then leaves is the worst case.
    """
    kept = cut_behind(filesystem, root, segments, end)
    bring = partial(
        _bring_to_disk, filesystem, root, segments, start, end.offset, turn_size_max=turn_size_max
    )
    if clean:
        yield kept
    elif threads:
        with ThreadPoolExecutor(1) as pool:
            brought = pool.submit(bring)
            yield kept
            brought.result()
    else:
        yield kept
        bring()


def _bring_to_disk(
    filesystem: FileSystem,
    root: str,
    segments: Segments,
    start: Start,
    end: int,
    *,
    turn_size_max: int,
) -> None:
    """Rewrite what is not known to be synced, and zeros after the end.

    Any thread may do this while others read: no byte changes, and it opens the files for itself.
    """
    first = start.scan_from if start.synced_offset is None else start.synced_offset
    sync_again(filesystem, segments, start.scan_from, first)
    write_again(filesystem, segments, max(first, segments.first_offset), end)
    if start.is_noted:
        size = max(turn_size_max, _cut_before(filesystem, root, end))
        _erase_unseen(filesystem, segments, end, size)


def _cut_before(filesystem: FileSystem, root: str, offset: int) -> int:
    """Return how much an earlier start cut there, perhaps without syncing that."""
    entries = filesystem.list(f"{root}/{CUT_FOLDER}")
    return max((each.size for each in entries if each.name.startswith(f"{offset:020d}")), default=0)


def _erase_unseen(filesystem: FileSystem, segments: Segments, start: int, size: int) -> None:
    """Rewrite the zeros after the end, though zeros are read there.

    A process may have erased a refused turn, or a torn tail, and then failed to sync that. Then the
    kernel shows the zeros, but the disk has the records.
    """
    for segment in segments:
        first = max(start, segment.start) - segment.start
        last = min(start + size - segment.start, segment.length)
        if first >= last:
            continue
        with closing(filesystem.open(segment.path)) as file:
            try:
                for position in range(first, last, _CHUNK_SIZE):
                    file.write(bytes(min(_CHUNK_SIZE, last - position)), position)
            except OSError as error:
                # Only a hole needs room, and what was never written hides nothing.
                if error.errno not in NO_ROOM:
                    raise
            file.sync()


def keep(filesystem: FileSystem, root: str, segments: Segments, end: LogEnd) -> str:
    """Copy what will be cut into a separate file; an earlier copy of the same is reused."""
    folder = f"{root}/{CUT_FOLDER}"
    number = 0
    filesystem.make_directories(folder)
    while filesystem.exists(path := f"{folder}/{end.offset:020d}-{number}"):
        if _is_copy(filesystem, path, segments, end):
            break  # It is rewritten: its writer may have been killed before the sync.
        number += 1
    with copy_at(filesystem, root, path) as file:
        for position in range(end.offset, end.data_end, _CHUNK_SIZE):
            size = min(_CHUNK_SIZE, end.data_end - position)
            file.write(_read(segments, position, size), position - end.offset)
    return path


@contextmanager
def copy_at(filesystem: FileSystem, root: str, path: str) -> Generator[File]:
    """Yield a file for a copy, which is on the disk when this ends.

    If the disk refuses it, the file is removed, and its folder if nothing else is in it.
    """
    folder = path.rpartition("/")[0]
    with closing(filesystem.open(path, create=True)) as file:
        try:
            yield file
            file.sync()
        except OSError:
            with suppress(OSError):
                filesystem.remove(path)
                filesystem.remove_directory(folder)
            raise
    filesystem.sync_directory(folder)
    filesystem.sync_directory(root)


def _is_copy(filesystem: FileSystem, path: str, segments: Segments, end: LogEnd) -> bool:
    with closing(filesystem.open(path, read_only=True)) as file:
        return file.size() == end.data_end - end.offset and all(
            file.read(_CHUNK_SIZE, position - end.offset)
            == _read(segments, position, min(_CHUNK_SIZE, end.data_end - position))
            for position in range(end.offset, end.data_end, _CHUNK_SIZE)
        )


def _read(segments: Segments, physical_offset: int, size: int) -> bytes:
    """Read across the ends of segments; bytes that a file lacks are zeros."""
    parts: list[bytes] = []
    while size:
        count = min(size, segments.size - physical_offset % segments.size)
        parts.append(segments.read(physical_offset, count).ljust(count, b"\0"))
        physical_offset += count
        size -= count
    return b"".join(parts)


def _cut(segments: Segments, end: LogEnd) -> None:
    """Erase what follows the end, the last part first, and sync that."""
    segment_end = end.offset - end.offset % segments.size + segments.size
    if end.data_end > segment_end:
        segments.remove_from(segment_end)
    segment = segments.at(end.offset)
    if segment is not None:
        segments.complete(segment)
        file = segments.file(segment)
        erase(file, end.offset - segment.start, min(end.data_end, segment_end) - end.offset)
        file.sync()


def sync_again(filesystem: FileSystem, segments: Segments, start: int, end: int) -> None:
    """Sync the files of a part of the log that was on the disk.

    A repair that was killed may have mended it only in memory.
    """
    for segment in segments:
        if start < segment.start + segments.size and segment.start < end:
            with closing(filesystem.open(segment.path)) as file:
                file.sync()


def write_again(filesystem: FileSystem, segments: Segments, start: int, end: int) -> None:
    """Rewrite a part of the log as it is read, and sync that."""
    for segment in segments:
        if segment.start + segments.size <= start or segment.start >= end:
            continue
        first = max(start - segment.start, 0)
        last = min(end - segment.start, segments.size)
        with closing(filesystem.open(segment.path)) as file:
            for position in range(first, last, _CHUNK_SIZE):
                file.write(file.read(min(_CHUNK_SIZE, last - position), position), position)
            file.sync()
