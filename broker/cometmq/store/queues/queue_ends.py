"""Where each queue ended when that was last surely on the disk: how a start notices lost queues.

A start reads only the end of the log, and a queue is loaded when it is first touched. So a queue
whose files were lost would go unnoticed, and give out its offsets again. Each whole checkpoint
therefore lists where every queue ends: how many entries it has, to which record the last one leads,
which offset is next, and from where on its files are kept. Every listed entry was synced before the
list was written, and the list before the checkpoint. So the list also holds with the previous
checkpoint, and without any it still says how far the log was on the disk, and how long the queues'
files are. Only the list says what index files have room for, see `index_shape`. With the checkpoint
that follows it, no queue has an entry of a record before *recover from* that the list leaves out.
An expired file is removed once the list says so, not before. A store without a list, or with a
damaged one, is walked once, and gets a list when all its queues are known.

The file, see `checked_json`::


    {"crc32":2294315408,"queues":{"simple":{"T":{"0":[2,116,2,0]}},"batch":{},
    "file_sizes":[6000000,13800000],"index_shape":[5000000,20000000]},"version":1}

Apache's brokers do not know the list: once one has written to the checkpoint, it no longer counts.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cometmq.proto.errors import BodyError
from cometmq.store.disk.checked_json import CheckedJson
from cometmq.store.index.index_format import IndexShape
from cometmq.store.queues.entry_search import KEEPS_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.deletions import Deletions
    from cometmq.store.disk.filesystem import FileSystem

QUEUE_ENDS_NAME: Final = "queue_ends.json"
VERSION: Final = 1

_FILE: Final = CheckedJson(QUEUE_ENDS_NAME, "queues", VERSION)

NO_RECORD: Final = -1
"""The physical offset for a queue without an entry of a message, which only keeps an offset."""
UNKNOWN: Final = -1
"""The `kept_from` of a queue for which nobody noted it."""
_LACKS: Final = -2
"""From here down: a queue that lacks the entry of a record, whose offset counts downwards."""

_HEAD: Final = Struct(">qi")  # Physical offset and size of the record: the begin of each entry.
_BATCH_BASE: Final = Struct(">28xqh8x")  # First queue offset and messages of a batch's entry.


class QueueKey(NamedTuple):
    """Identifies a queue."""

    is_batch: bool
    topic: str
    queue_id: int


class QueueEnd(NamedTuple):
    """Where a queue ends."""

    entries: int
    """The index after its last entry."""
    physical_offset: int
    """That of its last entry's record, or `NO_RECORD`; less, see `_LACKS`, if it lacks entries."""
    next_offset: int
    """The queue offset after its last message."""
    kept_from: int = UNKNOWN
    """The first entry of the first file that must exist; earlier entries have expired."""

    @classmethod
    def of(cls, entry: bytes, entries: int, kept_from: int) -> QueueEnd:
        """Return where a queue with this many entries ends, by the last one."""
        physical_offset, size = _HEAD.unpack_from(entry)
        next_offset = entries
        if len(entry) == _BATCH_BASE.size:
            base, count = _BATCH_BASE.unpack(entry)
            next_offset = base + count
        if size in KEEPS_OFFSET:
            physical_offset = NO_RECORD
        return cls(entries, physical_offset, next_offset, kept_from)

    def lacking(self, physical_offset: int, next_offset: int) -> QueueEnd:
        """Return this end for a queue that could not be given the entry of a record, either."""
        lacks = _LACKS - physical_offset if self.lacks_from is None else self.physical_offset
        next_offset = max(self.next_offset, next_offset)
        return self._replace(physical_offset=lacks, next_offset=next_offset)

    @property
    def lacks_from(self) -> int | None:
        """The first record whose entry a start could not give the queue; None if it has all."""
        return _LACKS - self.physical_offset if self.physical_offset <= _LACKS else None

    @property
    def reaches(self) -> int:
        """The physical offset of the record that this end names."""
        return self.physical_offset if self.lacks_from is None else self.lacks_from

    def is_of(self, entry: bytes) -> bool:
        """Whether an entry is the queue's last one."""
        physical_offset, size = _HEAD.unpack_from(entry)
        if len(entry) == _BATCH_BASE.size:
            base, count = _BATCH_BASE.unpack(entry)
            if base + count != self.next_offset:
                return False
        if self.physical_offset == NO_RECORD:
            return size in KEEPS_OFFSET
        return bool(
            physical_offset == self.physical_offset and size > 0 and size not in KEEPS_OFFSET
        )

    def is_in(
        self,
        filesystem: FileSystem,
        folder: str,
        file_size: int,
        entry_size: int,
        *,
        clean: bool,
        read_only: bool = True,
    ) -> bool:
        """Whether a queue's files have its last entry, and the last file has its full length.

        If not `clean`, it may be short: a start that was interrupted while it cut a queue leaves
        such a file. Unless `read_only`, raise the disk's `OSError` if it may not be written.
        """
        number, position = divmod((self.entries - 1) * entry_size, file_size)
        try:
            path = f"{folder}/{number * file_size:020d}"
            file = filesystem.open(path, read_only=read_only)
        except FileNotFoundError:
            return False
        try:
            size = file.size()
            has_size = size == file_size or (size < file_size and not clean)
            entry = file.read(entry_size, position)
            return has_size and len(entry) == entry_size and self.is_of(entry)
        finally:
            file.close()


