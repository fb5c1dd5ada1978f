"""A broker with its sockets and its clock: every service is started here.

The loop's protocols carry the bytes; everything that depends on time is a service here, in trio,
that waits and then ticks. `serve` is one trio task. It runs until it is cancelled, and then shuts
down in order: it stops listening, tells the name servers, answers what waits, closes the store.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from cometmq.broker.broker import DAILY_BREAD, Broker
from cometmq.broker.clock import Clock
from cometmq.broker.errors import BrokerError
from cometmq.broker.registration import EVERYTHING, NameServer, Registration
from cometmq.broker.stepping import Stepping
from cometmq.net import Peers, listen_on, loop as loop_driver, parse_addresses
from cometmq.net.guest import on_loop, repeat_on_loop
from cometmq.net.listener import address_of
from cometmq.proto.host import Host
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cometmq.broker.cold_reads import Fetched
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.saved_table import SavedTable
    from cometmq.broker.stepping import Step
    from cometmq.net.exposition import Exposition, Source

log = logging.getLogger(__name__)

STORE_TICK_SECONDS: Final = 0.02
STORE_BUSY_TICK_SECONDS: Final = 0.002
"""Between two slices of the store's upkeep, some 200 µs each, while more is waiting. Not at once:
it is cheaper to do the work left by several turns in one go."""
STORE_QUIET_TICK_SECONDS: Final = 0.05
STORE_QUIET_AFTER_MS: Final = 1_000
"""When nothing has been put for this long, the store is tended less often."""
TICK_SECONDS: Final = 0.1
SLOW_TICK_SECONDS: Final = 1.0
SAVE_RETRY_SECONDS: Final = 1.0
FIRST_REGISTRATION_SECONDS: Final = 5.0
"""How long a start waits for the name servers; one that does not answer is told later."""
REGISTRATION_RETRY_SECONDS: Final = 2.0
DELAY_TICK_SECONDS: Final = 0.01
DRAIN_SECONDS: Final = 5.0
"""How long a shutdown waits for the sends that still wait for the disk."""


class StoreFailedError(BrokerError):
    """The disk has failed a sync, so this process must stop."""


class Bell:
    """Wakes one service; may be rung by anything on the loop's thread."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """Have the service run once more."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for a ring, unless one has come since the last wait."""
        await self._event.wait()
        self._event = trio.Event()


