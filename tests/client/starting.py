"""Checks where new groups begin, by rules that hold on our broker and on Apache's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
from tests.client.consuming import take

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client import Client, Consumer
    from cometmq.client._core.options import Start

TOPICS = ("first", "last", "time", "past", "future")
"""The topics of `check_starts`. Earlier messages in them must have expired."""

_DAY = timedelta(days=1)
_MILLISECOND = timedelta(milliseconds=1)


async def fill(mq: Client, topic: str) -> datetime:
    """Make a topic of one queue, send `old` and `new`, and return a time between the two."""
    await mq.admin.create_topic(topic, queues=1)
    receipt = await mq.send(topic, b"old")
    (old,) = (await mq.pull(receipt.queue, receipt.offset, wait=10)).messages
    between = old.stored_at + _MILLISECOND
    while datetime.now(UTC) <= between:  # noqa: ASYNC110  # Nobody tells of the time.
        await anyio.sleep(0.001)
    await mq.send(topic, b"new")
    return between


async def begun(consumer: Consumer, topic: str) -> None:
    """Wait until a consumer has begun in the queue of a topic."""
    with anyio.fail_after(30):
        while all(queue.topic != topic for queue in consumer.queues):  # noqa: ASYNC110  # Not told.
            await anyio.sleep(0.01)


async def check_starts(mq: Client, *, is_young: bool) -> None:
    """Check groups that begin with the first message, after the last one, and at given times.

    In a young queue, whose first message is still in memory, "last" means the first message.
    """
    at_last = [b"old", b"new"] if is_young else []
    await _check_start(mq, "first", lambda _: "first", [b"old", b"new"])
    await _check_start(mq, "last", lambda _: "last", at_last)
    await _check_start(mq, "time", lambda between: between, [b"new"])
    await _check_start(mq, "past", lambda between: between - _DAY, [b"old", b"new"])
    await _check_start(mq, "future", lambda between: between + _DAY, [])


async def _check_start(
    mq: Client, topic: str, start: Callable[[datetime], Start], seen: list[bytes]
) -> None:
    group = f"of-{topic}"
    between = await fill(mq, topic)
    async with mq.consume(topic, group=group, start=start(between)) as consumer:
        await begun(consumer, topic)
        await mq.send(topic, b"later")
        assert await take(consumer, len(seen) + 1) == [*seen, b"later"], topic
    # The group continues where it was, as `start` only counts at its first time.
    await mq.send(topic, b"after")
    async with mq.consume(topic, group=group, start="first") as consumer:
        assert await take(consumer, 1) == [b"after"], topic
