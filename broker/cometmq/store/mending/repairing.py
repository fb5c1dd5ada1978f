"""Repairing a log that a start refuses, by explicit command: what to do is planned, then done.

A torn tail is cut off, as the next start would. Damage in the middle can be dealt with in two ways.
*Stepping over* it keeps all that is sound: the damaged bytes are replaced by records that say so.
Each message that is known to have been there, by a gap in the numbers of its queue or by the
queue's own entry, becomes a message without a body and with the property `COMETMQ_LOST`, so that
no queue has a gap; the rest becomes a record that no consumer ever sees, a rolled back half of a
transaction, which Apache's brokers pass over, too. *Cutting* ends the log in front of the damage,
and all that stands behind is lost. A sound record that is not the message it says, see
`wrong_heads`, is *written right* where the entry of its queue, or else the order, tells which one
it is, if it has room for that, else stepped over as well; but no cut begins there: a start goes on
behind it. Sealed blocks of which only the checksum is wrong can be *accepted*: see `written_right`.

Either way the bytes that are replaced are kept in `cut/` first, then the store is marked as not
shut down, with a checkpoint in front of the damage: the next start makes the ConsumeQueues and the
index agree again. What is written right comes before that mark, behind which entries are no
witnesses any more. A repair that is killed in the middle leaves a store that a start refuses, as
before, and that can be repaired again.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.checking.block_check import BLOCKS_A_STEP, sealed_blocks
from cometmq.store.checking.head_check import HeadCheck
from cometmq.store.disk.lock import mark_running
from cometmq.store.log.log_scan import NEVER
from cometmq.store.looking.findings import Progress
from cometmq.store.looking.log_check import Damage, LogCheck
from cometmq.store.mending.log_fronts import FrontsOfLog
from cometmq.store.mending.lost_in_damage import LostInDamage, said_by
from cometmq.store.mending.lost_messages import (
    Front,
    LostMessages,
    ends_to_keep,
    keep_entries,
    lost_messages,
)
from cometmq.store.mending.placeholders import Lost, fill
from cometmq.store.mending.written_right import accept_blocks, write_places
from cometmq.store.queues.queue_ends import remove_queue_ends, save_queue_ends
from cometmq.store.starting.folder import load_segments
from cometmq.store.starting.log_repair import cut_behind, keep, sync_again, write_again
from cometmq.store.starting.recovery import LogEnd
from cometmq.store.upkeep.checkpoint import CHECKPOINT_NAME, CheckpointFile, Claims, Longs
from cometmq.store.upkeep.integrity import Block, Integrity
from cometmq.store.upkeep.sealing import INTEGRITY_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk.filesystem import File
    from cometmq.store.log.segments import Segments
    from cometmq.store.looking.inspection import Inspected

STEP_BYTES: Final = 4 << 20
_NO_FRONT: Final = Front(0, 0)
_HEAD_SIZE: Final = 8
"""Of the size and the magic of a record."""


class StepOver(NamedTuple):
    """A damaged range that is replaced by records that say so."""

    damage: Damage
    lost: list[Lost]
    """The messages that are known to have been there."""
    store_timestamp: int
    """Of the next sound record."""


@dataclass(slots=True)
class Plan:
    """What a repair will do."""

    steps: list[StepOver] = field(default_factory=list[StepOver])
    heads: list[Damage] = field(default_factory=list[Damage])
    """Sound records whose topic, queue or number is written right."""
    cut_at: int | None = None
    """Where the log will end, if anything is cut off."""
    cut_end: int = 0
    cut_problem: str = ""
    is_cut_torn: bool = False
    """Whether the cut is of a torn tail, which the next start would cut as well."""
    records_cut: int = 0
    """Sound records behind the cut, or in a torn tail."""
    end_offset: int = 0
    blocks: list[Block] = field(default_factory=list[Block])
    """Sealed blocks whose checksum alone is wrong: every record in them is sound by its own."""
    doubted: list[Block] = field(default_factory=list[Block])
    """The same where something in them, or in front of them, is mended, and their checksums go."""
    accepts_blocks: bool = False
    """Whether their checksums are made anew from what stands there."""
    missing_to: int | None = None
    """How far the log went, if files at its end are missing."""
    safe_to: int | None = None
    """How far it was known to be on the disk, if zeros stand behind a cut up to there."""
    lost: list[LostMessages] = field(default_factory=list[LostMessages])
    """What the queues have of messages behind a cut that is not of a torn tail."""

    @property
    def missing_size(self) -> int:
        """Bytes of the log that are lost with its missing files."""
        here = max(self.cut_end, self.end_offset)
        return 0 if self.missing_to is None else max(0, self.missing_to - here)

    @property
    def blank_size(self) -> int:
        """Bytes behind the cut that were safe, and are zeros."""
        return 0 if self.safe_to is None else self.safe_to - max(self.cut_end, self.end_offset)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.is_log_kept and not (self.blocks and self.accepts_blocks)

    @property
    def is_tail_only(self) -> bool:
        """Whether nothing else is done to the log than the next start would do."""
        return self.is_cut_torn and not (self.steps or self.heads)

    @property
    def is_log_kept(self) -> bool:
        """Whether no byte of the log changes."""
        return not (self.steps or self.heads) and self.cut_at is None

    @property
    def changed(self) -> list[Damage]:
        """What is not as it was then, in front of a cut."""
        return [*self.heads, *(step.damage for step in self.steps)]


def make_plan(store: Inspected, plan: Plan, *, cut: bool) -> Iterator[Progress]:
    """Read all of the log and plan what to do; with `cut` end the log in front of damage."""
    log, fronts = LogCheck(store), FrontsOfLog(store)
    check = None if cut else HeadCheck(store)
    yield from _read(store, log, fronts, check)
    if check is not None and (heads := check.finish(log)):
        log, fronts = LogCheck(store, wrong_heads=heads), FrontsOfLog(store)
        yield from _read(store, log, fronts, None)
        plan.heads = [head for head in heads.values() if head.truth is not None]
    plan.records_cut = fronts.records_behind
    lost = LostInDamage(store, log.damages, fronts.gaps, fronts.all).lost
    plan.end_offset = log.end_offset
    _decide(plan, log, lost, fronts.times, cut=cut)
    fronts.add_placeholders(plan.steps)
    _note_missing(store, plan, log, fronts, cut=cut)
    changed_from = min([each.start for each in plan.changed], default=plan.cut_at)
    first, total = store.segments.first_offset, store.segments.end_offset
    for number, block in enumerate(sealed_blocks(store, plan.end_offset)):
        # Behind the first damage that is mended no checksum stays.
        is_kept = changed_from is None or block.physical_offset + block.size <= changed_from
        if block.is_sound is False and is_kept:
            plan.blocks.append(block)
        elif block.is_sound is False and _is_doubted(plan, block, store.start.checked_from):
            plan.doubted.append(block)
        if number % BLOCKS_A_STEP == 0:
            yield Progress("blocks", block.physical_offset - first, total - first)


def _is_doubted(plan: Plan, block: Block, checked_from: int) -> bool:
    """Whether anything stays in a block that only its checksum covers, which is wrong.

    What ruined a record may have begun in the properties of the one in front. Of a block in which
    heads are written right, these tell why it is wrong.
    """
    start, end = block.physical_offset, block.physical_offset + block.size
    gone = [step.damage[:2] for step in plan.steps]
    if plan.cut_at is not None:
        gone.append((plan.cut_at, max(end, plan.cut_at)))
    left = block.size
    for first, behind in gone:
        left -= max(0, min(behind, end) - max(first, start))
    is_explained = left == block.size and any(
        head.start < end and head.end > start for head in plan.heads
    )
    return left > 0 and start < checked_from and not is_explained


def _read(
    store: Inspected, log: LogCheck, fronts: FrontsOfLog, check: HeadCheck | None
) -> Iterator[Progress]:
    """Read all of the log, and note when the first record behind each damage was stored."""
    first, total = store.segments.first_offset, store.segments.end_offset
    times, step, last = fronts.times, first + STEP_BYTES, 0
    for message in log:
        last = message.store_timestamp
        for number in range(len(times), len(log.damages)):  # Of two neighbours, both.
            times[number] = last
        fronts.note(message, is_behind=bool(log.damages))
        if check is not None:
            check.take(message)
        if message.physical_offset >= step:
            step = message.physical_offset + STEP_BYTES
            yield Progress("log", message.physical_offset - first, total - first)
    times.setdefault(len(log.damages) - 1, last)


def _note_missing(
    store: Inspected, plan: Plan, log: LogCheck, fronts: FrontsOfLog, *, cut: bool
) -> None:
    """Note what is lost behind the end, with files that are missing or with what is cut off."""
    plan.missing_to = log.missing_end()
    if plan.missing_to is not None and plan.cut_at is None:
        plan.cut_at, plan.cut_end = log.end_offset, max(log.data_end, log.end_offset)
    if plan.missing_to is not None and plan.cut_end == plan.cut_at:
        plan.cut_problem = "the files behind it are missing"
    plan.is_cut_torn = plan.is_cut_torn and plan.missing_to is None
    safe_to, is_cut_short = store.start.synced_offset or 0, plan.missing_to is None
    if is_cut_short and plan.cut_at is not None and safe_to > max(plan.cut_end, plan.cut_at):
        plan.safe_to = safe_to
    if plan.cut_at is not None and not plan.is_cut_torn:
        kept, cut_off = (fronts.in_front, fronts.behind) if cut else (fronts.all, {})
        for each in said_by(store, log.damages[-1]) if log.damages and not cut else ():
            queue = each.topic, each.queue_id
            if each.queue_offset == kept.get(queue, _NO_FRONT).next_offset:
                cut_off[queue] = Front(each.queue_offset + each.count, plan.cut_at)
        plan.lost = list(lost_messages(store, plan.cut_at, kept, cut_off))


def _decide(
    plan: Plan,
    log: LogCheck,
    lost: dict[int, list[Lost]],
    times: dict[int, int],
    *,
    cut: bool,
) -> None:
    if cut and log.damages:
        damage = log.damages[0]
        plan.cut_at, plan.cut_end = damage.start, max(log.data_end, damage.end)
        plan.cut_problem = damage.problem
        plan.end_offset = damage.start
        return
    plan.records_cut = 0
    for number, damage in enumerate(log.damages):
        if damage.is_last:
            plan.cut_at, plan.cut_end = damage.start, max(log.data_end, damage.end)
            plan.cut_problem = damage.problem
        else:
            plan.steps.append(StepOver(damage, lost.get(number, []), times.get(number, 0)))
    if log.torn_problem is not None:
        plan.cut_at, plan.cut_end = log.end_offset, log.data_end
        plan.cut_problem = log.torn_problem
        plan.records_cut = log.torn_records
        plan.is_cut_torn = True


def carry_out(store: Inspected, plan: Plan, process_id: int) -> list[str]:
    """Do what was planned; the caller holds the store's lock. Returns where bytes were kept."""
    if plan.blocks and plan.accepts_blocks:
        accept_blocks(store, plan.blocks)
    with closing(
        load_segments(store.filesystem, store.root, store.config, store.checkpoint)
    ) as segments:
        kept = [] if plan.is_log_kept else _mend_log(store, segments, plan, process_id)
        if not store.is_clean:  # What is sound now may be what an earlier repair did not sync.
            sync_again(store.filesystem, segments, store.start.scan_from, segments.end_offset)
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
    # A record without a body looks sound, whatever of it is there: what makes it one comes last.
    _write(segments, [(at, bytes(_HEAD_SIZE) + data[_HEAD_SIZE:]) for at, data in records])
    _write(segments, [(at, data[:_HEAD_SIZE]) for at, data in records])
    if cut is not None:
        cut_behind(filesystem, root, segments, cut)
    return kept


