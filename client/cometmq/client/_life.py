"""A client's life: what it is made of, opening and closing, and what is done in the background."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

import anyio

from cometmq.client._connections import Connections
from cometmq.client._core.identity import Identity
from cometmq.client._membership import Membership
from cometmq.client._nameservers import NameServers, parse_nameservers
from cometmq.client._producer import Producer
from cometmq.client._reading import Reading
from cometmq.client._routes import Routes
from cometmq.client._runtime import current_runtime
from cometmq.client.config import ClientConfig, default_nameservers, local_address
from cometmq.client.errors import ClientError, ClosedError, UsageError
from cometmq.proto.codes import ResponseCode, request_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from cometmq.client._runtime import Runtime
    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.client")


class Life:
    """The part of a client that its verbs stand on; see `Client`."""

    def __init__(
        self, nameservers: str | Sequence[str] | None = None, config: ClientConfig | None = None
    ) -> None:
        self.config = ClientConfig() if config is None else config
        self._nameserver_list = parse_nameservers(nameservers or default_nameservers())
        self._runtime: Runtime | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._runtime else "not open"
        return f"<Client of {';'.join(self._nameserver_list)}, {state}>"

    async def __aenter__(self) -> Self:
        if self._runtime is not None or self._is_closed:
            raise UsageError("a client is opened once: make another one")
        runtime = current_runtime()
        config = self.config
        self._identity = Identity(local_address(), config)
        self._membership = Membership(config, self._identity)
        self._connections = Connections(
            runtime, config, greet=self._membership.greet, asked=self._asked
        )
        self._nameservers = NameServers(self._connections, self._nameserver_list)
        self._routes = Routes(self._nameservers, config.template_queue_count, self._route_changed)
        self._producer = Producer(
            config,
            self._identity,
            self._connections,
            self._routes,
            self._membership.broker_version,
        )
        self._reading = Reading(config, self._connections, self._routes)
        await runtime.open()
        self._runtime = runtime
        runtime.spawn(self._tick, "tick")
        runtime.spawn(self._look_for_routes, "routes")
        runtime.spawn(self._send_heartbeats, "heartbeats")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and end what goes on in the background; twice is fine.

        `async with` calls it. Calls that wait get an error. Messages in hand that are not
        acknowledged are delivered again: `consumer.drain()` before this finishes them.
        """
        runtime, self._runtime = self._runtime, None
        self._is_closed = True
        if runtime is not None:
            self._connections.close("the client is closed")
            await runtime.close()

    # How it is kept going.

    def _check_here(self) -> None:
        runtime = self._runtime
        if runtime is None:
            raise ClosedError(
                "the client is closed" if self._is_closed else "open it first: `async with client:`"
            )
        if not runtime.is_here():
            raise UsageError(
                "the client belongs to another event loop: make one for each, or use SyncClient"
            )

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.config.timeout
        if not timeout > 0:
            raise UsageError(f"timeout={timeout}: seconds, more than 0")
        return timeout

    def _asked(self, request: Command, peer: Peer) -> Command | Later:
        """Answer what a server asks."""
        _log.debug("%s asks %s, which is not served here", peer.host, request_name(request.code))
        return request.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )

    def _route_changed(self, topic: str) -> None:
        """Take note of other queues of a topic."""

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(1)
            self._connections.tick()

    async def _look_for_routes(self) -> None:
        while True:
            await anyio.sleep(self.config.route_interval)
            try:
                await self._routes.refresh(timeout=self.config.timeout)
            except ClientError as error:
                _log.warning("routes: %s", error)

    async def _send_heartbeats(self) -> None:
        while True:
            await anyio.sleep(self.config.heartbeat_interval)
            await self._membership.beat(self._connections)
