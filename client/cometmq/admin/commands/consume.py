"""`cometmq consume` and `cometmq tail`: messages on the terminal, with and without a group."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import anyio
import click

from cometmq.admin.commands.with_client import (
    client_command,
    cut_option,
    explain,
    filter_options,
    json_option,
    message_document,
    message_line,
    until_stopped,
)
from cometmq.admin.parameters import NumberParameter, PlaceParameter
from cometmq.admin.render import count_text, cut_of, need_output, show_line, warn
from cometmq.client import Client, RefusedError
from cometmq.client._routes import NoRouteError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from datetime import datetime

    from cometmq.client import Consumer, Message, Queue, ReceivedMessage, Sql

TAIL_WAIT_SECONDS = 15.0


@click.command(short_help="Consume TOPIC as a member of a group.")
@click.argument("topic")
@click.option("-g", "--group", default="cometmq-cli", show_default=True, help="The group to join.")
@filter_options
@click.option(
    "--start",
    type=PlaceParameter(),
    metavar="first|last|TIME",
    help="Where a new group begins; by default after the last message. TIME is ISO 8601 (UTC"
    " without a zone), or ms. An existing group continues where it was (see `cometmq offset"
    " reset`). As with Apache's brokers, a new group gets all of a queue that is still in memory"
    " from its beginning.",
)
@click.option("-c", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--idle",
    type=NumberParameter(min=0, min_open=True),
    metavar="SECONDS",
    help="End when nothing has come for this long.",
)
@cut_option
@json_option
@client_command
async def consume(
    mq: Client,
    *,
    topic: str,
    group: str,
    wanted: str | Sql,
    start: Literal["first", "last"] | datetime | None,
    count: int | None,
    idle: float | None,
    cut: int | None,
    as_json: bool,
) -> None:
    """Consume TOPIC as a member of a group: show each message, and acknowledge it.

    \b
      cometmq consume orders                            until Ctrl-C
      cometmq consume orders -g billing --filter paid   as the group billing
      cometmq consume orders --start first -c 10        ten, from the first there is

    What is shown is consumed: other members of the group do not get it, and the next run goes on
    behind it. To look without consuming there is `cometmq tail`. Times are those of the store, in
    UTC; --json has the day, too.
    """
    need_output()  # Messages that are shown are consumed.
    consumer = mq.consume(topic, group=group, filter=wanted, start=start or "last", concurrency=1)
    await _tell_first(mq, topic, group, may_wait=idle is None, begins=start is not None)
    shown = 0
    hung_up: BrokenPipeError | None = None
    problem: str | None = None

    async def show_all() -> None:
        nonlocal shown, hung_up, problem
        while count is None or shown < count:
            message: Message | None = None
            with anyio.move_on_after(idle):
                message = await anext(consumer)
            if message is None:
                if not shown:
                    problem = await _why_nothing(mq, topic, group, consumer.queues)
                return
            try:
                show(message, cut, as_json)
            except BrokenPipeError as error:  # The reader is gone; unseen messages stay.
                hung_up = error
                await consumer.drain(timeout=0)
                return
            message.ack()
            shown += 1

    with _missing_topic_told_once(consumer):
        async with consumer, until_stopped():
            await show_all()
    if hung_up is not None:
        raise hung_up
    if problem is not None:
        raise click.ClickException(problem)
    if not as_json:
        warn(f"{count_text(shown, 'message')} consumed as {group}")


async def _tell_first(mq: Client, topic: str, group: str, *, may_wait: bool, begins: bool) -> None:
    """Tell the user what to know before consuming; `NetworkError` without a name server."""
    if begins and group in {each.name for each in await mq.admin.groups()}:
        warn(
            f"The group {group} exists: it goes on where it was, whatever --start says. `cometmq"
            f" offset reset {group} {topic} --to first` moves it."
        )
    try:
        await mq.admin.route(topic)
    except NoRouteError as error:  # A consumer may start before the first producer.
        if may_wait:
            warn(f"{await explain(mq, error)}. Waiting for it.")


@contextmanager
def _missing_topic_told_once(consumer: Consumer) -> Generator[None, None, None]:
    """Suppress the client's log lines that no broker serves a topic, until one has served it.

    `_tell_first` or `_why_nothing` says so instead.
    """

    def is_news(record: logging.LogRecord) -> bool:
        said = record.args if isinstance(record.args, tuple) else ()
        return bool(consumer.queues) or not any(isinstance(each, NoRouteError) for each in said)

    log = logging.getLogger("cometmq.client")
    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)


async def _why_nothing(mq: Client, topic: str, group: str, queues: list[Queue]) -> str | None:
    """Say why nothing could be consumed; None if it may be that no message came."""
    if (unreadable := await _unreadable(mq, topic)) is not None:
        return unreadable
    try:
        groups = {each.name: each for each in await mq.admin.groups()}
    except RefusedError:  # A user who may consume may not be allowed to list groups.
        return None
    if group in groups and not groups[group].is_enabled:
        enable = f"`cometmq group create {group} --enabled`"
        return f"nothing could be read: the group {group} is disabled; {enable} changes that"
    if any(queue.topic == topic for queue in queues):
        return None
    if group not in groups:
        create = f"`cometmq group create {group}` creates it, if brokers do not by themselves"
        return f"nothing could be read: no broker knows the group {group} yet; {create}"
    warn(
        f"No queue of {topic} was for this member: others have them, or it ended too soon."
        f" `cometmq group members {group}` shows who is there."
    )
    return None


async def _unreadable(mq: Client, topic: str) -> str | None:
    """Say so if a topic may not be read."""
    permissions = {each.permission for each in await mq.admin.route(topic)}
    if any("r" in each for each in permissions):
        return None
    change = f"`cometmq topic create {topic} --permission rw`"
    said = " and ".join(sorted(permissions))
    return f"{topic} may not be read: its permission is {said}; {change} changes that"


@click.command(short_help="Show messages of TOPIC without consuming them.")
@click.argument("topic")
@filter_options
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="First show this many existing messages of each queue.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more.")
@click.option("-c", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@cut_option
@json_option
@client_command
async def tail(
    mq: Client,
    *,
    topic: str,
    wanted: str | Sql,
    last: int,
    follow: bool,
    count: int | None,
    cut: int | None,
    as_json: bool,
) -> None:
    """Show the last messages of TOPIC, and those that come, without consuming them.

    \b
      cometmq tail orders                         the last ten of each queue, and what comes
      cometmq tail orders --last 100 --no-follow  a look at what is there
      cometmq tail orders --json | jq .body

    Nothing is committed, and no group misses what is shown here. Times are those of the store, in
    UTC; --json has the day, too.
    """
    if (unreadable := await _unreadable(mq, topic)) is not None:
        raise click.ClickException(unreadable)
    shown = 0
    hung_up: BrokenPipeError | None = None
    async with until_stopped() as scope:

        def show_one(message: ReceivedMessage) -> None:
            nonlocal shown, hung_up
            if shown != count and hung_up is None:
                try:
                    show(message, cut, as_json)
                except BrokenPipeError as error:  # The reader is gone.
                    hung_up = error
                shown += 1
            if shown == count or hung_up is not None:
                scope.cancel()

        async with anyio.create_task_group() as tasks:
            for queue in await mq.queues(topic):
                tasks.start_soon(_follow, mq, queue, wanted, last, follow, show_one)
    if hung_up is not None:
        raise hung_up


async def _follow(
    mq: Client,
    queue: Queue,
    wanted: str | Sql,
    last: int,
    follow: bool,
    show_one: Callable[[ReceivedMessage], None],
) -> None:
    end = await mq.end_offset(queue)
    offset = max(await mq.first_offset(queue), end - last)
    while follow or offset < end:
        wait = TAIL_WAIT_SECONDS if follow else 0.0
        found = await mq.pull(queue, offset, filter=wanted, wait=wait)
        for message in found.messages:
            show_one(message)
        if found.next_offset == offset and not follow:
            return
        offset = found.next_offset


def show(message: ReceivedMessage, cut: int | None, as_json: bool) -> None:
    """Print one message."""
    if as_json:
        show_line(message_document(message))
    else:
        click.echo(message_line(message, cut_of(cut)))
