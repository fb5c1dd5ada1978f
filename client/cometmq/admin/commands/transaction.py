"""`cometmq transaction`: undecided transactions of a CometMQ or Apache cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from cometmq.admin.commands.with_client import (
    client_command,
    iso_time,
    json_option,
    message_document,
)
from cometmq.admin.render import (
    BODY_SHOWN_MAX,
    ask,
    body_text,
    count_text,
    show_done,
    show_facts,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from cometmq.client import Client, PendingTransaction
    from cometmq.client._admin_transactions import Resolution


@click.group(short_help="List undecided transactions, and decide them.")
def transaction() -> None:
    """Look at transactions that are neither committed nor rolled back, and decide them.

    \b
      cometmq transaction list
      cometmq transaction show 7F000001...
      cometmq transaction resolve 7F000001... rollback

    A broker asks the producers of their group again and again; this is for when none answers.
    """


@transaction.command("list")
@click.option("--broker", help="Only those on the broker with this name.")
@click.option("-g", "--group", help="Only those of this producer group.")
@json_option
@client_command
async def list_pending(mq: Client, *, broker: str | None, group: str | None, as_json: bool) -> None:
    """List the undecided transactions, the oldest first.

    An Apache broker may still list for some seconds what has just been decided.
    """
    found = [
        each
        for each in await mq.admin.transactions.pending(broker)
        if group is None or each.producer_group == group
    ]
    if as_json:
        show_json([_document(each) for each in found])
        return
    now = datetime.now(UTC)
    rows = [
        (each.id, each.topic, each.producer_group, each.broker, _age(each, now), each.checks)
        for each in found
    ]
    show_table(["id", "topic", "producer group", "broker", "#age", "#checks"], rows)
    click.echo(count_text(len(found), "undecided transaction"))


@transaction.command("show")
@click.argument("identifier", metavar="ID")
@json_option
@client_command
async def show(mq: Client, *, identifier: str, as_json: bool) -> None:
    """Show the undecided transaction ID."""
    found = await mq.admin.transactions.find(identifier)
    if as_json:
        show_json(_document(found))
        return
    message = found.message
    show_facts(
        [
            ("id", found.id),
            ("topic", found.topic),
            ("producer group", found.producer_group),
            ("broker", found.broker),
            ("sent", f"{iso_time(found.sent_at)} from {message.sent_from}"),
            ("checks", str(found.checks)),
            ("offset id", message.offset_id),
            ("keys", " ".join(message.keys) or "-"),
            ("tag", message.tag or "-"),
            *((f"property {name}", value) for name, value in sorted(message.properties.items())),
            ("body", body_text(message.body)),
        ]
    )


@transaction.command("resolve", short_help="Commit the transaction ID or roll it back.")
@click.argument("identifier", metavar="ID")
@click.argument("how", type=click.Choice(["commit", "rollback"]))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@client_command
async def resolve(mq: Client, *, identifier: str, how: str, yes: bool, as_json: bool) -> None:
    """Commit the transaction ID or roll it back, in its producer's stead."""
    found = await mq.admin.transactions.find(identifier)
    if not yes:
        body = body_text(found.message.body, BODY_SHOWN_MAX)
        what = "Deliver it" if how == "commit" else "Never deliver it"
        ask(
            f"{found.id} for {found.topic}, of {found.producer_group},"
            f" sent {_age(found, datetime.now(UTC))} ago, body {body}\n"
            f"{what}? This cannot be undone.",
            as_json=as_json,
        )
    await mq.admin.transactions.resolve(found, cast("Resolution", how))
    became = "committed" if how == "commit" else "rolled back"
    show_done(
        f"{found.id} is {became}",
        {"id": found.id, "topic": found.topic, "resolution": how},
        as_json=as_json,
    )


def _document(pending: PendingTransaction) -> dict[str, Any]:
    return {
        **message_document(pending.message),
        "topic": pending.topic,
        "broker": pending.broker,
        "producer_group": pending.producer_group,
        "checks": pending.checks,
        "sent_at": iso_time(pending.sent_at),
    }


def _age(pending: PendingTransaction, now: datetime) -> str:
    seconds = max(0, int((now - pending.sent_at).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
