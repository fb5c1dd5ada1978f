"""Consumers at work: what a test wants of them, and what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from cometmq.client import Consumer, Message


async def take(consumer: Consumer, count: int) -> list[bytes]:
    """Consume so many messages, and give their bodies."""
    bodies: list[bytes] = []
    async for message in consumer:
        async with message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return bodies


async def take_in_order(consumer: Consumer) -> dict[int, list[int]]:
    """Consume the numbers below 20, of which 7 fails once: those seen, the even and the odd."""
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
