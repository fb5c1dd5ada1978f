"""`cometmq store rebuild`."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.store import clean_root, config_of, store_command
from cometmq.admin.commands.store_mend import taken
from cometmq.admin.render import count_text, progress_bar, show_facts, show_json
from cometmq.store.mending.owned_files import file_system_for
from cometmq.store.mending.rebuilding import Rebuilt, check_rebuildable, rebuild as run_rebuild

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.inspection import Inspected


@click.command()
@store_command
@click.option(
    "--accept-restarts",
    is_flag=True,
    help="If a queue's offsets were given out twice, keep the later messages.",
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="If messages of a queue are missing from the log, keep those after the last gap.",
)
@click.pass_context
def rebuild(
    context: click.Context,
    root: str,
    as_json: bool,
    index_slots: int | None,
    index_items: int | None,
    accept_restarts: bool,
    accept_gaps: bool,
) -> None:
    """Rebuild the ConsumeQueues and the index from the log.

    Use it when `verify` finds wrong entries or items, or after consumequeue/ or index/ was removed.
    The log is only read; if it is damaged, the rebuild refuses it: repair it first. New folders are
    built beside the old ones and each is swapped in in one step, so a kill does no harm; meanwhile
    both need space. Stop the broker first.

    Index files of a wrong size are replaced, too. If no file tells how many slots and items they
    have, --index-slots and --index-items must say what the broker is set to. If you give both, all
    files get that shape, whatever the present ones say.

    A queue whose offsets were given out twice, because its files were once lost, is refused: it can
    hold only the later messages (--accept-restarts). The earlier ones stay in the log.

    A queue is also refused if the log has messages of it before and after a gap: it would begin
    after the last gap, and the sound messages before it would be out of reach (--accept-gaps). A
    single record whose topic, queue or number is damaged makes such a gap; run `repair` first,
    which mends or bridges it if it finds it.

    \b
    Examples:
      cometmq store rebuild ./cometmq-data
      cometmq store rebuild --json ~/store
    """
    began = time.monotonic()
    root = clean_root(root)
    filesystem, rebuilt = context.obj or file_system_for(root), Rebuilt()
    with taken(filesystem, root, config_of(index_slots, index_items)) as found:
        inspected = _with_shape(found, index_slots, index_items)
        check_rebuildable(inspected)
        with progress_bar() as bar:
            now_ms = time.time_ns() // 1_000_000
            bar.follow(
                run_rebuild(
                    inspected,
                    rebuilt,
                    now_ms,
                    accept_restarts=accept_restarts,
                    accept_gaps=accept_gaps,
                )
            )
    seconds = time.monotonic() - began
    if as_json:
        show_json({"store": root, **asdict(rebuilt), "seconds": round(seconds, 3)})
        return
    show_facts(_rebuilt_facts(root, rebuilt, seconds))


def _rebuilt_facts(root: str, rebuilt: Rebuilt, seconds: float) -> Iterator[tuple[str, str]]:
    yield "store", root
    yield "read", f"{count_text(rebuilt.records, 'record')} in {seconds:.1f} s"
    yield "rebuilt", ", ".join(f"{name}/" for name in rebuilt.swapped)
    yield "queues", f"{rebuilt.queues}, with {count_text(rebuilt.entries, 'entry')}"
    if rebuilt.kept_queues:
        yield (
            "taken over",
            f"{count_text(rebuilt.kept_queues, 'queue')} without a message in the log",
        )
    yield "index files", str(rebuilt.index_files)
    for topic, count in sorted(rebuilt.deleted_topics.items()):
        yield "left out", f"{count_text(count, 'record')} of topic {topic}, which was deleted"
    if rebuilt.fillers:
        what = "that a repair put in place of damaged bytes"
        yield "left out", f"{count_text(rebuilt.fillers, 'record')} {what}"
    if rebuilt.left_records:
        what = "not yet safe on the disk: the next start checks whether they follow, and adds them"
        yield "left", f"{count_text(rebuilt.left_records, 'record')} {what}"
    for queue in rebuilt.gaps:
        yield "gap", f"queue {queue} begins after a gap; what is before it is out of reach"


def _with_shape(
    inspected: Inspected, index_slots: int | None, index_items: int | None
) -> Inspected:
    """Give index files the shape that was asked for, whatever the present files have."""
    shape = inspected.config.index_shape
    config = replace(
        inspected.config,
        index_slots=index_slots or shape.slots,
        index_items=index_items or shape.items,
    )
    is_known = inspected.is_index_shape_known or None not in (index_slots, index_items)
    return replace(inspected, config=config, is_index_shape_known=is_known)
