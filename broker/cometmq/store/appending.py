"""Putting messages: limits, offsets, records; and the commit that makes a turn of them true.

A put checks a message, gives it its offsets and encodes its record, which then waits in the turn.
`commit` writes the turn. With `Flush.ASYNC` its messages can be read from then on, with
`Flush.SYNC` once the disk has confirmed them: `advance` publishes what is confirmed. A commit that
is refused takes every offset of its turn back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    find_property,
    remove_property,
    set_property,
)
from cometmq.proto.record import RECORD_CRC_SIZE, encode_record
from cometmq.proto.sysflag import SysFlag
from cometmq.store.batch_consume_queue import BatchEntry
from cometmq.store.config import Flush
from cometmq.store.dispatch import SCHEDULE_TOPIC, tags_code_of
from cometmq.store.errors import (
    MessageIllegalError,
    PropertiesTooLongError,
    PutRefusedError,
    StoreBusyError,
    SyncFailedError,
)
from cometmq.store.turn import BLANK_SIZE, Appended, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.batch_consume_queue import BatchConsumeQueue
    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.sync import Syncer
    from cometmq.store.turn import Entry, Origin

TOPIC_SIZE_MAX: Final = 127
RETRY_TOPIC_SIZE_MAX: Final = 255
"""Of topics that begin with `%RETRY%`: Apache's retry topics of POP hold two names."""

BATCH_COUNT_MAX: Final = 32767
"""Messages of an inner batch: their number is an i16 in the ConsumeQueue."""

_RETRY_PREFIX: Final = "%RETRY%"
_RECORD_SIZE: Final = 91 + 2 * 12 + 1 + RECORD_CRC_SIZE + 1
"""What a record has at most beside topic, body and properties."""

_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)
_WITHOUT_ENTRY: Final = int(SysFlag.TRANSACTION_PREPARED)
"""Set in the transaction types that consumers never see: prepared and rolled back."""

_IN_TRANSACTION: Final = int(SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMITTED)
_ROLLED_BACK: Final = _IN_TRANSACTION


class _BatchDestination:
    """Makes the entry of one record in a batch queue."""

    __slots__ = ("_base_offset", "_batch_size", "_queue", "_store_timestamp")

    def __init__(
        self, queue: BatchConsumeQueue, store_timestamp: int, base_offset: int, batch_size: int
    ) -> None:
        self._queue = queue
        self._store_timestamp = store_timestamp
        self._base_offset = base_offset
        self._batch_size = batch_size

    def append(self, physical_offset: int, size: int, tags_code: int, /) -> None:
        """Make the record readable."""
        self._queue.append(
            BatchEntry(
                physical_offset,
                size,
                tags_code,
                self._store_timestamp,
                self._base_offset,
                self._batch_size,
            )
        )


