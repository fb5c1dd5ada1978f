"""`cometmq store repair`."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cometmq.admin.commands.store import clean_root, config_of, store_command
from cometmq.admin.commands.store_mend import seen, taken
from cometmq.admin.render import progress_bar, say, show_json, size_text, warn
from cometmq.store.mending.owned_files import file_system_for
from cometmq.store.mending.repair_plan import Plan, make_plan
from cometmq.store.mending.repairing import carry_out

if TYPE_CHECKING:
    from cometmq.store.looking.inspection import Inspected


@click.command()
@store_command
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Carry the repair out.")
@click.option("--cut", is_flag=True, help="End the log at the first damage; loses all after it.")
@click.option(
    "--accept-blocks",
    is_flag=True,
    help="Accept sealed blocks in which only the block's checksum is wrong.",
)
@click.pass_context
def repair(
    context: click.Context,
    root: str,
    as_json: bool,
    index_slots: int | None,
    index_items: int | None,
    dry_run: bool,
    yes: bool,
    cut: bool,
    accept_blocks: bool,
) -> None:
    """Repair a log that a broker refuses to start on.

    If you have a copy of the store, restore that instead.

    A torn tail is cut off. Damage in the middle is bridged: the messages that were there become
    messages without a body, with the property COMETMQ_LOST, and everything else stays. With --cut
    the log ends before the first damage instead.

    A record whose bytes are sound, but whose topic, queue or number is wrong, gets these back if
    its queue's entry tells them; otherwise it is bridged, too.

    If only the checksum of a sealed block is wrong, and each record in it is sound by its own
    checksum, the block is left alone, and a start still refuses it. Look at its records with
    `cometmq store dump`, then accept it with --accept-blocks.

    Nothing is changed without --yes. Whatever is replaced or cut is kept in DIR/cut/. The next
    start brings the ConsumeQueues and the index up to date. Stop the broker first.

    \b
    Examples:
      cometmq store repair --dry-run ./cometmq-data
      cometmq store repair --yes ./cometmq-data
      cometmq store repair --cut --yes ./cometmq-data
      cometmq store repair --accept-blocks --yes ./cometmq-data
    """
    if dry_run and yes:
        raise click.UsageError("--dry-run and --yes contradict each other")
    root = clean_root(root)
    filesystem = context.obj or file_system_for(root)
    plan, kept = Plan(accepts_blocks=accept_blocks), list[str]()
    config = config_of(index_slots, index_items)
    with (taken if yes else seen)(filesystem, root, config) as inspected:
        with progress_bar() as bar:
            bar.follow(make_plan(inspected, plan, cut=cut))
        if yes:
            kept = carry_out(inspected, plan, os.getpid())
    _show_plan(inspected, plan, kept, is_done=yes, as_json=as_json)
    if not (plan.is_empty or yes or dry_run):
        warn("Nothing was changed. To do this, run it again with --yes.")
        raise click.exceptions.Exit(1)
    if plan.blocks and not accept_blocks:
        warn("Sealed blocks are not what was sealed: restore them from a copy, or accept them as")
        warn("they are with --accept-blocks. Until then a start that reads them refuses the store.")
        raise click.exceptions.Exit(1)


def _show_plan(
    inspected: Inspected, plan: Plan, kept: list[str], *, is_done: bool, as_json: bool
) -> None:
    if as_json:
        show_json(_plan_document(inspected, plan, kept, is_done=is_done))
        return
    if plan.is_empty and not plan.blocks:
        say(f"{inspected.root}: the log is sound; there is nothing to repair")
        return
    will = "" if is_done else "would be "
    _show_blocks(inspected, plan, will)
    for head in plan.heads:
        say(
            f"{will}corrected: the record of {head.end - head.start} bytes at physical offset"
            f" {head.start} is {head.truth} ({head.problem})"
        )
    for step in plan.steps:
        damage = step.damage
        say(
            f"{will}stepped over: {damage.end - damage.start} bytes at physical offset"
            f" {damage.start} ({damage.problem})"
        )
        for lost in step.lost:
            last = lost.queue_offset + lost.count - 1
            span = f"{lost.queue_offset}" if lost.count == 1 else f"{lost.queue_offset} to {last}"
            say(f"  lost: {lost.topic} queue {lost.queue_id} offset {span}")
    if plan.cut_at is not None and plan.cut_end > plan.cut_at:
        what = "torn tail" if plan.is_cut_torn else "end of the log"
        say(
            f"{will}cut off: {size_text(plan.cut_end - plan.cut_at)}, the {what} from physical"
            f" offset {plan.cut_at} ({plan.cut_problem}), with {plan.records_cut} sound records"
        )
    _show_lost(inspected, plan, will)
    for path in kept:
        say(f"kept: {path}")
    if is_done and not (plan.is_tail_only or plan.is_log_kept):
        say("The next start brings the ConsumeQueues and the index in line.")


def _show_blocks(inspected: Inspected, plan: Plan, will: str) -> None:
    """Print which sealed blocks have changed since they were sealed."""
    for block in plan.blocks:
        what = f"{will}accepted" if plan.accepts_blocks else "not accepted"
        say(
            f"{what}: block of {block.size} bytes at physical offset {block.physical_offset}, which"
            " differs from its checksum"
        )
    for block in plan.doubted:
        span = f"{block.physical_offset}..{block.physical_offset + block.size}"
        say(
            f"not checked: what only a block's checksum covers (properties, times) of other records"
            f" in {span}; look at them: `cometmq store dump --physical {span} {inspected.root}`"
        )


def _show_lost(inspected: Inspected, plan: Plan, will: str) -> None:
    """Print what is lost: with the part that is cut off, with zeros, and with missing files."""
    if plan.missing_to is not None:
        size = "all" if plan.missing_to < plan.end_offset else size_text(plan.missing_size)
        is_behind = plan.cut_at is not None and plan.cut_at >= plan.missing_to
        now = "goes on at" if is_behind else "ends at"
        say(
            f"{will}given up: {size} of the log whose files are missing: it went up to physical"
            f" offset {plan.missing_to}, and {now} {plan.cut_at} now; restore them from a copy if"
            " there is one"
        )
    if plan.safe_to is not None:
        say(
            f"{will}given up: {size_text(plan.blank_size)} of the log that is now zeros: it was"
            f" safe on the disk up to physical offset {plan.safe_to}, and ends at {plan.cut_at}"
            " now; restore it from a copy if there is one"
        )
    for each in plan.lost:
        goes_on = each.first_offset if each.has_others else each.next_offset
        say(
            f"  lost: {each.topic} queue {each.queue_id} offset {each.first_offset} to"
            f" {each.next_offset - 1}; the next message gets {goes_on}"
        )
    if any(each.has_others for each in plan.lost):
        say(
            "Offsets are given out again where the log keeps older messages of a queue: reset"
            " the groups that were further on (`cometmq offset reset`)."
        )
    if more := _more_lost(inspected, plan):
        say(more)


def _more_lost(inspected: Inspected, plan: Plan) -> str | None:
    """Say if messages may be lost that were only in the log, without an entry yet."""
    settled = inspected.settled_offset
    if inspected.is_clean or settled is None:
        return None
    if plan.cut_at is not None and not plan.is_cut_torn:
        return (
            "The store was killed: its last messages may have been in the log only, and those"
            " are not named here; their offsets are given out again as well."
        )
    if any(step.damage.end > settled for step in plan.steps):
        return (
            "The store was killed: what is stepped over may have held the last message of a"
            " queue, which nothing else records. Such a message is not named here, and its"
            " offset is given out again."
        )
    return None


def _plan_document(
    inspected: Inspected, plan: Plan, kept: list[str], *, is_done: bool
) -> dict[str, Any]:
    return {
        "store": inspected.root,
        "done": is_done,
        "written_right": [
            {
                "physical_offset": head.start,
                "size": head.end - head.start,
                "problem": head.problem,
                "is": None if head.truth is None else head.truth._asdict(),
            }
            for head in plan.heads
        ],
        "stepped_over": [
            {
                "physical_offset": step.damage.start,
                "size": step.damage.end - step.damage.start,
                "problem": step.damage.problem,
                "lost": [asdict(lost) for lost in step.lost],
            }
            for step in plan.steps
        ],
        "cut_at": plan.cut_at,
        "cut_size": 0 if plan.cut_at is None else plan.cut_end - plan.cut_at,
        "records_cut": plan.records_cut,
        "missing_to": plan.missing_to,
        "missing_size": plan.missing_size,
        "safe_to": plan.safe_to,
        "blank_size": plan.blank_size,
        "lost": [
            {
                "topic": each.topic,
                "queue_id": each.queue_id,
                "first_offset": each.first_offset,
                "next_offset": each.next_offset,
                "goes_on_at": each.first_offset if each.has_others else each.next_offset,
            }
            for each in plan.lost
        ],
        "torn_tail_only": plan.is_tail_only,
        "wrong_blocks": [
            {"physical_offset": block.physical_offset, "size": block.size} for block in plan.blocks
        ],
        "doubted_blocks": [
            {"physical_offset": block.physical_offset, "size": block.size} for block in plan.doubted
        ],
        "blocks_accepted": is_done and plan.accepts_blocks,
        "kept": kept,
    }