async def serve(
    config: BrokerConfig,
    exposition: Exposition | None = None,
    *,
    clock: Clock | None = None,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled; `task_status` gets its address once sends are accepted.

    Its metrics are added to the pages of `exposition`, which the caller owns. Pass a `clock` to
    make it jump, on this loop.

    Raises a `NetError`, a `StoreFilesError` or an `OSError` if it cannot start, and a
    `StoreFailedError` if the disk fails a sync.
    """
    sockets = _listen(config)
    loop = asyncio.get_running_loop()
    unsaved = Bell()
    try:
        daemon = Daemon(config, sockets, loop, unsaved, Clock() if clock is None else clock)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    try:
        server = await on_loop(loop_driver.serve(daemon.peers, sockets))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat_on_loop, daemon.keep_store, daemon.clock.follow)
            nursery.start_soon(repeat_on_loop, daemon.tick, daemon.clock.follow)
            nursery.start_soon(daemon.save_tables, unsaved)
            nursery.start_soon(daemon.save_offsets, unsaved)
            nursery.start_soon(repeat_on_loop, daemon.delays.run, daemon.clock.follow)
            nursery.start_soon(repeat_on_loop, daemon.transactions.run, daemon.clock.follow)
            nursery.start_soon(daemon.keep_clients)
            await daemon.start_registering(nursery)
            if exposition is not None:
                exposition.add(_metrics(daemon))
            task_status.started(daemon.address)
            try:
                await trio.sleep_forever()
            finally:
                server.close()
                with trio.CancelScope(shield=True):
                    await daemon.drain()
    finally:
        daemon.close()


def _metrics(daemon: Daemon) -> Source:
    from cometmq.broker.metrics import BrokerMetrics  # Its library is loaded only if needed.

    return BrokerMetrics(daemon)


def _listen(config: BrokerConfig) -> list[socket.socket]:
    ports = [config.listen_port]
    if config.vip_port is not None:
        ports.append(config.vip_port)
    return listen_on([Host(config.bind_address, port) for port in ports])


def _wake(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Have a function called on the loop, from a thread that may outlive the loop."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Daemon:
    """A broker and its services."""

    def __init__(
        self,
        config: BrokerConfig,
        sockets: list[socket.socket],
        loop: asyncio.AbstractEventLoop,
        unsaved: Bell,
        clock: Clock,
    ) -> None:
        port = address_of(sockets[0]).port
        self.address = Host(config.advertise_address, port)
        self.clock = clock
        self._name_servers: list[NameServer] = []  # The broker's own topics come before them.
        self.broker = Broker(
            config,
            RealFileSystem(),
            address=self.address,
            call_soon_threadsafe=loop.call_soon_threadsafe,
            topic_changed=self._topic_changed,
            unsaved=unsaved.ring,
            store_changed=lambda: _wake(loop, self._store_changed),
            now_ms=clock.now_ms,
            elapsed_ms=clock.elapsed_ms,
            alive_ms=clock.alive_ms,
        )
        self.peers = Peers(
            self.broker,
            config.limits,
            call_soon=loop.call_soon,
            now_ms=clock.alive_ms(),
            request_reader=DAILY_BREAD,
        )
        self.registration = Registration(
            config,
            self.broker.state.topics,
            parse_addresses(config.nameservers) if config.nameservers else (),
            address=self.address,
            call_soon=loop.call_soon,
            alive_ms=clock.alive_ms(),
            now_ms=clock.now_ms,
            on_told=lambda: self.broker.told(self.registration.told_version),
        )
        self._name_servers = self.registration.servers
        self.broker.told(self.registration.told_version)
        self._saving = trio.Lock()
        self._is_closed = False
        self._put_to = -1  # The end of the log, and when it was first there.
        self._put_ms = 0
        self._told_problems: set[str] = set()
        self.delays = self._stepping(
            "delayed messages", self.broker.delays.step, DELAY_TICK_SECONDS
        )
        self.transactions = self._stepping(
            "half messages", self.broker.transactions.step, TICK_SECONDS
        )

    def _stepping(
        self,
        what: str,
        step: Callable[[int, Fetched | None], Step],
        idle_seconds: float,
    ) -> Stepping:
        def step_now(fetched: Fetched | None) -> Step:
            done = step(self.clock.now_ms(), fetched)
            self.peers.turn.end()
            return done

        return Stepping(what, step_now, self.broker.state.cold_reads, idle_seconds=idle_seconds)

    def _store_changed(self) -> None:
        if not self._is_closed:
            self.broker.synced()
            self.peers.turn.end()

    def keep_store(self) -> float:
        """Tend the store (sync, write-behind, index, checkpoints); return the seconds to wait."""
        more = self.broker.store.tick(self.clock.now_ms())
        for problem in self.broker.store.queues.problems:
            if problem not in self._told_problems:
                self._told_problems.add(problem)
                log.error("a queue is neither written nor read: %s", problem)
        if self.broker.store.failure is not None:
            self.broker.synced()
            raise StoreFailedError(
                f"a sync failed, so the broker stops: {self.broker.store.failure}"
            )
        if more:
            return STORE_BUSY_TICK_SECONDS
        end, elapsed_ms = self.broker.store.end_offset, self.clock.elapsed_ms()
        if end != self._put_to:
            self._put_to, self._put_ms = end, elapsed_ms
        is_quiet = elapsed_ms - self._put_ms >= STORE_QUIET_AFTER_MS
        return STORE_QUIET_TICK_SECONDS if is_quiet else STORE_TICK_SECONDS

    def tick(self) -> float:
        """Look for what has waited long enough; return the seconds until the next look."""
        self.broker.tick(self.clock.elapsed_ms())
        return TICK_SECONDS

    async def keep_clients(self) -> None:
        """Look for overdue peers and clients once a second."""
        while True:
            await self.clock.sleep(SLOW_TICK_SECONDS)
            self.peers.tick(self.clock.alive_ms())
            self.registration.peers.tick(self.clock.alive_ms())
            self.broker.expire_clients(self.clock.elapsed_ms())

    async def save_tables(self, unsaved: Bell) -> None:
        """Save the tables as soon as a change is made that should not wait."""
        while True:
            await unsaved.wait()
            for table in self.broker.tables:
                await self._save(table)

    async def save_offsets(self, unsaved: Bell) -> None:
        """Save consumer offsets every `save_interval_ms`."""
        while True:
            await self.clock.sleep(self.broker.state.config.save_interval_ms / 1000)
            self.broker.flush_offsets()
            unsaved.ring()

    async def _save(self, table: SavedTable) -> None:
        async with self._saving:  # A table is written by one thread at a time.
            while table.is_changed:
                version, snapshot = table.begin_save()
                try:
                    await trio.to_thread.run_sync(table.write, snapshot)
                except OSError as error:
                    log.error("%s cannot be saved, to be retried: %s", table.name, error)
                    await trio.sleep(SAVE_RETRY_SECONDS)
                else:
                    self.broker.saved(table, version)

    def _topic_changed(self, topic: str) -> None:
        for server in self._name_servers:
            server.changed(topic)

    async def start_registering(self, nursery: trio.Nursery) -> None:
        """Begin to register at the name servers, and wait a while until each was tried once."""
        told = Bell()
        for server in self._name_servers:
            nursery.start_soon(self._register, server, told)
        with trio.move_on_after(FIRST_REGISTRATION_SECONDS):
            while any(server.told_version < 0 for server in self._name_servers):
                await told.wait()

    async def _register(self, server: NameServer, told: Bell) -> None:
        """Tell one name server of each change, and of everything every `register_interval_ms`."""
        wake = Bell()
        server.wake = wake.ring
        renewal = 0.0
        while True:
            if trio.current_time() >= renewal:
                server.renew()
                renewal = trio.current_time() + self.broker.state.config.register_interval_ms / 1000
            await on_loop(server.tell())
            told.ring()
            if server.has_failed:
                await trio.sleep(REGISTRATION_RETRY_SECONDS)
                continue
            with trio.move_on_at(renewal):
                while not server.is_behind:
                    await wake.wait()

    async def drain(self) -> None:
        """Unregister from the name servers, and answer the sends that wait."""
        self.broker.told(EVERYTHING)  # The name servers are told nothing more.
        await on_loop(self.registration.unregister())
        with trio.move_on_after(DRAIN_SECONDS):
            await self._save(self.broker.state.topics.file)
            while len(self.broker.acknowledgements):
                self.broker.synced()
                await trio.sleep(0.001)
                await self._save(self.broker.state.topics.file)
        self.peers.close("the broker stops")

    def close(self) -> None:
        """Close the store; log an error if the next start has to read its tail back."""
        self._is_closed = True
        for peers in (self.peers, self.registration.peers):
            peers.close("the broker stops")
        if not self.broker.close(self.clock.now_ms()):
            log.error("the store was not shut down cleanly: the next start reads its tail again")
