"""Real brokers and a real name server on simulated disks and connections.

What `daemon` does with trio and threads is done here on a loop whose time jumps: each service runs
when it is due, and the disk confirms a sync some time after it was asked to.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.broker.running import STORE
from tests.crash.disk import SimulatedFileSystem

from cometmq.broker import registration
from cometmq.broker.broker import DAILY_BREAD, Broker
from cometmq.broker.clock import elapsed_ms, now_ms
from cometmq.broker.config import BrokerConfig
from cometmq.broker.filter import compiler
from cometmq.broker.registration import Registration
from cometmq.nameserver import NameServerConfig
from cometmq.nameserver.daemon import Connections
from cometmq.nameserver.nameserver import NameServer
from cometmq.net import Peers
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from tests.whole.pipes import Network

    from cometmq.net import LoopPeer
    from cometmq.store.config import Flush

NAMESERVERS: Final = (Host("10.0.0.2", 9876), Host("10.0.0.3", 9876))

compiler.load()  # Otherwise a thread would answer the first expression.


class Services:
    """What a process does when it is due, until it ends."""

    def __init__(self, failed: list[str]) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failed = failed

    def every(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something again and again."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                do()

        self.start(repeat())

    def start(self, work: Any) -> None:
        """Run something until it ends, or the process does."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._failed.append(repr(error))
                raise

        task = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(lambda _: work.close())  # If it ends before it has begun.
        self._tasks.append(task)

    def end(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()


class NameServerHost:
    """A machine with a name server, which remembers nothing when it is started again."""

    def __init__(self, network: Network, address: Host) -> None:
        self.name = f"names-{address.address}"
        self.address = str(address)
        self.is_up = False
        self.failed: list[str] = []
        """What went wrong in it."""
        self._network = network
        self._peers: Peers
        self._services: Services

    def start(self) -> None:
        """Start the name server."""
        config = NameServerConfig(kv_config_path="/kv.json")
        server = NameServer.open(config, _folder("/"), now_ms=elapsed_ms())
        connections = Connections(server)
        loop = asyncio.get_running_loop()
        self._peers = Peers(connections, call_soon=loop.call_soon, now_ms=elapsed_ms())
        self._services = Services(self.failed)
        self._services.every(1.0, lambda: self._peers.tick(elapsed_ms()))
        self._services.every(config.scan_interval_ms / 1000, connections.tick)
        self._network.listening[self.address] = (self.name, self._peers)
        self.is_up = True

    def kill(self) -> None:
        """End it."""
        self.is_up = False
        del self._network.listening[self.address]
        self._services.end()
        self._network.die(self._peers)


class BrokerHost:
    """A machine with a disk and a broker, which is started, stopped, killed, or loses its power."""

    def __init__(
        self, network: Network, number: int, flush: Flush, nameservers: Sequence[Host]
    ) -> None:
        self.name = f"broker-{number}"
        self.address = Host("10.0.1.1", 10911 + 100 * number)
        self.is_up = False
        self.disk = _folder("/store")
        self.slowness = 0.0
        """How long a sync may take."""
        self.broker: Broker
        self._config = BrokerConfig(
            listen_port=self.address.port,
            store_path="/store",
            store=replace(STORE, flush=flush),
            nameservers=";".join(map(str, nameservers)),
            broker_name=self.name,
            transaction_check_interval_ms=6_000,
            transaction_timeout_ms=6_000,
        )
        self.failed: list[str] = []
        """What went wrong in it."""
        self.gave_up: Callable[[], None] = lambda: None
        """Called when the broker ends because its disk has failed."""
        self._nameservers = nameservers
        self._network = network
        self._services: Services
        self._peers: Peers
        self._is_syncing = self._is_saving = False
        self._registered: list[registration.NameServer] = []
        self._registration: Registration

    def start(self) -> None:
        """Start the broker on what is on the disk."""
        loop = asyncio.get_running_loop()
        self.disk.now_ms = now_ms()
        self._services = services = Services(self.failed)
        self._is_syncing = self._is_saving = False
        self._registered = []  # The broker's own topics come before it is known.
        try:
            broker = self.broker = Broker(
                self._config,
                self.disk,
                address=self.address,
                call_soon_threadsafe=loop.call_soon,
                topic_changed=self._topic_changed,
                unsaved=self._save_soon,
                store_changed=lambda: None,
                now_ms=now_ms,
                elapsed_ms=elapsed_ms,
                threads=False,
            )
        except BaseException:
            services.end()
            raise
        finish = broker.end_turn

        def end_turn() -> None:
            before = broker.store.end_offset
            finish()
            if broker.store.end_offset != before:
                self._sync_soon()

        broker.end_turn = end_turn
        limits = self._config.limits
        self._peers = peers = Peers(
            broker,
            limits,
            call_soon=loop.call_soon,
            now_ms=elapsed_ms(),
            request_reader=DAILY_BREAD,
        )
        self._register(broker)
        services.start(self._tend())
        services.every(0.1, lambda: broker.tick(elapsed_ms()))
        services.every(0.05, partial(self._step, broker.delays.step))
        services.every(0.1, partial(self._step, broker.transactions.step))
        services.every(1.0, self._keep_clients)
        services.every(self._config.save_interval_ms / 1000, self._save_offsets)
        self._network.listening[str(self.address)] = (self.name, peers)
        self.is_up = True

    def stop(self) -> None:
        """Shut down in order."""
        self._end()
        self._peers.close("the broker stops")
        self.broker.close(now_ms())
        self._network.die(self._peers)

    def kill(self) -> None:
        """End the process at once."""
        self._end()
        self._network.die(self._peers)
        self.disk = self.disk.kill()

    def cut(self) -> None:
        """Cut the power: what was not synced may be lost."""
        self._end()
        self._network.die(self._peers)
        self.disk = self.disk.power_cut(self._network.random)

    def _end(self) -> None:
        self.is_up = False
        del self._network.listening[str(self.address)]
        self._services.end()
        self._network.die(self._registration)

    def _register(self, broker: Broker) -> None:
        made = self._registration = Registration(
            self._config,
            broker.state.topics,
            self._nameservers,
            address=self.address,
            call_soon=asyncio.get_running_loop().call_soon,
            alive_ms=elapsed_ms(),
            now_ms=now_ms,
            on_told=lambda: broker.told(made.told_version),
        )
        self._registered = made.servers
        _HOSTS[id(made.peers)] = (self._network, self.name, made)
        for server in made.servers:
            self._services.start(self._keep_registered(server))

    async def _keep_registered(self, server: registration.NameServer) -> None:
        woken = asyncio.Event()
        server.wake = woken.set
        interval_ms = self._config.register_interval_ms
        renewal_ms = 0
        while True:
            if elapsed_ms() >= renewal_ms:
                server.renew()
                renewal_ms = elapsed_ms() + interval_ms
            await server.tell()
            if server.has_failed:
                await asyncio.sleep(2)
            elif not server.is_behind:
                woken.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), max(renewal_ms - elapsed_ms(), 1) / 1000)

    def _topic_changed(self, topic: str) -> None:
        for server in self._registered:
            server.changed(topic)

    async def _tend(self) -> None:
        while True:
            self.disk.now_ms = now_ms()
            more = self.broker.store.tick(now_ms())
            if self.broker.store.failure is not None:
                self.broker.synced()
                asyncio.get_running_loop().call_soon(self.gave_up)
                return
            self._sync_soon()
            await asyncio.sleep(0.005 if more else 0.05)

    def _sync_soon(self) -> None:
        if not self._is_syncing:
            self._is_syncing = True
            wait = 0.001 + self._network.random.random() * self.slowness
            self._services.start(self._sync(wait))

    async def _sync(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._is_syncing = False
        self.broker.store.run_jobs()
        self.broker.synced()
        self._peers.turn.end()

    def _step(self, step: Callable[..., Any]) -> None:
        while step(now_ms(), None).done:
            self._peers.turn.end()
        self._peers.turn.end()

    def _keep_clients(self) -> None:
        self._peers.tick(elapsed_ms())
        self._registration.peers.tick(elapsed_ms())
        self.broker.expire_clients(elapsed_ms())

    def _save_offsets(self) -> None:
        self.broker.flush_offsets()
        self._save_soon()

    def _save_soon(self) -> None:
        if not self._is_saving:
            self._is_saving = True
            self._services.start(self._save())

    async def _save(self) -> None:
        await asyncio.sleep(0.005)
        self._is_saving = False
        for table in self.broker.tables:
            while table.is_changed:
                version, snapshot = table.begin_save()
                try:
                    table.write(snapshot)
                except OSError:  # It is full.
                    await asyncio.sleep(1)
                else:
                    self.broker.saved(table, version)
        self._peers.turn.end()


_HOSTS: dict[int, tuple[Network, str, Registration]] = {}
"""Who registers by these connections."""


async def _connect(peers: Peers, to: Host, *, timeout_ms: int, **options: Any) -> LoopPeer:
    network, name, life = _HOSTS[id(peers)]
    return await network.connect(name, life, peers, to, timeout_ms, **options)


def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers register by simulated connections."""
    monkeypatch.setattr(registration, "connect", _connect)


def _folder(path: str) -> SimulatedFileSystem:
    disk = SimulatedFileSystem(total=1 << 30, now_ms=now_ms())
    disk.make_directories(path)
    return disk
