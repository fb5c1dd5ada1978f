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
    set_property,
)
from cometmq.proto.record import RECORD_CRC_SIZE, record_parts, shared_part
from cometmq.proto.sysflag import SysFlag
from cometmq.store.admission import (
    RETRY_PREFIX,
    admit_batch,
    admit_properties,
    admit_topic,
)
from cometmq.store.batch_consume_queue import BATCH_ENTRY, BatchEntry
from cometmq.store.config import Flush
from cometmq.store.consume_queue import ENTRY
from cometmq.store.dispatch import tags_code_of
from cometmq.store.errors import (
    MessageIllegalError,
    PutRefusedError,
    StoreBusyError,
    SyncFailedError,
)
from cometmq.store.turn import BLANK_SIZE, Appended, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.admission import Topic
    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.filesystem import Buffer
    from cometmq.store.index_keys import Noted
    from cometmq.store.sync import Syncer
    from cometmq.store.turn import Origin, Runs

_RECORD_SIZE: Final = 91 + 2 * 12 + 1 + RECORD_CRC_SIZE + 1
"""What a record has at most beside topic, body and properties."""

_RECORD_CRC: Final = b"__CRC32#\x01"
_INNER_NUM: Final = b"INNER_NUM\x01"
_pack_entry: Final = ENTRY.pack

_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)
_WITHOUT_ENTRY: Final = int(SysFlag.TRANSACTION_PREPARED)
"""Set in the transaction types that consumers never see: prepared and rolled back."""

