"""How soon a client reconnects to an address that did not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from cometmq.client import ClientConfig, UnreachableError
from cometmq.client._asyncio import AsyncioRuntime
from cometmq.client._connections import Connections
from cometmq.net import LATER, ConnectError, Later

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ADDRESS = "127.0.0.1:9876"


class Link:
    """A connection to nobody."""

    context: Any = None
    closed_because: str | None = None


class Refusing(AsyncioRuntime):
    """A runtime whose attempts to connect fail while the test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0
        self.fails = True

    async def connect(self, *_: object, **__: object) -> Any:
        self.attempts += 1
        if self.fails:
            raise ConnectError("refused")
        return Link()


def run(scenario: Callable[[Refusing, Connections], Awaitable[None]], **settings: float) -> None:
    async def main() -> None:
        runtime = Refusing()

        async def greet(*_: object) -> None:
            """Send no greeting."""

        def asked(*_: object) -> Later:
            return LATER

        connections = Connections(
            cast("Any", runtime),
            ClientConfig(**cast("Any", settings)),
            greet=greet,
            asked=asked,
        )
        await scenario(runtime, connections)
        await runtime.close()

    asyncio.run(main())


async def fail(connections: Connections) -> float:
    with pytest.raises(UnreachableError, match="refused"):
        await connections.to(ADDRESS)
    return connections.delay_of(ADDRESS)


def test_each_failure_in_a_row_doubles_the_pause_up_to_its_limit() -> None:
    async def scenario(runtime: Refusing, connections: Connections) -> None:
        pauses: list[float] = []
        for count in range(1, 9):
            pauses.append(await fail(connections))
            assert runtime.attempts == count
            await anyio.sleep(connections.delay_of(ADDRESS) + 0.002)
        for pause, most in zip(pauses, (0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.2), strict=True):
            assert most / 2 - 0.005 <= pause <= most

    run(scenario, reconnect_delay=0.01, reconnect_delay_max=0.2)


def test_in_the_pause_nothing_is_tried_and_everybody_is_told_why() -> None:
    async def scenario(runtime: Refusing, connections: Connections) -> None:
        assert 30 - 5 <= await fail(connections) <= 60
        for _ in range(3):
            await fail(connections)
        assert runtime.attempts == 1

    run(scenario, reconnect_delay=60, reconnect_delay_max=60)


def test_who_wait_for_an_address_share_one_attempt() -> None:
    async def scenario(runtime: Refusing, connections: Connections) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(fail, connections)
        assert runtime.attempts == 1

    run(scenario, reconnect_delay=60, reconnect_delay_max=60)


def test_a_connection_that_came_about_ends_the_count() -> None:
    async def scenario(runtime: Refusing, connections: Connections) -> None:
        last = 0.0
        for _ in range(4):
            last = await fail(connections)
            await anyio.sleep(connections.delay_of(ADDRESS) + 0.002)
        runtime.fails = False
        link = await connections.to(ADDRESS)
        assert connections.delay_of(ADDRESS) == 0
        link.closed_because, runtime.fails = "gone", True
        assert await fail(connections) <= 0.02 < 0.04 <= last

    run(scenario, reconnect_delay=0.02, reconnect_delay_max=10)


def test_a_connection_whose_end_is_told_late_does_not_take_the_next_one_away() -> None:
    async def scenario(runtime: Refusing, connections: Connections) -> None:
        runtime.fails = False
        old = await connections.to(ADDRESS, is_broker=False)
        old.closed_because = "a test cuts it"
        new = await connections.to(ADDRESS, is_broker=False)
        assert new is not old
        connections.closed(cast("Any", old))
        assert connections.open_link(ADDRESS) is new

    run(scenario)
