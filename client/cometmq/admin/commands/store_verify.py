"""`cometmq store verify`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.admin.commands.store import look_at, store_command
from cometmq.admin.render import count_text, progress_bar, say, show_facts, show_json, size_text
from cometmq.store.checking.verify import verify as run_verify
from cometmq.store.looking.findings import Kind, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.looking.findings import Finding

SHOWN_MAX: Final = 50
"""How many findings are shown in full by default."""
KEPT_MAX: Final = 100_000
"""How many findings JSON output has by default."""
_IN_NO_QUEUE: Final = {Kind.OFFSET_TWICE, Kind.OUT_OF_REACH}
"""Findings about messages that no command can put back into their queue."""


@click.command(short_help="Check every record, queue entry, index item and block.")
@store_command
@click.option(
    "--max",
    "findings_max",
    type=click.IntRange(min=1),
    help="Print at most this many findings, each in full, and count the rest.  [default: 50, and of"
    " similar ones the first three; all with --json]",
)
@click.pass_context
def verify(
    context: click.Context,
    root: str,
    as_json: bool,
    index_slots: int | None,
    index_items: int | None,
    findings_max: int | None,
) -> None:
    """Check every record, queue entry, index item and block, and say exactly what is wrong.

    Each finding is one line: its kind, the file, the byte, the message, what is there and what
    should be. Of many findings of one kind about one queue or file the first are shown and the
    others counted. The last line says what to do first. The exit status is 1 if there is any.

    A torn tail, as a killed broker leaves it, is not a finding: the next start deals with it.

    Nothing is changed, and a broker may be running: what it has not yet written to the disk is left
    out. If it removes a file that is about to be read, not everything can be checked; a note says
    so, and the exit status is 1.

    \b
    Examples:
      cometmq store verify ./cometmq-data
      cometmq store verify --max 1000 ~/store
      cometmq store verify --json ./cometmq-data | jq '.findings[].path'
    """
    began = time.monotonic()
    inspected = look_at(context, root, index_slots, index_items)
    report = Report(findings_max or KEPT_MAX * as_json)
    with progress_bar() as bar:
        bar.follow(run_verify(inspected, report))
    seconds = time.monotonic() - began
    if as_json:
        show_json(_document(inspected.root, report, seconds))
    else:
        for line in _finding_lines(report, findings_max):
            say(line)
        if not report.is_sound:
            click.echo()
        show_facts(_facts(inspected.root, report, seconds))
    if not (report.is_sound and report.is_complete):
        raise click.exceptions.Exit(1)


def _facts(root: str, report: Report, seconds: float) -> Iterator[tuple[str, str]]:
    size = report.log_bytes
    yield "store", root
    yield (
        "log",
        f"{count_text(report.records, 'record')},"
        f" offsets {report.first_offset} to {report.end_offset},"
        f" {size_text(size)} in {seconds:.1f} s ({size / max(seconds, 1e-9) / 1e6:.0f} MB/s)",
    )
    yield (
        "checked",
        f"{count_text(report.entries, 'queue entry')}, {count_text(report.items, 'index item')},"
        f" {count_text(report.blocks, 'block')}",
    )
    if report.unsettled_entries or report.unsettled_items:
        yield (
            "left out",
            f"{report.unsettled_entries} entries and {report.unsettled_items} items that the"
            " next start rebuilds",
        )
    if report.records_of_deleted_topics:
        yield "deleted", f"{report.records_of_deleted_topics} records of topics that are gone"
    for note in report.notes:
        yield "note", note
    if report.is_sound:
        yield "result", "sound" if report.is_complete else "nothing found, but not all was checked"
    else:
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items())
        yield "result", f"{count_text(report.found, 'finding')}: {kinds}"
        yield "next", _next_step(shlex.quote(root), report)


def _finding_lines(report: Report, findings_max: int | None) -> Iterator[str]:
    """Yield the lines for findings: up to `findings_max` one by one, or similar ones together."""
    told = shown = 0
    if findings_max is not None:
        yield from map(str, report.findings)
        told = len(report.findings)
    for alike in report.alike.values() if findings_max is None else ():
        if shown >= SHOWN_MAX:
            break
        yield from map(str, alike.first)
        if alike.count > len(alike.first):
            yield alike.rest_text()
        shown += len(alike.first)
        told += alike.count
    if report.found > told:
        yield f"... and {report.found - told} more"


def _next_step(root: str, report: Report) -> str:
    """Return what to do first about the findings."""
    kinds = set(report.counts)
    if kinds & {Kind.RECORD, Kind.BLOCK, Kind.LOST_MESSAGE}:
        return (
            "restore the files of the log that are named from a copy; without one, stop the broker"
            f" and run `cometmq store repair --dry-run {root}`"
        )
    for kind in kinds & {Kind.ROCKSDB, Kind.REFUSED}:
        return f"do what it says beside `{kind.value}`, and run this again"
    if Kind.CONFIG_FILE in kinds:
        return "restore the files of config/ that are named from a copy"
    made_by_a_start = {Kind.CHECKPOINT, Kind.QUEUE_ENDS}
    if kinds <= made_by_a_start:
        is_list = Kind.QUEUE_ENDS in kinds
        look = " once all queues are there, as it would not notice a missing one" * is_list
        return f"start the broker{look}: it writes the named files anew"
    steps: list[str] = []
    if kinds & _IN_NO_QUEUE:
        steps.append(
            f"look at the earlier messages with `cometmq store dump {root} --topic"
            f" {_topic_in_no_queue(report)}`, send again what is needed"
        )
    to_rebuild = kinds - made_by_a_start - {Kind.MISPLACED} - _IN_NO_QUEUE
    if to_rebuild or Kind.MISPLACED in kinds:
        steps.append("stop the broker")
    if Kind.MISPLACED in kinds:
        steps.append("move elsewhere what is misplaced")
    if to_rebuild:
        option = "--accept-restarts " * (Kind.OFFSET_TWICE in kinds)
        if report.queues_with_gaps and Kind.OUT_OF_REACH not in kinds:
            steps.append(
                "restore the log from a copy, as messages are missing from it (see the notes):"
                f" without one, `cometmq store rebuild {option}--accept-gaps {root}` puts all"
                " messages before these out of reach"
            )
        else:
            option += "--accept-gaps " * bool(report.queues_with_gaps)
            steps.append(f"run `cometmq store rebuild {option}{root}`")
    return " and ".join(steps)


def _topic_in_no_queue(report: Report) -> str | None:
    return next(each.last.topic for (kind, _), each in report.alike.items() if kind in _IN_NO_QUEUE)


def _document(root: str, report: Report, seconds: float) -> dict[str, Any]:
    return {
        "store": root,
        "sound": report.is_sound and report.is_complete,
        "complete": report.is_complete,
        "found": report.found,
        "counts": {kind.value: count for kind, count in report.counts.items()},
        "findings": [_finding(finding) for finding in report.findings],
        "notes": report.notes,
        "first_offset": report.first_offset,
        "end_offset": report.end_offset,
        "records": report.records,
        "log_bytes": report.log_bytes,
        "torn_bytes": report.torn_bytes,
        "torn_records": report.torn_records,
        "entries": report.entries,
        "items": report.items,
        "blocks": report.blocks,
        "unsettled_entries": report.unsettled_entries,
        "unsettled_items": report.unsettled_items,
        "records_of_deleted_topics": report.records_of_deleted_topics,
        "seconds": round(seconds, 3),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "path": finding.path,
        "position": finding.position,
        "physical_offset": finding.physical_offset,
        "topic": finding.topic,
        "queue_id": finding.queue_id,
        "queue_offset": finding.queue_offset,
        "problem": finding.problem,
        "expected": finding.expected or None,
    }
