"""`cometmq send`: messages from the command line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from cometmq.admin.commands.with_client import client_command, json_option, read_pairs
from cometmq.admin.render import show_json
from cometmq.client import NewMessage

if TYPE_CHECKING:
    from cometmq.client import Client, Receipt

LINES_AT_ONCE = 500


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--key", "keys", multiple=True, help="A key that it can be found by; repeatable.")
@click.option("--tag", help="A tag that consumers can filter by.")
@click.option(
    "--property",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other property; repeatable.",
)
@click.option("--delay", type=float, metavar="SECONDS", help="Deliver it this much later.")
@click.option("--sharding-key", help="Messages with the same key go to one queue, in order.")
@click.option("--lines", is_flag=True, help="Send each line of BODY as a message.")
@json_option
@client_command
async def send(
    mq: Client,
    *,
    topic: str,
    body: str,
    keys: tuple[str, ...],
    tag: str | None,
    pairs: tuple[str, ...],
    delay: float | None,
    sharding_key: str | None,
    lines: bool,
    as_json: bool,
) -> None:
    """Send BODY to TOPIC, and say where it went. A BODY of - is read from standard input.

    \b
      cometmq send orders 'o-17 paid' --key o-17 --tag paid
      cometmq send orders - < order.json
      seq 1000 | cometmq send numbers - --lines

    A topic that does not exist is made, unless the brokers do not want that.
    """
    receipts: list[Receipt]
    properties = read_pairs("--property", pairs)
    data = sys.stdin.buffer.read() if body == "-" else os.fsencode(body)
    if not lines:
        receipts = [
            await mq.send(
                topic,
                data,
                keys=keys,
                tag=tag,
                properties=properties,
                delay=delay,
                sharding_key=sharding_key,
            )
        ]
    else:
        if delay is not None:
            raise click.UsageError(
                "--delay: messages in batches, which --lines sends, cannot be delayed"
            )
        messages = [
            NewMessage(body=line, keys=keys, tag=tag, properties=properties)
            for line in data.splitlines()
            if line
        ]
        receipts = []
        for first in range(0, len(messages), LINES_AT_ONCE):
            part = messages[first : first + LINES_AT_ONCE]
            receipts += await mq.send_batch(topic, part, sharding_key=sharding_key)
    _show(receipts, as_json)


def _show(receipts: list[Receipt], as_json: bool) -> None:
    if as_json:
        documents = [_document(receipt) for receipt in receipts]
        show_json(documents[0] if len(documents) == 1 else documents)
        return
    if len(receipts) == 1:
        (receipt,) = receipts
        durable = "" if receipt.is_durable else f" ({receipt.status})"
        click.echo(f"{receipt.id}  {receipt.queue}  offset {receipt.offset}{durable}")
    else:
        click.echo(f"{len(receipts)} messages sent")


def _document(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.id,
        "offset_id": receipt.offset_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker,
        "queue": receipt.queue.id,
        "offset": receipt.offset,
        "status": receipt.status,
    }
