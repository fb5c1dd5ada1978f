"""`cometmq topic`: topics of a cluster, ours or Apache's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import click

from cometmq.admin.commands.with_client import client_command, iso_time, json_option, read_pairs
from cometmq.admin.render import count_text, show_json, show_table

if TYPE_CHECKING:
    from cometmq.client import Client


@click.group()
def topic() -> None:
    """List, make, delete and look at topics, of CometMQ and of Apache RocketMQ.

    \b
      cometmq topic create orders --queues 8
      cometmq topic status orders     how many messages each queue has
      cometmq topic route orders      on which brokers it is
    """


@topic.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="The system's and groups' own, too.")
@json_option
@client_command
async def list_topics(mq: Client, *, everything: bool, as_json: bool) -> None:
    """List the topics.

    Those of the system, and those for retries and dead letters of groups, are left out without
    --all.
    """
    found = [each for each in await mq.admin.topics() if everything or each.kind == "user"]
    if as_json:
        show_json([{"topic": each.name, "kind": each.kind} for each in found])
    elif everything:
        show_table(["topic", "kind"], [(each.name, each.kind) for each in found])
    else:
        for each in found:
            click.echo(each.name)


@topic.command("create")
@click.argument("name")
@click.option("-q", "--queues", default=8, show_default=True, help="On each broker.")
@click.option(
    "--permission",
    type=click.Choice(["rw", "r", "w"]),
    default="rw",
    show_default=True,
    help="What clients may do: read, write.",
)
@click.option("--broker", help="Only on the broker of this name.")
@click.option("--ordered", is_flag=True, help="Mark it as one whose order matters.")
@click.option(
    "--attribute", "pairs", multiple=True, metavar="NAME=VALUE", help="Such as message.type=FIFO."
)
@json_option
@client_command
async def create(
    mq: Client,
    *,
    name: str,
    queues: int,
    permission: str,
    broker: str | None,
    ordered: bool,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make the topic NAME on every broker, or change it where it exists.

    Queues are what the members of a group share: as many members at most have work. More can be
    added later; fewer lose nothing, but those beyond are not read any more.
    """
    attributes = read_pairs("--attribute", pairs)
    brokers = await mq.admin.create_topic(
        name,
        queues=queues,
        permission=cast("Literal['rw', 'r', 'w']", permission),
        broker=broker,
        ordered=ordered,
        attributes=attributes,
    )
    if as_json:
        show_json({"topic": name, "queues": queues, "brokers": brokers})
    else:
        click.echo(f"{name}: {queues} queues on {', '.join(brokers)}")


@topic.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_command
async def delete(mq: Client, *, name: str, yes: bool) -> None:
    """Delete the topic NAME, with its messages, on all brokers."""
    status = await mq.admin.topic_status(name)
    count = sum(each.message_count for each in status)
    if not yes:
        click.confirm(f"Delete {name} with its {count_text(count, 'message')}?", abort=True)
    await mq.admin.delete_topic(name)
    click.echo(f"{name} is deleted")


@topic.command("route")
@click.argument("name")
@json_option
@client_command
async def route(mq: Client, *, name: str, as_json: bool) -> None:
    """Show on which brokers the topic NAME is, and how many queues it has there."""
    found = await mq.admin.route(name)
    if as_json:
        show_json(
            [
                {
                    "broker": each.broker,
                    "cluster": each.cluster,
                    "addresses": {str(number): each.addresses[number] for number in each.addresses},
                    "read_queues": each.read_queues,
                    "write_queues": each.write_queues,
                    "permission": each.permission,
                }
                for each in found
            ]
        )
        return
    show_table(
        ["broker", "cluster", "address", "#read queues", "#write queues", "permission"],
        [
            (
                each.broker,
                each.cluster,
                ", ".join(each.addresses[number] for number in sorted(each.addresses)),
                each.read_queues,
                each.write_queues,
                each.permission,
            )
            for each in found
        ],
    )


@topic.command("status")
@click.argument("name")
@json_option
@client_command
async def status(mq: Client, *, name: str, as_json: bool) -> None:
    """Show the queues of the topic NAME: where each begins and ends, and when the last came."""
    found = await mq.admin.topic_status(name)
    if as_json:
        documents: list[dict[str, Any]] = [
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
        show_json(documents)
        return
    rows = [
        (
            each.queue.broker,
            each.queue.id,
            each.first_offset,
            each.end_offset,
            each.message_count,
            iso_time(each.stored_at) or "-",
        )
        for each in found
    ]
    columns = ["broker", "#queue", "#first", "#end", "#messages", "last stored"]
    show_table(columns, rows)
    click.echo(count_text(sum(each.message_count for each in found), "message"))
