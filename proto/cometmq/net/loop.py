"""The loop driver: a Peer that is an asyncio protocol, for uvloop and asyncio alike.

::

    peers = Peers(owner, limits, call_soon=loop.call_soon)
    server = await serve(peers, listen_on([Host("127.0.0.1", 10911)]))
    ...
    server.close()                        # no new connections
    peers.close("the broker shuts down")  # close the others once their answers have left

    peer = await connect(peers, Host("127.0.0.1", 9876), timeout_ms=3000)
    response = await peer.call(request, timeout_ms=3000)

Both sides use the same class: a server may also send requests to a client that connected to it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from cometmq.net.errors import ConnectError, NetError, reason_of
from cometmq.net.listener import BACKLOG, address_of
from cometmq.net.peer import Peer
from cometmq.proto.host import Host

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable

    from cometmq.net.peers import Peers
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command


# asyncio's backlog is also the number of connections that it accepts in a row, and how often it
# tries to accept without free descriptors, with a traceback each time.
ACCEPTS_AT_ONCE_MAX = 64


class LoopPeer(Peer, asyncio.Protocol):
    """A connection on an asyncio or uvloop loop."""

    __slots__ = ("_is_tls", "_joins", "_transport")

    _transport: asyncio.Transport
    _joins: bool
    _is_tls: bool

    async def call(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request, and wait for the response.

        Raises AnswerTimeoutError, ConnectionLostError, or LocalProtocolError if it cannot be sent.
        If this is cancelled, the peer may carry out the request all the same.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Command] = loop.create_future()

        def answered(result: Command | NetError) -> None:
            if waiting.done():
                return
            if isinstance(result, NetError):
                waiting.set_exception(result)
            else:
                waiting.set_result(result)

        opaque = self.ask_untimed(request, answered)
        deadline = loop.call_later(timeout_ms / 1000, self.expire, opaque)
        try:
            return await waiting
        finally:
            deadline.cancel()
            self.forget(opaque)

    # asyncio.Protocol; `data_received`, `pause_writing` and `resume_writing` are Peer's.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: called by the loop."""
        # uvloop's transports have the same interface as asyncio's, but are no subclass.
        self._transport = cast("asyncio.Transport", transport)
        # From 3.12 on, asyncio's own `writelines` does not notice that its buffer is full.
        self._joins = isinstance(transport, asyncio.Transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        name: tuple[Any, ...] | None = transport.get_extra_info("peername")
        # A connection that is gone already has no name; the owner is not told of it.
        if name is None or not self.open(
            Host(name[0], name[1]), transport.get_extra_info("sockname")[1]
        ):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self.peers.limits.unsent_bytes_pause)

    def eof_received(self) -> None:
        """End, after answering the requests received before: called by the loop."""
        self.receive_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection: called by the loop."""
        self.gone("the peer closed it" if exc is None else f"{type(exc).__name__}: {exc}")

    # Peer

    def _write(self, data: Buffer) -> None:
        self._transport.write(data)

    def _write_all(self, buffers: list[Buffer]) -> None:
        if self._joins:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def _unsent_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def _pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _close(self) -> None:
        if self._is_tls and not self._unsent_size():
            # Otherwise TLS waits for the peer to close, which may be longer than the loop lasts.
            self._transport.abort()
        else:
            self._transport.close()

    def _abort(self) -> None:
        self._transport.abort()


class LoopServer:
    """Listening sockets on a loop, and their `addresses`."""

    def __init__(self, servers: list[asyncio.Server], addresses: list[Host]) -> None:
        self.addresses = addresses
        self._servers = servers

    def close(self) -> None:
        """Accept no more connections. Existing ones go on."""
        for server in self._servers:
            server.close()


async def serve(peers: Peers, listening: Iterable[socket.socket]) -> LoopServer:
    """Accept connections for one owner from these sockets, which the server takes over."""
    loop = asyncio.get_running_loop()
    found = list(listening)
    addresses = [address_of(each) for each in found]
    servers: list[asyncio.Server] = []
    for each in found:
        servers.append(
            await loop.create_server(
                lambda: LoopPeer(peers), sock=each, backlog=ACCEPTS_AT_ONCE_MAX
            )
        )
        each.listen(BACKLOG)
    return LoopServer(servers, addresses)


async def connect(
    peers: Peers,
    address: Host,
    *,
    timeout_ms: int,
    offer_messagepack: bool = True,
    prepare: Callable[[Command], Command] | None = None,
    tls: ssl.SSLContext | None = None,
) -> LoopPeer:
    """Connect, by TLS if `tls` is given; a ConnectError names the address and the reason.

    Requests of the peer go to the owner of `peers`, whose `opened` and `closed` are called as on
    the server's side. Reconnecting is up to the caller.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, peer = await loop.create_connection(
                lambda: LoopPeer(peers, offer_messagepack=offer_messagepack, prepare=prepare),
                address.address,
                address.port,
                ssl=tls,
            )
    except TimeoutError:
        raise ConnectError(f"{address}: no connection within {timeout_ms} ms") from None
    except OSError as error:
        raise ConnectError(f"{address}: {reason_of(error)}") from error
    if peer.closed_because is not None:
        await asyncio.sleep(0)  # The transport releases its socket in the next turn.
        raise ConnectError(f"{address}: {peer.closed_because}")
    return peer
