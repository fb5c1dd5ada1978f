"""Reading a store that is not ours to write: a running broker's, a stopped one's, or a copy.

It takes no lock and changes no byte. It sees the store at the last `refresh`: a running broker
writes the entries of its ConsumeQueues up to a second late (`consume_queue_write_interval_ms`), and
may remove old files at any time, which a read notices. A store that was not shut down and that
nobody has open is served as far as its last checkpoint vouches for the queues: what follows may be
torn, and the next start decides about it.

A queue that its broker would not serve, because it is damaged or lost, causes an error that names
it; it is never served as one that ends early.

Every call may wait for the disk. For one thread.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar

from cometmq.store.config import StoreConfig
from cometmq.store.disk.cold import Cold, fetch
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.sync import Syncer
from cometmq.store.errors import REBUILD, CorruptionError
from cometmq.store.index.index import Index
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.log_scan import LogScan
from cometmq.store.looking.inspection import inspect
from cometmq.store.looking.waiting_entries import attach_journals
from cometmq.store.messages.reading import QueueReader
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.queue_ends import NO_RECORD
from cometmq.store.starting.folder import load_queues
from cometmq.store.starting.rocksdb import refuse_rocksdb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.proto.message import StoredMessage
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.messages.reading import Filter, ReadResult
    from cometmq.store.queues.consume_queue import Boundary, ConsumeQueue
    from cometmq.store.queues.queue_ends import Ends, QueueKey

_LOOKS_AGAIN: Final = 2
"""Looks at a store before damage is believed: files may expire right after each look."""

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _again(
    ask: Callable[Concatenate[StoreReader, _Asked], _Answer],
) -> Callable[Concatenate[StoreReader, _Asked], _Answer]:
    """Have a call that fails repeated, on the store as it is then."""

    @wraps(ask)
    def asked(reader: StoreReader, /, *about: _Asked.args, **named: _Asked.kwargs) -> _Answer:
        for _ in range(_LOOKS_AGAIN):
            with suppress(FileNotFoundError, CorruptionError):
                return ask(reader, *about, **named)
            reader.refresh()  # A file went, or came: the owner is at work.
        return ask(reader, *about, **named)

    return asked


class StoreReader:
    """A store that is only read."""

    def __init__(
        self, root: str, config: StoreConfig | None = None, *, filesystem: FileSystem | None = None
    ) -> None:
        """Raise `StoreFilesError`, which says what to do, if the folder is no store."""
        self.root = root
        self._config = StoreConfig() if config is None else config
        self._filesystem = RealFileSystem() if filesystem is None else filesystem
        self._load()

    def _load(self) -> None:
        filesystem = self._filesystem
        refuse_rocksdb(filesystem, self.root)
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
        queues.ends.known = _true_ends(store)
        if store.is_clean and not store.checkpoint.is_of_others:
            queues.expect_whole()
        self._end_offset = end = store.segments.end_offset
        if not store.is_clean and store.opened_by is None:
            self._end_offset = store.start.replay_from
            queues.truncate(self._end_offset)
        self._end_offset = attach_journals(store, queues) or self._end_offset
        syncer = Syncer(end, note=_ignore, on_change=_ignore)
        # Without a hot part nothing is mapped: a file that its owner cuts would be a SIGBUS.
        log = CommitLog(store.segments, syncer, end, hot_size=0, maps_warm=False)
        self._reader = QueueReader(log, queues, store.config)

    def refresh(self) -> None:
        """Look at the store again, for what has been put since, and what is gone."""
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
        """Return the topics that have a queue, including lost queues, sorted."""
        return sorted({*self._queues.topics(), *(key.topic for key in self._lost())})

    def queues(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        lost = (key.queue_id for key in self._lost() if key.topic == topic)
        tables = self._queues.simple, self._queues.batch
        return sorted({*(each for table in tables for each in table.queues(topic)), *lost})

    def _lost(self) -> Iterator[QueueKey]:
        """Walk the queues without any file, though the log may have messages of them."""
        first_offset = self._store.segments.first_offset
        for key, end in self._queues.ends.known.items():
            table = self._queues.table(is_batch=key.is_batch)
            if end.reaches >= first_offset and key.queue_id not in table.queues(key.topic):
                yield key

    def _find(self, topic: str, queue_id: int) -> ConsumeQueue | BatchConsumeQueue | None:
        """Return a queue if there is one; raise `CorruptionError` if it is lost."""
        queues = self._queues
        queue = queues.find(topic, queue_id)
        for key in () if queue is not None else self._lost():
            if (key.topic, key.queue_id) == (topic, queue_id):
                root = queues.table(is_batch=key.is_batch).root
                count = queues.ends.known[key].next_offset
                problem = f"the queue had {count} messages, but its files are missing; {REBUILD}"
                raise CorruptionError(f"{root}/{topic}/{queue_id}", 0, problem)
        return queue

    @_again
    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first kept message; 0 if there is no such queue."""
        queue = self._find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    @_again
    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last message; 0 if there is no such queue."""
        queue = self._find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    @_again
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

        If the files turn out to have moved on meanwhile, it looks at the store again.
        """
        fetched: list[tuple[Cold, bytes]] = []
        self._find(topic, queue_id)
        while True:
            result = self._reader.read(
                topic, queue_id, queue_offset, count_max, wanted=wanted, fetched=fetched
            )
            if not result.cold:
                return result
            fetched += [(cold, fetch(self._filesystem, cold)) for cold in result.cold]

    @_again
    def find_record(self, physical_offset: int) -> StoredMessage | None:
        """Return the record at a physical offset, or None if no sound one begins there."""
        segments = self._store.segments
        if not segments.first_offset <= physical_offset < self._end_offset:
            return None
        return next(iter(LogScan(segments, physical_offset)), None)

    @_again
    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary) -> int:
        """Return the queue offset for a store timestamp; 0 if there is no such queue."""
        queue = self._find(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue):
            return queue.offset_by_time(timestamp, boundary)
        return 0 if queue is None else queue.offset_by_time(timestamp, boundary, self._store_time)

    def _store_time(self, physical_offset: int, _size: int) -> int:
        message = self.find_record(physical_offset)
        return -1 if message is None else message.store_timestamp

    @_again
    def query(
        self,
        topic: str,
        key: str,
        count: int,
        *,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        kind: str = "",
    ) -> list[int]:
        """Return the physical offsets of records that have a key, newest first.

        The key is the unique id or one of the keys of a message; with `kind` "T" its tags. Records
        that are not indexed yet are not found: with a running broker, those of the last second.
        """
        wanted_topic = topic.encode()

        def accept(physical_offset: int) -> bool:
            message = self.find_record(physical_offset)
            if message is None or message.topic_raw != wanted_topic:
                return False
            if not begin_ms <= message.store_timestamp <= end_ms:
                return False
            return key == message.tags if kind else key in (message.unique_id, *message.keys)

        store = self._store
        with closing(
            Index(store.filesystem, self.root, store.config, clean=store.is_clean, read_only=True)
        ) as index:
            return index.search(
                topic, key, count, begin_ms=begin_ms, end_ms=end_ms, kind=kind, accept=accept
            ).run()


def _true_ends(store: Inspected) -> Ends:
    """Return the known ends of queues, as far as their files must reach them now.

    Each end was on the disk when the list was saved. After a kill queues are read as the next start
    will find them, which takes no entry of records that it reads back.
    """
    settled = store.settled_offset
    if settled is None:
        return store.ends
    if store.opened_by is not None:
        settled = store.segments.end_offset
    return {key: end for key, end in store.ends.items() if NO_RECORD < end.reaches < settled}


def _ignore(*_: object) -> None:
    """Nothing is written here, so nothing is synced."""
