"""Connections without sockets between real peers that are all on one loop.

What one end writes arrives at the other in order, in pieces, and some time later. Nothing passes
between two hosts that are cut off from each other: it arrives when that is over, as with TCP. A
connection that breaks loses what is under way.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from cometmq.client._asyncio import AsyncioRuntime
from cometmq.net import LoopPeer
from cometmq.net.errors import ConnectError
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from cometmq.client._access import Access
    from cometmq.net import Peers

_LATENCIES: Final = (0.0005, 0.001, 0.002, 0.005, 0.03)


class Network:
    """All hosts, and who of them listens where."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.listening: dict[str, tuple[str, Peers]] = {}
        """The name of the host that listens at an address, and its connections."""
        self.cut: set[frozenset[str]] = set()
        """Pairs of hosts between which nothing passes."""
        self.dead: set[object] = set()
        """Hosts, as they were at one time, that do nothing any more."""
        self.ends: list[End] = []
        self.counts: Counter[str] = Counter()
        self._port = 40_000

    def latency(self) -> float:
        """Return how long something takes to arrive."""
        return self.random.choice(_LATENCIES)

    def passes(self, one: str, other: str) -> bool:
        """Whether something passes between two hosts."""
        return frozenset((one, other)) not in self.cut

    def heal(self, pair: frozenset[str]) -> None:
        """Have things pass between two hosts again."""
        self.cut.discard(pair)
        for end in self.ends:
            end.go_on()

    def break_one(self) -> None:
        """Break any connection."""
        if self.ends:
            self.random.choice(self.ends).break_()

    def die(self, life: object) -> None:
        """End a process: the other ends of its connections learn of it if they can be reached."""
        self.dead.add(life)
        for end in [each for each in self.ends if each.life is life]:
            end.break_()

    async def connect(
        self, host: str, life: object, peers: Peers, to: Host, timeout_ms: int, **options: Any
    ) -> LoopPeer:
        """Connect a host to an address."""
        address = str(to)
        if life in self.dead:
            raise ConnectError(f"{address}: this process has ended")
        there = self.listening.get(address)
        if there is None:
            await asyncio.sleep(self.latency())
            raise ConnectError(f"{address}: nobody listens there")
        if not self.passes(host, there[0]):
            await asyncio.sleep(timeout_ms / 1000)
            raise ConnectError(f"{address}: no connection within {timeout_ms} ms")
        await asyncio.sleep(self.latency())
        if self.listening.get(address) is not there:
            raise ConnectError(f"{address}: nobody listens there")
        self._port += 1
        near, far = End(self, host, life), End(self, there[0], there[1])
        near.other, far.other = far, near
        near.names = {"peername": (to.address, to.port), "sockname": ("10.0.0.1", self._port)}
        far.names = {"peername": ("10.0.0.1", self._port), "sockname": (to.address, to.port)}
        self.ends += near, far
        far.begin(LoopPeer(there[1]))
        peer = LoopPeer(peers, **options)
        near.begin(peer)
        if peer.closed_because is not None:
            raise ConnectError(f"{address}: {peer.closed_because}")
        return peer

    def runtime(self, host: str, life: object) -> AsyncioRuntime:
        """Make the runtime of a client on a host."""
        network = self

        class Piped(AsyncioRuntime):
            async def connect(
                self, peers: Peers, address: Host, *, timeout_ms: int, access: Access
            ) -> LoopPeer:
                return await network.connect(
                    host,
                    life,
                    peers,
                    address,
                    timeout_ms,
                    offer_messagepack=access.offer_messagepack,
                    prepare=access.sign,
                )

        return Piped()


class End(asyncio.Transport):
    """One end of a connection, as its protocol sees it."""

    other: End

    def __init__(self, network: Network, host: str, life: object) -> None:
        super().__init__()
        self.host = host
        self.life = life
        self.names: dict[str, Any] = {}
        self._network = network
        self._protocol: Any = None
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[bytes | None] = deque()
        """What is to arrive at the other end; `None` is the end of it."""
        self._size = 0
        self._high = 1 << 16
        self._is_full = self._is_closing = self._is_lost = self._is_reading_paused = False
        self._is_carrying = False

    def begin(self, protocol: LoopPeer) -> None:
        """Tell the protocol that there is a connection."""
        self._protocol = protocol
        protocol.connection_made(self)

    def break_(self) -> None:
        """Break it at both ends."""
        self._network.counts["break"] += 1
        for end in (self, self.other):
            end.lose(ConnectionResetError("reset"))

    # Called by the protocol.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the names of both ends."""
        return self.names.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how much may be under way before the protocol is paused."""
        del low
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        """Return how much is under way."""
        return self._size

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, in one piece or several."""
        if self._is_closing:
            return
        rest = bytes(data)
        self._size += len(rest)
        while rest:
            size = len(rest)
            if self._network.random.random() < 0.1:
                size = self._network.random.randrange(1, size + 1)
            self._under_way.append(rest[:size])
            rest = rest[size:]
        self._carry()
        if self._size > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send it all."""
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        """Take what has come."""
        self._is_reading_paused = False
        self.other.go_on()

    def close(self) -> None:
        """Close it when all has arrived."""
        if not self._is_closing:
            self._is_closing = True
            self._under_way.append(None)
            self._carry()

    def abort(self) -> None:
        """Close it at once."""
        self._is_closing = True
        self.lose(None)
        self.other.lose(ConnectionResetError("reset"))

    # The other end, and time.

    def lose(self, error: Exception | None) -> None:
        """End it here."""
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._under_way.clear()
            self._network.ends.remove(self)
            self._call(lambda: self._protocol.connection_lost(error))

    def go_on(self) -> None:
        """Carry what could not pass before."""
        if self._under_way:
            self._carry()

    def _call(self, function: Callable[[], None]) -> None:
        def call() -> None:
            if self.life not in self._network.dead:
                function()

        self._loop.call_soon(call)

    def _carry(self) -> None:
        if not self._is_carrying:
            self._is_carrying = True
            self._loop.call_later(self._network.latency(), self._arrive)

    def _arrive(self) -> None:
        self._is_carrying = False
        if self._cannot_carry():
            return
        if not self._network.passes(self.host, self.other.host):
            return
        count = self._network.random.randrange(1, 5)
        while self._under_way and count:
            count -= 1
            data = self._under_way.popleft()
            if data is None:
                self.other.ended()
                self.lose(None)
                return
            self._size -= len(data)
            self.other.take(data)
            if self._cannot_carry():
                return
        if self._is_full and self._size <= self._high // 4:
            self._is_full = False
            if self.life not in self._network.dead:
                self._protocol.resume_writing()
        if self._under_way:
            self._carry()

    def _cannot_carry(self) -> bool:
        return self._is_lost or self.other._is_reading_paused

    def take(self, data: bytes) -> None:
        """Take what the other end has sent."""
        if not self._is_lost and self.life not in self._network.dead:
            self._protocol.data_received(data)

    def ended(self) -> None:
        """Take the end of what the other end has sent."""
        if not self._is_lost and self.life not in self._network.dead:
            self._protocol.eof_received()
            self.close()
