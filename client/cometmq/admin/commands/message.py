"""`cometmq message`: finding messages on a CometMQ or Apache cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cometmq.admin.commands.with_client import (
    client_command,
    cut_option,
    iso_time,
    json_option,
    message_document,
    message_line,
)
from cometmq.admin.parameters import TimeParameter
from cometmq.admin.render import body_text, cut_of, show_facts, show_json, show_table
from cometmq.client._core.trace_format import TRACE_TOPIC

if TYPE_CHECKING:
    from datetime import datetime

    from cometmq.client import Client


@click.group()
def message() -> None:
    """Find messages, on CometMQ or Apache RocketMQ.

    \b
      cometmq message find orders o-17          by key, or by the id that a send gave
      cometmq message show 7F0000010000...      by the id that a send gave, or the offset id
      cometmq message trace 7F0000010000...     who sent and consumed it, as far as it was traced
    """


@message.command("find", short_help="Find the messages of TOPIC that have KEY, or that id.")
@click.argument("topic")
@click.argument("key")
@click.option(
    "-c", "--count", default=32, show_default=True, help="At most this many from each broker."
)
@click.option(
    "--since",
    type=TimeParameter(),
    help="Stored at or after this time: ISO 8601 (UTC without a zone), or ms.",
)
@click.option("--until", type=TimeParameter(), help="Stored before this time.")
@cut_option
@json_option
@client_command
async def find(
    mq: Client,
    *,
    topic: str,
    key: str,
    count: int,
    since: datetime | None,
    until: datetime | None,
    cut: int | None,
    as_json: bool,
) -> None:
    """Find the messages of TOPIC that have KEY, or that id, the newest first."""
    found = await mq.admin.find_messages(topic, key, since=since, until=until, count=count)
    if not found:
        await mq.admin.route(topic)  # Raises if the topic does not exist.
    if as_json:
        show_json([message_document(each) for each in found])
        return
    if not found:
        then = " in that time" if since or until else ""
        raise click.ClickException(f"{topic} has no message with the key {key}{then}")
    for each in found:
        click.echo(message_line(each, cut_of(cut)))


@message.command("show", short_help="Show all of one message, by its id.")
@click.argument("identifier", metavar="ID")
@click.option("-t", "--topic", help="Search only this topic for the id, which is quicker.")
@json_option
@client_command
async def show(mq: Client, *, identifier: str, topic: str | None, as_json: bool) -> None:
    """Show all of one message: by the id that a send gave, or by its offset id.

    The first is looked for in all topics, or in one; the other says where the message lies.
    """
    if topic is not None:
        await mq.admin.route(topic)  # Raises if it does not exist.
    found = await mq.admin.message(identifier, topic=topic)
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


@message.command("trace", short_help="Show who sent and who consumed a message.")
@click.argument("identifier", metavar="ID")
@click.option(
    "--trace-topic", default=TRACE_TOPIC, show_default=True, help="The topic of the traces."
)
@json_option
@client_command
async def trace(mq: Client, *, identifier: str, trace_topic: str, as_json: bool) -> None:
    """Show who sent and who consumed a message, by the id that its send gave.

    As far as their clients trace: ours with ClientConfig(trace=True), Java's with enableMsgTrace.
    """
    found = await mq.admin.message_trace(identifier, trace_topic)
    if as_json:
        show_json([{**asdict(each), "at": iso_time(each.at)} for each in found])
        return
    if not found:
        raise click.ClickException(
            f"{trace_topic} has no trace of {identifier}: do its clients trace?"
        )
    rows = [
        (
            *(iso_time(each.at), each.kind, each.group, each.result, each.attempt),
            *("-" if each.took_ms is None else f"{each.took_ms} ms", each.topic, each.where),
        )
        for each in found
    ]
    columns = ["at", "what", "group", "result", "#attempt", "#took", "topic", "broker"]
    show_table(columns, rows)
