"""A network between clients and servers that are all in one loop, with a clock that jumps.

How it works. Time passes only while every task waits, so hours take no time, and all chances come
from one seed. A client's runtime connects to a `Server` by address and gets a `Link`. Requests on
it arrive in order, even those sent before the client gave the connection up; answers may overtake
each other. What goes wrong is chosen for each request: see `FATES`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import anyio
import trio

from cometmq.client._asyncio import AsyncioRuntime
from cometmq.client._trio import TrioRuntime
from cometmq.net.errors import AnswerTimeoutError, ConnectError, ConnectionLostError
from cometmq.proto.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from cometmq.net import Peers
    from cometmq.proto.command import Command
    from cometmq.proto.host import Host

FATES: Final = (
    "break before",
    "break after",
    "no answer",
    "late answer",
    "late handling",
    "refuse",
)
"""The connection breaks before or after a request is handled; its answer never comes, or late; it
is handled late, and out of order, as by a pool of threads; it is refused."""


def now() -> float:
    """Return the time in seconds."""
    return time.monotonic_ns() / 1e9


class Server(Protocol):
    """A server of the network."""

    address: str
    is_up: bool

    def handle(self, request: Command, link: Link, respond: Callable[[Command], None], /) -> None:
        """Handle a request; answer it now or later."""
        ...

    def refuse(self, request: Command) -> Command:
        """Refuse a request without handling it."""
        ...

    def gone(self, link: Link, /) -> None:
        """Note the end of a connection."""
        ...


class Machine:
    """A process with a client, which can be cut off or die."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.links: list[Link] = []
        self.disturbed_at = 0.0
        """When something went wrong last between it and a server."""


class Network:
    """All servers, and what goes wrong between them and the clients."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.random = Random(seed)
        self.trouble = trouble
        self.servers: dict[str, Server] = {}
        self.machines: dict[str, Machine] = {}
        self.cut: set[tuple[str, str]] = set()
        """Names of hosts and addresses between which nothing passes."""
        self.in_order: set[int] = {RequestCode.UNLOCK_BATCH_MQ}
        """What is not handled late: it would end a later lock, and nobody could tell."""

        self.counts: Counter[str] = Counter()
        self.tasks: TaskGroup
        self.stuck: list[tuple[tuple[str, str], Callable[[], None]]] = []

    def count(self, what: str) -> None:
        """Count that something happened, so that a test can see what it has covered."""
        self.counts[what] += 1

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function later."""
        if not in_trio():
            asyncio.get_running_loop().call_later(seconds, function)
            return

        async def call() -> None:
            await trio.sleep(seconds)
            function()

        self.tasks.start_soon(call)

    def latency(self) -> float:
        """Return how long something takes to arrive."""
        return self.random.choice((0.001, 0.002, 0.003, 0.005, 0.02))

    def fate(self) -> str:
        """Choose what happens to a request."""
        if self.random.random() >= self.trouble:
            return ""
        fate = self.random.choice(FATES)
        self.count(fate)
        return fate

    def passes(self, place: tuple[str, str], function: Callable[[], None]) -> None:
        """Have something pass between a host and an address, once that is possible."""
        if place in self.cut:
            self.machines[place[0]].disturbed_at = now()
            self.stuck.append((place, function))
        else:
            function()

    def heal(self, place: tuple[str, str]) -> None:
        """Have things pass again: what was sent meanwhile arrives now, in order."""
        self.cut.discard(place)
        ready = [function for where, function in self.stuck if where == place]
        self.stuck = [each for each in self.stuck if each[0] != place]
        for function in ready:
            function()


class _Waiting:
    def __init__(self) -> None:
        self.came = anyio.Event()
        self.answer: Command | None = None


