"""What a cut of the log takes from the queues, as far as these show: reported, kept, and noted."""

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
    """The queue offset after its last message."""
    physical_offset: int
    """That of the record with the last message."""
    room: int = 1
    """Bytes from there on in which that record begins: if it is lost, the whole damaged range."""

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
    """The queue offset of the first lost message; 0 if nobody knows."""
    next_offset: int
    """The queue offset after the last."""
    has_others: bool
    """Whether the log keeps other messages of it: then the next one gets `first_offset` again."""
    entries: bytes
    """Its entries, as in its files."""
    end: QueueEnd | None
    """Where the queue will end, as far as the list must note it."""


def lost_messages(
    store: Inspected, cut_at: int, fronts: Fronts, cut: Fronts
) -> Iterator[LostMessages]:
    """Yield what the queues have of records at or after an offset.

    This shows in their files and the entry journal; in the list of their ends, because files may be
    lost; and in the part that is `cut`, because a killed process may not have written entries.
    `fronts` are those of the part that the log keeps.
    """
    cut_keys = {
        QueueKey(store.is_batch_topic(topic), topic, queue_id)
        for topic, queue_id in cut
        # Whatever the checkpoint covers: that of a killed repair is before the cut.
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
                    # A torn entry after it may lead anywhere. The list says what the files have.
                    is_at_front, front = True, front._replace(physical_offset=offset)
        files.close()
        behind = [each for each in journal.entries(key, behind) if _offset(each[1]) >= cut_at]
        if end is not None and not _is_cut(end, front, cut_at):
            end = None
        reached = cut.get((key.topic, key.queue_id))
        if behind or end is not None or reached is not None:
            # Apache does not note which topics it deleted: such a record may be of a deleted one,
            # whose numbers begin at 0 again.
            if behind and front is not None and front.physical_offset < store.start.ours_from:
                goes_on = _span(*behind[0])[0] >= front.next_offset
                front = front if kept or goes_on else None
            yield _lost(key, behind, kept, end, front, reached)


def _offset(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "big")


def _is_cut(end: QueueEnd, front: Front | None, cut_at: int) -> bool:
    """Whether the last message of a queue in the list is after the cut.

    If the queue lacks entries, the list names the record of the first one missing, not of the last.
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
    """Return what a queue loses that has entries `behind` the cut, and `kept` before it."""
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
        # If the files do not have this end, a start is right to count it as lost.
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
    """Return the queue offset of an entry's first message, and that after its last."""
    if len(entry) == ENTRY_SIZE:
        return index, index + 1
    batch = BatchEntry.read(entry)
    return batch.base_offset, batch.end_offset


def ends_to_keep(lost: list[LostMessages]) -> Ends:
    """Return what the list must say about queues that lose messages."""
    return {
        QueueKey(each.is_batch, each.topic, each.queue_id): each.end
        for each in lost
        if each.end is not None
    }


def keep_entries(filesystem: FileSystem, root: str, cut_at: int, lost: list[LostMessages]) -> str:
    """Write what the queues had to a separate file, one JSON line a queue; return its path."""
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