_IN_TRANSACTION: Final = int(SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMITTED)
_ROLLED_BACK: Final = _IN_TRANSACTION


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
        on_published: Callable[[list[Noted]], None],
    ) -> None:
        """`on_published` gets the records of each turn once they can be read, for the index."""
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
        self._levels = config.delay_levels_ms
        self._is_sync = config.flush is Flush.SYNC
        self._record_size_max = log.segments.size - BLANK_SIZE
        self._properties_size_max = PROPERTIES_SIZE_MAX - (
            RECORD_CRC_SIZE + 1 if config.record_crc else 0
        )
        self._topics: dict[str, Topic] = {}
        self._unsynced: deque[tuple[int, Runs, list[Noted]]] = deque()
        self._turn = Turn(log.end_offset, log.segments.size, record_crc=config.record_crc)
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
            topic_raw, part, is_batch = self._topics[topic]
        except KeyError:
            topic_raw, part, is_batch = self._admit(topic)
        if len(body) > self._config.message_size_max:
            raise self._body_too_long(len(body))
        sys_flag = origin.sys_flag
        # `find`, because `in` costs four times as much where bytes are looked for in bytes.
        if len(properties) > self._properties_size_max or properties.find(_RECORD_CRC) >= 0:
            properties = self._checked(properties)
        if is_batch or sys_flag & _INNER_BATCH or properties.find(_INNER_NUM) >= 0:
            return self._put_as_batch(topic, queue_id, body, properties, origin, flag)
        physical_offset = self._place(len(part) + len(body) + len(properties) + _RECORD_SIZE)
        turn = self._turn
        shared = self._shared(origin)
        if sys_flag & _WITHOUT_ENTRY:
            queue_offset = 0
            size = turn.write(part, body, properties, queue_id, flag, 0, shared)
        else:
            queue = self._queues.simple.get(topic, queue_id)
            queue_offset = queue.next_offset
            size = turn.write(part, body, properties, queue_id, flag, queue_offset, shared)
            code = tags_code_of(topic, properties, origin.now_ms, self._levels)
            entry = _pack_entry(physical_offset, size, code)
            run = turn.runs.get(queue)
            if run is None:
                turn.begin_run(queue, [entry])
            else:
                run.append(entry)
            queue.next_offset = queue_offset + 1
        if sys_flag & _IN_TRANSACTION == _ROLLED_BACK:
            properties = b""  # Nobody looks for it: it has no key.
        turn.records.append((physical_offset, topic_raw, properties, origin.now_ms))
        return Appended(physical_offset, queue_offset, size, origin.now_ms)

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
        if topic.startswith(RETRY_PREFIX) or origin.sys_flag & _IN_TRANSACTION:
            raise MessageIllegalError("a batch can neither be retried nor be of a transaction")
        bodies_size = sum(len(body) for _, body, _ in messages)
        if bodies_size > self._config.message_size_max:
            raise self._body_too_long(bodies_size)
        known = self._topics.get(topic) or self._admit(topic)
        joined = b"\x02".join([properties for _, _, properties in messages])
        if known.is_batch or joined.find(_INNER_NUM) >= 0:
            for _, _, properties in messages:
                if known.is_batch or properties.find(_INNER_NUM) >= 0:
                    raise MessageIllegalError(f"{topic}: its batches stay one record each")
        size_max = max([len(properties) for _, _, properties in messages], default=0)
        is_common = not (
            size_max > self._properties_size_max
            or joined.find(_RECORD_CRC) >= 0
            or 0 in joined
            or self._config.record_crc
            or origin.sys_flag & _INNER_BATCH
        )
        if not is_common:
            for _, _, properties in messages:
                self._checked(properties)
        self._place(bodies_size + len(joined) + len(messages) * (_RECORD_SIZE + len(known.part)))
        if is_common and messages:
            return self._put_common(topic, queue_id, messages, origin)
        return [
            self.put(topic, queue_id, body, properties, origin, flag)
            for flag, body, properties in messages
        ]

    def _put_common(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[tuple[int, bytes, bytes]],
        origin: Origin,
    ) -> list[Appended]:
        """Add messages of one queue of which nothing is unusual, for which there is room."""
        topic_raw, part, _ = self._topics[topic]
        queue = self._queues.simple.get(topic, queue_id)
        turn = self._turn
        now_ms = origin.now_ms
        start, queue_offset = turn.end, queue.next_offset
        physical_offset = start
        pieces: list[Buffer] = []
        run: list[bytes] = []
        records: list[Noted] = []
        added: list[Appended] = []
        levels = self._levels
        shared = self._shared(origin)
        try:
            for flag, body, properties in messages:
                size, head, middle = record_parts(
                    part, body, properties, queue_id, flag, queue_offset, physical_offset, shared
                )
                pieces += (head, body, middle, properties)
                code = tags_code_of(topic, properties, now_ms, levels)
                run.append(_pack_entry(physical_offset, size, code))
                records.append((physical_offset, topic_raw, properties, now_ms))
                added.append(Appended(physical_offset, queue_offset, size, now_ms))
                physical_offset += size
                queue_offset += 1
        except LocalProtocolError as error:
            raise MessageIllegalError(str(error)) from error
        turn.pieces += pieces
        turn.records += records
        turn.end = physical_offset
        if queue in turn.runs:
            turn.runs[queue] += run
        else:
            turn.begin_run(queue, run)
        queue.next_offset = queue_offset
        return added

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
        topic_raw, part, is_batch = self._topics[topic]
        number = find_property(properties, b"INNER_NUM")
        is_inner = bool(origin.sys_flag & _INNER_BATCH)
        batch_size = admit_batch(topic, number, is_batch=is_batch, is_inner=is_inner)
        queue = self._queues.batch.get(topic, queue_id)
        base = queue.next_offset
        if number is not None:
            properties = set_property(properties, b"INNER_BASE", b"%d" % base)
            properties = self._checked(properties)
        physical_offset = self._place(len(part) + len(body) + len(properties) + _RECORD_SIZE)
        turn = self._turn
        shared = self._shared(origin)
        size = turn.write(part, body, properties, queue_id, flag, base, shared)
        code = tags_code_of(topic, properties, origin.now_ms, self._levels)
        entry = BATCH_ENTRY.pack(
            *BatchEntry(physical_offset, size, code, origin.now_ms, base, batch_size)
        )
        if queue in turn.runs:
            turn.runs[queue].append(entry)
        else:
            turn.begin_run(queue, [entry])
        queue.next_offset = base + batch_size
        turn.records.append((physical_offset, topic_raw, properties, origin.now_ms))
        return Appended(physical_offset, base, size, origin.now_ms)

    def _shared(self, origin: Origin) -> bytes:
        """Return what the records of a request share."""
        now_ms, born_timestamp, born_host, sys_flag, times, prepared = origin
        store_host = self._config.store_host
        try:
            return shared_part(
                sys_flag, born_timestamp, born_host, now_ms, store_host, times, prepared
            )
        except LocalProtocolError as error:
            raise MessageIllegalError(str(error)) from error

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

    def _admit(self, topic: str) -> Topic:
        """Check a topic that was not seen before, and note what puts need of it."""
        found = admit_topic(topic, is_batch=self._is_batch_topic(topic))
        self._topics[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic: it was deleted, or its kind has changed. What waits gets no entry."""
        self._topics.pop(topic, None)
        for _, runs, _ in self._unsynced:
            for queue in [queue for queue in runs if queue.topic == topic]:
                del runs[queue]

    def _checked(self, properties: bytes) -> bytes:
        return admit_properties(properties, self._properties_size_max)

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
        if not turn.records:
            return self._log.end_offset
        try:
            self._log.append(turn)
        except PutRefusedError:
            turn.take_back()
            self.advance()
            raise
        end, runs, records = turn.end, turn.runs, turn.records
        turn.begin(end)
        if self._is_sync:
            self._unsynced.append((end, runs, records))
            self._syncer.request(end)
        else:
            self._publish(end, runs, records)
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

    def _publish(self, end: int, runs: Runs, records: list[Noted]) -> None:
        for queue, entries in runs.items():
            queue.extend(entries[0] if len(entries) == 1 else b"".join(entries), len(entries))
        self.published_offset = end
        self.published_timestamp = records[-1][3]
        self._on_published(records)

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
        of_turn = self._turn.start + config.turn_size_max
        of_disk = self._syncer.synced_offset + config.unsynced_size_max
        # `min` costs three times as much, and this is done with every commit.
        self._limit = of_turn if of_turn < of_disk else of_disk  # noqa: FURB136  # See above.
