"""The quick ways of putting messages: for those that are like earlier ones.

Most messages are: their topic was written to before, their hosts are IPv4, and their properties,
after a unique id, were seen before. The functions here are for these, and make the same records of
them as the careful ways of `appending`, with a third of the work. They are long, and make no object
that they can do without, because nearly every message of a broker goes through them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cometmq.proto.batch import ITEM_HEAD_SIZE, unpack_item_head
from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.host import PACKED_IPV4_SIZE
from cometmq.proto.record import HOSTS_MASK, MAGIC_V1, RECORD_HEAD, RECORD_HEAD_SHARED
from cometmq.proto.sysflag import SysFlag
from cometmq.store.errors import MessageIllegalError
from cometmq.store.index.index_keys import NotedBatch
from cometmq.store.log.turn import AppendedBatch
from cometmq.store.messages.committing import Committer
from cometmq.store.messages.dispatch import UNIQUE_ID, TagsCodes
from cometmq.store.queues.consume_queue import ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.config import StoreConfig
    from cometmq.store.disk.sync import Syncer
    from cometmq.store.index.index_keys import Noted
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.messages.admission import Topic
    from cometmq.store.messages.even_batches import EvenRecords
    from cometmq.store.queues.consume_queue import ConsumeQueue
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.entry_journal import EntryJournal

IN_TRANSACTION: Final = int(SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMITTED)
INNER_BATCH: Final = int(SysFlag.INNER_BATCH)
UNUSUAL: Final = int(SysFlag.TRANSACTION_PREPARED) | INNER_BATCH | HOSTS_MASK
"""Flags of messages that need care; of a transaction's messages only the committed one does not."""
PACKED_SIZES: Final = [struct.Struct(">h").pack(size) for size in range(1024)]
"""The bytes for the size of properties in a record; longer properties are not quick."""

_SEPARATOR: Final = 2
_pack_head: Final = RECORD_HEAD.pack
_pack_head_shared: Final = RECORD_HEAD_SHARED.pack
_pack_entry: Final = ENTRY.pack


