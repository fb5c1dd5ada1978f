"""Making a start accept what a rebuild accepted, in a store that another program left in a crash.

Such a start reads back what that program's checkpoint does not cover, and refuses a gap that it
finds there, however often the store is rebuilt. So the log is brought to the disk (nobody knew
whether it was there), and a checkpoint of ours says that the new queues have all of its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.log.log_scan import NEVER
from cometmq.store.starting.log_repair import write_again
from cometmq.store.upkeep.checkpoint import Claims

if TYPE_CHECKING:
    from cometmq.store.looking.inspection import Inspected


def claims_behind_a_kill(store: Inspected, complete_to: int) -> Claims:
    """Return claims that hold once the new queues, complete up to an offset, are in place."""
    start, config = store.start, store.config
    write_again(store.filesystem, store.segments, store.segments.first_offset, complete_to)
    return Claims(
        recover_from=complete_to,
        verify_from=min(start.scan_from, complete_to),
        synced_offset=complete_to,
        segment_size=store.segments.size,
        ours_from=min(start.ours_from, complete_to),
        checked_from=NEVER if start.checked_from == NEVER else complete_to,
        queue_file_size=config.consume_queue_file_size,
        batch_queue_file_size=config.batch_consume_queue_file_size,
        index_shape=config.index_shape,
    )
