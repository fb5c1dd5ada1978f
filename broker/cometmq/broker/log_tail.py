"""What a start learns from the tail of the log: which of the things that were done the files that
are saved now and then do not know of. It is read once, for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.transaction_recovery import TransactionRecovery
from cometmq.store.log_scan import LogScan

if TYPE_CHECKING:
    from cometmq.broker.delays import Delays
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.transactions import Transactions
    from cometmq.store.message_store import MessageStore


def recover(
    store: MessageStore, delays: Delays, transactions: Transactions, offsets: ConsumerOffsets
) -> None:
    """Load delays and transactions. May read much after an unclean stop, waiting for the disk."""
    known = delays.load()
    recovery = TransactionRecovery(transactions, store, offsets)
    oldest = recovery.load()
    # Apache's brokers do not say how far they knew.
    start = known if known >= 0 else oldest
    if start is not None and (delays.offsets() or oldest is not None):
        for message in LogScan(store.segments, max(start, store.first_offset), is_verified=True):
            delays.recovered(message)
            recovery.recovered(message)
    if start is None or not transactions.unwritten:
        start = store.readable_offset
    delays.start(start)
