"""Repairing a log that a start refuses, by explicit command: carrying out what `repair_plan` plans.

A torn tail is cut off, as the next start would. Damage in the middle can be dealt with in two ways.
*Stepping over* it keeps everything sound: the damaged bytes are replaced by records that say so.
Each message that is known to have been there, by a gap in the numbers of its queue or by the
queue's own entry, becomes a message without a body and with the property `COMETMQ_LOST`, so that no
queue has a gap. The rest becomes a record that no consumer ever sees, a rolled back half of a
transaction, which Apache's brokers pass over, too. *Cutting* ends the log before the damage, and
everything after it is lost. A sound record that is not the message it says, see `wrong_heads`, is
*written right* if its queue's entry, or else the order, shows which message it is, and if the right
head fits. Otherwise it is stepped over as well; but no cut begins there, because a start would read
past it. Sealed blocks with only a wrong checksum can be *accepted*: see `written_right`.

In any case the bytes that are replaced are first kept in `cut/`. Then the store is marked as not
shut down, with a checkpoint before the damage: the next start makes the ConsumeQueues and the index
agree again. Heads are written right before that mark; after it entries are no witnesses any more. A
repair that is killed in the middle leaves a store that a start refuses, as before, and that can be
repaired again. Records that it had put beside damage still count as damage then, and say what they
stand for, so that the range is the same, with the same room.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.store.disk.lock import mark_running
from cometmq.store.mending.lost_messages import ends_to_keep, keep_entries
from cometmq.store.mending.placeholders import fill
from cometmq.store.mending.written_right import accept_blocks, write_places
from cometmq.store.queues.queue_ends import (
    load_queue_ends,
    remove_queue_ends,
    save_queue_ends,
)
from cometmq.store.starting.folder import load_segments
from cometmq.store.starting.log_repair import cut_behind, keep, sync_again, write_again
from cometmq.store.starting.recovery import LogEnd
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, CheckpointFile, Claims, Longs
from cometmq.store.upkeep.integrity import Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from cometmq.store.log.segments import Segments
    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.mending.repair_plan import Plan

_HEAD_SIZE: Final = 8
"""The bytes of a record's size and magic."""


def carry_out(store: Inspected, plan: Plan, process_id: int) -> list[str]:
    """Do what was planned; the caller holds the store's lock. Return where bytes were kept."""
    if plan.blocks and plan.accepts_blocks:
        accept_blocks(store, plan.blocks)
    filesystem, root, clean = store.filesystem, store.root, store.is_clean
    with closing(
        load_segments(filesystem, root, store.config, store.checkpoint, clean=clean)
    ) as segments:
        kept = [] if plan.is_log_kept else _mend_log(store, segments, plan, process_id)
        if not clean:  # What is sound now may have been written, unsynced, by an earlier repair.
            sync_again(filesystem, segments, store.start.scan_from, segments.end_offset)
    return kept


def _mend_log(store: Inspected, segments: Segments, plan: Plan, process_id: int) -> list[str]:
    filesystem, root = store.filesystem, store.root
    cut = None
    if plan.cut_at is not None:
        cut = LogEnd(plan.cut_at, plan.cut_end)
    records = [
        record
        for step in plan.steps
        for record in fill(store, step.damage, step.lost, step.store_timestamp)
    ]
    kept = [keep(filesystem, root, segments, LogEnd(each.start, each.end)) for each in plan.changed]
    if cut is not None and cut.data_end > cut.offset:
        kept.append(keep(filesystem, root, segments, cut))
    if plan.lost and plan.cut_at is not None:
        kept.append(keep_entries(filesystem, root, plan.cut_at, plan.lost))
    write_places(segments, plan.heads)
    if not plan.is_tail_only:
        _mark(store, segments, plan, process_id)
    # A record without a body looks sound even if half written: so its size and magic come last.
    segments.overwrite((at, bytes(_HEAD_SIZE) + data[_HEAD_SIZE:]) for at, data in records)
    segments.overwrite((at, data[:_HEAD_SIZE]) for at, data in records)
    if cut is not None:
        cut_behind(filesystem, root, segments, cut)
        # Another program may write next, and a mark after the end would hide what it puts there.
        store.deletions.settle(store.segments.first_offset, cut.offset)
    return kept


