"""A name server with its sockets and its clock, on the loop that it shares with a broker.

`serve` is one trio task, with the connections on the asyncio or uvloop loop that trio is a guest
of. It ends when it is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

import trio

from cometmq.nameserver.nameserver import NameServer
from cometmq.net import LATER, Limits, Peers, listen_on, loop as loop_driver
from cometmq.net.guest import on_loop
from cometmq.proto.host import Host
from cometmq.store.filesystem import RealFileSystem

if TYPE_CHECKING:
    from cometmq.nameserver.config import NameServerConfig
    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

TICK_SECONDS: Final = 1.0


class Connections:
    """The owner of a name server's connections."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._ids = itertools.count(1)
        self._peers: dict[int, Peer] = {}

    def handle(self, request: Command, peer: Peer) -> Command | Later:
        """Serve a request."""
        response = self._server.handle(
            request, connection_id=peer.context, peer=str(peer.host), now_ms=_now_ms()
        )
        return LATER if response is None else response  # None only for what wants no answer.

    def end_turn(self) -> None:
        """Nothing is left open by a turn."""

    def opened(self, peer: Peer) -> None:
        """Number a connection."""
        peer.context = next(self._ids)
        self._peers[peer.context] = peer

    def closed(self, peer: Peer) -> None:
        """Let go the brokers behind it."""
        del self._peers[peer.context]
        self._server.connection_lost(peer.context)

    def tick(self) -> None:
        """Close the connections of brokers that fell silent."""
        for number in self._server.tick(_now_ms()):
            if number in self._peers:
                self._peers[number].close("its broker fell silent")


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def serve(
    config: NameServerConfig,
    *,
    task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a name server until cancelled; `task_status` gets its address once it listens.

    Raises a `NetError` or a `StoreFormatError` when it cannot start.
    """
    sockets = listen_on([Host(config.bind_address, config.listen_port)])
    try:
        server = NameServer.open(config, RealFileSystem(), now_ms=_now_ms())
    except BaseException:
        for each in sockets:
            each.close()
        raise
    connections = Connections(server)
    limits = Limits(idle_timeout_ms=config.connection_idle_seconds_max * 1000)
    call_soon = asyncio.get_running_loop().call_soon
    peers = Peers(connections, limits, call_soon=call_soon, now_ms=_now_ms())
    listening = await on_loop(loop_driver.serve(peers, sockets))
    task_status.started(listening.addresses[0])
    last_ms = _now_ms()
    try:
        while True:
            await trio.sleep(TICK_SECONDS)
            peers.tick(_now_ms())
            if _now_ms() - last_ms >= server.config.scan_interval_ms:
                last_ms = _now_ms()
                connections.tick()
    finally:
        listening.close()
        peers.close("the name server stops")
