"""Recovery of transactions at a start: which are open, which are over, which ends are half written.

A start reads the half queue and the op queue from their saved progress on. A half message without
an op message is open, unless a later half message is its copy. Then each record of the log's tail
is passed to `recovered`: a committed message without its op message is an end that a crash cut in
two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.broker.intact import messages_from
from cometmq.broker.transaction_records import (
    GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    Outcome,
    checks_of,
    committed,
    find_unique_id,
    group_of,
    immunity_ms,
    read_op,
    resumed_from,
    root_of,
)
from cometmq.broker.transaction_table import Open, Place
from cometmq.proto.sysflag import TRANSACTION_MASK, SysFlag

if TYPE_CHECKING:
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.transactions import Transactions
    from cometmq.proto.message import StoredMessage
    from cometmq.store.message_store import MessageStore

OPS_BACK: Final = 1_000
"""Op messages before the progress that are read, too, because an end may be repeated."""
_EVERYTHING: Final = 1 << 62
_COMMITTED: Final = int(SysFlag.TRANSACTION_COMMITTED)


class TransactionRecovery:
    """Fills the transaction table at a start."""

    def __init__(
        self, transactions: Transactions, store: MessageStore, offsets: ConsumerOffsets
    ) -> None:
        self._transactions = transactions
        self._table = transactions.table
        self._store = store
        self._half = self._saved(offsets, HALF_TOPIC)
        self._op = self._saved(offsets, OP_TOPIC)
        self._over: dict[int, Outcome] = {}
        self._found: dict[int, tuple[Open, int, int]] = {}
        """By the offset of a transaction's first half message: the transaction as its newest half
        message has it, its born time, and how long nobody is to be asked."""
        self._open: dict[int, Open] = {}
        """By physical offset."""

    def _saved(self, offsets: ConsumerOffsets, topic: str) -> int:
        """Return where to read a queue from: its progress, unless a power cut has shortened it."""
        saved = offsets.find(GROUP, topic, 0) or 0
        store = self._store
        return min(max(saved, store.min_offset(topic, 0)), store.max_offset(topic, 0))

    def load(self) -> int | None:
        """Read the queues; return the place in the log of the oldest open half message, or None."""
        self._table.start_at(self._half, self._op)
        for message in messages_from(
            self._store, OP_TOPIC, 0, max(self._op - OPS_BACK, 0), _EVERYTHING
        ):
            ends = read_op(message)
            self._over.update(ends)
            if message.queue_offset >= self._op and ends:
                self._table.note_op(message.queue_offset, max(offset for offset, _ in ends))
        for message in messages_from(self._store, HALF_TOPIC, 0, self._half, _EVERYTHING):
            self._take_half(message)
        for offset, outcome in self._over.items():
            self._table.remember(offset, outcome)
        for opened, born_timestamp, immune_ms in self._found.values():
            if opened.offset not in self._over:
                self._table.add(opened, born_timestamp, immune_ms)
                self._open[opened.physical_offset] = opened
        return min(self._open, default=None)

    def _take_half(self, message: StoredMessage) -> None:
        properties = message.properties_raw
        offset, root = message.queue_offset, root_of(message, properties)
        if not 0 <= root <= offset:
            root = offset
        self._table.start_at(offset + 1, 0)
        earlier = self._found.pop(root, None)
        checks = checks_of(properties)
        if earlier is not None:
            aliases = earlier[0].places_behind()
        else:
            aliases = () if root == offset else (self._first_place(root),)
        opened = Open(
            offset,
            message.physical_offset,
            message.store_timestamp,
            checks=checks,
            aliases=aliases,
            is_asked=checks > (earlier[0].checks if earlier is not None else 0),
            group=group_of(properties),
            resumed_from=resumed_from(properties),
        )
        self._found[root] = opened, message.born_timestamp, immunity_ms(properties)

    def _first_place(self, root: int) -> Place:
        """Find a half message before those read; if it is gone, a place of -1, which never fits."""
        queue = self._store.queues.simple.find(HALF_TOPIC, 0)
        if queue is None or root < queue.min_entry:
            return Place(root, -1)
        physical_offset, size = queue.head(root)
        return Place(root, physical_offset if size else -1)

    def recovered(self, message: StoredMessage) -> None:
        """Look at a record of the log's tail for an end that is half written."""
        if message.sys_flag & TRANSACTION_MASK != _COMMITTED:
            return
        opened = self._open.get(message.prepared_transaction_offset)
        # Any producer can write this, and a message that was committed before may be put again.
        if opened is not None and self._is_end(opened, message):
            del self._open[opened.physical_offset]
            opened.end = Outcome.COMMITTED
            self._table.leave(opened)
            self._transactions.unwritten.append(opened)

    def _is_end(self, opened: Open, message: StoredMessage) -> bool:
        """Whether a committed message is the one that a transaction's half message becomes."""
        for half in messages_from(self._store, HALF_TOPIC, 0, opened.offset, 1):
            try:
                name, queue_id, properties = committed(half.properties_raw)
            except ValueError:
                return False
            return (
                half.physical_offset == opened.physical_offset
                and (name, queue_id) == (message.topic, message.queue_id)
                and find_unique_id(properties) == find_unique_id(message.properties_raw)
                and half.body == message.body
            )
        return False
