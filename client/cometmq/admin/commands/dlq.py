"""`cometmq dlq`: dead letters of consumer groups, on a CometMQ or Apache cluster."""

from __future__ import annotations

import time
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from cometmq.admin.commands.with_client import (
    client_command,
    cut_option,
    filter_options,
    iso_time,
    json_option,
    message_document,
    until_stopped,
)
from cometmq.admin.options import options
from cometmq.admin.parameters import TimeParameter
from cometmq.admin.render import (
    ask,
    body_text,
    count_text,
    cut_of,
    one_line,
    show_done,
    show_json,
    show_table,
    warn,
)
from cometmq.client import DeadLetterFilter, Redriven

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from cometmq.client import Client, ReceivedMessage, Sql
    from cometmq.client._core.redriving import RedriveTo

Function = TypeVar("Function", bound="Callable[..., Any]")

TOLD_EVERY_SECONDS = 1.0
"""How often a redrive shows its progress."""


@click.group()
def dlq() -> None:
    """Show dead letters, send them again, or delete them.

    \b
      cometmq dlq list
      cometmq dlq show billing --topic orders
      cometmq dlq redrive billing --rate 100 --dry-run
      cometmq dlq purge billing

    A message goes to the dead letters of a group that could not consume it, after as many retries
    as the group allows. To have no retries: cometmq group create billing --max-retries 0. Times are
    printed in UTC, and read as UTC where they have no zone.
    """


def _wanted(function: Function) -> Function:
    """Give a command the options that select dead letters."""

    @wraps(function)
    def run(
        mq: Client,
        *,
        wanted: str | Sql,
        topic: str | None,
        key: str | None,
        ids: tuple[str, ...],
        since: datetime | None,
        until: datetime | None,
        **arguments: Any,
    ) -> Any:
        which = DeadLetterFilter(
            filter=wanted,
            topic=topic,
            key=key,
            ids=frozenset(ids),
            since=since,
            until=until,
        )
        return function(mq, wanted=which, **arguments)

    return filter_options(cast("Function", _WHICH_OPTIONS(run)))


_WHICH_OPTIONS: Final = options(
    click.option("-t", "--topic", help="Only those sent to this topic."),
    click.option("--key", help="Only those with this key."),
    click.option("--id", "ids", multiple=True, help="Only the one with this id; repeatable."),
    click.option(
        "--since",
        type=TimeParameter(),
        help="Dead since this time: ISO 8601 (UTC without a zone), or ms.",
    ),
    click.option("--until", type=TimeParameter(), help="Dead before this time."),
)


@dlq.command("list")
@json_option
@client_command
async def list_groups(mq: Client, *, as_json: bool) -> None:
    """List the groups that have dead letters, and how many."""
    found = await mq.admin.dead_letters.groups()
    if as_json:
        show_json(
            [
                {
                    "group": each.group,
                    "broker": each.broker,
                    "messages": each.count,
                    "last_at": iso_time(each.last_at),
                }
                for each in found
            ]
        )
        return
    rows = [(each.group, each.broker, each.count, iso_time(each.last_at) or "-") for each in found]
    show_table(["group", "broker", "#messages", "last"], rows)


@dlq.command("show", short_help="Show dead letters of GROUP, the oldest first.")
@click.argument("group")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Show at most this many.",
)
@cut_option
@json_option
@client_command
@_wanted
async def show(
    mq: Client,
    *,
    group: str,
    wanted: DeadLetterFilter,
    count: int,
    cut: int | None,
    as_json: bool,
) -> None:
    """Show dead letters of GROUP, the oldest first; the time is when they died, in UTC."""
    found = await mq.admin.dead_letters.show(group, wanted, count=count)
    if as_json:
        show_json([message_document(each) for each in found])
        return
    for each in found:
        click.echo(_line(each, cut_of(cut)))
    warn(count_text(len(found), "dead letter"))


