"""The trio driver: a Peer over any trio stream, for simulation and platforms without uvloop.

::

    peers = Peers(owner, limits, call_soon=trio.lowlevel.current_trio_token().run_sync_soon)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(serve, peers, listen_on([Host("127.0.0.1", 0)]))

    async with connected(peers, addresses[0], timeout_ms=3000) as peer:
        response = await peer.call(request, timeout_ms=3000)

Owners see no difference from the loop driver. Each connection has two tasks, one that reads and one
that writes; both belong to the nursery of the code that serves or connects.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from cometmq.net.errors import AnswerTimeoutError, ConnectError, NetError, reason_of
from cometmq.net.listener import address_of
from cometmq.net.peer import JOIN_SIZE_MAX, Peer
from cometmq.proto.host import Host

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncGenerator, Callable, Iterable

    from cometmq.net.peers import Peers
    from cometmq.proto.buffer import Buffer
    from cometmq.proto.command import Command

_READ_SIZE_MAX = 256 * 1024

_Stream = trio.abc.Stream


class TrioPeer(Peer):
    """A connection on a trio stream."""

    __slots__ = (
        "_reading",
        "_scope",
        "_stream",
        "_unsent",
        "_unsent_bytes",
        "_writing",
    )

    def __init__(
        self,
        peers: Peers,
        stream: _Stream,
        *,
        offer_messagepack: bool = False,
        prepare: Callable[[Command], Command] | None = None,
    ) -> None:
        super().__init__(peers, offer_messagepack=offer_messagepack, prepare=prepare)
        self._stream = stream
        self._scope = trio.CancelScope()
        self._unsent: list[Buffer] = []
        self._unsent_bytes = 0
        self._writing = trio.Event()  # set: there is something to write, or an end
        self._reading = trio.Event()  # set: reading is not held up
        self._reading.set()

    async def run(
        self,
        host: Host,
        local_port: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the connection from its beginning to its end."""
        admitted = self.open(host, local_port)
        task_status.started()
        if not admitted:
            await trio.aclose_forcefully(self._stream)
            return
        reason = "it was cancelled"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_loop)
                    await self._read_loop()
                    self._writing.set()
            reason = "the peer closed it"
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as errors:
            error = errors.exceptions[0]
            reason = f"{type(error).__name__}: {error}"
        finally:
            self.gone(reason)
            await trio.aclose_forcefully(self._stream)

    async def call(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request, and wait for the response; the errors are those of `LoopPeer.call`."""
        answered = trio.Event()
        results: list[Command | NetError] = []

        def take(result: Command | NetError) -> None:
            results.append(result)
            answered.set()

        opaque = self.ask_untimed(request, take)
        try:
            with trio.move_on_after(timeout_ms / 1000):
                await answered.wait()
        finally:
            self.forget(opaque)
        if not results:
            raise AnswerTimeoutError(f"{self.host}: no answer to request {opaque}")
        if isinstance(results[0], NetError):
            raise results[0]
        return results[0]

    async def _read_loop(self) -> None:
        while self.closed_because is None:
            await self._reading.wait()
            data = await self._stream.receive_some(_READ_SIZE_MAX)
            if not data:
                self.receive_end()
                return
            self.data_received(bytes(data))

    async def _write_loop(self) -> None:
        """Write what is flushed, until the connection is closed and nothing is left."""
        while True:
            await self._writing.wait()
            if not self._unsent:
                if self.closed_because is not None:
                    self._scope.cancel()
                    return
                self._writing = trio.Event()
                continue
            buffers, self._unsent = self._unsent, []
            for buffer in buffers:
                await self._stream.send_all(buffer)
                self._unsent_bytes -= len(buffer)
            if self.is_paused and self._unsent_bytes <= self.peers.limits.unsent_bytes_pause // 4:
                self.resume_writing()

    # Peer

    def _write(self, data: Buffer) -> None:
        self._write_all([data])

    def _write_all(self, buffers: list[Buffer]) -> None:
        self._unsent += _joined(buffers)
        self._unsent_bytes += sum(map(len, buffers))
        self._writing.set()
        if not self.is_paused and self._unsent_bytes > self.peers.limits.unsent_bytes_pause:
            self.pause_writing()

    def _unsent_size(self) -> int:
        return self._unsent_bytes

    def _pause_reading(self) -> None:
        if self._reading.is_set():
            self._reading = trio.Event()

    def _resume_reading(self) -> None:
        self._reading.set()

    def _close(self) -> None:
        # The writer ends the connection once it has written everything.
        self._writing.set()

    def _abort(self) -> None:
        self._unsent.clear()
        self._scope.cancel()


async def serve(
    peers: Peers,
    listening: Iterable[socket.socket],
    *,
    task_status: trio.TaskStatus[list[Host]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections for one owner from these sockets, until cancelled.

    Start it with `nursery.start`, which returns the addresses. To stop accepting and let the
    connections end by themselves, call `peers.close` before the nursery is cancelled.
    """
    found = list(listening)
    addresses = [address_of(each) for each in found]

    async def carry(stream: trio.SocketStream) -> None:
        try:
            name = stream.socket.getpeername()
            local_port = stream.socket.getsockname()[1]
        except OSError:  # It is gone already: the owner is not told of it.
            await trio.aclose_forcefully(stream)
            return
        await TrioPeer(peers, stream).run(Host(name[0], name[1]), local_port)

    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in found]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, carry, listeners)
        task_status.started(addresses)


