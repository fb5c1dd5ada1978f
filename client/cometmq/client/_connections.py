"""Connections to servers, one per address: opened on demand, and reopened with a growing delay.

How it works. `to` returns the open connection of an address, or waits for an attempt to connect;
there is at most one attempt per address at a time. It runs in the background, so when a waiting
caller is cancelled, the other callers keep it. After a failure, the address is left alone for a
while, which doubles with each further failure; callers during that time get the failure at once.

The first request on each connection to a broker is a heartbeat. By the time anybody else uses the
connection, the broker knows the client's groups, and both sides know which header to use.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._access import access_of
from cometmq.client.errors import (
    ClientError,
    ClosedError,
    ConnectionEndedError,
    DeadlineError,
    NetworkError,
    OutcomeUnknownError,
    ProtocolViolationError,
    UnreachableError,
    UsageError,
)
from cometmq.net import (
    AddressError,
    AnswerTimeoutError,
    ConnectError,
    ConnectionLostError,
    Later,
    NetError,
    Peers,
    parse_address,
)
from cometmq.proto.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from cometmq.client._runtime import Link, Runtime
    from cometmq.client.config import ClientConfig
    from cometmq.net import Peer
    from cometmq.proto.command import Command

WORTH_AN_ATTEMPT_MS: Final = 10
"""With less time left, the error of the last attempt says more than that of another one."""
TICK_SECONDS: Final = 1.0


def elapsed_ms() -> int:
    """Return the time of a monotonic clock."""
    return time.monotonic_ns() // 1_000_000


class _Attempt:
    """One attempt to connect; callers wait for its end."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: ClientError | None = None


class _Failures:
    """The consecutive failures of an address, and until when it is left alone."""

    __slots__ = ("count", "error", "until_ms")

    def __init__(self) -> None:
        self.count = 0
        self.until_ms = 0
        self.error: ClientError | None = None


