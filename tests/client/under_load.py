"""Sends and a consumer that keep working while something happens to the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.client import Client

WORKERS = 8


async def more(of: set[bytes], count: int) -> None:
    """Wait until the set has so many more members."""
    enough = len(of) + count
    while len(of) < enough:  # noqa: ASYNC110  # Nobody tells of it.
        await anyio.sleep(0.001)


async def under_load(
    mq: Client,
    reader: Client,
    disturb: Callable[[set[bytes], set[bytes]], Awaitable[None]],
    *,
    send_seconds: float,
) -> int:
    """Send to and consume a topic `orders` while `disturb` runs; return how many were sent.

    `disturb` gets the growing sets of the messages acknowledged and consumed so far. No send may
    fail or take longer than `send_seconds`, and every acknowledged message must be consumed.
    """
    acknowledged: set[bytes] = set()
    consumed: set[bytes] = set()
    is_enough = anyio.Event()
    await mq.admin.create_topic("orders", queues=4)

    async def send(worker: int) -> None:
        number = 0
        while not is_enough.is_set():
            body = b"%d-%d" % (worker, number)
            await mq.send("orders", body, timeout=send_seconds)
            acknowledged.add(body)
            number += 1

    async def consume() -> None:
        async for message in reader.consume("orders", group="billing", start="first"):
            async with message:
                consumed.add(message.body)

    async with anyio.create_task_group() as consuming:
        consuming.start_soon(consume)
        async with anyio.create_task_group() as sending:
            for worker in range(WORKERS):
                sending.start_soon(send, worker)
            await disturb(acknowledged, consumed)
            is_enough.set()
        while not acknowledged <= consumed:  # noqa: ASYNC110  # Nobody tells of it.
            await anyio.sleep(0.01)
        consuming.cancel_scope.cancel()
    return len(acknowledged)