async def open_stream(
    address: Host, *, timeout_ms: int, tls: ssl.SSLContext | None = None
) -> tuple[_Stream, int]:
    """Connect, by TLS if `tls` is given; return the stream and our own port."""
    cause: Exception | None = None
    try:
        with trio.fail_after(timeout_ms / 1000):
            plain = await trio.open_tcp_stream(
                address.address, address.port, happy_eyeballs_delay=math.inf
            )
            local_port: int = plain.socket.getsockname()[1]
            return (plain if tls is None else await _by_tls(plain, tls, address)), local_port
    except trio.TooSlowError:
        why = f"no connection within {timeout_ms} ms"
    except trio.BrokenResourceError as error:
        why, cause = str(error.__cause__ or error), error
    except OSError as error:
        why, cause = reason_of(error), error
    raise ConnectError(f"{address}: {why}") from cause


async def _by_tls(
    plain: trio.SocketStream, tls: ssl.SSLContext, address: Host
) -> trio.SSLStream[trio.SocketStream]:
    stream = trio.SSLStream(
        # Like many HTTP servers, Apache's end connections without a closing alert.
        plain,
        tls,
        server_hostname=address.address,
        https_compatible=True,
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(plain)
        raise
    return stream


@asynccontextmanager
async def connected(
    peers: Peers,
    address: Host,
    *,
    timeout_ms: int,
    offer_messagepack: bool = True,
    prepare: Callable[[Command], Command] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[TrioPeer]:
    """Connect for the time of a block; a ConnectError names the address and the reason."""
    stream, local_port = await open_stream(address, timeout_ms=timeout_ms, tls=tls)
    peer = TrioPeer(peers, stream, offer_messagepack=offer_messagepack, prepare=prepare)
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run, address, local_port)
        try:
            if peer.closed_because is not None:
                raise ConnectError(f"{address}: {peer.closed_because}")
            yield peer
        except Exception as error:
            failed = error  # Raised below: the nursery would wrap it in a group.
        finally:
            peer.close("it was left")
    if failed is not None:
        raise failed


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """Join small adjacent buffers, since each buffer costs a system call here."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if small and size + len(buffer) > JOIN_SIZE_MAX:
            joined.append(b"".join(small) if len(small) > 1 else small[0])
            small, size = [], 0
        small.append(buffer)
        size += len(buffer)
    if small:
        joined.append(b"".join(small) if len(small) > 1 else small[0])
    return joined