class QuickPuts(Committer):
    """The turn that is being collected, and what similar messages have in common."""

    def __init__(
        self,
        log: CommitLog,
        syncer: Syncer,
        queues: ConsumeQueues,
        config: StoreConfig,
        *,
        journal: EntryJournal,
        on_published: Callable[[list[Noted], int], None],
        has_numpy: Callable[[], bool],
    ) -> None:
        """`has_numpy` says whether numpy is loaded; nothing here waits for it."""
        super().__init__(log, syncer, config, journal=journal, on_published=on_published)
        self._has_numpy = has_numpy
        self._even_records: Callable[..., EvenRecords | None] | None = None
        self._queues = queues
        self._store_host = config.store_host
        self._body_size_max = config.message_size_max
        self._topics: dict[str, Topic] = {}
        self._codes = TagsCodes()
        self._known_codes = self._codes.known

    def put_quick(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        tail: bytes,
        now_ms: int,
        born_timestamp: int,
        born_host: bytes,
        sys_flag: int,
        reconsume_times: int,
        prepared_transaction_offset: int,
        flag: int,
    ) -> tuple[int, int, int] | None:
        """Add one message that is like earlier ones, or return None: then call `put`.

        Nearly every send comes this way, so it makes no object that it can do without: it takes the
        parts of an `Origin`, and returns those of an `Appended`. The caller makes sure that the
        properties begin with a unique id, without a NUL, and that `tail` is what follows that pair:
        all of it, or what was noted by `note_alike`.
        """
        turn = self._turn
        physical_offset = turn.end
        body_size = len(body)
        try:
            known = self._topics[topic]
            queue = known.queues[queue_id]
            code = self._known_codes[tail]
            properties_size = len(properties)
            packed_size = PACKED_SIZES[properties_size]
            size = known.record_size + body_size + properties_size
            end = physical_offset + size
            if (
                end > self._quick_limit
                or sys_flag & UNUSUAL
                or len(born_host) != PACKED_IPV4_SIZE
                or body_size > self._body_size_max
            ):
                return None
            queue_offset = queue.next_offset
            head = _pack_head(
                size,
                MAGIC_V1,
                crc32(body) & CRC_MASK,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
                born_host,
                now_ms,
                self._store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_size,
            )
        except (KeyError, IndexError, struct.error):
            return None
        turn.pieces += (head, body, known.part, packed_size, properties)
        turn.end = end
        run = queue.run
        if run is None:
            run = turn.begin_run(queue)
        run.append(_pack_entry(physical_offset, size, code))
        queue.next_offset = queue_offset + 1
        turn.records.append((physical_offset, known.raw, properties, now_ms))
        return physical_offset, queue_offset, size

    def _put_alike(
        self,
        known: Topic,
        topic: str,
        queue_id: int,
        messages: Sequence[tuple[int, bytes, bytes]],
        now_ms: int,
        shared: bytes,
        physical_offset: int,
    ) -> AppendedBatch:
        """Add messages without anything unusual to one queue, at a place made for them."""
        queue = self._queues.simple.get(topic, queue_id)
        part, topic_raw, record_size = known.part, known.raw, known.record_size
        queue_offset = queue.next_offset
        pieces: list[Buffer] = []
        entries: list[bytes] = []
        records: list[Noted] = []
        offsets: list[int] = []
        tail, code = None, 0  # Those of the previous message, if it began with a unique id.
        try:
            for flag, body, properties in messages:
                body_size, properties_size = len(body), len(properties)
                size = record_size + body_size + properties_size
                head = _pack_head_shared(
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    shared,
                    body_size,
                )
                pieces += (head, body, part, PACKED_SIZES[properties_size], properties)
                pair, _, rest = properties.partition(b"\x02")
                if not pair.startswith(UNIQUE_ID):
                    tail, code = None, self._codes.code_of(properties)
                elif rest != tail:
                    tail, code = rest, self._codes.code_of(properties)
                entries.append(_pack_entry(physical_offset, size, code))
                records.append((physical_offset, topic_raw, properties, now_ms))
                offsets.append(physical_offset)
                physical_offset += size
                queue_offset += 1
        except struct.error as error:
            raise MessageIllegalError(f"record: a number does not fit its field: {error}") from None
        return self._added(queue, pieces, entries, records, offsets, physical_offset)

    def _put_even(
        self, known: Topic, queue: ConsumeQueue, raw: bytes, more: bytes, now_ms: int, shared: bytes
    ) -> AppendedBatch | None:
        """Add the messages of a batch's body as one matrix, if possible; else return None."""
        if self._even_records is None:
            if not self._has_numpy():
                return None
            from cometmq.store.messages.even_batches import even_records

            self._even_records = even_records
        turn = self._turn
        start, first = turn.end, queue.next_offset
        try:
            even = self._even_records(
                raw,
                known.part,
                more,
                self._known_codes,
                queue.queue_id,
                first,
                start,
                shared,
                self._quick_limit,
            )
        except struct.error:  # A number does not fit its field.
            return None
        if even is None:
            return None
        count, size, records, entries, properties = even
        turn.pieces.append(records)
        turn.records.append(NotedBatch(start, known.raw, properties, now_ms, size, count))
        turn.in_batches += count - 1
        turn.end = end = start + count * size
        run = turn.begin_run(queue) if queue.run is None else queue.run
        run += entries
        queue.next_offset = first + count
        return AppendedBatch(list(range(start, end, size)), first, end - start)

    def _put_raw_alike(
        self, known: Topic, queue: ConsumeQueue, raw: bytes, more: bytes, now_ms: int, shared: bytes
    ) -> AppendedBatch | None:
        """Add the messages of a batch's body in one pass, if all are like earlier ones.

        Otherwise, or if the body is malformed, or if there may be no room, add nothing and return
        None. Then the caller splits the body, and finds out what is wrong.
        """
        queue_id, queue_offset = queue.queue_id, queue.next_offset
        part, topic_raw = known.part, known.raw
        overhead = known.record_size + len(more)
        physical_offset = self._turn.end
        pieces: list[Buffer] = []
        entries: list[bytes] = []
        records: list[Noted] = []
        offsets: list[int] = []
        known_tail, code, known_size, middle = None, 0, -1, b""
        at, raw_size = 0, len(raw)
        try:
            while at < raw_size:
                item_size, flag, body_size = unpack_item_head(raw, at)
                body_start = at + ITEM_HEAD_SIZE
                body_end = body_start + body_size
                properties_start = body_end + 2
                properties_size = raw[body_end] << 8 | raw[body_end + 1]
                at += item_size
                if properties_start + properties_size != at:
                    return None
                properties = raw[properties_start:at]
                pair, separator, tail = properties.partition(b"\x02")
                if tail != known_tail:
                    known_tail, code = tail, self._known_codes[tail + more]
                    if properties[-1] != _SEPARATOR:
                        return None
                if not separator or not pair.startswith(UNIQUE_ID):
                    return None
                if properties_size != known_size:
                    known_size = properties_size
                    middle = part + PACKED_SIZES[properties_size + len(more)]
                body = raw[body_start:body_end]
                size = overhead + body_size + properties_size
                head = _pack_head_shared(
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    shared,
                    body_size,
                )
                pieces += (head, body, middle, properties, more)
                entries.append(_pack_entry(physical_offset, size, code))
                records.append((physical_offset, topic_raw, properties, now_ms))
                offsets.append(physical_offset)
                physical_offset += size
                queue_offset += 1
        except (KeyError, IndexError, struct.error):
            return None
        # The lengths of the last item may have reached beyond the end.
        if at != raw_size or not offsets or physical_offset > self._quick_limit:
            return None
        if 0 in b"".join(pieces[3::5]):  # A NUL in properties needs a checksum of its record.
            return None
        return self._added(queue, pieces, entries, records, offsets, physical_offset)

    def _added(
        self,
        queue: ConsumeQueue,
        pieces: list[Buffer],
        entries: list[bytes],
        records: list[Noted],
        offsets: list[int],
        end: int,
    ) -> AppendedBatch:
        """Add the records of a batch, and what follows from them; the turn ends after them."""
        turn, start = self._turn, offsets[0]
        self._add(start, end - start, pieces)
        turn.records += records
        run = turn.begin_run(queue) if queue.run is None else queue.run
        run += entries
        first = queue.next_offset
        queue.next_offset = first + len(entries)
        return AppendedBatch(offsets, first, end - start)
