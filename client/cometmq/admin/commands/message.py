"""`cometmq message`: finding messages of a cluster, ours or Apache's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.with_client import (
    body_text,
    client_command,
    json_option,
    message_document,
    message_line,
)
from cometmq.admin.render import show_facts, show_json
from cometmq.client import NotFoundError

if TYPE_CHECKING:
    from cometmq.client import Client, ReceivedMessage


@click.group()
def message() -> None:
    """Find messages, of CometMQ and of Apache RocketMQ.

    \b
      cometmq message find orders o-17          by key, or by the id that a send gave
      cometmq message show 7F0000010000...      by the offset id, which says where it lies
    """


@message.command("find")
@click.argument("topic")
@click.argument("key")
@click.option("-c", "--count", default=32, show_default=True, help="Of each broker.")
@json_option
@client_command
async def find(mq: Client, *, topic: str, key: str, count: int, as_json: bool) -> None:
    """Find the messages of TOPIC that have KEY, or that id, the newest first."""
    found = await mq.admin.find_messages(topic, key, count=count)
    if as_json:
        show_json([message_document(each) for each in found])
        return
    if not found:
        raise click.ClickException(f"{topic} has no message with the key {key}")
    for each in found:
        click.echo(message_line(each))


@message.command("show")
@click.argument("identifier", metavar="ID")
@click.option("-t", "--topic", help="Look for the id that a send gave, in this topic.")
@json_option
@client_command
async def show(mq: Client, *, identifier: str, topic: str | None, as_json: bool) -> None:
    """Show all of one message: by its offset id, or with --topic by the id that a send gave."""
    found = await _one(mq, identifier, topic)
    if as_json:
        show_json(message_document(found))
        return
    show_facts(
        [
            ("topic", found.topic),
            ("queue", f"{found.queue.broker}:{found.queue.id}"),
            ("offset", str(found.offset)),
            ("id", found.id),
            ("offset id", found.offset_id),
            ("keys", " ".join(found.keys) or "-"),
            ("tag", found.tag or "-"),
            ("sent", f"{found.sent_at.isoformat(timespec='milliseconds')} from {found.sent_from}"),
            ("stored", found.stored_at.isoformat(timespec="milliseconds")),
            *((f"property {name}", value) for name, value in sorted(found.properties.items())),
            ("body", body_text(found.body)),
        ]
    )


async def _one(mq: Client, identifier: str, topic: str | None) -> ReceivedMessage:
    if topic is None:
        return await mq.admin.message(identifier)
    found = await mq.admin.find_messages(topic, identifier)
    if not found:
        raise NotFoundError(22, f"no message has the id {identifier}", topic)
    return found[0]
