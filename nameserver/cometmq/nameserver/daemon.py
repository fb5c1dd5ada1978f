"""A name server with its sockets and its clock: beside a broker on its loop, or alone in trio.

`serve` is one trio task, with the connections on the asyncio or uvloop loop on which trio runs as a
guest; `serve_alone` needs only trio's loop. Both run until they are cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from cometmq.nameserver.nameserver import NameServer
from cometmq.net import LATER, Limits, Peers, listen_on, loop as loop_driver, trio_streams
from cometmq.net.guest import on_loop
from cometmq.proto.host import Host
from cometmq.store.disk.filesystem import RealFileSystem

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from cometmq.nameserver.config import NameServerConfig
    from cometmq.net import Later, Peer
    from cometmq.net.exposition import Exposition, Source
    from cometmq.proto.command import Command

TICK_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 1.0
"""How long a shutdown waits for answers to leave."""


class Connections:
    """The owner of a name server's connections."""

    def __init__(self, server: NameServer) -> None:
        self.requests: Counter[int] = Counter()
        """Requests by code; -1 for those that are not served."""
        self._server = server
        self._ids = itertools.count(1)
        self._peers: dict[int, Peer] = {}

    def handle(self, request: Command, peer: Peer) -> Command | Later:
        """Serve a request."""
        response = self._server.handle(
            request, connection_id=peer.context, peer=str(peer.host), now_ms=_now_ms()
        )
        self.requests[request.code if self._server.serves(request.code) else -1] += 1
        return LATER if response is None else response  # None only if no answer is wanted.

    def end_turn(self) -> None:
        """Do nothing: a turn leaves nothing open."""

    def opened(self, peer: Peer) -> None:
        """Number a connection."""
        peer.context = next(self._ids)
        self._peers[peer.context] = peer

    def closed(self, peer: Peer) -> None:
        """Remove the brokers that registered over a connection."""
        del self._peers[peer.context]
        self._server.connection_lost(peer.context)

    def tick(self) -> None:
        """Close the connections of brokers that fell silent."""
        for number in self._server.tick(_now_ms()):
            if number in self._peers:
                self._peers[number].close("its broker fell silent")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Daemon:
    """A name server, its sockets, and its periodic work."""

    def __init__(
        self, config: NameServerConfig, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """Listen, and open the KV table; raise a `NetError` or a `StoreFormatError` on failure."""
        self.sockets: list[socket.socket] = listen_on(
            [Host(config.bind_address, config.listen_port)]
        )
        try:
            self.server = NameServer.open(config, RealFileSystem(), now_ms=_now_ms())
        except BaseException:
            for each in self.sockets:
                each.close()
            raise
        self.connections = Connections(self.server)
        limits = Limits(idle_timeout_ms=config.connection_idle_seconds_max * 1000)
        self.peers = Peers(self.connections, limits, call_soon=call_soon, now_ms=_now_ms())

    async def keep(self) -> None:
        """Look for overdue peers and brokers, until cancelled."""
        last_ms = _now_ms()
        while True:
            await trio.sleep(TICK_SECONDS)
            self.peers.tick(_now_ms())
            if _now_ms() - last_ms >= self.server.config.scan_interval_ms:
                last_ms = _now_ms()
                self.connections.tick()

    def close(self) -> None:
        """Close all connections, each once its answers have left."""
        self.peers.close("the name server stops")

    def problems(self) -> list[str]:
        """Return why routes are refused; nothing if they are not."""
        return self.server.problems(_now_ms())

    def metrics(self) -> Source:
        """Return the source of its metrics."""
        # Its library is loaded only if needed.
        from cometmq.nameserver.metrics import NameServerMetrics

        return NameServerMetrics(self)


async def serve(
    config: NameServerConfig,
    exposition: Exposition | None = None,
    *,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a name server until cancelled; `task_status` gets its address once it listens.

    Its metrics are added to the pages of `exposition`, which the caller owns. Raises a `NetError`
    or a `StoreFormatError` if it cannot start.
    """
    daemon = Daemon(config, asyncio.get_running_loop().call_soon)
    listening = await on_loop(loop_driver.serve(daemon.peers, daemon.sockets))
    if exposition is not None:
        exposition.add(daemon.metrics())
    task_status.started(listening.addresses[0])
    try:
        await daemon.keep()
    finally:
        listening.close()
        daemon.close()


async def serve_alone(
    config: NameServerConfig,
    exposition: Exposition | None = None,
    *,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a name server as `serve` does, on trio's loop alone."""
    daemon = Daemon(config, trio.lowlevel.current_trio_token().run_sync_soon)
    scope = trio.CancelScope(shield=True)  # It ends after the last answer, later than the rest.

    async def carry(*, task_status: trio.TaskStatus[list[Host]]) -> None:
        with scope:
            await trio_streams.serve(daemon.peers, daemon.sockets, task_status=task_status)

    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(carry)
        if exposition is not None:
            exposition.add(daemon.metrics())
        task_status.started(addresses[0])
        try:
            await daemon.keep()
        finally:
            daemon.close()
            with trio.move_on_after(DRAIN_SECONDS, shield=True):
                while len(daemon.peers):  # noqa: ASYNC110  # Nothing tells when the last has left.
                    await trio.sleep(0.001)
            scope.cancel()
