"""All ConsumeQueues of a store: tables of both kinds over one disk, written behind and synced.

How the store uses it, in the order of a record's life:

1. `simple.get(topic, queue_id)` (or `batch`), and `append` on the queue that it returns;
2. `write_behind(up_to, budget)` in slices, when entries have waited long enough. The caller knows
   time and the log's end; here age is a physical offset: all records below it are old enough;
3. for a checkpoint: `settled_offset` first, then `take_unsynced()`, and its `sync()` in a thread.
   Once that has returned, the checkpoint may claim what `settled_offset` said before.

An unclean start calls `truncate(start)` with the physical offset from which records are read back,
then `place` for each of them, then `settle()` in slices. Until `settle` ends, `settled_offset`
stays low, so that a second crash starts from there again.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.disk.open_files import OpenFiles
from cometmq.store.disk.unsynced import Unsynced
from cometmq.store.errors import CorruptionError, StoreFilesError, StoreFormatError
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE, BatchConsumeQueue
from cometmq.store.queues.consume_queue import ENTRY, ENTRY_SIZE, ConsumeQueue
from cometmq.store.queues.entry_disk import EntryDisk
from cometmq.store.queues.entry_files import EntryFiles
from cometmq.store.queues.entry_search import NO_CUT
from cometmq.store.queues.letting_go import queues_letting_go, walk_once_read
from cometmq.store.queues.queue_ends import QueueKey, Sizes
from cometmq.store.queues.queue_table import QueueTable, Shape
from cometmq.store.queues.record_check import RecordCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.cold import Cold
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.log.segments import Segments
    from cometmq.store.queues.letting_go import InThread
    from cometmq.store.queues.noted_ends import QueueEnds
    from cometmq.store.queues.queue_ends import Ends

SIMPLE_FOLDER: Final = "consumequeue"
BATCH_FOLDER: Final = "batchconsumequeue"


class Span(NamedTuple):
    """The messages of a queue, by their queue offsets."""

    min_offset: int
    """That of the first message that is kept."""
    max_offset: int
    """The one that the next message gets."""


class ConsumeQueues:
    """The ConsumeQueues of one store."""

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        config: StoreConfig,
        *,
        clean: bool,
        read_only: bool = False,
        file_sizes: tuple[int | None, int | None] = (None, None),
        is_of_others: bool = False,
    ) -> None:
        """After a `clean` stop, files of odd sizes are foreign, not half made.

        `file_sizes` are those of both kinds as the store noted them down: then files that a power
        cut left with the same wrong length do not matter. If it `is_of_others`, an Apache broker
        wrote last, whose files have their full size from the beginning.
        """
        are_whole = clean or is_of_others
        self._filesystem, self._root = filesystem, root
        self._open_files = OpenFiles(config.consume_queue_files_max)
        self._disk = EntryDisk(filesystem, self._open_files, clean=clean, read_only=read_only)
        self.simple = QueueTable(
            ConsumeQueue,
            self._disk,
            f"{root}/{SIMPLE_FOLDER}",
            Shape(ENTRY_SIZE, config.consume_queue_file_size, file_sizes[0], are_whole),
        )
        """The queues of ordinary topics."""
        self.batch = QueueTable(
            BatchConsumeQueue,
            self._disk,
            f"{root}/{BATCH_FOLDER}",
            Shape(BATCH_ENTRY_SIZE, config.batch_consume_queue_file_size, file_sizes[1], are_whole),
        )
        """The queues of topics with `queue.type=BatchCQ`."""
        sizes = Sizes(self.simple.file_size, self.batch.file_size, config.index_shape)
        self.ends.sizes = sizes
        self._lacking_from: int | None = None
        self.write_error: OSError | None = None
        """Why entries cannot be written now; None again as soon as a write succeeds."""

    @property
    def ends(self) -> QueueEnds:
        """Where each queue ends on the disk."""
        return self._disk.ends

    def table(self, *, is_batch: bool) -> QueueTable[ConsumeQueue] | QueueTable[BatchConsumeQueue]:
        """Return the queues of one kind."""
        return self.batch if is_batch else self.simple

    def discard(self, to_make: Ends) -> None:
        """Remove what is left of queues that are to be rebuilt."""
        for key in to_make:
            self.table(is_batch=key.is_batch).discard(key.topic, key.queue_id)

    def expect_records(self, segments: Segments) -> None:
        """When a queue is loaded, drop last entries that belong to no record in the log."""
        self._disk.backs = RecordCheck(segments)

    def expect_whole(self, end_offset: int = NO_CUT) -> None:
        """Count the entries as complete up to the log's end: nobody wrote since a clean stop."""
        self._disk.whole_to = end_offset

    def expect_all(self, first_offset: int) -> None:
        """Erase the entries of all records: the log is replayed from its first one, here.

        Entries before it stay: a queue without a record continues after them.
        """
        self._disk.may_restart = True
        for table in (self.simple, self.batch):
            table.problems.clear()
            for queue in table.loaded():
                queue.miss_nothing()
        self.truncate(first_offset)

    def can_take(self, key: QueueKey, physical_offset: int, next_offset: int) -> bool:
        """Whether a queue can take the entry of a record that is read back from the log.

        A damaged queue cannot, see `problems`: nobody puts to it or reads from it until it is
        rebuilt from the log, and the list of ends notes that. Other queues are not affected.
        """
        table = self.table(is_batch=key.is_batch)
        try:
            table.get(key.topic, key.queue_id)
        except (CorruptionError, StoreFormatError) as error:
            table.problems[key.topic, key.queue_id] = str(error)
        else:
            return True
        self.ends.note_lacking(key, physical_offset, next_offset)
        bound = self._lacking_from
        self._lacking_from = physical_offset if bound is None else min(bound, physical_offset)
        return False

    # Writing

    def write_behind(self, up_to: int, budget: int) -> bool:
        """Write queues whose first waiting entry is of a record below `up_to`.

        Do at most `budget` writes, some 5 µs each; return whether all such queues are done. If the
        disk refuses a write, `write_error` says why, and the entries stay in memory.
        """
        disk = self._disk
        while (first := disk.first_unwritten()) is not None and first < up_to:
            if budget <= 0:
                return False
            budget -= 1
            try:
                disk.write_first(first)
            except OSError as error:
                self.write_error = error
                return False
            self.write_error = None
        return True

    @property
    def unwritten_from(self) -> int | None:
        """The physical offset of the first record whose entry waits in memory, if any."""
        return self._disk.first_unwritten()

    @property
    def settled_offset(self) -> int | None:
        """The physical offset below which every record's entry is in the files; None for any.

        That does not mean on the disk: for that, sync what `take_unsynced` then returns.
        """
        # Until a list that says which queues lack entries can be saved, the log is needed for it.
        lacking = None if self.ends.is_whole else self._lacking_from
        bounds = (self._disk.first_unwritten(), self.simple.cut, self.batch.cut, lacking)
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def changed_count(self) -> int:
        """Roughly how many queues have entries that are not on the disk, or not in their files."""
        return len(self._disk.unwritten) + len(self._disk.unsynced_files)

    def take_unsynced(self) -> Unsynced:
        """Return what has changed since the last call."""
        disk = self._disk
        unsynced = Unsynced(
            disk.filesystem, disk.unsynced_files, disk.unsynced_directories, disk.partition
        )
        disk.unsynced_files, disk.unsynced_directories = set(), set()
        return unsynced

    def take_ends(self) -> Callable[[], None]:
        """Return a call that saves the queues' ends, for when what is unsynced now is synced."""
        return partial(self.ends.take().save, self._filesystem, self._root)

    def topics(self) -> set[str]:
        """Return the topics that have a queue."""
        return {*self.simple.topics(), *self.batch.topics()}

    def ids(self, topic: str) -> set[int]:
        """Return the ids of a topic's queues."""
        return {*self.simple.queues(topic), *self.batch.queues(topic)}

    def check_spelling(self, topic: str) -> None:
        """Refuse a topic whose files would be another topic's, if the disk takes `A` for `a`."""
        if not self._is_case_blind:
            return
        for other in self.topics():
            if other != topic and other.casefold() == topic.casefold():
                raise StoreFormatError(
                    f"this file system takes its folder for that of topic {other}: use a topic"
                    " that differs in more than upper and lower case, or move the store to a"
                    " file system that tells them apart",
                    f"{self._root}/{SIMPLE_FOLDER}/{topic}",
                )

    @cached_property
    def _is_case_blind(self) -> bool:
        return self._filesystem.exists(f"{self._root}/{SIMPLE_FOLDER.upper()}")

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        """Return a queue if there is one; if both kinds have it, the one that has messages."""
        queue = self.simple.find(topic, queue_id)
        if queue is None or not queue.end:
            return self.batch.find(topic, queue_id) or queue
        return queue

    def span(self, topic: str, queue_id: int) -> Span | None:
        """Return where a queue begins and ends, for callers with many; None if it is damaged.

        A put to it, or a read, raises the error; `problems` says what is wrong.
        """
        try:
            queue = self.find(topic, queue_id)
            return Span(0, 0) if queue is None else Span(queue.min_offset, queue.max_offset)
        except StoreFilesError as error:
            table = self.simple if queue_id in self.simple.queues(topic) else self.batch
            table.problems[topic, queue_id] = str(error)
            return None

    def cold_front(self, topic: str, queue_id: int) -> Cold | None:
        """What has to be fetched so that `span` finds a queue's begin without waiting for the disk.

        Once a segment has expired, and after a start, it is searched for in the queue's entries.
        """
        try:
            queue = self.find(topic, queue_id)
            return None if queue is None else queue.cold_front
        except StoreFilesError:
            return None  # The look itself reports it.

    def entries(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> list[tuple[int, int, int]] | None:
        """Return a queue's entries from an offset on: physical offset, size, tags code.

        None if there is no such queue. Waits for the disk.
        """
        queue = self.find(topic, queue_id)
        if queue is None:
            return None
        if isinstance(queue, BatchConsumeQueue):
            return [entry[:3] for entry in queue.read(queue_offset, count)]
        found: list[tuple[int, int, int]] = []
        while len(found) < count:
            data = queue.read(queue_offset + len(found), count - len(found))
            if not data:
                break
            found += ENTRY.iter_unpack(data)
        return found

    # The two ends of the log

    def truncate(self, physical_offset: int) -> None:
        """Erase the entries of records at or after a physical offset."""
        self.simple.truncate(physical_offset)
        self.batch.truncate(physical_offset)

    def settle(self, in_thread: InThread | None = None) -> Iterator[None]:
        """Do the rest of `truncate` for queues that nobody touched, one a step.

        If there was no list of ends, also load all queues once: then the list names each, and is
        whole if all can be loaded. What the loads look at is first read `in_thread`, if one is
        given; no step may be taken before that has ended.
        """
        is_cut = not (self.simple.cut is None and self.batch.cut is None)
        for table in (self.simple, self.batch):
            walk = table.walk_sound() if in_thread is None else walk_once_read(table, in_thread)
            yield from table.settle(walk)
            if not (self.ends.is_whole or is_cut):
                for _ in walk:
                    yield
        self.ends.is_whole |= all(
            (end := self.ends.known.get(QueueKey(table is self.batch, *queue))) is not None
            and end.lacks_from is not None
            for table in (self.simple, self.batch)
            for queue in table.problems
        )

    def correct_min(self, physical_offset: int) -> None:
        """Let every queue begin at the first record at or after the log's first byte."""
        self._disk.min_physical_offset = physical_offset

    def expire(
        self, settled_offset: int, in_thread: Callable[[Callable[[], None]], None]
    ) -> Iterator[int]:
        """Remove files without an entry of a record in the log; one queue a step.

        Entries of records below `settled_offset` are on the disk. Before the first file is removed,
        the list of where the queues begin and end is saved `in_thread`; no step may be taken before
        that has ended. Files that the list does not let go stay. An `OSError` of one queue is
        raised after the last step, so that the others' files are removed.
        """
        ends, going, failed = self.ends, list[EntryFiles](), list[OSError]()

        def lets_go(queue: EntryFiles) -> bool:
            try:
                return queue.let_go(settled_offset)
            except OSError as error:
                failed.append(error)
                return False

        tables = (self.simple, self.batch)
        queues = chain.from_iterable(walk_once_read(table, in_thread) for table in tables)
        for queue in queues_letting_go(queues, lets_go, in_thread):
            if queue is not None:
                going.append(queue)
            yield 0
        if going:
            kept_from = {queue.key: queue.kept_from for queue in going}
            in_thread(partial(ends.let_go, kept_from, self._filesystem, self._root))
            yield 0
        for gone in going:
            yield gone.expire() if ends.lets_go(gone) else 0
        if failed:
            raise failed[0]

    def destroy(self, topic: str, queue_id: int | None = None) -> None:
        """Remove the queues of a topic, or one of them, with their files."""
        self.simple.destroy(topic, queue_id)
        self.batch.destroy(topic, queue_id)

    def close(self) -> None:
        """Close the files; entries that were not written are lost. No sync may be under way."""
        self._open_files.close_all()
        if self._disk.partition is not None:
            self._disk.partition.close()
            self._disk.partition = None

    @property
    def damaged(self) -> list[tuple[str, int]]:
        """The topics and ids of queues that were found damaged."""
        return [*self.simple.problems, *self.batch.problems]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the queues that were found damaged."""
        return [*self.simple.problems.values(), *self.batch.problems.values()]

    def walk(self) -> Iterator[ConsumeQueue | BatchConsumeQueue]:
        """Walk all queues, see `QueueTable.walk`."""
        yield from self.simple.walk()
        yield from self.batch.walk()

    def walk_sound(self) -> Iterator[ConsumeQueue | BatchConsumeQueue | None]:
        """Walk all queues, see `QueueTable.walk_sound`."""
        yield from self.simple.walk_sound()
        yield from self.batch.walk_sound()
