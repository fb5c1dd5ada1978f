"""Reading a store that is not ours to write: of a broker that runs, of one that stopped, a copy.

Takes no lock and changes no byte. What it sees is the store at the last `refresh`: a running broker
writes the entries of its ConsumeQueues up to a second late (`consume_queue_write_interval_ms`), and
what it removes for its age may go at any time, which a read notices. A store that was not shut down
and that nobody has open is served as far as its last checkpoint vouches for the queues: what stands
behind it may be torn, and its next start decides about it.

Every call may wait for the disk. For one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cometmq.store.commit_log import Cold, CommitLog, fetch
from cometmq.store.config import StoreConfig
from cometmq.store.errors import CorruptionError
from cometmq.store.filesystem import RealFileSystem
from cometmq.store.folder import load_queues
from cometmq.store.inspection import inspect
from cometmq.store.reading import QueueReader
from cometmq.store.sync import Syncer

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.filesystem import FileSystem
    from cometmq.store.reading import Filter, ReadResult

_Answer = TypeVar("_Answer")


class StoreReader:
    """A store that is only read."""

    def __init__(
        self, root: str, config: StoreConfig | None = None, *, filesystem: FileSystem | None = None
    ) -> None:
        """`StoreFilesError`, which says what to do, when the folder is no store."""
        self.root = root
        self._config = StoreConfig() if config is None else config
        self._filesystem = RealFileSystem() if filesystem is None else filesystem
        self._load()

    def _load(self) -> None:
        filesystem = self._filesystem
        self._store = store = inspect(filesystem, self.root, self._config)
        self._queues = queues = load_queues(
            filesystem,
            self.root,
            store.config,
            store.checkpoint,
            clean=store.is_clean,
            read_only=True,
        )
        queues.correct_min(store.segments.first_offset)
        if not store.is_clean and store.opened_by is None:
            queues.truncate(store.start.replay_from)
        end = store.segments.end_offset
        syncer = Syncer(end, note=_ignore, on_change=_ignore)
        # Without a hot part nothing is mapped: a file that its owner cuts would be a SIGBUS.
        log = CommitLog(store.segments, syncer, end, hot_size=0)
        self._reader = QueueReader(log, queues, store.config)

    def refresh(self) -> None:
        """Look at the store again: at what was put since, and at what is gone."""
        self.close()
        self._load()

    def close(self) -> None:
        """Close the files."""
        self._queues.close()
        self._store.segments.close()

    @property
    def opened_by(self) -> int | None:
        """The id of the process that had the store open at the last look."""
        return self._store.opened_by

    def topics(self) -> list[str]:
        """Return the topics that have a queue, sorted."""
        return sorted({*self._queues.simple.topics(), *self._queues.batch.topics()})

    def queues(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return sorted({*self._queues.simple.queues(topic), *self._queues.batch.queues(topic)})

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that is kept; 0 when there is no such queue."""
        queue = self._queues.simple.find(topic, queue_id) or self._queues.batch.find(
            topic, queue_id
        )
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last message; 0 when there is no such queue."""
        queue = self._queues.simple.find(topic, queue_id) or self._queues.batch.find(
            topic, queue_id
        )
        return 0 if queue is None else queue.max_offset

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        *,
        wanted: Filter | None = None,
    ) -> ReadResult:
        """Read messages, see `QueueReader.read`.

        When the files turn out to have moved on meanwhile, it looks at the store again.
        """

        def read() -> ReadResult:
            fetched: list[tuple[Cold, bytes]] = []
            while True:
                result = self._reader.read(
                    topic, queue_id, queue_offset, count_max, wanted=wanted, fetched=fetched
                )
                if not result.cold:
                    return result
                fetched += [(cold, fetch(self._filesystem, cold)) for cold in result.cold]

        return self._again(read)

    def _again(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except (FileNotFoundError, CorruptionError):
            self.refresh()  # A segment went, or came: the owner is at work.
            return ask()


def _ignore(*_: object) -> None:
    """Nothing is written here, so nothing is synced."""
