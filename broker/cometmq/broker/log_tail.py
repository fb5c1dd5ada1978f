"""Recovery from the tail of the log: a start finds there what was done after the tables were last
saved. The tail is read once, for all tables together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.idempotence import TAIL_SIZE
from cometmq.broker.transaction_recovery import TransactionRecovery
from cometmq.store.errors import StoreFilesError
from cometmq.store.log.log_scan import LogScan

if TYPE_CHECKING:
    from cometmq.broker.delays import Delays
    from cometmq.broker.idempotence import Idempotence
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.transactions import Transactions
    from cometmq.store.message_store import MessageStore


def recover(
    store: MessageStore,
    delays: Delays,
    transactions: Transactions,
    idempotence: Idempotence,
    offsets: ConsumerOffsets,
) -> None:
    """Load all of these. After an unclean stop this may read much, waiting for the disk."""
    known = delays.load()
    idempotence.tail_offset = delays.tail_offset
    recovery, oldest = None, None
    try:
        recovery = TransactionRecovery(transactions, store, offsets)
        oldest = recovery.load()
    except StoreFilesError as error:
        transactions.stand_still(error)
    first, end = store.first_offset, store.readable_offset
    begins = [known] if known >= 0 else [oldest]
    if known < 0 and end - first <= TAIL_SIZE:  # The first life of a broker, or Apache's store.
        begins = [first]
    begins += [delays.tail_offset] * (delays.tail_offset >= 0)
    begin = min([each for each in begins if each is not None], default=None)
    if begin is not None:
        begin = max(begin, first)
        for message in LogScan(store.segments, begin, is_verified=True):
            delays.recovered(message)
            if recovery is not None and transactions.damage is None:
                recovery.recovered(message)
            idempotence.recovered(message)
        idempotence.recovered_from(begin)
    if len(idempotence) and idempotence.tail_offset < 0 and begin is not None:
        idempotence.tail_offset = begin
    delays.tail_offset = idempotence.flush()
    if transactions.damage is not None or delays.damaged_levels:
        # The start after a rebuild has to look here again.
        delays.start(known, is_known_later=True)
        return
    # The next turn completes ends that are half written; until then they must be found again.
    if begin is None or not transactions.unwritten:
        begin = end
    delays.start(begin)
