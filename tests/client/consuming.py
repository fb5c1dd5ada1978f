"""Ways to consume in tests, which return the messages that a consumer saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from cometmq.client import Consumer, Message


async def take(consumer: Consumer, count: int) -> list[bytes]:
    """Consume so many messages and return their bodies."""
    bodies: list[bytes] = []
    async for message in consumer:
        async with message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return bodies


async def take_in_order(consumer: Consumer) -> dict[int, list[int]]:
    """Consume the numbers below 20, failing once at 7; return the even and the odd ones seen."""
    seen: dict[int, list[int]] = {0: [], 1: []}
    has_failed: list[bool] = []

    async def handle(message: Message) -> None:
        number = int(message.body)
        await anyio.lowlevel.checkpoint()
        if number == 7 and not has_failed:
            has_failed.append(True)
            raise KeyError
        seen[number % 2].append(number)
        if sum(map(len, seen.values())) == 20:
            draining.start_soon(consumer.drain)

    async with anyio.create_task_group() as draining:
        await consumer.run(handle, concurrency=4)
    return seen
