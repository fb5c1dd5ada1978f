"""`cometmq offset`: offsets of consumer groups on a CometMQ or Apache cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.group import show_progress
from cometmq.admin.commands.with_client import client_command, json_option
from cometmq.admin.parameters import PlaceParameter
from cometmq.admin.render import show_documents, show_done
from cometmq.client import Queue

if TYPE_CHECKING:
    from cometmq.client import Client
    from cometmq.client._admin_groups import ResetTo


@click.group(short_help="Show and move the offsets of consumer groups.")
def offset() -> None:
    """Show and move the offsets of consumer groups, on CometMQ or Apache RocketMQ.

    \b
      cometmq offset show billing orders
      cometmq offset reset billing orders --to first
      cometmq offset reset billing orders --to 2026-11-21T10:00:00+01:00
      cometmq offset set billing orders broker-a 3 17
    """


@offset.command("show", short_help="Show the offset of GROUP in each queue.")
@click.argument("group")
@click.argument("topic", required=False)
@json_option
@client_command
async def show(mq: Client, *, group: str, topic: str | None, as_json: bool) -> None:
    """Show where GROUP goes on in each queue, of TOPIC or of all its topics."""
    show_progress(group, await mq.admin.group_progress(group, topic), as_json=as_json)


_INSTEAD = "; for an offset there is `cometmq offset set GROUP TOPIC BROKER QUEUE OFFSET`"


@offset.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    type=PlaceParameter(_INSTEAD),
    required=True,
    help="Where to continue; UTC without a zone.",
)
@json_option
@client_command
async def reset(mq: Client, *, group: str, topic: str, to: ResetTo, as_json: bool) -> None:
    """Move GROUP to another place in all queues of TOPIC.

    At the first message there is, behind the last, or at the first that was stored at a time or
    later: like 2026-11-21T10:00:00, which is UTC, 2026-11-21T10:00:00+01:00, or milliseconds since
    1970. Members follow at once. An offset of one queue is set by `cometmq offset set`.
    """
    moved = await mq.admin.reset_offsets(group, topic, to)
    documents = [{"broker": each.broker, "queue": each.id, "offset": moved[each]} for each in moved]
    columns = {"broker": "broker", "queue": "#queue", "offset": "#offset"}
    show_documents(documents, columns, as_json=as_json)


@offset.command("set", short_help="Move GROUP to OFFSET in one queue of TOPIC.")
@click.argument("group")
@click.argument("topic")
@click.argument("broker")
@click.argument("queue", type=click.IntRange(0))
@click.argument("number", metavar="OFFSET", type=click.IntRange(0))
@json_option
@client_command
async def set_offset(
    mq: Client, *, group: str, topic: str, broker: str, queue: int, number: int, as_json: bool
) -> None:
    """Have GROUP go on at OFFSET in one queue of TOPIC; a member that has it follows at once."""
    await mq.admin.set_offset(group, Queue(topic, broker, queue), number)
    place = {"topic": topic, "broker": broker, "queue": queue}
    show_done(
        f"{group} goes on at {number} in {topic}@{broker}:{queue}",
        {"group": group, **place, "offset": number},
        as_json=as_json,
    )