def _synced_to(store: Inspected, plan: Plan) -> int:
    """Return how far the log is then promised: no further than before, if that was noted.

    The next start judges, and syncs, what the killed process wrote last. A log whose first files
    are given up begins where the others do.
    """
    end = plan.end_offset if plan.cut_at is None else min(plan.cut_at, plan.end_offset)
    start = store.start
    if start.synced_offset is None:
        return end
    return max(store.segments.first_offset, min(start.synced_offset, end))


def _mark(store: Inspected, segments: Segments, plan: Plan, process_id: int) -> None:
    """Have the next start read the log back from before what is changed."""
    if not (store.is_clean or store.start.is_noted):
        write_again(store.filesystem, segments, store.start.scan_from, _synced_to(store, plan))
    filesystem, root, checkpoint = store.filesystem, store.root, store.checkpoint
    starts = [each.start for each in plan.changed]
    if plan.cut_at is not None:
        starts.append(plan.cut_at)
    first = store.segments.first_offset
    recover_from = max(first, min([*starts, store.start.replay_from]))
    if checkpoint.claims is None and not store.is_clean:
        recover_from = first  # Nobody knows how far Apache's index was synced.
    # In Apache's store the files themselves show their sizes.
    are_noted = not checkpoint.is_of_others or checkpoint.last_claims is not None
    sizes = store.sizes if are_noted else None
    claims = Claims(
        recover_from=recover_from,
        verify_from=recover_from,
        synced_offset=_synced_to(store, plan),
        segment_size=store.segments.size,
        ours_from=min(store.start.ours_from, plan.end_offset),
        checked_from=store.start.checked_from,
        queue_file_size=None if sizes is None else sizes.queue_file,
        batch_queue_file_size=None if sizes is None else sizes.batch_queue_file,
        index_shape=sizes.index_shape if sizes is not None and store.is_index_shape_known else None,
    )
    # Without timestamps Apache rebuilds the index, and with it the queues, from the beginning.
    longs = Longs(
        master_flushed_offset=min(checkpoint.longs.master_flushed_offset, claims.synced_offset)
    )
    if checkpoint.is_of_others:
        # From before another program wrote: with the new checkpoint it would be believed again.
        remove_queue_ends(filesystem, root)
    file = CheckpointFile(filesystem, f"{root}/{CHECKPOINT_NAME}")
    if store.is_clean and not store.start.is_noted:
        # Before any other note of ours, with which a store without a checkpoint would count as
        # killed: everything from the damage on would be a torn tail. All its entries exist.
        reached = max(plan.end_offset, plan.cut_end, plan.missing_to or 0)
        file.write(longs, replace(claims, recover_from=reached, synced_offset=reached))
    # The next start reads their records back, and then nothing else shows that they are gone.
    store.gone_topics.mark(plan.gone, store.deletions, plan.end_offset)
    _keep_ends(store, plan)
    mark_running(filesystem, root, process_id)
    file.write(longs, claims)
    file.close()
    folder = f"{root}/{INTEGRITY_FOLDER}"
    if filesystem.exists(folder):
        Integrity(filesystem, folder, store.segments.size).drop(min(starts))


def _keep_ends(store: Inspected, plan: Plan) -> None:
    """Make the list of the queues' ends agree with their files, and with the log.

    Stepping over damage leaves the files as they are: the next start rebuilds their entries.
    """
    filesystem, root, cut_at = store.filesystem, store.root, plan.cut_at
    kept = {
        key: end
        for key, end in store.ends.items()
        if cut_at is None or end.physical_offset < cut_at
    } | ends_to_keep(plan.lost)
    # The file may name a deleted topic, too: its mark now ends at the cut, and no longer hides it.
    if kept != (load_queue_ends(filesystem, root) or {}):
        save_queue_ends(filesystem, root, kept, store.sizes)
