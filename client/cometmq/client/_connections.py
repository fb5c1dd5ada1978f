"""Connections to servers, one for each address: made when needed, made anew with patience.

How it works. `to` gives the open connection of an address, or waits for the one attempt to connect
that there is at a time. That attempt runs in the background, so a caller who is cancelled leaves it
to the others who wait. After a failure the address is left alone for a while, which doubles with
each further failure: callers in that time get the failure again, at once.

A broker is sent a heartbeat as the first request of each connection: by the time that anybody else
uses it, the broker knows the client's groups, and both know which header they speak.
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

TICK_SECONDS: Final = 1.0


def elapsed_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class _Attempt:
    """One attempt to connect, and who waits for it."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: ClientError | None = None


class _Failures:
    """How often an address has failed in a row, and until when it is left alone."""

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
        """Tell for how many seconds an address is still left alone."""
        failures = self._failures.get(address)
        return 0 if failures is None else max(0, failures.until_ms - elapsed_ms()) / 1000

    async def to(self, address: str, *, is_broker: bool = True) -> Link:
        """Return the connection to an address, made if there is none."""
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
        """Ask the server at an address; whatever it answers is returned.

        A `NetworkError` when there is no answer within the time.
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
        """Ask over a connection, and say errors in the words of this package."""
        asked_ms = self.peers.now_ms
        try:
            return await link.call(request, timeout_ms=max(1, int(timeout * 1000)))
        except AnswerTimeoutError:
            if link.heard_ms <= asked_ms and timeout >= TICK_SECONDS:
                # Nothing at all came for as long: a new connection is better than a dead one.
                link.drop("no answer, nor anything else, came in time")
            raise DeadlineError(f"{address}: no answer within {timeout:.3g} s") from None
        except ConnectionLostError as error:
            raise ConnectionEndedError(str(error)) from None
        except LocalProtocolError as error:
            if link.closed_because is not None or link.connection.is_over:
                raise ConnectionEndedError(f"{address}: {error}") from None
            raise UsageError(str(error)) from error

    def close(self, reason: str) -> None:
        """Close all; nothing is connected any more."""
        self._is_closed = True
        self.peers.close(reason)
        for attempt in self._attempts.values():
            # A task that is cancelled before its first turn, as asyncio's are, would not say it.
            attempt.error = ClosedError(reason)
            attempt.ended.set()

    def tick(self) -> None:
        """Give up connections that have been silent for too long."""
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
        # Less by chance, so that all clients of a restarted broker do not come at one moment.
        failures.until_ms = elapsed_ms() + int(delay * 1000 * random.uniform(0.5, 1.0))

    # What `net` asks of an owner.

    def handle(self, request: Command, peer: Peer) -> Command | Later:
        """Answer what a server asks."""
        return self._asked(request, peer)

    def end_turn(self) -> None:
        """Nothing waits for the end of a turn."""

    def opened(self, peer: Peer) -> None:
        """Learn of a new connection."""

    def closed(self, peer: Peer) -> None:
        """Forget a connection that is gone."""
        link = self._links.get(peer.context)
        if link is not None and link.closed_because is not None:
            del self._links[peer.context]