Ends = dict[QueueKey, QueueEnd]


class Sizes(NamedTuple):
    """The sizes of the queues' files, and what index files have room for."""

    queue_file: int
    batch_queue_file: int
    index_shape: IndexShape


class _Kinds(msgspec.Struct):
    simple: dict[str, dict[int, QueueEnd]]
    batch: dict[str, dict[int, QueueEnd]]
    file_sizes: tuple[int, int] | None = None
    """Missing in a list of an earlier version, like `index_shape`."""
    index_shape: IndexShape | None = None


class _Sizes(msgspec.Struct):
    """The same without the queues, because making 80,000 of them takes 0.2 s."""

    file_sizes: tuple[int, int] | None = None
    index_shape: IndexShape | None = None


def load_queue_ends(filesystem: FileSystem, root: str) -> Ends | None:
    """Read the list; None if there is none, or if it is damaged: then the ends are unknown.

    Raise `StoreFormatError` if a newer version of this program wrote it.
    """
    try:
        kinds = _FILE.load(filesystem, root, _Kinds)
    except BodyError:
        return None
    if kinds is None:
        return None
    return {
        QueueKey(is_batch, topic, queue_id): end
        for is_batch, topics in ((False, kinds.simple), (True, kinds.batch))
        for topic, queues in topics.items()
        for queue_id, end in queues.items()
    }


def listed_sizes(filesystem: FileSystem, root: str) -> Sizes | None:
    """Return the sizes in the list, for when files were torn, or the checkpoint is lost."""
    try:
        sizes = _FILE.load(filesystem, root, _Sizes)
    except BodyError:
        return None
    if sizes is None or sizes.file_sizes is None or sizes.index_shape is None:
        return None
    return Sizes(*sizes.file_sizes, sizes.index_shape)


def save_queue_ends(filesystem: FileSystem, root: str, ends: Ends, sizes: Sizes) -> None:
    """Replace the list; when this returns, the new list would survive a power cut."""
    kinds = _Kinds({}, {}, sizes[:2], sizes.index_shape)
    for (is_batch, topic, queue_id), end in ends.items():
        topics = kinds.batch if is_batch else kinds.simple
        topics.setdefault(topic, {})[queue_id] = end
    _FILE.save(filesystem, root, msgspec.json.encode(kinds))


def remove_queue_ends(filesystem: FileSystem, root: str) -> None:
    """Remove the list, which no longer holds; return once this would survive a power cut."""
    path = f"{root}/{QUEUE_ENDS_NAME}"
    if filesystem.exists(path):
        filesystem.remove(path)
        filesystem.sync_directory(root)


def without_deleted(
    ends: Ends, deletions: Deletions, is_batch_topic: Callable[[str], bool | None]
) -> Ends:
    """Return the ends of the queues whose topics were not deleted since.

    A queue that only keeps an offset stays, for nobody knows: its topic may have been recreated
    after the mark, and a topic that begins at an offset does no harm. It is left out if the topic
    is now of the other kind by `is_batch_topic`, which returns None for unknown topics.
    """
    deleted = deletions.offsets
    if not deleted:
        return ends
    return {
        key: end
        for key, end in ends.items()
        if end.reaches >= (mark := deleted.get(key.topic.encode(), -1))
        or (
            end.physical_offset == NO_RECORD
            and (mark < 0 or is_batch_topic(key.topic) is not (not key.is_batch))
        )
    }


def listed_to(ends: Ends) -> int:
    """Return how far the log was on the disk when the list was saved: as far as what it names."""
    return max((end.reaches for end in ends.values()), default=NO_RECORD) + 1
