"""The store: put messages, commit turns, read them by offset, by key and by time.

A store belongs to one thread; other threads may call only `fetch`. Nothing here waits for the disk
unless its docstring says so. The owner calls::

    store = MessageStore.open("data", StoreConfig(), on_change=wake_the_loop, now_ms=now_ms)
    store.put(...)                 # as often as it likes
    end = store.commit()           # at the end of its turn: one write
    synced = store.advance()       # when woken: publishes and returns what is durable
    store.tick(now_ms)             # every few ms: writes behind, indexes, takes checkpoints
    store.close(now_ms)

With `Flush.SYNC` a message is readable, and may be acknowledged, once `advance` has returned at
least the `end` of its commit; with `Flush.ASYNC`, once it is committed.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.proto.record import MAGIC_V1, MAGIC_V2
from cometmq.store.config import Flush
from cometmq.store.disk.cold import Cold, fetch
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.disk.lock import mark_shut_down
from cometmq.store.errors import StoreNotWriteableError, SyncFailedError
from cometmq.store.figures import figures_of
from cometmq.store.messages.without_waiting import offset_by_time
from cometmq.store.put_gate import PutGate
from cometmq.store.starting.opening import Opening

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.filesystem import FileSystem
    from cometmq.store.index.key_search import KeySearch
    from cometmq.store.messages.reading import Fetched
    from cometmq.store.opened import Opened
    from cometmq.store.queues.consume_queue import Boundary

_HEAD: Final = struct.Struct(">iI20xq")  # Size, magic and physical offset, see `proto.record`.
_STORE_TIMES_SIZE: Final = 76
"""Leading bytes of a record that include its store timestamp, whatever kind of hosts it names."""

_PAGE_SIZE: Final = 4096
_EVERYTHING: Final = 1 << 62


class MessageStore:
    """An open store; the module's docstring says who may call what, and when."""

    def __init__(
        self, filesystem: FileSystem, root: str, config: StoreConfig, parts: Opened
    ) -> None:
        """Use `open`."""
        self.root = root
        self.queues, self.segments = parts.queues, parts.segments
        self.expiry, self.delay_levels = parts.expiry, parts.delay_levels
        self.deletions = parts.deletions
        self.kept = parts.kept
        """Where the torn tail that this start cut off is kept; None if it cut nothing."""
        self.made_queues = parts.made_queues
        """Queues that this start rebuilt from the log, because `consumequeue/` was missing."""
        self.lost_notes = parts.lost_notes
        """Files of the store's own notes that this start found damaged or missing and recreated."""
        self._filesystem, self._config = filesystem, config
        self._parts = parts
        self._gate = PutGate(parts)
        self._flushed_ms = 0
        self._was_clean: bool | None = None  # What `close` returned; None while it is open.
        # Bound here, because one more function call costs 0.1 µs a message.
        appender = parts.appender
        self.put, self.put_quick = appender.put, appender.put_quick
        self.note_alike = appender.note_alike
        self.put_batch, self.put_raw_batch = appender.put_batch, appender.put_raw_batch
        self.commit, self.take_back = appender.commit, appender.take_back
        self.tell_readers = appender.tell_readers
        self.read, self.reader = parts.reader.read, parts.reader
        self.configure = parts.expiry.configure
        self.refuse_puts = self._gate.refuse
        self.figures = partial(figures_of, parts)

    @classmethod
    def open(
        cls,
        root: str,
        config: StoreConfig,
        *,
        now_ms: int,
        filesystem: FileSystem | None = None,
        is_batch_topic: Callable[[str], bool | None] = lambda _: None,
        on_locked: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
        threads: bool = True,
    ) -> MessageStore:
        """Open a store, creating it if there is none. May take seconds after an unclean stop.

        `is_batch_topic` says whether a topic's batches stay one record (`queue.type=BatchCQ`); if
        it returns None, the folders decide. `on_locked` is called once no other process can write
        to the folder, before `is_batch_topic` is relied on. `on_change` is called in a thread when
        `advance` has something to do. Without `threads` nothing is done in the background until
        `run_jobs`.

        Raise `StoreFilesError`, with nothing changed, if what is in the folder cannot be opened.
        """
        if filesystem is None:
            filesystem, root = RealFileSystem(), os.path.abspath(root)  # The process may `chdir`.
        parts = Opening(
            filesystem,
            root,
            config,
            is_batch_topic=is_batch_topic,
            on_locked=on_locked,
            on_change=on_change,
            now_ms=now_ms,
            process_id=os.getpid(),
            threads=threads,
        ).run()
        store = cls(filesystem, root, config, parts)
        if threads:
            for thread in parts.threads:
                thread.start()
        store._prepare_next(parts.log.end_offset)
        return store

    # Writing

    @property
    def pending_size(self) -> int:
        """Bytes that wait for `commit`; a caller that has collected too many may commit early."""
        return self._parts.appender.pending_size

    @property
    def end_offset(self) -> int:
        """The end of the log, without what waits for `commit`."""
        return self._parts.log.end_offset

    @property
    def readable_offset(self) -> int:
        """The end of what can be read."""
        return self._parts.appender.published_offset

    @property
    def first_offset(self) -> int:
        """Where the log begins: everything before it has expired."""
        return self._parts.log.first_offset

    @property
    def synced_offset(self) -> int:
        """How far the disk has confirmed the log."""
        return self._parts.syncer.synced_offset

    def advance(self) -> int:
        """Publish what the disk has confirmed; return how far the log is synced.

        After a failed sync every put and commit is refused for good: see `SyncFailedError`.
        """
        return self._parts.appender.advance()

    @property
    def failure(self) -> OSError | None:
        """The error of a failed sync, if there was one: the process has to stop."""
        return self._parts.syncer.failure

    def _prepare_next(self, end: int) -> None:
        """Have the next segment created once the current one is half full."""
        size = self.segments.size
        start = end - end % size
        is_half_full = end - start >= size // 2
        if start not in self.segments:
            self._parts.jobs.submit(lambda: _prepare(self.segments.prepare, start))
        elif is_half_full:
            self._parts.jobs.submit(lambda: _prepare(self.segments.prepare, start + size))
        notice_at = start + size if is_half_full else start + size // 2
        self._parts.appender.tell_at(notice_at, self._prepare_next)

    # Upkeep

    def tick(self, now_ms: int) -> bool:
        """Do a slice of the work that puts left over; return whether more of it waits already."""
        if not self._gate.is_ours:
            return False
        self.advance()
        self._parts.log.forget_warm()
        if self._config.flush is Flush.ASYNC:
            self._flush(now_ms)
        more = self._parts.checkpointer.tick(now_ms)
        more |= self._parts.sealing.tick(now_ms)
        more |= self._parts.expiry.tick(now_ms)
        self._gate.judge()
        return more and self._gate.write_error is None  # After an error, wait for the next tick.

    def _flush(self, now_ms: int) -> None:
        config = self._config
        end = self.end_offset
        pages = end // _PAGE_SIZE - self._parts.syncer.synced_offset // _PAGE_SIZE
        interval_ms = config.flush_interval_ms
        if pages < config.flush_least_pages:
            interval_ms = config.flush_thorough_interval_ms
        # A clock that was set back must not stop the flushing.
        if not 0 <= now_ms - self._flushed_ms < interval_ms:
            self._flushed_ms = now_ms
            self._parts.syncer.request(end)

    def run_jobs(self) -> None:
        """Do the threads' work in the calling thread, for a store opened without `threads`."""
        for thread in self._parts.threads if self._gate.is_ours else ():
            thread.step()

    def close(self, now_ms: int) -> bool:
        """Close the store; return whether the next start finds it shut down. Waits for the disk.

        Puts that were not committed are dropped. If the disk refuses something, the next start
        reads the tail of the log back: nothing that was acknowledged is lost.

        From then on another process may use the folder: this one writes nothing to it, refuses
        puts, and returns the same from a second `close`. A forked child only closes the files.
        """
        if self._was_clean is None:
            self._was_clean = self._gate.is_ours and self._shut_down(now_ms)
            self._parts.close()
            self._gate.leave("the store was closed")
        return self._was_clean

    def _shut_down(self, now_ms: int) -> bool:
        """Bring everything to the disk and note that; return whether the disk took it all."""
        self._parts.appender.take_back()
        clean = False
        with suppress(OSError, StoreNotWriteableError, SyncFailedError):
            clean = self._settle(now_ms)
            if clean:
                mark_shut_down(self._filesystem, self.root)
        return clean

    def finish_log(self) -> bool:
        """Bring the whole log to the disk and wait for it; return whether the disk took it.

        `close` does this first. A caller does it itself if, before `close`, it has to save
        something that is true only then. No put may follow.
        """
        if not self._gate.is_ours:
            return False
        parts = self._parts
        for thread in parts.threads:
            thread.stop()
        parts.jobs.step()
        try:
            parts.log.erase_refused()
            parts.syncer.finish(parts.log.end_offset)
        except OSError:
            return False
        parts.appender.advance()
        return True

    def _settle(self, now_ms: int) -> bool:
        """Bring everything to the disk, and then a checkpoint that says so."""
        parts = self._parts
        if not self.finish_log():
            return False
        parts.sealing.finish()
        for _ in parts.queues.settle():
            pass
        if not parts.queues.write_behind(_EVERYTHING, _EVERYTHING):
            return False
        if parts.index is not None and not parts.index.finish(now_ms):
            return False
        return parts.checkpointer.finish()

    # Reading, besides `read`, for which see `QueueReader.read`

    def fetch(self, cold: Cold) -> tuple[Cold, bytes]:
        """Read cold data, from any thread, waiting for the disk; return only bytes of the log."""
        data = fetch(self._filesystem, cold)
        return cold, data if cold.physical_offset >= 0 else b""  # Others are now in the page cache.

    def find_record(
        self, physical_offset: int, fetched: Fetched | None = None
    ) -> Buffer | Cold | None:
        """Return the record at a physical offset, or None if no record begins there."""
        end = self.readable_offset
        room = self.segments.size - physical_offset % self.segments.size
        if not self.first_offset <= physical_offset <= end - _HEAD.size or room < _HEAD.size:
            return None
        reader = self._parts.reader
        head = reader.piece(physical_offset, _HEAD.size, fetched)
        if head is None:
            return None
        if isinstance(head, Cold):
            return reader.ahead(head)
        size, magic, offset = _HEAD.unpack_from(head)
        if magic not in (MAGIC_V1, MAGIC_V2) or offset != physical_offset:
            return None
        if not _STORE_TIMES_SIZE < size <= min(room, end - physical_offset):
            return None
        return reader.piece(physical_offset, size, fetched)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that is kept; 0 if there is no such queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next readable message gets; 0 if there is no such queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp: int,
        boundary: Boundary,
        fetched: Fetched | None = None,
    ) -> int | Cold:
        """Return the queue offset for a store timestamp, or a `Cold` that must be fetched first.

        Each further call must be given everything that was fetched so far.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0
        log = range(self.first_offset, self.readable_offset)
        return offset_by_time(self._parts.reader, queue, log, timestamp, boundary, fetched)

    def search(
        self,
        topic: str,
        key: str,
        count: int,
        *,
        begin_ms: int,
        end_ms: int,
        now_ms: int,
        kind: str = "",
    ) -> KeySearch | None:
        """Begin a search for the records that may have a key; None if there is no index.

        Only hashes are compared, as in Apache's brokers: a reader must compare the keys itself.
        """
        if (index := self._parts.index) is None:
            return None
        if self._gate.is_ours:  # A forked child finds only what was built before the fork.
            index.build(index.waiting, now_ms)
        return index.search(topic, key, count, begin_ms=begin_ms, end_ms=end_ms, kind=kind)

    def query(
        self,
        topic: str,
        key: str,
        count: int,
        *,
        begin_ms: int,
        end_ms: int,
        now_ms: int,
        kind: str = "",
    ) -> list[int]:
        """Return what `search` finds, newest first. Waits for the disk."""
        search = self.search(
            topic, key, count, begin_ms=begin_ms, end_ms=end_ms, now_ms=now_ms, kind=kind
        )
        return [] if search is None else search.run()

    def change_delays(self, delays_ms: tuple[int, ...]) -> None:
        """Let the delay levels have these delays from the log's end on. Waits for the disk.

        Call it between turns; `commit` ends a turn. Raise an `OSError` or a `PutRefusedError` if
        the delays cannot be noted down: then the old ones still hold.
        """
        self._gate.check_ours()
        replace(self._config, delay_levels_ms=delays_ms)  # Refuses delays that no store can have.
        self._parts.change_delays(delays_ms)

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics with all their queues, for good. Waits for the disk.

        Call it between turns; `commit` ends a turn. The topics can be put to again, from offset 0.
        Their records stay in the log, and can be found by key. After an `OSError` it is open which
        topics are gone: delete them all again.
        """
        self._gate.check_ours()
        assert not self.pending_size, "what was put is committed before a topic is deleted"
        if topics:
            self._parts.syncer.finish(self.end_offset)
            self._parts.deletions.add(topics, self.end_offset, self._parts.expiry.gone_offset)
        for topic in topics:
            self.queues.destroy(topic)
            self._parts.appender.forget(topic)


def _prepare(prepare: Callable[[int], None], start: int) -> None:
    """Create a segment ahead of need; if the disk refuses, the put that needs it gets the error."""
    with suppress(OSError):
        prepare(start)