class Link:
    """A connection, at both ends."""

    is_paused = False

    def __init__(self, network: Network, host: Machine, server: Server, peers: Peers) -> None:
        self.network = network
        self.owner = host
        self.server = server
        self.peers = peers
        self.place = (host.name, server.address)
        self.host = server.address
        self.heard_ms = peers.now_ms
        self.closed_because: str | None = None
        self.context: Any = None
        self.connection = SimpleNamespace(is_over=False)
        self.is_gone = False  # as the server sees it
        self._waiting: dict[_Waiting, None] = {}
        self._last = 0.0
        host.links.append(self)
        network.machines[host.name] = host
        peers.admit(cast("Any", self))

    def unread_ms(self, _now_ms: int) -> int:
        """Return 0: servers read at once."""
        return 0

    async def call(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request, and wait for its answer."""
        self._check_open()
        waiting = _Waiting()
        self._waiting[waiting] = None
        self._send(request, partial(self._answered, waiting))
        try:
            with anyio.move_on_after(timeout_ms / 1000):
                await waiting.came.wait()
        finally:
            del self._waiting[waiting]
        if waiting.answer is not None:
            return waiting.answer
        if waiting.came.is_set():
            self._check_open()
        raise AnswerTimeoutError(f"{self.host}: no answer to {request.code}")

    def tell(self, request: Command) -> None:
        """Send a request that wants no answer."""
        if self.closed_because is None:
            self._send(request, lambda _: None)

    def close(self, reason: str) -> None:
        """Close it; what was sent before still arrives."""
        if self.closed_because is None:
            self._end(reason)
            self._in_order(self._gone)

    drop = close

    def disturbed(self) -> None:
        """Note that something is wrong."""
        self.owner.disturbed_at = now()

    def break_(self, reason: str) -> None:
        """Break it at both ends."""
        self._end(reason)
        self._gone()

    def push(self, request: Command) -> None:
        """Send a request from the server to the client."""
        if self.network.fate() not in ("", "late answer"):
            return

        def arrive() -> None:
            if self.closed_because is None and not self.owner.is_dead:
                self.heard_ms = self.peers.now_ms
                self.peers.owner.handle(request, cast("Any", self))

        self.network.later(self.network.latency(), lambda: self.network.passes(self.place, arrive))

    def _check_open(self) -> None:
        if self.closed_because is not None:
            raise ConnectionLostError(f"{self.host}: the connection ended: {self.closed_because}")

    def _end(self, reason: str) -> None:
        if self.closed_because is not None:
            return
        self.disturbed()
        self.closed_because = reason
        self.connection.is_over = True
        for waiting in self._waiting:
            waiting.came.set()
        if self.peers.leave(cast("Any", self)):
            self.peers.owner.closed(cast("Any", self))

    def _gone(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.server.gone(self)

    def _in_order(self, function: Callable[[], None]) -> None:
        """Have something arrive at the server, after all that was sent before it."""
        if self.owner.is_dead:
            return
        self._last = max(self._last, now() + self.network.latency())
        arrive = partial(self.network.passes, self.place, partial(self._arrive, function))
        self.network.later(self._last - now(), arrive)

    def _arrive(self, function: Callable[[], None]) -> None:
        if not self.is_gone and self.server.is_up:
            function()

    def _send(self, request: Command, respond: Callable[[Command], None]) -> None:
        fate = self.network.fate()
        if fate == "late handling" and request.code in self.network.in_order:
            fate = "no answer"
        if fate:
            self.disturbed()
        answer = partial(self._answer, fate, respond)

        def handle() -> None:
            if not self.is_gone and self.server.is_up:
                self.server.handle(request, self, answer)
            if fate == "break after":
                self.break_("reset by the peer")

        def arrive() -> None:
            if fate == "break before":
                self.break_("reset by the peer")
            elif fate == "refuse":
                answer(self.server.refuse(request))
            elif fate == "late handling":
                self.network.later(self.network.random.uniform(0.1, 12), handle)
            else:
                handle()

        self._in_order(arrive)

    def _answer(self, fate: str, respond: Callable[[Command], None], answer: Command) -> None:
        if fate == "no answer":
            return
        delay = self.network.latency()
        if fate == "late answer":
            delay += self.network.random.uniform(0.1, 12)
        self.network.later(delay, lambda: self.network.passes(self.place, partial(respond, answer)))

    def _answered(self, waiting: _Waiting, answer: Command) -> None:
        if self.closed_because is None and not self.owner.is_dead:
            self.heard_ms = self.peers.now_ms
            waiting.answer = answer
            waiting.came.set()


async def connect(network: Network, host: Machine, peers: Peers, to: Host, timeout_ms: int) -> Link:
    """Connect to a server, if it is there and can be reached."""
    address = str(to)
    seconds = timeout_ms / 1000
    if host.is_dead or (host.name, address) in network.cut or network.fate() == "no answer":
        await anyio.sleep(seconds)
        raise ConnectError(f"{address}: no connection within {timeout_ms} ms")
    await anyio.sleep(network.latency())
    server = network.servers.get(address)
    if server is None or not server.is_up or network.fate() == "refuse":
        raise ConnectError(f"{address}: nobody listens there")
    return Link(network, host, server, peers)


def runtime_of(network: Network, host: Machine) -> Any:
    """Make the runtime of a client in a host, for the loop that runs."""

    class Simulated(TrioRuntime if in_trio() else AsyncioRuntime):  # type: ignore[misc]  # Either is one.
        async def connect(self, peers: Peers, address: Host, *, timeout_ms: int, **_: Any) -> Link:
            return await connect(network, host, peers, address, timeout_ms)

    return Simulated()


def in_trio() -> bool:
    """Whether trio runs."""
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
