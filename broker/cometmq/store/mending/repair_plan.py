"""Planning the repair of a log: what `repairing` would do to it, without changing anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.checking.block_check import BLOCKS_A_STEP, sealed_blocks
from cometmq.store.checking.head_check import HeadCheck
from cometmq.store.looking.findings import Progress
from cometmq.store.looking.log_check import Damage, LogCheck
from cometmq.store.mending.log_fronts import FrontsOfLog
from cometmq.store.mending.lost_in_damage import LostInDamage, said_by
from cometmq.store.mending.lost_messages import Front, LostMessages, lost_messages
from cometmq.store.upkeep.integrity import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.inspection import Inspected
    from cometmq.store.mending.placeholders import Lost

STEP_BYTES: Final = 4 << 20
_NO_FRONT: Final = Front(0, 0)


class StepOver(NamedTuple):
    """A damaged range, to be replaced by records that say so."""

    damage: Damage
    lost: list[Lost]
    """The messages that are known to have been there."""
    store_timestamp: int
    """That of the next sound record."""


@dataclass(slots=True)
class Plan:
    """What a repair will do."""

    steps: list[StepOver] = field(default_factory=list[StepOver])
    heads: list[Damage] = field(default_factory=list[Damage])
    """Sound records whose topic, queue or number will be written right."""
    cut_at: int | None = None
    """Where the log will end, if anything is cut off."""
    cut_end: int = 0
    cut_problem: str = ""
    is_cut_torn: bool = False
    """Whether the cut is of a torn tail, which the next start would cut as well."""
    records_cut: int = 0
    """Sound records after the cut, or in a torn tail."""
    end_offset: int = 0
    blocks: list[Block] = field(default_factory=list[Block])
    """Sealed blocks with only a wrong checksum: every record in them is sound by itself."""
    doubted: list[Block] = field(default_factory=list[Block])
    """Such blocks with, or after, something that is mended, so that their checksums are dropped."""
    accepts_blocks: bool = False
    """Whether the checksums of `blocks` are rebuilt from what is there."""
    missing_to: int | None = None
    """How far the log went, if files at its end are missing."""
    safe_to: int | None = None
    """How far it was known to be on the disk, if zeros follow a cut up to there."""
    lost: list[LostMessages] = field(default_factory=list[LostMessages])
    """What the queues have of messages after a cut that is not of a torn tail."""
    gone: list[str] = field(default_factory=list[str])
    """Topics in the log that another program deleted without a mark."""

    @property
    def missing_size(self) -> int:
        """Bytes of the log that are lost with its missing files."""
        here = max(self.cut_end, self.end_offset)
        return 0 if self.missing_to is None else max(0, self.missing_to - here)

    @property
    def blank_size(self) -> int:
        """Bytes after the cut that were safe, and are now zeros."""
        return 0 if self.safe_to is None else self.safe_to - max(self.cut_end, self.end_offset)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.is_log_kept and not (self.blocks and self.accepts_blocks)

    @property
    def is_tail_only(self) -> bool:
        """Whether nothing is done to the log that the next start would not do."""
        return self.is_cut_torn and not (self.steps or self.heads)

    @property
    def is_log_kept(self) -> bool:
        """Whether no byte of the log changes."""
        return not (self.steps or self.heads) and self.cut_at is None

    @property
    def changed(self) -> list[Damage]:
        """What is changed before a cut."""
        return [*self.heads, *(step.damage for step in self.steps)]


def make_plan(store: Inspected, plan: Plan, *, cut: bool) -> Iterator[Progress]:
    """Read the whole log and plan what to do; with `cut` end the log before damage."""
    log, fronts = LogCheck(store), FrontsOfLog(store)
    check = None if cut else HeadCheck(store)
    yield from _read(store, log, fronts, check)
    if check is not None:
        heads = check.finish(log)
        plan.heads = [head for head in heads.values() if head.truth is not None]
        if heads := fronts.beside(log.damages) | heads:
            log, fronts = LogCheck(store, wrong_heads=heads), FrontsOfLog(store)
            yield from _read(store, log, fronts, None)
    plan.records_cut = fronts.records_behind
    lost = LostInDamage(store, log.damages, fronts.gaps, fronts.all).lost
    plan.end_offset = log.end_offset
    _decide(plan, log, lost, fronts.times, cut=cut)
    plan.gone = fronts.topics_gone()
    fronts.add_placeholders(plan.steps)
    _note_missing(store, plan, log, fronts, cut=cut)
    changed_from = min([each.start for each in plan.changed], default=plan.cut_at)
    first, total = store.segments.first_offset, store.segments.end_offset
    for number, block in enumerate(sealed_blocks(store, plan.end_offset)):
        # No checksum stays after the first damage that is mended.
        is_kept = changed_from is None or block.physical_offset + block.size <= changed_from
        if block.is_sound is False and is_kept:
            plan.blocks.append(block)
        elif block.is_sound is False and _is_doubted(plan, block, store.start.checked_from):
            plan.doubted.append(block)
        if number % BLOCKS_A_STEP == 0:
            yield Progress("blocks", block.physical_offset - first, total - first)


def _is_doubted(plan: Plan, block: Block, checked_from: int) -> bool:
    """Whether anything stays in a block that only its checksum, which is wrong, covers.

    What ruined a record may have begun in the properties of the previous one. If heads in the block
    are written right, these explain the wrong checksum.
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
    """Read the whole log, and note when the first record after each damage was stored."""
    first, total = store.segments.first_offset, store.segments.end_offset
    times, step, last = fronts.times, first + STEP_BYTES, 0
    for message in log:
        last = message.store_timestamp
        for number in range(len(times), len(log.damages)):  # Both of two neighbours.
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
    """Note what is lost after the end, with missing files or with what is cut off."""
    plan.missing_to = log.missing_end()
    if plan.missing_to is not None and plan.cut_at is None:
        plan.cut_at, plan.cut_end = log.end_offset, max(log.data_end, log.end_offset)
    if plan.missing_to is not None and plan.cut_end == plan.cut_at:
        plan.cut_problem = "the files after it are missing"
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
