"""Name servers in separate processes are killed one after another, under load."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from tests.client.daemons import Daemon
from tests.client.running import on_every_loop, on_loop
from tests.client.test_faults import EAGER
from tests.client.under_load import more, under_load

from cometmq.client import Client, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from pathlib import Path

ROUTES_OFTEN = replace(EAGER, route_interval=0.05)
"""Clients ask for routes all the time, so that they notice each name server's death."""


@pytest.mark.slow
@on_every_loop
def test_sends_and_consumers_outlive_all_name_servers_and_use_one_that_comes_back(
    loop: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        servers = [Daemon("nameserver", tmp_path / f"names-{number}") for number in range(3)]
        for server in servers:
            stack.enter_context(server.running())
        names = ";".join(server.address for server in servers)
        options = ("-n", names, "--flush", "async", "--set", "register_interval_ms=1000")
        stack.enter_context(Daemon("broker", tmp_path / "broker", *options).running())
        on_loop(loop, lambda: outlived(names, servers))


async def outlived(names: str, servers: list[Daemon]) -> None:
    async with Client(names, ROUTES_OFTEN) as mq, Client(names, ROUTES_OFTEN) as reader:

        async def disturb(acknowledged: set[bytes], consumed: set[bytes]) -> None:
            await more(consumed, 30)
            await kill_one_by_one(mq, names, servers, acknowledged, consumed)
            await anyio.to_thread.run_sync(servers[1].start)
            await brokers_registered(names)
            await mq.send("back", b"found by the one that is back", timeout=20)
            await more(acknowledged, 30)

        # The broker lives all the while, so no dead name server may hold up a send.
        await under_load(mq, reader, disturb, send_seconds=10)
        async with Client(names, ROUTES_OFTEN) as stranger:  # It knows no route yet.
            assert sum([await stranger.end_offset(q) for q in await stranger.queues("back")]) == 1


async def brokers_registered(names: str) -> None:
    """Wait until a name server that has just started knows the broker."""
    async with Client(names, ROUTES_OFTEN) as stranger:
        while True:
            try:
                assert await stranger.queues("orders", timeout=20)
            except NotFoundError:
                await anyio.sleep(0.01)
            else:
                return


async def kill_one_by_one(
    mq: Client,
    names: str,
    servers: list[Daemon],
    acknowledged: set[bytes],
    consumed: set[bytes],
) -> None:
    """Kill all name servers in turn, and check that sends and the consumer continue."""
    for number, server in enumerate(servers):
        await anyio.to_thread.run_sync(server.kill)
        await more(acknowledged, 30)
        await more(consumed, 30)
        if server is not servers[-1]:
            await mq.send(f"fresh-{number}", b"of a topic nobody knew", timeout=20)
            async with Client(names, ROUTES_OFTEN) as stranger:
                assert await stranger.queues(f"fresh-{number}", timeout=20)
    with pytest.raises(UnreachableError, match="no name server answers") as nobody:
        await mq.queues("unknown", timeout=0.5)
    assert all(server.address in str(nobody.value) for server in servers)
