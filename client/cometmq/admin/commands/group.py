"""`cometmq group`: consumer groups of a CometMQ or Apache cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.with_client import (
    client_command,
    iso_time,
    json_option,
    show_changes,
)
from cometmq.admin.render import ask, count_text, show_documents, show_done, warn

if TYPE_CHECKING:
    from cometmq.client import Client, QueueProgress


@click.group(short_help="List, create, inspect and delete consumer groups.")
def group() -> None:
    """List, create, inspect and delete consumer groups, on CometMQ or Apache RocketMQ.

    \b
      cometmq group list
      cometmq group members billing    who consumes now
      cometmq group progress billing   how far it has come in each queue
    """


@group.command("list", short_help="List the groups.")
@click.option("-a", "--all", "everything", is_flag=True, help="Include those of the system.")
@json_option
@client_command
async def list_groups(mq: Client, *, everything: bool, as_json: bool) -> None:
    """List the groups; with --all also those that brokers and tools use themselves."""
    documents = [
        {
            "group": each.name,
            "max_retries": each.max_retries,
            "enabled": each.is_enabled,
            "brokers": list(each.brokers),
        }
        for each in await mq.admin.groups()
        if everything or not each.is_system
    ]
    columns = {"group": "group", "max_retries": "#retries"}
    columns |= {"enabled": "enabled", "brokers": "brokers"}
    show_documents(documents, columns, as_json=as_json)


@group.command("create", short_help="Create the group NAME, or change it.")
@click.argument("name")
@click.option(
    "--max-retries",
    type=int,
    help="Retries before a message becomes a dead letter; 16 for a new group.",
)
@click.option("--enabled/--disabled", default=None, help="Whether the group gets messages.")
@click.option(
    "--ordered/--unordered", default=None, help="Whether its members may consume in order."
)
@click.option("--broker", help="Only on the broker with this name.")
@json_option
@client_command
async def create(
    mq: Client,
    *,
    name: str,
    max_retries: int | None,
    enabled: bool | None,
    ordered: bool | None,
    broker: str | None,
    as_json: bool,
) -> None:
    """Create the group NAME on every broker; if it exists, change only what is named here.

    Brokers make a group by themselves, unless told not to, when its first member comes.
    """
    done = await mq.admin.create_group(
        name, max_retries=max_retries, enabled=enabled, ordered=ordered, broker=broker
    )
    show_changes({"group": name}, done, as_json=as_json)


@group.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_command
async def delete(mq: Client, *, name: str, yes: bool, as_json: bool) -> None:
    """Delete the group NAME with its offsets, on all brokers."""
    members = await mq.admin.group_members(name)
    if not yes:
        ask(f"Delete {name}, which has {count_text(len(members), 'member')}?", as_json=as_json)
    await mq.admin.delete_group(name)
    show_done(f"{name} is deleted", {"group": name, "members": len(members)}, as_json=as_json)


@group.command("members")
@click.argument("name")
@json_option
@client_command
async def members(mq: Client, *, name: str, as_json: bool) -> None:
    """Show who consumes as the group NAME now, and what."""
    documents = [
        {
            "client": each.client_id,
            "address": each.address,
            "language": each.language,
            "version": each.version,
            "subscriptions": dict(each.subscriptions),
        }
        for each in await mq.admin.group_members(name)
    ]
    if not documents and not as_json:
        warn(f"{name} has no member at the moment")
        return
    columns = ("client", "address", "language", "version", "subscriptions")
    show_documents(documents, {each: each for each in columns}, as_json=as_json)


@group.command("progress", short_help="Show how far the group NAME has come, and its lag.")
@click.argument("name")
@click.option("-t", "--topic", help="Only for this topic.")
@json_option
@client_command
async def progress(mq: Client, *, name: str, topic: str | None, as_json: bool) -> None:
    """Show how far the group NAME has come in each queue, and how much it lags behind."""
    show_progress(name, await mq.admin.group_progress(name, topic), as_json=as_json)


def show_progress(group: str, found: list[QueueProgress], *, as_json: bool) -> None:
    """Show a group's progress; if it has no offsets, say so."""
    if not found and not as_json:
        click.echo(f"{group} has no offsets there: it has consumed nothing, or they were lost")
        return
    documents = [
        {
            "topic": each.queue.topic,
            "broker": each.queue.broker,
            "queue": each.queue.id,
            "offset": each.offset,
            "end_offset": each.end_offset,
            "lag": each.lag,
            "consumed_at": iso_time(each.consumed_at),
        }
        for each in found
    ]
    columns = {"topic": "topic", "broker": "broker", "queue": "#queue", "offset": "#offset"}
    columns |= {"end_offset": "#end", "lag": "#lag", "consumed_at": "consumed up to"}
    show_documents(documents, columns, as_json=as_json)
    if not as_json:
        click.echo(f"{count_text(sum(each.lag for each in found), 'message')} behind")
