"""Putting messages: limits, offsets, records.

A put checks a message, gives it its offsets and encodes its record, which then waits in the turn
for the commit. Most messages are alike: their topic was written to before, their hosts are IPv4,
and their properties, after a unique id, were seen before. `put_quick` is for these, at a third of
the work; all others go through `_put_with_care`, and both make the same record of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.host import PACKED_IPV4_SIZE
from cometmq.proto.properties import (
    PROPERTIES_SIZE_MAX,
    find_property,
    set_property,
)
from cometmq.proto.record import (
    RECORD_CRC_HEAD,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    shared_part,
)
from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import MessageIllegalError
from cometmq.store.log.turn import Appended, AppendedBatch
from cometmq.store.messages.admission import (
    RETRY_PREFIX,
    admit_batch,
    admit_properties,
    admit_topic,
)
from cometmq.store.messages.dispatch import UNIQUE_ID, tags_code_of
from cometmq.store.messages.quick_puts import (
    IN_TRANSACTION,
    INNER_BATCH,
    PACKED_SIZES,
    UNUSUAL,
    QuickPuts,
)
from cometmq.store.queues.batch_consume_queue import BATCH_ENTRY, BatchEntry
from cometmq.store.queues.consume_queue import ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.delay_levels import DelayLevels
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.index.index_keys import Noted
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.turn import Origin
    from cometmq.store.messages.admission import Topic
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal

_RECORD_SIZE: Final = RECORD_SIZE_MIN + 2 * 12 + 1 + RECORD_CRC_SIZE + 1
"""The most bytes that a record has besides topic, body and properties."""

_INNER_NUM: Final = b"INNER_NUM\x01"
_pack_entry: Final = ENTRY.pack

_WITHOUT_ENTRY: Final = int(SysFlag.TRANSACTION_PREPARED)
"""Set in the transaction types that consumers never see: prepared and rolled back."""

_ROLLED_BACK: Final = IN_TRANSACTION


class Appender(QuickPuts):
    """The one writer of a store."""

    def __init__(
        self,
        log: CommitLog,
        syncer: Syncer,
        queues: ConsumeQueues,
        config: StoreConfig,
        levels: DelayLevels,
        *,
        is_batch_topic: Callable[[str], bool],
        journal: EntryJournal,
        on_published: Callable[[list[Noted], int], None],
        has_numpy: Callable[[], bool],
    ) -> None:
        """`journal` and `on_published` get what becomes readable, see `Committer`."""
        super().__init__(
            log,
            syncer,
            queues,
            config,
            journal=journal,
            on_published=on_published,
            has_numpy=has_numpy,
        )
        self._is_batch_topic = is_batch_topic
        self._levels = levels
        self._is_plain = not config.record_crc and len(config.store_host) == PACKED_IPV4_SIZE
        self._properties_size_max = PROPERTIES_SIZE_MAX - (
            RECORD_CRC_SIZE + 1 if config.record_crc else 0
        )

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
        """Add one message to the turn; the result is valid once the turn is committed.

        The caller must check the queue id: the store takes any that fits a record. A batch that is
        to stay one record (`SysFlag.INNER_BATCH`) is only taken by a batch topic.

        Raise `PutRefusedError` if the message is not taken; then nothing has changed.
        """
        first, _, tail = properties.partition(b"\x02")
        now_ms = origin.now_ms
        if first.startswith(UNIQUE_ID) and 0 not in first:
            # A view may be of a buffer that is reused before the commit.
            raw = body if type(body) is bytes else bytes(body)
            put = self.put_quick(
                topic,
                queue_id,
                raw,
                properties,
                tail,
                now_ms,
                origin.born_timestamp,
                origin.born_host,
                origin.sys_flag,
                origin.reconsume_times,
                origin.prepared_transaction_offset,
                flag,
            )
            if put is not None:
                return Appended(*put, now_ms)
        return self._put_with_care(topic, queue_id, body, properties, origin, flag)

    def _put_with_care(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        origin: Origin,
        flag: int,
    ) -> Appended:
        """Add a message of any kind; the next one like it may be quick."""
        known = self._topics.get(topic) or self._admit(topic)
        if queue_id < 0:
            raise _illegal_queue(topic, queue_id)
        if len(body) > self._body_size_max:
            raise self._body_too_long(len(body))
        sys_flag, now_ms = origin.sys_flag, origin.now_ms
        # `find`, because `in` costs four times as much for bytes in bytes.
        if len(properties) > self._properties_size_max or properties.find(RECORD_CRC_HEAD) >= 0:
            properties = self._checked(properties)
        if known.is_batch or sys_flag & INNER_BATCH or properties.find(_INNER_NUM) >= 0:
            return self._put_as_batch(topic, queue_id, body, properties, origin, flag)
        part = known.part
        physical_offset = self._place(len(part) + len(body) + len(properties) + _RECORD_SIZE)
        turn = self._turn
        shared = self._shared(origin)
        if sys_flag & _WITHOUT_ENTRY:
            queue_offset = 0
            size, pieces = turn.record(
                physical_offset, part, body, properties, queue_id, flag, 0, shared
            )
            self._add(physical_offset, size, pieces)
        else:
            queue = self._queues.simple.get(topic, queue_id)
            queue_offset = queue.next_offset
            size, pieces = turn.record(
                physical_offset, part, body, properties, queue_id, flag, queue_offset, shared
            )
            code = tags_code_of(topic, properties, now_ms, self._levels.current)
            self._add(physical_offset, size, pieces)
            run = turn.begin_run(queue) if queue.run is None else queue.run
            run.append(_pack_entry(physical_offset, size, code))
            queue.next_offset = queue_offset + 1
            if known.is_plain and self._is_plain:
                known.queues = self._queues.simple.in_memory(topic)
                self._codes.remember(properties, code)
        if sys_flag & IN_TRANSACTION == _ROLLED_BACK:
            properties = b""  # Nobody searches for it: it gets no key.
        turn.records.append((physical_offset, known.raw, properties, now_ms))
        return Appended(physical_offset, queue_offset, size, now_ms)

    def note_alike(self, properties: bytes) -> None:
        """Note what messages have in common after their unique ids, for `put_quick`.

        This is for messages that have more properties after that, which differ and are not the tag.
        """
        if properties.find(RECORD_CRC_HEAD) < 0 and properties.find(_INNER_NUM) < 0:
            self._codes.code_of(properties)

    def put_raw_batch(
        self, topic: str, queue_id: int, raw: bytes, more: bytes, origin: Origin
    ) -> AppendedBatch | None:
        """Add the messages of a batch as it came, if they are like earlier ones; else return None.

        `more` is added to the properties of each, and contains no key. After None, whatever the
        reason, call `put_batch` with the result of `split_batch`.
        """
        if queue_id < 0:
            raise _illegal_queue(topic, queue_id)
        known = self._topics.get(topic)
        if (
            known is None
            or not (known.is_plain and self._is_plain)
            or origin.sys_flag & (UNUSUAL | IN_TRANSACTION)
            or len(origin.born_host) != PACKED_IPV4_SIZE
            or len(raw) > self._config.message_size_max
            or topic.startswith(RETRY_PREFIX)
        ):
            return None
        shared = self._shared(origin)
        queue = self._queues.simple.get(topic, queue_id)
        now_ms = origin.now_ms
        return self._put_even(known, queue, raw, more, now_ms, shared) or self._put_raw_alike(
            known, queue, raw, more, now_ms, shared
        )

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[tuple[int, bytes, bytes]],
        origin: Origin,
    ) -> AppendedBatch:
        """Add the messages of one batch, each with its flag, body and properties, as records.

        Either all are taken or none; they get consecutive offsets in one segment. There must be at
        least one.
        """
        if topic.startswith(RETRY_PREFIX) or origin.sys_flag & IN_TRANSACTION:
            raise MessageIllegalError("a batch can neither be retried nor be of a transaction")
        if origin.sys_flag & INNER_BATCH:
            raise MessageIllegalError(f"{topic}: these are messages, not a batch in one record")
        flags, bodies, properties = zip(*messages, strict=True)
        bodies_size = sum(map(len, bodies))
        if bodies_size > self._config.message_size_max:
            raise self._body_too_long(bodies_size)
        known = self._topics.get(topic) or self._admit(topic)
        if queue_id < 0:
            raise _illegal_queue(topic, queue_id)
        joined = b"\x02".join(properties)
        if known.is_batch or joined.find(_INNER_NUM) >= 0:
            for each in properties:
                if known.is_batch or each.find(_INNER_NUM) >= 0:
                    raise MessageIllegalError(f"{topic}: its batches stay one record each")
        size_max = max(map(len, properties))
        has_crc = joined.find(RECORD_CRC_HEAD) >= 0
        if size_max > self._properties_size_max or has_crc:
            properties = tuple(map(self._checked, properties))
        physical_offset = self._place(
            bodies_size + len(joined) + len(messages) * (_RECORD_SIZE + len(known.part))
        )
        shared = self._shared(origin)
        if (
            known.is_plain
            and self._is_plain
            and size_max < len(PACKED_SIZES)
            and not has_crc
            and 0 not in joined
            and not origin.sys_flag & UNUSUAL
            and len(origin.born_host) == PACKED_IPV4_SIZE
        ):
            return self._put_alike(
                known, topic, queue_id, messages, origin.now_ms, shared, physical_offset
            )
        queue = self._queues.simple.get(topic, queue_id)
        checked = zip(flags, bodies, properties, strict=True)
        return self._put_unlike(
            known, topic, queue, checked, origin.now_ms, shared, physical_offset
        )

    def _put_unlike(
        self,
        known: Topic,
        topic: str,
        queue: ConsumeQueue,
        messages: Iterable[tuple[int, bytes, bytes]],
        now_ms: int,
        shared: bytes,
        physical_offset: int,
    ) -> AppendedBatch:
        """Add messages of any kind to one queue, at a place that was made for them."""
        pieces: list[Buffer] = []
        entries: list[bytes] = []
        records: list[Noted] = []
        offsets: list[int] = []
        for queue_offset, (flag, body, properties) in enumerate(messages, queue.next_offset):
            size, parts = self._turn.record(
                physical_offset,
                known.part,
                body,
                properties,
                queue.queue_id,
                flag,
                queue_offset,
                shared,
            )
            pieces += parts
            code = tags_code_of(topic, properties, now_ms, self._levels.current)
            entries.append(_pack_entry(physical_offset, size, code))
            records.append((physical_offset, known.raw, properties, now_ms))
            offsets.append(physical_offset)
            physical_offset += size
        return self._added(queue, pieces, entries, records, offsets, physical_offset)

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
        if origin.sys_flag & _WITHOUT_ENTRY:
            raise MessageIllegalError(
                f"{topic}: a batch topic takes no half messages of transactions"
            )
        known = self._topics[topic]
        number = find_property(properties, b"INNER_NUM")
        is_inner = bool(origin.sys_flag & INNER_BATCH)
        batch_size = admit_batch(topic, number, is_batch=known.is_batch, is_inner=is_inner)
        queue = self._queues.batch.get(topic, queue_id)
        base = queue.next_offset
        if number is not None:
            properties = set_property(properties, b"INNER_BASE", b"%d" % base)
            properties = self._checked(properties)
        physical_offset = self._place(len(known.part) + len(body) + len(properties) + _RECORD_SIZE)
        turn = self._turn
        shared = self._shared(origin)
        size, pieces = turn.record(
            physical_offset, known.part, body, properties, queue_id, flag, base, shared
        )
        code = tags_code_of(topic, properties, origin.now_ms, self._levels.current)
        entry = BATCH_ENTRY.pack(
            *BatchEntry(physical_offset, size, code, origin.now_ms, base, batch_size)
        )
        self._add(physical_offset, size, pieces)
        run = turn.begin_run(queue) if queue.run is None else queue.run
        run.append(entry)
        queue.next_offset = base + batch_size
        turn.records.append((physical_offset, known.raw, properties, origin.now_ms))
        return Appended(physical_offset, base, size, origin.now_ms)

    def _shared(self, origin: Origin) -> bytes:
        """Return the bytes that all records of a request share."""
        try:
            return shared_part(
                origin.sys_flag,
                origin.born_timestamp,
                origin.born_host,
                origin.now_ms,
                self._store_host,
                origin.reconsume_times,
                origin.prepared_transaction_offset,
            )
        except LocalProtocolError as error:
            raise MessageIllegalError(str(error)) from error

    def _admit(self, topic: str) -> Topic:
        """Check a topic that was not seen before, and note what puts need to know about it."""
        self._queues.check_spelling(topic)
        found = admit_topic(topic, is_batch=self._is_batch_topic(topic))
        self._topics[topic] = found
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic: it was deleted, or its kind has changed. What waits gets no entry."""
        self._topics.pop(topic, None)
        self._drop_waiting(topic)

    def _checked(self, properties: bytes) -> bytes:
        return admit_properties(properties, self._properties_size_max)

    def _body_too_long(self, size: int) -> MessageIllegalError:
        return MessageIllegalError(f"body of {size} bytes, over {self._config.message_size_max}")


def _illegal_queue(topic: str, queue_id: int) -> MessageIllegalError:
    return MessageIllegalError(f"{topic}: no queue has the id {queue_id}")  # A start refuses it.
