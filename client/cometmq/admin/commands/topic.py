"""`cometmq topic`: topics of a CometMQ or Apache cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from cometmq.admin.commands.with_client import (
    NO_BROKER,
    client_command,
    iso_time,
    json_option,
    read_pairs,
    show_changes,
)
from cometmq.admin.render import ask, count_text, show_documents, show_done

if TYPE_CHECKING:
    from cometmq.client import Client


@click.group(short_help="List, create, inspect and delete topics.")
def topic() -> None:
    """List, create, inspect and delete topics, on CometMQ or Apache RocketMQ.

    \b
      cometmq topic create orders --queues 8
      cometmq topic status orders     how many messages each queue has
      cometmq topic route orders      on which brokers it is
    """


@topic.command("list")
@click.option(
    "-a", "--all", "everything", is_flag=True, help="Include those of the system and of groups."
)
@json_option
@client_command
async def list_topics(mq: Client, *, everything: bool, as_json: bool) -> None:
    """List the topics.

    Those of the system, and those for retries and dead letters of groups, are left out without
    --all.
    """
    known = await mq.admin.topics()
    if not known and not await mq.admin.brokers():  # Every broker has some topics.
        raise click.ClickException(NO_BROKER.format("the name server"))
    found = [each for each in known if everything or each.kind == "user"]
    documents = [{"topic": each.name, "kind": each.kind} for each in found]
    if as_json or everything:
        show_documents(documents, {"topic": "topic", "kind": "kind"}, as_json=as_json)
    else:
        for each in found:
            click.echo(each.name)


@topic.command("create", short_help="Create the topic NAME, or change it.")
@click.argument("name")
@click.option("-q", "--queues", type=int, help="Queues on each broker; 8 for a new topic.")
@click.option(
    "--permission",
    type=click.Choice(["rw", "r", "w"]),
    help="What clients may do: read (r), write (w) or both.",
)
@click.option("--broker", help="Only on the broker with this name.")
@click.option("--ordered/--unordered", default=None, help="Mark it as a topic whose order matters.")
@click.option(
    "--attribute",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="An attribute such as message.type=FIFO; repeatable.",
)
@json_option
@client_command
async def create(
    mq: Client,
    *,
    name: str,
    queues: int | None,
    permission: Literal["rw", "r", "w"] | None,
    broker: str | None,
    ordered: bool | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create the topic NAME on every broker; if it exists, change only what is named here.

    Queues are what the members of a group share: as many members at most have work. More can be
    added later; fewer lose nothing, but those beyond are not read any more.
    """
    attributes = read_pairs("--attribute", pairs)
    done = await mq.admin.create_topic(
        name,
        queues=queues,
        permission=permission,
        broker=broker,
        ordered=ordered,
        attributes=attributes,
    )
    show_changes({"topic": name}, done, as_json=as_json)


@topic.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_command
async def delete(mq: Client, *, name: str, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME, with its messages, on all brokers."""
    status = await mq.admin.topic_status(name)
    count = sum(each.message_count for each in status)
    if not yes:
        ask(f"Delete {name} with its {count_text(count, 'message')}?", as_json=as_json)
    await mq.admin.delete_topic(name)
    show_done(f"{name} is deleted", {"topic": name, "messages": count}, as_json=as_json)


@topic.command("route", short_help="Show on which brokers the topic NAME is.")
@click.argument("name")
@json_option
@client_command
async def route(mq: Client, *, name: str, as_json: bool) -> None:
    """Show on which brokers the topic NAME is, and how many queues it has there."""
    documents = [
        {
            "broker": each.broker,
            "cluster": each.cluster,
            "addresses": {str(number): each.addresses[number] for number in sorted(each.addresses)},
            "read_queues": each.read_queues,
            "write_queues": each.write_queues,
            "permission": each.permission,
        }
        for each in await mq.admin.route(name)
    ]
    columns = {"broker": "broker", "cluster": "cluster", "addresses": "addresses by id"}
    columns |= {"read_queues": "#read queues", "write_queues": "#write queues"}
    columns |= {"permission": "permission"}
    show_documents(documents, columns, as_json=as_json)


@topic.command("status", short_help="Show where the queues of the topic NAME begin and end.")
@click.argument("name")
@json_option
@client_command
async def status(mq: Client, *, name: str, as_json: bool) -> None:
    """Show the queues of the topic NAME: where each begins and ends, and when the last came."""
    found = await mq.admin.topic_status(name)
    documents = [
        {
            "broker": each.queue.broker,
            "queue": each.queue.id,
            "first_offset": each.first_offset,
            "end_offset": each.end_offset,
            "messages": each.message_count,
            "stored_at": iso_time(each.stored_at),
        }
        for each in found
    ]
    columns = {"broker": "broker", "queue": "#queue", "first_offset": "#first"}
    columns |= {"end_offset": "#end", "messages": "#messages", "stored_at": "last stored"}
    show_documents(documents, columns, as_json=as_json)
    if not as_json:
        click.echo(count_text(sum(each.message_count for each in found), "message"))