class Appender:
    """The one writer of a store."""

    def __init__(
        self,
        log: CommitLog,
        syncer: Syncer,
        queues: ConsumeQueues,
        config: StoreConfig,
        *,
        is_batch_topic: Callable[[str], bool],
        on_published: Callable[[list[Entry]], None],
    ) -> None:
        """`on_published` gets the entries of each turn once its messages can be read."""
        self.published_offset = log.end_offset
        """The end of what can be read."""
        self.published_timestamp = 0
        """The store timestamp of the last record that can be read; 0 before the first."""
        self._log = log
        self._syncer = syncer
        self._queues = queues
        self._config = config
        self._is_batch_topic = is_batch_topic
        self._on_published = on_published
        self._is_sync = config.flush is Flush.SYNC
        self._record_size_max = log.segments.size - BLANK_SIZE
        self._properties_size_max = PROPERTIES_SIZE_MAX - (
            RECORD_CRC_SIZE + 1 if config.record_crc else 0
        )
        self._topics: dict[str, tuple[bytes, bool]] = {}
        self._unsynced: deque[tuple[int, list[Entry]]] = deque()
        self._turn = Turn(log.end_offset, log.segments.size)
        self._refusal: PutRefusedError | None = None
        self._limit = 0
        self._set_limit()

    # Putting

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        origin: Origin,
        flag: int = 0,
    ) -> Appended:
        """Add one message to the turn; what is returned is true once the turn is committed.

        The caller vouches for the queue id: the store takes any that a record can hold. A batch
        that is to stay one record (`SysFlag.INNER_BATCH`) goes into a batch topic only.
        `PutRefusedError` when the message is not taken; nothing has changed then.
        """
        try:
            topic_raw, is_batch = self._topics[topic]
        except KeyError:
            topic_raw, is_batch = self._admit(topic)
        if len(body) > self._config.message_size_max:
            raise self._body_too_long(len(body))
        sys_flag = origin.sys_flag
        now_ms = origin.now_ms
        if len(properties) > self._properties_size_max or b"__CRC32#\x01" in properties:
            properties = self._checked(properties)
        if is_batch or sys_flag & _INNER_BATCH or b"INNER_NUM\x01" in properties:
            return self._put_as_batch(topic, queue_id, body, properties, origin, flag)
        physical_offset = self._place(len(topic_raw) + len(body) + len(properties) + _RECORD_SIZE)
        queue = None
        queue_offset = 0
        if not sys_flag & _WITHOUT_ENTRY:
            queue = self._queues.simple.get(topic, queue_id)
            queue_offset = queue.next_offset
        record = self._encode(topic_raw, queue_id, queue_offset, body, properties, origin, flag)
        size = len(record)
        turn = self._turn
        turn.pieces.append(record)
        turn.end = physical_offset + size
        if queue is not None:
            turn.queue_offsets.setdefault(queue, queue_offset)
            queue.next_offset = queue_offset + 1
        code = self._code_of(topic, properties, now_ms) if queue is not None else 0
        if sys_flag & _IN_TRANSACTION == _ROLLED_BACK:
            properties = b""  # Nobody looks for it: it has no key.
        turn.entries.append((queue, physical_offset, size, code, topic_raw, properties, now_ms))
        return Appended(physical_offset, queue_offset, size, now_ms)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[tuple[int, bytes, bytes]],
        origin: Origin,
    ) -> list[Appended]:
        """Add the messages of one batch, each its flag, body and properties, as records.

        All of them are taken or none, they get consecutive offsets, and lie in one segment.
        """
        if topic.startswith(_RETRY_PREFIX) or origin.sys_flag & _IN_TRANSACTION:
            raise MessageIllegalError("a batch can neither be retried nor be of a transaction")
        bodies_size = sum(len(body) for _, body, _ in messages)
        if bodies_size > self._config.message_size_max:
            raise self._body_too_long(bodies_size)
        topic_raw, is_batch = self._topics.get(topic) or self._admit(topic)
        properties_size = 0
        for _, _, properties in messages:
            self._checked(properties)
            if is_batch or b"INNER_NUM\x01" in properties:
                raise MessageIllegalError(f"{topic}: its batches stay one record each")
            properties_size += len(properties)
        size = bodies_size + properties_size + len(messages) * (_RECORD_SIZE + len(topic_raw))
        self._place(size)
        return [
            self.put(topic, queue_id, body, properties, origin, flag)
            for flag, body, properties in messages
        ]

    def _put_as_batch(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        origin: Origin,
        flag: int,
    ) -> Appended:
        """Add one record of a batch topic: an inner batch, or a single message."""
        topic_raw, is_batch = self._topics[topic]
        number = find_property(properties, b"INNER_NUM")
        if not is_batch or bool(origin.sys_flag & _INNER_BATCH) != bool(number):
            raise MessageIllegalError(
                f"{topic}: a batch in one record needs its flag, INNER_NUM and a batch topic"
            )
        batch_size = 1
        if number is not None:
            batch_size = int(number) if number.isdigit() else 0
            if not 1 <= batch_size <= BATCH_COUNT_MAX:
                raise MessageIllegalError(f"{topic}: INNER_NUM is {number!r}")
        queue = self._queues.batch.get(topic, queue_id)
        base = queue.next_offset
        if number is not None:
            properties = set_property(properties, b"INNER_BASE", b"%d" % base)
            properties = self._checked(properties)
        physical_offset = self._place(len(topic_raw) + len(body) + len(properties) + _RECORD_SIZE)
        record = self._encode(topic_raw, queue_id, base, body, properties, origin, flag)
        turn = self._turn
        turn.queue_offsets.setdefault(queue, base)
        queue.next_offset = base + batch_size
        destination = _BatchDestination(queue, origin.now_ms, base, batch_size)
        code = self._code_of(topic, properties, origin.now_ms)
        size = len(record)
        turn.pieces.append(record)
        turn.end = physical_offset + size
        turn.entries.append(
            (destination, physical_offset, size, code, topic_raw, properties, origin.now_ms)
        )
        return Appended(physical_offset, base, size, origin.now_ms)

    def _encode(
        self,
        topic_raw: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes,
        origin: Origin,
        flag: int,
    ) -> bytes:
        """Encode the record that comes next in the turn."""
        now_ms, born_timestamp, born_host, sys_flag, reconsume_times, prepared = origin
        try:
            return encode_record(
                topic=topic_raw,
                body=body,
                properties=properties,
                queue_id=queue_id,
                queue_offset=queue_offset,
                physical_offset=self._turn.end,
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_timestamp=now_ms,
                store_host=self._config.store_host,
                sys_flag=sys_flag,
                flag=flag,
                reconsume_times=reconsume_times,
                prepared_transaction_offset=prepared,
                # Without a checksum, zeros would tell recovery that the disk lost a part.
                record_crc=self._config.record_crc or b"\0" in properties,
            )
        except LocalProtocolError as error:
            raise MessageIllegalError(str(error)) from error

    def _code_of(self, topic: str, properties: bytes, now_ms: int) -> int:
        if b"TAGS\x01" not in properties and topic != SCHEDULE_TOPIC:
            return 0
        return tags_code_of(topic, properties, now_ms, self._config.delay_levels_ms)

    def _place(self, size: int) -> int:
        """Return the offset of the next record; `size` is what it needs at most."""
        turn = self._turn
        if turn.end + size > self._limit or size > self._record_size_max:
            self._refuse(size)
        return turn.place(size)

    def _refuse(self, size: int) -> None:
        if self._refusal is not None:
            raise self._refusal
        if size > self._record_size_max:
            raise MessageIllegalError(
                f"record of {size} bytes, over a segment's {self._record_size_max}"
            )
        raise StoreBusyError("too much is waiting to be written or synced; try again")

    def _admit(self, topic: str) -> tuple[bytes, bool]:
        """Check a topic that was not seen before, and note what puts need of it."""
        raw = topic.encode()
        size_max = RETRY_TOPIC_SIZE_MAX if topic.startswith(_RETRY_PREFIX) else TOPIC_SIZE_MAX
        if not 0 < len(raw) <= size_max or "/" in topic or "\0" in topic or topic in (".", ".."):
            raise MessageIllegalError(f"topic of {len(raw)} bytes that names no folder: {topic!r}")
        self._topics[topic] = found = (raw, self._is_batch_topic(topic))
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic: it was deleted, or its kind has changed. What waits gets no entry."""
        self._topics.pop(topic, None)
        raw = topic.encode()
        for _, entries in self._unsynced:
            entries[:] = [(None, *entry[1:]) if entry[4] == raw else entry for entry in entries]

    def _checked(self, properties: bytes) -> bytes:
        """Return the properties without a checksum of a record that the sender made up."""
        properties = remove_property(properties, b"__CRC32#")
        if len(properties) > self._properties_size_max:
            raise PropertiesTooLongError(
                f"properties of {len(properties)} bytes, over {self._properties_size_max}"
            )
        return properties

    def _body_too_long(self, size: int) -> MessageIllegalError:
        return MessageIllegalError(f"body of {size} bytes, over {self._config.message_size_max}")

    # Committing

    @property
    def pending_size(self) -> int:
        """Bytes that wait for the commit: a loop that collects more than it likes may commit."""
        return self._turn.end - self._turn.start

    @property
    def end_offset(self) -> int:
        """The end of the log, what waits for its commit left out."""
        return self._log.end_offset

    def commit(self) -> int:
        """Write the turn; returns the end of the log, which a sync must reach for its messages.

        `PutRefusedError` when nothing of the turn is stored.
        """
        turn = self._turn
        if not turn.entries:
            return self._log.end_offset
        try:
            self._log.append(turn)
        except PutRefusedError:
            turn.take_back()
            self.advance()
            raise
        entries, end = turn.entries, turn.end
        turn.begin(end)
        if self._is_sync:
            self._unsynced.append((end, entries))
            self._syncer.request(end)
        else:
            self._publish(end, entries)
        self._set_limit()
        return end

    def advance(self) -> int:
        """Publish what the disk has confirmed; returns how far that is."""
        synced = self._syncer.synced_offset
        self._log.segments.synced_offset = synced
        while self._unsynced and self._unsynced[0][0] <= synced:
            self._publish(*self._unsynced.popleft())
        if self._syncer.failure is not None and not isinstance(self._refusal, SyncFailedError):
            self.refuse(SyncFailedError(f"a sync failed, and is final: {self._syncer.failure}"))
        self._set_limit()
        return synced

    def _publish(self, end: int, entries: list[Entry]) -> None:
        for queue, physical_offset, size, code, *_ in entries:
            if queue is not None:
                queue.append(physical_offset, size, code)
        self.published_offset = end
        self.published_timestamp = entries[-1][6]
        self._on_published(entries)

    def refuse(self, refusal: PutRefusedError | None) -> None:
        """Refuse all puts from now on, for this reason; None takes them again."""
        if not isinstance(self._refusal, SyncFailedError):
            self._refusal = refusal
        self._set_limit()

    def _set_limit(self) -> None:
        """One number for everything that may stop a put, so that a put compares only once."""
        if self._refusal is not None:
            self._limit = -1
            return
        config = self._config
        self._limit = min(
            self._turn.start + config.turn_size_max,
            self._syncer.synced_offset + config.unsynced_size_max,
        )
