"""The life of a client: its parts, how it is opened and closed, and its background tasks."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import anyio

from cometmq.client._connections import Connections
from cometmq.client._core.checking import check_seconds
from cometmq.client._core.identity import Identity
from cometmq.client._core.names import TEMPLATE, in_namespace
from cometmq.client._membership import Membership
from cometmq.client._nameservers import NameServers, parse_nameservers
from cometmq.client._parcels import Packing
from cometmq.client._parts import Parts
from cometmq.client._producer import Producer
from cometmq.client._questions import Questions
from cometmq.client._reading import Reading
from cometmq.client._requests import Requests
from cometmq.client._routes import Routes
from cometmq.client._runtime import current_runtime
from cometmq.client._trace import Trace
from cometmq.client.config import ClientConfig, default_nameservers, local_address
from cometmq.client.errors import ClientError, ClosedError, UsageError
from cometmq.net import LATER
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from cometmq.client._consumption import Consumption
    from cometmq.client._runtime import Runtime
    from cometmq.client.hooks import Hook
    from cometmq.client.messages import ReceivedMessage
    from cometmq.client.transaction import Decision
    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command

_log = logging.getLogger("cometmq.client")

TRACE_SECONDS: Final = 2.0
"""How long `close` waits for the last traces to be sent."""


class Life:
    """The base of a client, on which its verbs build; see `Client`."""

    def __init__(
        self, nameservers: str | Sequence[str] | None = None, config: ClientConfig | None = None
    ) -> None:
        self.config = ClientConfig() if config is None else config
        self._nameserver_list = parse_nameservers(nameservers or default_nameservers())
        self._runtime: Runtime | None = None
        self._parts: Parts
        self._transaction_check: Callable[[ReceivedMessage], Awaitable[Decision]] | None = None
        self._consumptions: dict[str, Consumption] = {}
        self._questions = Questions(self._consumptions, self._open_parts)
        self._requests = Requests()
        self._trace: Trace | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._runtime else "not open"
        return f"<Client of {';'.join(self._nameserver_list)}, {state}>"

    @property
    def id(self) -> str:
        """The name by which brokers and their tools know this client while it is open.

        ::

            print(f"mqadmin consumerStatus -g billing -i {mq.id}")
        """
        return self._open_parts().identity.client_id

    async def __aenter__(self) -> Self:
        if self._runtime is not None or self._is_closed:
            raise UsageError("a client can be opened only once: make another one")
        runtime = current_runtime()
        config = self.config
        identity = Identity(local_address(), config)
        membership = Membership(config, identity)
        connections = Connections(runtime, config, greet=membership.greet, asked=self._asked)
        nameservers = NameServers(connections, self._nameserver_list)
        hooks: list[Hook] = list(config.hooks)
        trace = Trace(identity.producer_group) if config.trace else None
        if trace is not None:
            hooks.append(trace)
        routes = Routes(nameservers, config.template_queue_count, self._route_changed)
        self._parts = Parts(
            runtime=runtime,
            config=config,
            identity=identity,
            membership=membership,
            connections=connections,
            nameservers=nameservers,
            routes=routes,
            reading=Reading(config, connections, routes),
            packing=Packing(config, identity, hooks),
            producer=Producer(config, identity, connections, routes, membership),
            hooks=hooks,
        )
        await runtime.open()
        self._runtime = runtime
        runtime.spawn(self._tick, "tick")
        runtime.spawn(self._look_for_routes, "routes")
        runtime.spawn(self._send_heartbeats, "heartbeats")
        self._trace = trace
        if trace is not None:
            runtime.spawn(partial(trace.run, self._parts), "traces")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections and end the background tasks; a second call does nothing.

        ::

            await mq.close()

        `async with` calls it. Calls that still wait get an error. Messages in hand that are not
        acknowledged will be delivered again; to finish them first, call `consumer.drain()`.
        """
        runtime, self._runtime = self._runtime, None
        self._is_closed = True
        if runtime is None:
            return
        try:
            async with anyio.create_task_group() as stopping:
                for consumption in self._consumptions.values():
                    stopping.start_soon(consumption.stop)
            if self._trace is not None:
                with anyio.move_on_after(TRACE_SECONDS, shield=True):
                    await self._trace.flush(self._parts)
        finally:  # Also on cancellation: asyncio cancels in spite of any shield.
            self._parts.connections.close("the client is closed")
            await runtime.close()

    # Keeping it running.

    def _check_here(self) -> None:
        runtime = self._runtime
        if runtime is None:
            raise ClosedError(
                "the client is closed: make another one"
                if self._is_closed
                else "open it first: `async with client:`"
            )
        if not runtime.is_here():
            raise UsageError(
                "the client belongs to another event loop: make one for each, or use SyncClient"
            )

    def _open_parts(self) -> Parts:
        self._check_here()
        return self._parts

    def _named(self, name: str) -> str:
        """Return the name of a topic or group as brokers know it."""
        namespace = self.config.namespace
        return name if not namespace else in_namespace(namespace, name)

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.config.timeout
        return check_seconds("timeout", timeout, above_zero=True)

    def _consumption_begins(self, consumption: Consumption) -> None:
        """Note a consumer. There is one per group: two would get the same queues."""
        group = consumption.options.group
        before = self._consumptions.get(group)
        if before is not None and not before.is_abandoned:
            raise UsageError(
                f"group {group!r} is already consumed by this client: share that consumer among"
                " tasks, or make another client"
            )
        consumption.before = before
        self._consumptions[group] = consumption

    def _consumption_ended(self, consumption: Consumption) -> None:
        group = consumption.options.group
        if self._consumptions.get(group) is consumption:
            del self._consumptions[group]

    def _asked(self, request: Command, peer: Peer) -> Command | Later:
        """Answer a request of a server."""
        try:
            if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                return self._requests.came(request, self.config.inflated_size_max)
            if request.code == RequestCode.CHECK_TRANSACTION_STATE:
                self._asked_about_transaction(request, peer)
                return LATER
            return self._questions.answer(request, peer)
        except RemoteProtocolError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _asked_about_transaction(self, request: Command, peer: Peer) -> None:
        """Handle a broker's question about how a transaction ended; see `TransactionVerbs`."""

    def _route_changed(self, topic: str) -> None:
        """Have the consumers of a topic share its queues again."""
        for consumption in self._consumptions.values():
            if topic in consumption.options.all_filters:
                consumption.member.share_soon()

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(1)
            self._parts.connections.tick()

    async def _look_for_routes(self) -> None:
        while True:
            await anyio.sleep(self.config.route_interval)
            try:
                await self._parts.routes.refresh(timeout=self.config.timeout)
            except ClientError as error:
                _log.warning("routes: %s", error)

    async def _send_heartbeats(self) -> None:
        while True:
            await anyio.sleep(self.config.heartbeat_interval)
            await self._parts.membership.beat(self._parts.connections)
            if self._transaction_check is not None:
                await self._meet_brokers()

    async def _meet_brokers(self) -> None:
        """Connect to each broker that may have a question about a transaction.

        It may have been restarted since, or an earlier process of this program sent it there. The
        template's route has all brokers that create topics.
        """
        parts = self._parts
        try:
            await parts.routes.get(TEMPLATE, timeout=self.config.timeout)
        except ClientError as error:
            _log.debug("route of %s: %s", TEMPLATE, error)
        async with anyio.create_task_group() as meeting:
            for address in parts.routes.masters():
                meeting.start_soon(self._meet, address)

    async def _meet(self, address: str) -> None:
        try:
            await self._parts.connections.to(address)
        except ClientError as error:
            _log.debug("%s", error)