class Connections:
    """All connections of a client; the owner of its `Peers`.

    `greet` is awaited for each new connection to a broker before anybody uses it; `asked` gets the
    requests of servers.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ClientConfig,
        *,
        greet: Callable[[Link, str], Awaitable[None]],
        asked: Callable[[Command, Peer], Command | Later],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._access = access_of(config)
        self._greet = greet
        self._asked = asked
        self._links: dict[str, Link] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._failures: dict[str, _Failures] = {}
        self._is_closed = False
        self.peers = Peers(self, call_soon=runtime.call_soon, now_ms=elapsed_ms())

    def __iter__(self) -> Iterator[tuple[str, Link]]:
        return iter(tuple(self._links.items()))

    def open_link(self, address: str) -> Link | None:
        """Return the open connection to an address, if there is one."""
        link = self._links.get(address)
        if link is None or link.closed_because is not None:
            return None
        return link

    def delay_of(self, address: str) -> float:
        """Return for how many more seconds an address is left alone."""
        failures = self._failures.get(address)
        return 0 if failures is None else max(0, failures.until_ms - elapsed_ms()) / 1000

    async def to(self, address: str, *, is_broker: bool = True) -> Link:
        """Return the connection to an address; open one if there is none."""
        while (link := self.open_link(address)) is None:
            if self._is_closed:
                raise ClosedError("the client is closed: make another one")
            if (attempt := self._attempts.get(address)) is None:
                failures = self._failures.get(address)
                if failures and failures.error and elapsed_ms() < failures.until_ms:
                    raise failures.error.with_traceback(None)
                attempt = self._begin(address, is_broker)
            await attempt.ended.wait()
            if attempt.error is not None:
                raise attempt.error.with_traceback(None)
        return link

    async def call(
        self, address: str, request: Command, *, timeout: float, is_broker: bool = True
    ) -> Command:
        """Send a request to the server at an address; return its answer, whatever it is.

        Raise a `NetworkError` if there is no answer in time.
        """
        link = self.open_link(address)
        if link is None:
            deadline = elapsed_ms() + timeout * 1000
            with anyio.move_on_after(timeout):
                link = await self.to(address, is_broker=is_broker)
            if link is None:
                raise UnreachableError(f"{address}: no connection within {timeout:.3g} s")
            timeout = (deadline - elapsed_ms()) / 1000
        return await self.ask(address, link, request, timeout)

    async def ask(self, address: str, link: Link, request: Command, timeout: float) -> Command:
        """Send a request over a connection, and turn errors into those of this package."""
        asked_ms = self.peers.now_ms
        try:
            return await link.call(request, timeout_ms=max(1, int(timeout * 1000)))
        except AnswerTimeoutError:
            if link.heard_ms <= asked_ms and timeout >= TICK_SECONDS:
                # Nothing at all came since the request: replace a connection that is likely dead.
                link.drop("no answer, nor anything else, came in time")
            raise DeadlineError(f"{address}: no answer within {timeout:.3g} s") from None
        except ConnectionLostError as error:
            raise ConnectionEndedError(str(error)) from None
        except LocalProtocolError as error:
            if link.closed_because is not None or link.connection.is_over:
                raise ConnectionEndedError(f"{address}: {error}") from None
            raise UsageError(str(error)) from error

    def close(self, reason: str) -> None:
        """Close all connections, for good."""
        self._is_closed = True
        self.peers.close(reason)
        for attempt in self._attempts.values():
            # On asyncio, a task that is cancelled before its first turn would not set these.
            attempt.error = ClosedError(reason)
            attempt.ended.set()

    def tick(self) -> None:
        """Close connections that have been silent for too long."""
        self.peers.tick(elapsed_ms())

    def _begin(self, address: str, is_broker: bool) -> _Attempt:
        attempt = self._attempts[address] = _Attempt()

        async def connect() -> None:
            try:
                self._links[address] = await self._connect(address, is_broker)
                self._failures.pop(address, None)
            except ClientError as error:
                self._note_failure(address, error)
                attempt.error = error
            except RemoteProtocolError as error:
                attempt.error = ProtocolViolationError(-1, str(error), address)
            finally:
                del self._attempts[address]
                if attempt.error is None and address not in self._links:
                    attempt.error = ClosedError("the client is closed")
                attempt.ended.set()

        self._runtime.spawn(connect, f"connect {address}")
        return attempt

    async def _connect(self, address: str, is_broker: bool) -> Link:
        try:
            host = parse_address(address)
        except AddressError as error:
            raise UsageError(str(error)) from None
        try:
            link = await self._runtime.connect(
                self.peers,
                host,
                timeout_ms=int(self._config.connect_timeout * 1000),
                access=self._access,
            )
        except ConnectError as error:
            raise UnreachableError(str(error)) from None
        except NetError as error:
            raise NetworkError(str(error)) from None
        link.context = address
        if is_broker:
            try:
                await self._greet(link, address)
            except BaseException as error:
                link.close("the greeting failed")
                if isinstance(error, OutcomeUnknownError):  # Nothing of the caller's was sent.
                    raise UnreachableError(str(error)) from None
                raise
        return link

    def _note_failure(self, address: str, error: ClientError) -> None:
        failures = self._failures.setdefault(address, _Failures())
        config = self._config
        delay = min(config.reconnect_delay * 2**failures.count, config.reconnect_delay_max)
        failures.count += 1
        failures.error = error
        # With jitter, so that the clients of a restarted broker do not all connect at once.
        failures.until_ms = elapsed_ms() + int(delay * 1000 * random.uniform(0.5, 1.0))

    # The interface that `net` requires of an owner.

    def handle(self, request: Command, peer: Peer) -> Command | Later:
        """Answer a request of a server."""
        return self._asked(request, peer)

    def end_turn(self) -> None:
        """Do nothing: nothing waits for the end of a turn."""

    def opened(self, peer: Peer) -> None:
        """Do nothing about a new connection."""

    def closed(self, peer: Peer) -> None:
        """Forget a connection that is gone."""
        link = self._links.get(peer.context)
        if link is not None and link.closed_because is not None:
            del self._links[peer.context]
