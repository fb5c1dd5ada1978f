"""What the process that has a store open removed while it was verified: missing, but no damage.

The mark of a deleted topic is on the disk before its queues are removed, see `deletions`. When data
expires, the log's files are removed first; then `queue_ends` says which files of queues go; and
only then are these and those of the index removed, see `expiry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from cometmq.store.deletions import Deletions
from cometmq.store.disk.filesystem import read_whole
from cometmq.store.disk.names import is_offset_file, some_of
from cometmq.store.errors import StoreFormatError
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY_SIZE
from cometmq.store.queues.consume_queue import ENTRY_SIZE
from cometmq.store.queues.consume_queues import BATCH_FOLDER, SIMPLE_FOLDER
from cometmq.store.queues.queue_ends import QUEUE_ENDS_NAME, QueueKey, load_queue_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.looking.findings import Finding
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.queue_ends import Ends

_ENTRY_SIZES: Final = {SIMPLE_FOLDER: ENTRY_SIZE, BATCH_FOLDER: BATCH_ENTRY_SIZE}

_Said = TypeVar("_Said")


class _Watched(Generic[_Said]):
    """The content of a file, reloaded only if it has changed: there may be many findings."""

    def __init__(
        self, filesystem: FileSystem, path: str, load: Callable[[], _Said], without: _Said
    ) -> None:
        """`without` is the content while there is no such file."""
        self._filesystem = filesystem
        self._path = path
        self._load = load
        self._said = without
        self._read: bytes | None = None

    def now(self) -> _Said:
        """Return the present content."""
        data = read_whole(self._filesystem, self._path)
        if data != self._read:
            self._read = data
            self._said = self._load()
        return self._said


class GoneMeanwhile:
    """Looks again at what was deleted and what has expired, before a finding is reported."""

    def __init__(self, store: Inspected) -> None:
        self._store = store
        filesystem, root, before = store.filesystem, store.root, store.deletions.offsets
        self._before = before
        self._marks = _Watched(filesystem, store.deletions.path, self._load_marks, before)
        no_ends: Ends = {}
        ends_path = f"{root}/{QUEUE_ENDS_NAME}"
        self._ends = _Watched(filesystem, ends_path, self._load_ends, no_ends)
        self._topics: set[str] = set()
        self._first_offset = store.segments.first_offset
        """Where the log begins, at the last look."""
        self._has_expired = False

    def explains(self, finding: Finding) -> bool:
        """Whether a finding is about something removed since the store was looked at."""
        return self._is_deleted(finding) or self._is_expired(finding)

    def _is_deleted(self, finding: Finding) -> bool:
        """Whether its topic was deleted."""
        key, _ = self._queue_of(finding)
        topic = finding.topic or (key and key.topic)
        if topic is None or topic in self._topics:
            return topic is not None
        name = topic.encode()
        if self._marks.now().get(name) == self._before.get(name):
            return False
        self._topics.add(topic)
        return True

    def _is_expired(self, finding: Finding) -> bool:
        """Whether its record has expired, or, if it names none, the record of its entry.

        False for a finding in the log itself, whose files do not change when they go.
        """
        before, place = self._store.segments.first_offset, finding.physical_offset
        if finding.path.startswith(f"{self._store.segments.directory}/"):
            return False
        if place is not None and place >= before:
            is_expired = place < self._first_offset or place < self._look()
        else:
            is_expired = self._is_let_go(finding)
        self._has_expired |= is_expired
        return is_expired

    def _look(self) -> int:
        """Return where the log begins now: where it did, as long as that file exists."""
        filesystem, folder = self._store.filesystem, self._store.segments.directory
        if filesystem.exists(f"{folder}/{self._first_offset:020d}"):
            return self._first_offset
        entries = filesystem.list(folder)
        names = (int(entry.name) for entry in entries if is_offset_file(entry))
        self._first_offset = max(self._first_offset, min(names, default=0))
        return self._first_offset

    def _is_let_go(self, finding: Finding) -> bool:
        """Whether the list of the queues' ends says by now that an entry's file may be gone.

        The file must be gone, or the entry be the last that the queue was known to have.
        """
        store, (key, index) = self._store, self._queue_of(finding)
        if key is None or (index is not None and store.filesystem.exists(finding.path)):
            return False
        before, now = (ends.get(key) for ends in (store.ends, self._ends.now()))
        first = 0 if before is None else before.kept_from
        if index is None:
            index = -1 if before is None else before.entries - 1
        return now is not None and max(0, first) <= index < now.kept_from

    def _load_ends(self) -> Ends:
        return load_queue_ends(self._store.filesystem, self._store.root) or {}

    def _queue_of(self, finding: Finding) -> tuple[QueueKey | None, int | None]:
        """Return the queue that a finding is about, and the entry, if it names a file.

        The entry is -1 for a file that is none of the queue.
        """
        folder, _, rest = finding.path.removeprefix(f"{self._store.root}/").partition("/")
        topic, _, rest = rest.partition("/")
        queue_id, _, name = rest.partition("/")
        if folder not in _ENTRY_SIZES:
            return None, None
        key = QueueKey(folder == BATCH_FOLDER, topic, int(queue_id) if queue_id.isdecimal() else -1)
        if not name:
            return key, None
        if not name.isdecimal():
            return key, -1
        return key, (int(name) + finding.position) // _ENTRY_SIZES[folder]

    def _load_marks(self) -> dict[bytes, int]:
        """Return the marks of deleted topics; the earlier ones if they cannot be read."""
        try:
            return Deletions(self._store.filesystem, self._store.root).offsets
        except StoreFormatError:
            return self._before

    def notes(self) -> Iterator[str]:
        """Say what was left out."""
        if self._topics:
            yield f"deleted while this ran, and not checked: {some_of(sorted(self._topics))}"
        if self._has_expired:
            yield f"expired while this ran, and not fully checked: the log up to {self._look()}"
