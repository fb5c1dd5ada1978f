"""A server of each driver, in a separate thread, and a client with plain blocking sockets."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import trio
import uvloop

from cometmq.net import (
    LATER,
    Later,
    Limits,
    Peer,
    Peers,
    listen_on,
    loop as loop_driver,
    trio_streams,
)
from cometmq.proto.command import Command
from cometmq.proto.connection import NEED_DATA, Answer, Connection
from cometmq.proto.host import Host
from cometmq.proto.offer import OFFER_FIELD

T = TypeVar("T")

DRIVERS = ("asyncio", "uvloop", "trio")
PATIENCE = 20.0  # seconds; only a failure takes this long

# The request codes of the test owner, named after what it does with the request.
ECHO, HOLD, FAIL, BIG, COMMIT, UNSAYABLE, NOTHING = range(1, 8)
CHUNK = memoryview(bytes(range(256)) * 256)  # 64 KiB


class TestOwner:
    """Handles requests as the codes above say, and records everything that it is told."""

    __test__ = False

    def __init__(self) -> None:
        self.held: list[tuple[Peer, Command]] = []
        self.uncommitted: list[tuple[Peer, Command]] = []
        self.turns: list[int] = []  # how many requests each committed
        self.handled_count = 0
        self.told: queue.Queue[tuple[str, Peer]] = queue.Queue()

    def handle(self, request: Command, peer: Peer) -> Command | Later:
        self.handled_count += 1
        if request.code == HOLD:
            self.held.append((peer, request))
            self.told.put(("held", peer))
            return LATER
        if request.code == COMMIT:
            self.uncommitted.append((peer, request))
            return LATER
        if request.code == FAIL:
            raise KeyError("secret detail")
        if request.code == BIG:
            return request.answer(0, parts=[CHUNK[:1000], CHUNK[1000:]])
        if request.code == UNSAYABLE:
            return request.answer(0, remark="\ud800")
        if request.code == NOTHING:
            return None  # type: ignore[return-value]  # an owner with a bug
        fields = request.ext_fields
        fields.pop(OFFER_FIELD, None)
        return request.answer(0, fields, body=request.body)

    def end_turn(self) -> None:
        if self.uncommitted:
            self.turns.append(len(self.uncommitted))
            for peer, request in self.uncommitted:
                peer.answer(request, request.answer(0, {"turn": str(len(self.turns))}))
            self.uncommitted.clear()

    def opened(self, peer: Peer) -> None:
        self.told.put(("opened", peer))

    def closed(self, peer: Peer) -> None:
        self.told.put(("closed", peer))

    def wait_for(self, word: str) -> Peer:
        """Wait until it is told this, skipping anything it is told before."""
        while True:
            told, peer = self.told.get(timeout=PATIENCE)
            if told == word:
                return peer


class Running:
    """A server in its thread."""

    def __init__(self, owner: TestOwner) -> None:
        self.owner = owner
        self.peers: Peers
        self.address: Host
        self.soon: Callable[[Callable[[], None]], object]
        self.stop: Callable[[], None]

    def on_loop(self, function: Callable[[], T]) -> T:
        """Call a function on the loop's thread and return its result."""
        found: Future[T] = Future()

        def call() -> None:
            try:
                found.set_result(function())
            except BaseException as error:
                found.set_exception(error)

        self.soon(call)
        return found.result(PATIENCE)

    def tick(self, now_ms: int) -> None:
        self.on_loop(lambda: self.peers.tick(now_ms))


@contextmanager
def running(driver: str, limits: Limits | None = None) -> Generator[Running]:
    """Run a server with this driver on a free port."""
    server = Running(TestOwner())
    ready: Future[None] = Future()
    main = _trio_main if driver == "trio" else _loop_main
    thread = threading.Thread(target=main, args=(driver, server, limits or Limits(), ready))
    thread.start()
    try:
        ready.result(PATIENCE)
        yield server
    finally:
        server.soon(server.stop)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _loop_main(driver: str, server: Running, limits: Limits, ready: Future[None]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        server.soon, server.stop = loop.call_soon_threadsafe, stop.set
        server.peers = Peers(server.owner, limits, call_soon=loop.call_soon)
        listening = await loop_driver.serve(server.peers, listen_on([Host("127.0.0.1", 0)]))
        server.address = listening.addresses[0]
        ready.set_result(None)
        await stop.wait()
        listening.close()
        for peer in server.peers:
            peer.drop("the test is over")

    with asyncio.Runner(loop_factory=loop_factory(driver)) as runner:
        runner.run(main())


def loop_factory(driver: str) -> Callable[[], asyncio.AbstractEventLoop]:
    return uvloop.new_event_loop if driver == "uvloop" else asyncio.new_event_loop


def _trio_main(driver: str, server: Running, limits: Limits, ready: Future[None]) -> None:
    async def main() -> None:
        soon = trio.lowlevel.current_trio_token().run_sync_soon
        async with trio.open_nursery() as nursery:
            server.soon, server.stop = soon, nursery.cancel_scope.cancel
            server.peers = Peers(server.owner, limits, call_soon=soon)
            listening = listen_on([Host("127.0.0.1", 0)])
            addresses = await nursery.start(trio_streams.serve, server.peers, listening)
            server.address = addresses[0]
            ready.set_result(None)

    trio.run(main)


class Wire:
    """The other end: a blocking socket and a sans-I/O connection."""

    def __init__(self, address: Host, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((address.address, address.port))
        self.connection = Connection()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def name(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def bytes_of(self, code: int, **arguments: Any) -> bytes:
        opaque = self.connection.new_opaque()
        request = Command.request(code, opaque=opaque, **arguments)
        return b"".join(self.connection.send(request))

    def send(self, code: int, **arguments: Any) -> None:
        self.socket.sendall(self.bytes_of(code, **arguments))

    def receive(self) -> Command:
        """Return the next answer, or request, of the server."""
        while (event := self.connection.next_event()) is NEED_DATA:
            self.connection.receive_data(self.socket.recv(65536))
        if isinstance(event, Answer):
            return event.response
        assert isinstance(event, Command), event
        return event

    def ask(self, code: int, **arguments: Any) -> Command:
        self.send(code, **arguments)
        return self.receive()

    def is_closed(self) -> bool:
        """Read up to the end of the stream, and tell that it came."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True
