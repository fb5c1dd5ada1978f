"""Entries that are only in a journal, for readers of a store that is not theirs to write.

A broker that writes a journal brings entries to the files of their queues a few times an hour: a
reader of the files finds the rest here. Queues get it when they are loaded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cometmq.store.log.log_scan import NEVER
from cometmq.store.queues.entry_journal import journals_in

if TYPE_CHECKING:
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.queues.consume_queues import ConsumeQueues
    from cometmq.store.queues.queue_table import Waiting


def attach_journals(store: Inspected, queues: ConsumeQueues) -> int | None:
    """Give the queues, none of which is loaded yet, what journals have for them.

    Return up to which record that is complete, if a stopped store's checkpoint says so.
    """
    claims = store.checkpoint.claims
    if store.is_clean or claims is None or not journals_in(store.filesystem, store.root):
        return None
    from cometmq.store.queues.journal_reading import (  # It needs numpy.
        claimed_journal,
        journals_of_others,
    )

    low = store.start.replay_from
    if store.opened_by is not None:
        journals = list(journals_of_others(store.filesystem, store.root))
        low, high = store.segments.first_offset, NEVER
    else:
        end_offset, segments = store.segments.end_offset, store.segments
        journal = claimed_journal(
            store.filesystem, store.root, segments, claims.journal, low, end_offset
        )
        if journal is None:
            return None
        journals, high = [journal], claims.complete_to
    simple: Waiting = defaultdict(lambda: defaultdict(list))
    batch: Waiting = defaultdict(lambda: defaultdict(list))
    for journal in journals:
        for each in journal.queues(low, high, store.deletions.offsets):
            of_kind = batch if each.is_batch else simple
            index = -1 if each.is_batch else each.number
            of_kind[each.topic][each.queue_id].append((index, each.data))
    queues.simple.expect(simple)
    queues.batch.expect(batch)
    return None if store.opened_by is not None else high
