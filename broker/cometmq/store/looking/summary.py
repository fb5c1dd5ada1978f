"""The content of a store at a glance: from ends and headers, not from the whole log."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.store.index.index_folder import INDEX_FOLDER
from cometmq.store.index.index_items import read_headers
from cometmq.store.index.index_off import load_off
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.log_check import LogCheck
from cometmq.store.looking.unlisted import unlisted_of
from cometmq.store.looking.waiting_entries import attach_journals
from cometmq.store.messages.dispatch import has_entry, message_count
from cometmq.store.queues.queue_ends import NO_RECORD, QueueKey

if TYPE_CHECKING:
    from cometmq.store.disk.filesystem import FileSystem, Space
    from cometmq.store.looking.inspection import Inspected


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One queue: the messages from `min_offset` up to `max_offset` can be read."""

    topic: str
    queue_id: int
    is_batch: bool
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class ShortQueue:
    """A queue that ends too early: entries are damaged, or files are lost."""

    topic: str
    queue_id: int
    max_offset: int
    """Where it ends now."""
    known_offset: int
    """Where it is known to have ended."""


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """One index file; the offsets and times are of its first and last record."""

    name: str
    items: int
    begin_time: int
    end_time: int
    begin_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A store at a glance."""

    segment_size: int
    segments: int
    first_offset: int
    end_offset: int
    """The end of the last sound record."""
    first_time: int | None
    last_time: int | None
    queues: list[QueueSummary]
    short_queues: list[ShortQueue]
    behind_queues: int
    """Messages at the log's end that no file of a queue has yet, as far as they were looked for.

    A running broker has their entries in memory, and a start after a kill makes them.
    """
    unlisted_topics: dict[str, int]
    """Topics with queues but without an entry in config/topics.json; how many queues they have."""
    index_slots: int
    index_items: int
    index: list[IndexSummary]
    odd_index_files: dict[str, int]
    """Index files with a size for which a start refuses the store, and their sizes."""
    missing_end: int | None
    """How far the log went, if files at its end are missing."""
    safe_offset: int | None
    """How far the log was safe on the disk, if it breaks off before that."""
    sizes: dict[str, int]
    """Length of the files in each folder of the store; sparse ones take less room."""
    rooms: dict[str, int]
    """The room that they take on the disk."""
    disk: Space
    log_disk: Space | None
    """The log's disk, if that may be a separate one: puts are refused if it is full, too."""

    @property
    def messages(self) -> int:
        """How many messages consumers can read."""
        return sum(queue.max_offset - queue.min_offset for queue in self.queues)


def summarize(store: Inspected) -> Summary:
    """Sum up a store; this may read what a start would have to read, for a few seconds at most."""
    queues, last = _queues(store)
    end, last_time, behind_queues = _end(store, last)
    shape = store.config.index_shape
    files = read_headers(store.filesystem, f"{store.root}/{INDEX_FOLDER}", shape)
    is_closed = store.is_clean and load_off(store.filesystem, store.root) is None
    segments = store.segments
    opening = next(iter(LogScan(segments, segments.first_offset)), None)
    folders = [entry.name for entry in store.filesystem.list(store.root) if entry.is_directory]
    missing_end = LogCheck(store).missing_end()
    safe_offset = store.start.synced_offset if store.start.is_noted else None
    if missing_end is not None or (safe_offset or 0) <= max(end, 1):  # An empty store says 1.
        safe_offset = None
    taken = {name: _taken(store.filesystem, f"{store.root}/{name}") for name in folders}
    return Summary(
        segment_size=segments.size,
        segments=len(segments),
        first_offset=segments.first_offset,
        end_offset=end,
        first_time=None if opening is None else opening.store_timestamp,
        last_time=last_time,
        queues=queues,
        short_queues=_short(store, queues),
        behind_queues=0 if store.is_clean else behind_queues,
        unlisted_topics=unlisted_of(store),
        index_slots=shape.slots,
        index_items=shape.items,
        index=[
            IndexSummary(
                file.path.rpartition("/")[2],
                file.header.next_item - 1,
                file.header.begin_time,
                file.header.end_time,
                file.header.begin_offset,
                file.header.end_offset,
            )
            for file in files
        ],
        odd_index_files={
            file.path: file.size
            for file in files
            if file.size > shape.file_size or (is_closed and file.size != shape.file_size)
        },
        missing_end=missing_end,
        safe_offset=safe_offset,
        sizes={name: size for name, (size, _) in taken.items()},
        rooms={name: room for name, (_, room) in taken.items()},
        disk=store.filesystem.space(store.root),
        log_disk=store.filesystem.space(segments.directory) if segments.is_apart else None,
    )


def _queues(store: Inspected) -> tuple[list[QueueSummary], int]:
    """Return all queues, and the offset of the last record that they know; -1 if there is none."""
    found: list[QueueSummary] = []
    last = -1
    with closing(store.open_queues(clean=store.is_clean)) as queues:
        queues.correct_min(store.segments.first_offset)
        attach_journals(store, queues)
        for queue in queues.walk():
            if queue.end > queue.start:
                last = max(last, queue.head(queue.end - 1)[0])
            found.append(
                QueueSummary(
                    queue.topic, queue.queue_id, queue.is_batch, queue.min_offset, queue.max_offset
                )
            )
    return found, last


def _short(store: Inspected, queues: list[QueueSummary]) -> list[ShortQueue]:
    """Return the queues that have fewer messages than they are known to have had."""
    here = {QueueKey(each.is_batch, each.topic, each.queue_id): each.max_offset for each in queues}
    return [
        ShortQueue(key.topic, key.queue_id, here.get(key, 0), end.next_offset)
        for key, end in store.ends.items()
        if end.physical_offset != NO_RECORD and here.get(key, 0) < end.next_offset
    ]


def _end(store: Inspected, last: int) -> tuple[int, int | None, int]:
    """Return the end of the log, the time of its last record, and the messages after `last`."""
    segments, scan_from = store.segments, store.start.scan_from
    # After a clean stop of others a start reads much. After an unclean one, what a queue names may
    # have been cut, and records before it may be asked for.
    is_quick = store.is_clean and not store.start.is_noted
    begins = (last, scan_from) if is_quick else (scan_from, min(last, scan_from))
    for begin in (*begins, segments.first_offset):
        if not segments.first_offset <= begin < segments.end_offset:
            continue
        scan = LogScan(segments, begin)
        time, behind = None, 0
        for message in scan:
            time = message.store_timestamp
            if message.physical_offset <= last or not has_entry(message):
                continue
            if not store.deletions.covers(message):
                behind += message_count(message)
        if time is not None:
            return scan.end_offset, time, behind
    return segments.first_offset, None, 0


def _taken(filesystem: FileSystem, folder: str) -> tuple[int, int]:
    """Return the length of all files under a folder, and the room that they take on the disk."""
    size = room = 0
    for entry in filesystem.list(folder):
        path = f"{folder}/{entry.name}"
        if entry.is_directory:
            below, room_below = _taken(filesystem, path)
            size, room = size + below, room + room_below
        else:
            size += entry.size
            with suppress(FileNotFoundError):  # Removed meanwhile, or a link that leads nowhere.
                room += filesystem.room_of(path)
    return size, room
