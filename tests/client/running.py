"""A name server and a broker in this process, and a client on its own loop in a thread.

The servers run on the test's thread, and the scenario in another, on asyncio, uvloop or trio like a
user's program. Through `Servers` it can stop the servers and start them again.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
import uvloop
from tests.broker.running import config_of

from cometmq.broker import daemon as broker_daemon
from cometmq.nameserver import NameServerConfig, daemon as nameserver_daemon
from cometmq.net import guest
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from cometmq.broker.config import BrokerConfig

T = TypeVar("T")

PATIENCE_SECONDS = 60
DELAYS_MS = (1000, 5000, *[50] * 16)
"""Delay levels of the broker. From the third on they are short: retries come almost at once."""

LOOPS = ["asyncio", "uvloop", "trio"]
on_every_loop = pytest.mark.parametrize("loop", LOOPS)


class Servers:
    """The servers of one test. Its methods are for the scenario's thread."""

    def __init__(self, config: BrokerConfig, kv_path: str) -> None:
        self._configs = {"broker": config}
        self._kv_path = kv_path
        self._token = trio.lowlevel.current_trio_token()
        self._nursery: trio.Nursery
        self._running: dict[str, tuple[trio.CancelScope, trio.Event]] = {}
        self._ports: dict[str, int] = {}

    @property
    def nameserver(self) -> str:
        """The address of the name server."""
        return f"127.0.0.1:{self._ports['nameserver']}"

    @property
    def broker(self) -> str:
        """The address of the broker."""
        return f"127.0.0.1:{self._ports['broker']}"

    def port_of(self, name: str) -> int:
        """The port that a server listens on, whatever address it tells clients."""
        return self._ports[name]

    async def open(self, nursery: trio.Nursery) -> None:
        """Start both, on the servers' thread."""
        self._nursery = nursery
        await self._start("nameserver")
        await self._start("broker")

    async def close(self) -> None:
        """Stop all servers, brokers first."""
        for name in (*self._configs, "nameserver"):
            if name in self._running:
                await self._stop(name)

    def add(self, name: str, folder: Path, **settings: Any) -> None:
        """Start one more broker."""
        self._configs[name] = config_of(folder, **settings)
        self.start(name)

    def start(self, name: str) -> None:
        """Start a server again, on its port."""
        self._do(self._start, name)

    def stop(self, name: str) -> None:
        """Stop a server."""
        self._do(self._stop, name)

    def _do(self, function: Callable[[str], Awaitable[None]], name: str) -> None:
        done = threading.Event()

        async def call() -> None:
            await function(name)
            done.set()

        self._token.run_sync_soon(self._nursery.start_soon, call)
        assert done.wait(PATIENCE_SECONDS)

    async def _start(self, name: str) -> None:
        port = self._ports.get(name, 0)
        while True:
            started = await self._start_at(name, port)
            # A broker that comes back at a port also listens on the port two below.
            if port or started - 2 not in self._ports.values():
                break
            await self._stop(name)
        self._ports[name] = started

    async def _start_at(self, name: str, port: int) -> int:
        scope, ended = trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[Host]) -> None:
            try:
                with scope:
                    await self._serve(name, port, task_status)
            finally:
                ended.set()

        host: Host = await self._nursery.start(run)
        self._running[name] = (scope, ended)
        return host.port

    async def _serve(self, name: str, port: int, task_status: trio.TaskStatus[Host]) -> None:
        if name == "nameserver":
            names = NameServerConfig(
                listen_port=port, kv_config_path=self._kv_path, order_message_enable=True
            )
            await nameserver_daemon.serve(names, task_status=task_status)
        else:
            config = replace(self._configs[name], listen_port=port, nameservers=self.nameserver)
            await broker_daemon.serve(config, task_status=task_status)

    async def _stop(self, name: str) -> None:
        scope, ended = self._running.pop(name)
        scope.cancel()
        await ended.wait()


def on_loop(loop: str, scenario: Callable[[], Awaitable[T]]) -> T:
    """Run a scenario on a loop of that kind, with a time limit."""

    async def limited() -> T:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await scenario()

    async def limited_in_trio() -> T:
        with trio.fail_after(PATIENCE_SECONDS):
            return await scenario()

    if loop == "trio":
        return trio.run(limited_in_trio)
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(limited())


def play(folder: Path, scenario: Callable[[Servers], T], **settings: Any) -> T:
    """Start the servers, call the scenario in a thread, and stop them."""

    async def main(_: trio.Event) -> T:
        config = config_of(folder, **settings)
        config = replace(config, store=replace(config.store, delay_levels_ms=DELAYS_MS))
        servers = Servers(config, f"{folder}/names/kvConfig.json")
        async with trio.open_nursery() as nursery:
            await servers.open(nursery)
            try:
                return await trio.to_thread.run_sync(scenario, servers)
            finally:
                with trio.CancelScope(shield=True):
                    await servers.close()
        raise AssertionError("the nursery swallowed what was to be returned")

    return guest.run(main)


def play_on(
    loop: str, folder: Path, scenario: Callable[[Servers], Awaitable[T]], **settings: Any
) -> T:
    """Play an async scenario on a loop of that kind."""
    return play(folder, lambda servers: on_loop(loop, lambda: scenario(servers)), **settings)