@dlq.command("redrive")
@click.argument("group")
@click.option(
    "--to",
    type=click.Choice(["group", "topic"]),
    default="group",
    show_default=True,
    help="Send them to the group alone, or to all groups of their topic.",
)
@click.option("--rate", type=float, metavar="N", help="Send at most this many a second.")
@click.option("--dry-run", is_flag=True, help="Send nothing; show what would be sent.")
@json_option
@client_command
@_wanted
async def redrive(
    mq: Client,
    *,
    group: str,
    wanted: DeadLetterFilter,
    to: str,
    rate: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send dead letters of GROUP again, each once.

    \b
      cometmq dlq redrive billing --dry-run
      cometmq dlq redrive billing --rate 50 --topic orders --since 2026-11-21T10:00:00
      cometmq dlq redrive billing --to topic      for groups that consume in order

    It may be interrupted and run again, also with other options: what was sent, to the group or to
    the topic, is not sent a second time to either. Dead letters stay until they expire, or
    `cometmq dlq purge`.
    """
    shown = Redriven()
    told_at = time.monotonic()
    total = sum(each.count for each in await mq.admin.dead_letters.groups() if each.group == group)

    def watch(redriven: Redriven) -> None:
        nonlocal shown, told_at
        shown = redriven
        if time.monotonic() - told_at >= TOLD_EVERY_SECONDS:
            told_at = time.monotonic()
            warn(f"{_told(redriven, dry_run=dry_run)}, of {count_text(total, 'dead letter')}")

    is_whole = False
    async with until_stopped():
        await mq.admin.dead_letters.redrive(
            group, wanted, to=cast("RedriveTo", to), rate=rate, dry_run=dry_run, watch=watch
        )
        is_whole = True
    if as_json:
        show_json(
            {
                "group": group,
                "dry_run": dry_run,
                "complete": is_whole,
                "sent": shown.sent,
                "earlier": shown.earlier,
                "failed": [{"id": each, "reason": why} for each, why in shown.failed],
            }
        )
    else:
        click.echo(_told(shown, dry_run=dry_run))
    for each, why in shown.failed:
        warn(f"{each}: {why}")
    if shown.failed:
        raise SystemExit(1)
    if not is_whole:
        raise click.ClickException("interrupted; run it again to go on")


@dlq.command("purge")
@click.argument("group")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_command
async def purge(mq: Client, *, group: str, yes: bool, as_json: bool) -> None:
    """Throw all dead letters of GROUP away, on all brokers."""
    count = sum(each.count for each in await mq.admin.dead_letters.groups() if each.group == group)
    if not count:
        await mq.admin.dead_letters.show(group, count=1)  # Raises if no broker knows the group.
        nothing = {"group": group, "thrown_away": 0}
        show_done(f"{group} has no dead letters", nothing, as_json=as_json)
        return
    if not yes:
        ask(f"Throw {count_text(count, 'dead letter')} of {group} away?", as_json=as_json)
    count = await mq.admin.dead_letters.purge(group)
    show_done(
        f"{count_text(count, 'dead letter')} of {group} thrown away",
        {"group": group, "thrown_away": count},
        as_json=as_json,
    )


def _told(redriven: Redriven, *, dry_run: bool) -> str:
    parts = [f"{redriven.sent} {'would be sent' if dry_run else 'sent'}"]
    if redriven.earlier:
        parts.append(f"{redriven.earlier} were sent before")
    if redriven.failed:
        parts.append(f"{len(redriven.failed)} refused")
    return ", ".join(parts)


def _line(message: ReceivedMessage, cut: int) -> str:
    """Describe a dead letter on one line: when it died, its origin, and its contents."""
    about = [f"{message.stored_at:%Y-%m-%dT%H:%M:%SZ}", message.topic, message.id]
    about.append(f"{message.attempt - 1}x")
    if message.tag:
        about.append(f"[{message.tag}]")
    if message.keys:
        about.append(" ".join(message.keys))
    return f"{one_line('  '.join(about))}  {body_text(message.body, cut)}"
