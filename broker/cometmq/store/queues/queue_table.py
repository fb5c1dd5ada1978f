"""The queues of one kind in a store: found by topic and queue id, loaded when first touched."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from cometmq.store.disk.names import is_offset_file, is_queue_folder, is_topic_folder
from cometmq.store.errors import CorruptionError, StoreFormatError
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue, BatchEntry
from cometmq.store.queues.entry_disk import Shelf
from cometmq.store.queues.entry_files import EntryFiles
from cometmq.store.queues.topic_folders import has_queue_files, holds_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.queues.entry_disk import EntryDisk

Queue = TypeVar("Queue", bound=EntryFiles)
Waiting: TypeAlias = "dict[str, dict[int, list[tuple[int, bytes]]]]"
"""By topic and queue, lots of entries that are not in files, each with the index of its first."""

FILES_PROBED_MAX = 8


class Shape(NamedTuple):
    """The sizes of the entries and files of one kind of queue, in bytes."""

    entry_size: int
    file_size: int
    """For a store that has no such files yet."""
    known_file_size: int | None
    """The size that the store noted down."""
    are_whole: bool
    """Whether no file is shorter: after a power cut one of ours may be."""


class QueueTable(Generic[Queue]):
    """All queues of one kind. A topic's folder is listed when the topic is first touched."""

    def __init__(
        self, make: Callable[[Shelf, str, int], Queue], disk: EntryDisk, root: str, shape: Shape
    ) -> None:
        self._make = make
        self._disk = disk
        self._root = root
        self._loaded: dict[str, dict[int, Queue]] = {}
        self._on_disk: dict[str, set[int] | None] = {
            entry.name: None for entry in disk.filesystem.list(root) if is_topic_folder(entry)
        }  # By topic, the queues that were not touched yet; None if the topic is not listed yet.
        self._cut: int | None = None
        self.problems: dict[tuple[str, int], str] = {}
        """By topic and queue, what is wrong with queues whose files are damaged."""
        self._waiting: Waiting = {}
        self._shelf = Shelf(
            disk, root, shape.entry_size, self._file_size(shape) // shape.entry_size
        )

    @property
    def root(self) -> str:
        """The folder of all queues of this kind."""
        return self._root

    @property
    def shelf(self) -> Shelf:
        """The place of its queues, and the shape of their files."""
        return self._shelf

    @property
    def file_size(self) -> int:
        """The length of each file: that of the files in the store, or else the configured one."""
        return self._shelf.file_size

    def get(self, topic: str, queue_id: int) -> Queue:
        """Return a queue; one that does not exist yet gets its files with its first entry."""
        try:
            return self._loaded[topic][queue_id]
        except KeyError:
            return self._load(topic, queue_id)

    def in_memory(self, topic: str) -> dict[int, Queue]:
        """Return the queues of a topic that were touched, a mapping that loses removed queues."""
        return self._loaded.get(topic, {})

    def find(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue if there is one."""
        queue = self._loaded.get(topic, {}).get(queue_id)
        if queue is None and queue_id in self._listed(topic):
            queue = self._load(topic, queue_id)
            if not (queue.has_files or queue.end or queue in self._disk.forgotten):
                self._loaded[topic].pop(queue_id)  # Nothing in its folder belongs to a queue.
                if not self._loaded[topic]:
                    self._loaded.pop(topic)
                return None
        return queue

    def find_sound(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue if there is one and its files are sound; otherwise see `problems`."""
        try:
            return self.find(topic, queue_id)
        except (CorruptionError, StoreFormatError):
            return None

    def topics(self) -> list[str]:
        """Return the topics that have a queue here, sorted."""
        return sorted(self._loaded.keys() | self._on_disk.keys())

    def holds(self, topic: str, mark: int | None) -> bool:
        """Whether the topic's folder has a queue, see `holds_queues`."""
        folder, entry_size = f"{self._root}/{topic}", self._shelf.entry_size
        return holds_queues(self._disk.filesystem, folder, entry_size, mark)

    def has_files(self, topic: str) -> bool:
        """Whether the topic's folder has files of queues, blank ones included."""
        return has_queue_files(self._disk.filesystem, f"{self._root}/{topic}")

    def queues(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return sorted(self._loaded.get(topic, {}).keys() | self._listed(topic))

    def loaded(self) -> Iterator[Queue]:
        """Walk the queues that are in memory."""
        for queues in list(self._loaded.values()):
            yield from list(queues.values())

    def walk(self) -> Iterator[Queue]:
        """Walk all queues, loading those that are not in memory."""
        for topic in self.topics():
            for queue_id in self.queues(topic):
                queue = self.find(topic, queue_id)
                if queue is not None:
                    yield queue

    def walk_sound(self) -> Iterator[Queue | None]:
        """Walk all queues, with None for one whose files are damaged.

        A put to it, or a read, raises the error; `problems` says what is wrong.
        """
        for topic in self.topics():
            for queue_id in self.queues(topic):
                yield self.find_sound(topic, queue_id)

    def expect(self, waiting: Waiting) -> None:
        """Let unloaded queues continue with these entries after those on the disk."""
        self._waiting = waiting
        for topic, queues in waiting.items():
            self._on_disk[topic] = {*self._listed(topic), *queues}

    def truncate(self, physical_offset: int) -> None:
        """Erase the entries of records at or after an offset; in an unloaded queue when it loads.

        Until `settle` has been walked to its end, the rest of this work must not be forgotten.
        """
        for queue in self.loaded():
            queue.truncate(physical_offset)
        if self._on_disk:
            cut = physical_offset if self._cut is None else self._cut
            self._cut = min(physical_offset, cut)

    @property
    def cut(self) -> int | None:
        """The physical offset to which unloaded queues must still be cut."""
        return self._cut

    def settle(self, walk: Iterator[object]) -> Iterator[None]:
        """Cut the queues that were not loaded since `truncate`, by a `walk` of all queues."""
        if self._cut is not None:
            for _ in walk:
                yield
            self._cut = None

    def destroy(self, topic: str, queue_id: int | None = None) -> None:
        """Remove a queue, or all queues of a topic, with their files."""
        for each in self.queues(topic) if queue_id is None else [queue_id]:
            try:
                queue = self.find(topic, each)
            except (CorruptionError, StoreFormatError):
                self.discard(topic, each)
                queue = self._make(self._shelf, topic, each)
            if queue is not None:
                queue.destroy()
                self._remove_folder(queue.directory)
                self._loaded.get(topic, {}).pop(each, None)
                self.problems.pop((topic, each), None)
            else:
                self._remove_folder(f"{self._root}/{topic}/{each}")
        if not self.queues(topic):
            self._loaded.pop(topic, None)
            self._on_disk.pop(topic, None)
            self._remove_folder(f"{self._root}/{topic}")

    def doubt_removal(self, topics: Iterable[str]) -> None:
        """Note that the removal of topics, or of their queues, may not be on the disk.

        A killed process may have left a topic's folder empty, or with some of its content.
        """
        filesystem, names = self._disk.filesystem, self._disk.unsynced_directories
        names.add(self._root)
        # A deleted topic need not have had a name that is possible.
        left = {each.name for each in filesystem.list(self._root) if is_topic_folder(each)}
        for folder in (f"{self._root}/{topic}" for topic in left.intersection(topics)):
            queues = filter(is_queue_folder, filesystem.list(folder))
            names.update(f"{folder}/{each.name}" for each in queues)
            names.add(folder)

    def discard(self, topic: str, queue_id: int) -> None:
        """Remove the files of a queue, whatever they are: the queue is rebuilt."""
        directory, disk = f"{self._root}/{topic}/{queue_id}", self._disk
        if (queue := self._loaded.get(topic, {}).pop(queue_id, None)) is not None:
            queue.destroy()
        for entry in disk.filesystem.list(directory):
            if is_offset_file(entry):
                disk.filesystem.remove(f"{directory}/{entry.name}")
        self._listed(topic).discard(queue_id)
        disk.unsynced_directories |= {directory, f"{self._root}/{topic}", self._root}

    def _remove_folder(self, path: str) -> None:
        """Remove a folder unless something is left in it, which belongs to no queue."""
        filesystem = self._disk.filesystem
        if filesystem.exists(path) and not filesystem.list(path):
            filesystem.remove_directory(path)
            self._disk.unsynced_directories.discard(path)
            self._disk.unsynced_directories.add(path.rpartition("/")[0])

    def _listed(self, topic: str) -> set[int]:
        """Return a topic's queues on disk that are not loaded."""
        found = self._on_disk.get(topic, set())
        if found is None:
            found = self._on_disk[topic] = self._list(topic)
        return found

    def _list(self, topic: str) -> set[int]:
        """Return the queue ids that a topic's folder names; everything else there is ignored.

        The folder is also listed for a put to the topic, which must not fail because of the rest.
        """
        entries = self._disk.filesystem.list(f"{self._root}/{topic}")
        return {int(entry.name) for entry in entries if is_queue_folder(entry)}

    def _load(self, topic: str, queue_id: int) -> Queue:
        queue = self._make(self._shelf, topic, queue_id)
        on_disk = self._listed(topic)
        if queue_id in on_disk:
            try:
                queue.load(self._cut)
            except (CorruptionError, StoreFormatError) as error:
                self.problems[topic, queue_id] = str(error)
                raise
            self.problems.pop((topic, queue_id), None)
            if not self._disk.read_only:
                self._disk.ends.note_loaded(queue)
            on_disk.discard(queue_id)
            for index, entries in self._waiting.get(topic, {}).get(queue_id, ()):
                self._go_on(queue, index, entries)
        if not on_disk:
            self._on_disk.pop(topic, None)
        self._loaded.setdefault(topic, {})[queue_id] = queue
        return queue

    def _go_on(self, queue: Queue, index: int, entries: bytes) -> None:
        """Add those of some consecutive entries that come after the queue's last one.

        Add none if there is a gap, as between two journals: `index` is that of the first entry.
        """
        size = self._shelf.entry_size
        last = queue.head(queue.end - 1)[0] if queue.end > queue.start else -1
        heads = self._shelf.heads.iter_unpack(entries)
        known = sum(physical_offset <= last for physical_offset, _ in heads)
        new = entries[known * size :]
        if isinstance(queue, BatchConsumeQueue):  # Its messages show it; there is no index.
            follows = new and BatchEntry.read(new[:size]).base_offset == queue.max_offset
        else:
            follows = new and index + known == queue.end
        if follows:
            queue.extend(new, len(new) // size)

    def _file_size(self, shape: Shape) -> int:
        """Return the size of the files that exist, or, for a read-only look, that existed.

        If files may be shorter, one alone proves nothing: its creation may have been interrupted.
        """
        if shape.known_file_size is not None and (self._on_disk or self._disk.read_only):
            return shape.known_file_size
        sizes: Counter[int] = Counter()
        for topic in self._on_disk:
            for queue_id in self._listed(topic):
                found = self._disk.filesystem.list(f"{self._root}/{topic}/{queue_id}")
                sizes.update(entry.size for entry in found if entry.size and is_offset_file(entry))
                if shape.file_size in sizes:
                    return shape.file_size
            if sizes.total() >= FILES_PROBED_MAX:
                break
        for size, count in sizes.most_common(1):
            # A file that is being cut or created may have any length below its full one.
            if size % shape.entry_size == 0 and (
                shape.are_whole or (count > 1 and size == max(sizes))
            ):
                return size
        return shape.file_size
