"""What a cut of the log takes from the queues, as far as these say: told, kept, and remembered."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cometmq.store.checking.journal_witness import JournalWitness
from cometmq.store.checking.known_ends import queue_keys
from cometmq.store.looking.queue_files import files_of
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE, BatchEntry
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.entry_search import PRE_BLANK_SIZE
from cometmq.store.queues.queue_ends import NO_RECORD, QueueEnd, QueueKey
from cometmq.store.starting.log_repair import CUT_FOLDER, copy_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.queue_ends import Ends


class Front(NamedTuple):
    """How far the log has a queue."""

    next_offset: int
    """Behind its last message."""
    physical_offset: int
    """Of the record with that."""
    room: int = 1
    """Bytes from there in which it begins: all that is damaged, for one that was there."""

    def is_of(self, index: int, entry: bytes) -> bool:
        """Whether an entry leads to that record."""
        is_there = 0 <= _offset(entry) - self.physical_offset < self.room
        return is_there and _span(index, entry)[1] == self.next_offset


Fronts = dict[tuple[str, int], Front]
"""By topic and queue id."""


@dataclass(frozen=True, slots=True)
class LostMessages:
    """The messages that one queue loses."""

    topic: str
    queue_id: int
    is_batch: bool
    first_offset: int
    """Of those that are lost; 0 when nobody knows."""
    next_offset: int
    """Behind the last."""
    has_others: bool
    """Whether the log keeps messages of it: then the next one gets `first_offset` again."""
    entries: bytes
    """As they stand in its files."""
    end: QueueEnd | None
    """Where the queue ends then, as far as the list has to say it."""


def lost_messages(
    store: Inspected, cut_at: int, fronts: Fronts, cut: Fronts
) -> Iterator[LostMessages]:
    """Return what the queues have of records at or behind an offset.

    By their files and the entry journal, by the list of where they ended, for files may be lost,
    and by what is `cut` of the log, for a killed process may not have come to write entries.
    `fronts` are of what the log keeps.
    """
    cut_keys = {
        QueueKey(store.is_batch_topic(topic), topic, queue_id)
        for topic, queue_id in cut
        # Whatever a checkpoint covers: that of a repair that was killed is in front of the cut.
        if not store.gone_topics.gone_to(topic)
    }
    journal = JournalWitness(store)
    for key in sorted(cut_keys.union(queue_keys(store), journal.keys)):
        behind: list[tuple[int, bytes]] = []
        kept, is_at_front = 0, False
        end, front = store.ends.get(key), fronts.get((key.topic, key.queue_id))
        files = files_of(store, key)
        for index, entry in files.entries_outside([]):
            offset, size = _offset(entry), int.from_bytes(entry[8:12], "big")
            if size == PRE_BLANK_SIZE:
                continue
            if offset >= cut_at:
                behind.append((index, entry))
            elif offset >= store.segments.first_offset and not is_at_front:
                kept = index + 1
                if front is not None and front.is_of(index, entry):
                    # A torn one behind it may lead anywhere. The list says what is in the files.
                    is_at_front, front = True, front._replace(physical_offset=offset)
        files.close()
        behind = [each for each in journal.entries(key, behind) if _offset(each[1]) >= cut_at]
        if end is not None and not _is_cut(end, front, cut_at):
            end = None
        reached = cut.get((key.topic, key.queue_id))
        if behind or end is not None or reached is not None:
            # Apache does not note which topics it deleted: such a record may be of one, whose
            # numbers begin at 0 again.
            if behind and front is not None and front.physical_offset < store.start.ours_from:
                goes_on = _span(*behind[0])[0] >= front.next_offset
                front = front if kept or goes_on else None
            yield _lost(key, behind, kept, end, front, reached)


def _offset(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "big")


def _is_cut(end: QueueEnd, front: Front | None, cut_at: int) -> bool:
    """Whether the last message of a queue, which the list names, lies behind the cut.

    Of one that lacks entries the list says where the first of these stands, and not the last.
    """
    is_longer = front is not None and end.next_offset > front.next_offset
    return end.reaches >= cut_at or (end.lacks_from is not None and is_longer)


def _lost(
    key: QueueKey,
    behind: list[tuple[int, bytes]],
    kept: int,
    end: QueueEnd | None,
    front: Front | None,
    reached: Front | None,
) -> LostMessages:
    """Return what a queue loses that has entries `behind` the cut, and `kept` in front of it."""
    firsts = [_span(*behind[0])[0]] if behind else []
    next_offset = max(
        _span(*behind[-1])[1] if behind else 0,
        end.next_offset if end else 0,
        reached.next_offset if reached else 0,
    )
    has_others = bool(kept) or front is not None
    if front is not None:
        firsts.append(front.next_offset)
    if not has_others:
        end = QueueEnd(1 if key.is_batch else next_offset, NO_RECORD, next_offset)
    elif end is not None and front is not None:
        # If it is not so in the files, a start is right to miss it.
        entries = max(1, kept) if key.is_batch else front.next_offset
        end = QueueEnd(entries, front.physical_offset, front.next_offset, end.kept_from)
    else:
        end = None
    return LostMessages(
        key.topic,
        key.queue_id,
        key.is_batch,
        min(firsts, default=0),
        next_offset,
        has_others,
        b"".join(entry for _, entry in behind),
        end,
    )


def _span(index: int, entry: bytes) -> tuple[int, int]:
    """Return the queue offset of an entry's first message, and that behind its last."""
    if len(entry) == ENTRY_SIZE:
        return index, index + 1
    batch = BatchEntry.read(entry)
    return batch.base_offset, batch.end_offset


def ends_to_keep(lost: list[LostMessages]) -> Ends:
    """Return what the list has to say of queues that lose messages."""
    return {
        QueueKey(each.is_batch, each.topic, each.queue_id): each.end
        for each in lost
        if each.end is not None
    }


def keep_entries(filesystem: FileSystem, root: str, cut_at: int, lost: list[LostMessages]) -> str:
    """Write what the queues had into a file of its own, one JSON line a queue; returns its path."""
    folder = f"{root}/{CUT_FOLDER}"
    filesystem.make_directories(folder)
    number = 0
    while filesystem.exists(path := f"{folder}/{cut_at:020d}-queues-{number}"):
        number += 1
    position = 0
    with copy_at(filesystem, root, path) as file:
        for each in lost:
            line = {
                "topic": each.topic,
                "queue_id": each.queue_id,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "entry_size": BATCH_ENTRY_SIZE if each.is_batch else ENTRY_SIZE,
                "entries": b64encode(each.entries).decode(),
            }
            data = msgspec.json.encode(line) + b"\n"
            file.write(data, position)
            position += len(data)
    return path
