"""`cometmq group`: consumer groups of a cluster, ours or Apache's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.with_client import client_command, iso_time, json_option
from cometmq.admin.render import count_text, show_json, show_table

if TYPE_CHECKING:
    from cometmq.client import Client, QueueProgress


@click.group()
def group() -> None:
    """List, make, delete and look at consumer groups, of CometMQ and of Apache RocketMQ.

    \b
      cometmq group list
      cometmq group members billing    who consumes now
      cometmq group progress billing   how far it has come in each queue
    """


@group.command("list")
@json_option
@client_command
async def list_groups(mq: Client, *, as_json: bool) -> None:
    """List the groups."""
    found = await mq.admin.groups()
    if as_json:
        show_json(
            [
                {
                    "group": each.name,
                    "max_retries": each.max_retries,
                    "enabled": each.is_enabled,
                    "brokers": list(each.brokers),
                }
                for each in found
            ]
        )
        return
    rows = [
        (each.name, each.max_retries, "yes" if each.is_enabled else "no", ", ".join(each.brokers))
        for each in found
    ]
    show_table(["group", "#retries", "enabled", "brokers"], rows)


@group.command("create")
@click.argument("name")
@click.option("--max-retries", default=16, show_default=True, help="Before the dead letters.")
@click.option("--disabled", is_flag=True, help="It gets no messages.")
@click.option("--ordered", is_flag=True, help="Its members may consume in order.")
@click.option("--broker", help="Only on the broker of this name.")
@json_option
@client_command
async def create(
    mq: Client,
    *,
    name: str,
    max_retries: int,
    disabled: bool,
    ordered: bool,
    broker: str | None,
    as_json: bool,
) -> None:
    """Make the group NAME on every broker, or change it where it exists.

    Brokers make a group by themselves, unless told not to, when its first member comes.
    """
    brokers = await mq.admin.create_group(
        name, max_retries=max_retries, enabled=not disabled, ordered=ordered, broker=broker
    )
    if as_json:
        show_json({"group": name, "brokers": brokers})
    else:
        click.echo(f"{name}: on {', '.join(brokers)}")


@group.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_command
async def delete(mq: Client, *, name: str, yes: bool) -> None:
    """Delete the group NAME with its offsets, on all brokers."""
    members = await mq.admin.group_members(name)
    if not yes:
        click.confirm(f"Delete {name}, which has {count_text(len(members), 'member')}?", abort=True)
    await mq.admin.delete_group(name)
    click.echo(f"{name} is deleted")


@group.command("members")
@click.argument("name")
@json_option
@client_command
async def members(mq: Client, *, name: str, as_json: bool) -> None:
    """Show who consumes as the group NAME now, and what."""
    found = await mq.admin.group_members(name)
    if as_json:
        show_json(
            [
                {
                    "client": each.client_id,
                    "address": each.address,
                    "language": each.language,
                    "version": each.version,
                    "subscriptions": dict(each.subscriptions),
                }
                for each in found
            ]
        )
        return
    rows = [
        (
            each.client_id,
            each.address,
            each.language,
            each.version,
            ", ".join(f"{topic}: {each.subscriptions[topic]}" for topic in each.subscriptions),
        )
        for each in found
    ]
    show_table(["client", "address", "language", "version", "subscriptions"], rows)


@group.command("progress")
@click.argument("name")
@click.option("-t", "--topic", help="Only in this topic.")
@json_option
@client_command
async def progress(mq: Client, *, name: str, topic: str | None, as_json: bool) -> None:
    """Show how far the group NAME has come in each queue, and how much it lags behind."""
    show_progress(await mq.admin.group_progress(name, topic), as_json=as_json)


def show_progress(found: list[QueueProgress], *, as_json: bool) -> None:
    """Show how far a group has come."""
    if as_json:
        show_json(
            [
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
        )
        return
    rows = [
        (
            *(each.queue.topic, each.queue.broker, each.queue.id),
            *(each.offset, each.end_offset, each.lag, iso_time(each.consumed_at) or "-"),
        )
        for each in found
    ]
    columns = ["topic", "broker", "#queue", "#offset", "#end", "#lag", "consumed up to"]
    show_table(columns, rows)
    click.echo(f"{count_text(sum(each.lag for each in found), 'message')} behind")