def _write(segments: Segments, pieces: list[tuple[int, bytes]]) -> None:
    """Write some bytes to their places in the log, and sync that."""
    files: dict[int, File] = {}
    for offset, data in pieces:
        segment = segments.at(offset)
        assert segment is not None, offset
        files[segment.start] = file = segments.file(segment)
        file.write(data, offset - segment.start)
    for file in files.values():
        file.sync()


def _synced_to(store: Inspected, plan: Plan) -> int:
    """Return how far the log is promised then: no further than before, where that was noted.

    What the process wrote last that was killed is for the next start to judge, and to sync. A log
    whose first files are given up begins where the others do.
    """
    end = plan.end_offset if plan.cut_at is None else min(plan.cut_at, plan.end_offset)
    start = store.start
    if start.synced_offset is None:
        return end
    return max(store.segments.first_offset, min(start.synced_offset, end))


def _mark(store: Inspected, segments: Segments, plan: Plan, process_id: int) -> None:
    """Have the next start read the log back from in front of what is changed."""
    if not (store.is_clean or store.start.is_noted):
        write_again(store.filesystem, segments, store.start.scan_from, _synced_to(store, plan))
    filesystem, root, checkpoint = store.filesystem, store.root, store.checkpoint
    starts = [each.start for each in plan.changed]
    if plan.cut_at is not None:
        starts.append(plan.cut_at)
    first = store.segments.first_offset
    recover_from = max(first, min([*starts, store.start.replay_from]))
    if checkpoint.claims is None and not store.is_clean:
        recover_from = first  # Of Apache's index nobody knows how far it was synced.
    # Of Apache's the files themselves tell.
    are_noted = not checkpoint.is_of_others or checkpoint.last_claims is not None
    sizes = store.sizes if are_noted else None
    claims = Claims(
        recover_from=recover_from,
        verify_from=recover_from,
        synced_offset=_synced_to(store, plan),
        segment_size=store.segments.size,
        ours_from=min(store.start.ours_from, plan.end_offset),
        # What takes the place of damaged bytes has no checksum of its own.
        checked_from=NEVER if store.start.checked_from == NEVER else plan.end_offset,
        queue_file_size=None if sizes is None else sizes.queue_file,
        batch_queue_file_size=None if sizes is None else sizes.batch_queue_file,
        index_shape=sizes.index_shape if sizes is not None and store.is_index_shape_known else None,
    )
    # Without timestamps Apache makes the index, and with it the queues, anew from the beginning.
    longs = Longs(
        master_flushed_offset=min(checkpoint.longs.master_flushed_offset, claims.synced_offset)
    )
    _keep_ends(store, plan)
    file = CheckpointFile(filesystem, f"{root}/{CHECKPOINT_NAME}")
    if store.is_clean and not store.start.is_noted:
        # In front of the mark: behind it all from the damage on would pass for a torn tail.
        reached = max(plan.end_offset, plan.cut_end, plan.missing_to or 0)
        file.write(longs, replace(claims, synced_offset=reached))
    mark_running(filesystem, root, process_id)
    file.write(longs, claims)
    file.close()
    folder = f"{root}/{INTEGRITY_FOLDER}"
    if filesystem.exists(folder):
        Integrity(filesystem, folder, store.segments.size).drop(min(starts))


def _keep_ends(store: Inspected, plan: Plan) -> None:
    """Let the list of where the queues end say what is true of their files, and of the log.

    What is stepped over leaves the files as they are: the next start makes their entries anew.
    """
    filesystem, root, cut_at = store.filesystem, store.root, plan.cut_at
    kept = {
        key: end
        for key, end in store.ends.items()
        if cut_at is None or end.physical_offset < cut_at
    } | ends_to_keep(plan.lost)
    if kept != store.ends:
        save_queue_ends(filesystem, root, kept, store.sizes)
    elif store.checkpoint.is_of_others:
        # Of before another program wrote: with the new checkpoint it would be believed again.
        remove_queue_ends(filesystem, root)
