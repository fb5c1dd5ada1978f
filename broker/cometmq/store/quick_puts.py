"""The quick ways of putting messages: for those that are like the ones before them.

Most messages are: of a topic that was written to before, to IPv4 hosts, and with properties that,
behind a unique id, were seen before. The functions here are for those, and make the same of them
as the careful ways of `appending`, for a third of the work. They are long, and make no object that
they can do without, because nearly every message of a broker goes through them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.host import PACKED_IPV4_SIZE
from cometmq.proto.record import HOSTS_MASK, MAGIC_V1, RECORD_HEAD, RECORD_HEAD_SHARED
from cometmq.proto.sysflag import SysFlag
from cometmq.store.committing import Committer
from cometmq.store.consume_queue import ENTRY
from cometmq.store.dispatch import UNIQUE_ID, TagsCodes
from cometmq.store.errors import MessageIllegalError
from cometmq.store.turn import AppendedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.proto.buffer import Buffer
    from cometmq.store.admission import Topic
    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queues import ConsumeQueues
    from cometmq.store.index_keys import Noted
    from cometmq.store.sync import Syncer

IN_TRANSACTION: Final = int(SysFlag.TRANSACTION_PREPARED | SysFlag.TRANSACTION_COMMITTED)
INNER_BATCH: Final = int(SysFlag.INNER_BATCH)
UNUSUAL: Final = IN_TRANSACTION | INNER_BATCH | HOSTS_MASK
"""Flags of messages that need care."""

PACKED_SIZES: Final = [struct.Struct(">h").pack(size) for size in range(1024)]
"""How the size of properties stands in a record; longer ones are not quick."""

_pack_head: Final = RECORD_HEAD.pack
_pack_head_shared: Final = RECORD_HEAD_SHARED.pack
_pack_entry: Final = ENTRY.pack


class QuickPuts(Committer):
    """The turn that is being collected, and what messages that are alike have in common."""

    def __init__(
        self,
        log: CommitLog,
        syncer: Syncer,
        queues: ConsumeQueues,
        config: StoreConfig,
        *,
        on_published: Callable[[list[Noted]], None],
    ) -> None:
        super().__init__(log, syncer, config, on_published=on_published)
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
        """Add one message that is like those before it, or return None: then `put` it.

        It is the way of nearly every send, so it makes no object that it can do without: an
        `Origin` comes, and an `Appended` is returned, in parts. The caller vouches that the
        properties begin with a unique id, without a NUL, and that `tail` is what stands behind
        that pair.
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
    ) -> AppendedBatch:
        """Add messages of one queue of which nothing is unusual, for which there is room."""
        queue = self._queues.simple.get(topic, queue_id)
        turn = self._turn
        part, topic_raw, record_size = known.part, known.raw, known.record_size
        start = physical_offset = turn.end
        queue_offset = queue.next_offset
        pieces: list[Buffer] = []
        entries: list[bytes] = []
        records: list[Noted] = []
        offsets: list[int] = []
        tail, code = None, 0  # Of the message before, if it began with a unique id.
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
        turn.pieces += pieces
        turn.records += records
        turn.end = physical_offset
        run = turn.begin_run(queue) if queue.run is None else queue.run
        run += entries
        queue.next_offset = queue_offset
        return AppendedBatch(offsets, queue_offset - len(offsets), physical_offset - start)
