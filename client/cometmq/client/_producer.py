"""Sending: choosing the queue, retrying, and reading the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._connections import WORTH_AN_ATTEMPT_MS, elapsed_ms
from cometmq.client._core.identity import now_ms
from cometmq.client._core.names import TEMPLATE
from cometmq.client._core.queues import Queue
from cometmq.client._core.retry import LOST_QUEUE_WAITS, Retrying
from cometmq.client._core.selection import Selection, queue_of_key
from cometmq.client._parcels import SEND
from cometmq.client._watching import tell_each, watched
from cometmq.client.errors import (
    ClientError,
    DeadlineError,
    ForbiddenError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolViolationError,
    RefusedError,
    UnreachableError,
    UsageError,
    refusal,
)
from cometmq.proto import property_names as names
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import (
    STORED_CODES,
    SendMessageRefusal,
    SendMessageResponse,
    SendMessageV2,
)
from cometmq.proto.errors import RemoteProtocolError
from cometmq.proto.version import version_name, version_ordinal

if TYPE_CHECKING:
    from collections.abc import Collection

    from cometmq.client._connections import Connections
    from cometmq.client._core.identity import Identity
    from cometmq.client._core.routes import Route
    from cometmq.client._membership import Membership
    from cometmq.client._parcels import Parcel
    from cometmq.client._routes import Routes
    from cometmq.client.config import ClientConfig

_SEND_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_ONCE: Final = f"{names.IDEMPOTENT}\x011\x02"
_STORED: Final = frozenset(map(int, STORED_CODES))
_TIMERS_VERSION: Final = version_ordinal(5, 0, 0)


class Producer:
    """Sends for one client."""

    def __init__(
        self,
        config: ClientConfig,
        identity: Identity,
        connections: Connections,
        routes: Routes,
        membership: Membership,
    ) -> None:
        self._config = config
        self._identity = identity
        self._connections = connections
        self._routes = routes
        self._membership = membership
        self._selection = Selection(avoids=config.avoid_slow_brokers)

    async def send(
        self,
        topic: str,
        parcel: Parcel,
        *,
        queue: Queue | None,
        sharding_key: str | None,
        timeout: float,
    ) -> tuple[Queue, SendMessageResponse, int]:
        """Send until a broker has stored it, or the attempts or the time are used up.

        A chosen queue, or that of a sharding key, is retried itself, as no other queue would be
        right. If the topic has lost the queue since its route was fetched, the route is fetched
        again; a chosen queue then raises `NotFoundError`.
        """
        if parcel.watches:
            watches, parcel.watches = parcel.watches, None
            return await watched(
                watches,
                self.send(topic, parcel, queue=queue, sharding_key=sharding_key, timeout=timeout),
            )
        began_ms = elapsed_ms()
        deadline_ms = began_ms + int(timeout * 1000)
        retrying: Retrying | None = None
        failure: ClientError | None = None  # What to raise if there is no further attempt.
        once: Queue | None = None  # Where it may be stored already; a retry there stores it once.
        while True:
            failed = retrying.failed if retrying is not None else ()
            try:
                route = self._routes.known_to_send(topic)
                if route is None:
                    route = await self._found_route(topic, timeout, deadline_ms)
                    began_ms = elapsed_ms()
                target = once or self._target(topic, route, queue, sharding_key, failed, began_ms)
            except ClientError as error:
                raise failure or error from error.__cause__  # The attempt's error says more.
            try:
                return await self._attempt(route, target, parcel, began_ms, deadline_ms)
            except ClientError as error:
                if retrying is None:
                    retrying = Retrying(self._config.send_attempts)
                lost = await self._note_failure(target, error, deadline_ms)
                if lost and queue is not None:
                    error = _lost_queue(target, error)
                address = route.master_of(target.broker) or ""
                if isinstance(error, OutcomeUnknownError) and self._is_stored_once(parcel, address):
                    once = target
                is_free = queue is None and sharding_key is None and once is None
                brokers = {each.broker for each in route.to_send} if is_free else set[str]()
                delay = retrying.after(
                    error,
                    target.broker,
                    others=bool(brokers - retrying.failed - {target.broker}),
                    is_queue_lost=lost and queue is None and once is None,
                    reconnect=self._connections.delay_of(address),
                    is_stored_once=once is not None,
                )
                failure = _told(error, may_be_done=retrying.may_be_done)
                if not await _wait(delay, deadline_ms):
                    raise failure from failure.__cause__
                began_ms = elapsed_ms()

    async def _found_route(self, topic: str, seconds: float, deadline_ms: int) -> Route:
        remaining = (deadline_ms - elapsed_ms()) / 1000
        route = await self._routes.get_to_send(topic, timeout=remaining)
        if elapsed_ms() >= deadline_ms:
            raise DeadlineError(f"topic {topic!r}: no route within {seconds:.3g} s")
        return route

    async def _note_failure(self, target: Queue, error: ClientError, deadline_ms: int) -> bool:
        """Note that an attempt failed; return whether only the queue is missing."""
        if await self._is_lost(target, error, deadline_ms):
            return True
        self._selection.note_failure(target.broker, elapsed_ms())
        self._routes.doubt(target.topic)
        return False

    async def _is_lost(self, target: Queue, error: ClientError, deadline_ms: int) -> bool:
        """Whether a broker refused because its topic no longer has the queue; refetch the route.

        Name servers learn of it a moment after the broker has begun to refuse.
        """
        if not isinstance(error, RefusedError) or error.code not in LOST_QUEUE_WAITS:
            return False
        for seconds in LOST_QUEUE_WAITS[error.code]:
            remaining = (deadline_ms - elapsed_ms()) / 1000 - seconds
            if remaining <= 0:
                return False
            await anyio.sleep(seconds)
            try:
                route = await self._routes.get_anew(target.topic, timeout=remaining)
            except ClientError:
                return False  # The broker's own error says more.
            if target not in route.to_send:
                return True
        return False

    async def send_oneway(
        self, topic: str, parcel: Parcel, *, queue: Queue | None, sharding_key: str | None
    ) -> None:
        """Send once, without waiting for an answer."""
        watches = parcel.watches or ()
        try:
            await self._tell(topic, parcel, queue, sharding_key)
        except BaseException as error:
            failure = error
            tell_each(watches, lambda watch: watch.ended(failure))
            raise
        tell_each(watches, lambda watch: watch.ended(None))

    async def _tell(
        self, topic: str, parcel: Parcel, queue: Queue | None, sharding_key: str | None
    ) -> None:
        route = await self._routes.get_to_send(topic, timeout=self._config.timeout)
        target = self._target(topic, route, queue, sharding_key, (), elapsed_ms())
        try:
            address = self._address(route, target)
            link = await self._connections.to(address)
        except ClientError:
            self._selection.note_failure(target.broker, elapsed_ms())
            self._routes.doubt(topic)
            raise
        link.tell(self._request(target, parcel, address))
        if route.is_guess:
            self._routes.doubt(topic)

    async def send_reply(self, asked: Queue, topic: str, parcel: Parcel) -> None:
        """Send a reply to the broker that has the request, to which its sender is connected."""
        timeout = self._config.timeout
        address = self._address(await self._routes.get(asked.topic, timeout=timeout), asked)
        parcel.code = _SEND_REPLY
        request = self._request(Queue(topic, asked.broker, 0), parcel, address)
        response = await self._connections.call(address, request, timeout=timeout)
        if response.code not in _STORED:
            raise refusal(response.code, response.remark, address)

    def _target(
        self,
        topic: str,
        route: Route,
        queue: Queue | None,
        sharding_key: str | None,
        failed: Collection[str],
        now_ms: int,
    ) -> Queue:
        """Choose the queue: the caller's, the key's, or the next one."""
        if queue is not None:
            return queue
        if not route.to_send:
            raise ForbiddenError(
                ResponseCode.NO_PERMISSION, f"topic {topic!r} has no queue to send to", "its route"
            )
        if sharding_key is not None:
            return queue_of_key(route.to_send, sharding_key)
        return self._selection.pick(route.to_send, failed, now_ms)

    def _address(self, route: Route, target: Queue) -> str:
        address = route.master_of(target.broker)
        if address is None:
            raise UnreachableError(f"broker {target.broker!r} has no master at the moment")
        return address

    async def _attempt(
        self, route: Route, target: Queue, parcel: Parcel, began_ms: int, deadline_ms: int
    ) -> tuple[Queue, SendMessageResponse, int]:
        address = self._address(route, target)
        # At most half of the time, so that there is time for another attempt if this one fails.
        timeout = max(deadline_ms - began_ms, 1) / 1000
        if timeout > 1:
            timeout = max(timeout / 2, 1)
        link = self._connections.open_link(address)
        if link is None:
            with anyio.move_on_after(timeout):
                link = await self._connections.to(address)
            if link is None:
                raise UnreachableError(f"{address}: no connection within {timeout:.3g} s")
            timeout = min(timeout, (deadline_ms - elapsed_ms()) / 1000)  # Connecting took time.
        request = self._request(target, parcel, address)
        response = await self._connections.ask(address, link, request, timeout)
        now = elapsed_ms()
        self._selection.note(target.broker, now - began_ms, now)
        if response.code not in _STORED:
            raise _refused(response, address)
        if route.is_guess:
            self._routes.doubt(route.topic)
        try:
            return target, response.read(SendMessageResponse), response.code
        except RemoteProtocolError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None

    def _request(self, target: Queue, parcel: Parcel, address: str) -> Command:
        if parcel.needs_timers:
            self._check_version(address)
        properties = parcel.properties
        if self._is_stored_once(parcel, address):
            properties += _ONCE
        header = SendMessageV2(
            self._identity.producer_group,
            target.topic,
            TEMPLATE,
            self._config.template_queue_count,
            target.id,
            parcel.sys_flag,
            now_ms(),
            parcel.flag,
            properties,
            batch=parcel.is_batch,
            broker_name=target.broker,
        )
        return Command(parcel.code, header, body=parcel.body)

    def _is_stored_once(self, parcel: Parcel, address: str) -> bool:
        """Whether a broker stores this message once, however often it is sent."""
        return (
            self._config.idempotent
            and parcel.code == SEND
            and not parcel.may_repeat
            and address in self._membership.stores_once
        )

    def _check_version(self, address: str) -> None:
        version = self._membership.broker_version.get(address, _TIMERS_VERSION)
        if version < _TIMERS_VERSION:
            raise UsageError(
                f"{address} is of version {version_name(version)}, which knows only delay levels:"
                " give delay_level=1 to 18, or the delay of one, 1, 5, 10, 30, 60, … s"
            )


async def _wait(delay: float | None, deadline_ms: int) -> bool:
    """Wait before another attempt, if there is to be one; return whether there is time for it."""
    if delay is None or delay * 1000 >= deadline_ms - elapsed_ms():
        return False
    await anyio.sleep(delay)
    return deadline_ms - elapsed_ms() >= WORTH_AN_ATTEMPT_MS


def _told(error: ClientError, *, may_be_done: bool) -> ClientError:
    """Return the error of a send, whose attempts before this one may have stored the message."""
    if not may_be_done or isinstance(error, OutcomeUnknownError):
        return error
    unknown = OutcomeUnknownError(
        f"one attempt got no answer, then: {error}; the message may be stored"
    )
    unknown.__cause__ = error
    return unknown


def _refused(response: Command, address: str) -> ClientError:
    """Make the error for a send that a broker refuses, maybe after it has written the message."""
    error = refusal(response.code, response.remark, address)
    try:
        may_be_done = response.read(SendMessageRefusal).may_be_stored
    except RemoteProtocolError:
        may_be_done = None
    if not may_be_done:
        return error
    unknown = OutcomeUnknownError(f"{error}; the message may be stored")
    unknown.__cause__ = error
    return unknown


def _lost_queue(queue: Queue, error: ClientError) -> NotFoundError:
    """Make the error for a chosen queue that its topic does not have."""
    assert isinstance(error, RefusedError)
    said = f"no queue {queue}; `queues({queue.topic!r})` lists those that exist: {error.remark}"
    return NotFoundError(error.code, said, error.address)
