"""A cache of topic routes: fetched once, refreshed at intervals, and again after failures."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from cometmq.client._connections import elapsed_ms
from cometmq.client._core.names import TEMPLATE
from cometmq.client._core.routes import Route, guess_route, read_route
from cometmq.client.errors import (
    ClientError,
    DeadlineError,
    NotFoundError,
    ProtocolViolationError,
    RefusedError,
    refusal,
)
from cometmq.proto.bodies import TopicRouteData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetRouteInfoByTopic
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._nameservers import NameServers

_log = logging.getLogger("cometmq.client")

REFRESH_MS_MIN: Final = 200
"""A route that failed is fetched again, but not more often than this."""


class NoRouteError(NotFoundError):
    """No broker serves a topic; `topic` says which."""

    def __init__(self, topic: str, address: str) -> None:
        self.topic = topic
        super().__init__(
            ResponseCode.TOPIC_NOT_EXIST,
            f"no broker serves the topic {topic!r}; has it been created?",
            address,
        )


class _Entry:
    __slots__ = ("fetched_ms", "is_stale", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.fetched_ms = elapsed_ms()
        self.is_stale = False

    def doubt(self) -> None:
        """Have the route fetched again, unless that was a moment ago."""
        if elapsed_ms() - self.fetched_ms >= REFRESH_MS_MIN:
            self.is_stale = True


class Routes:
    """The route cache of a client. `changed` is called with a topic whose queues changed."""

    def __init__(
        self, nameservers: NameServers, queue_count: int, changed: Callable[[str], None]
    ) -> None:
        self._nameservers = nameservers
        self._queue_count = queue_count
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        self._guesses: dict[str, _Entry] = {}
        self._fetching: dict[str, anyio.Event] = {}

    def known(self, topic: str) -> Route | None:
        """Return the cached route, if it can be used without a refresh."""
        entry = self._entries.get(topic)
        return None if entry is None or entry.is_stale else entry.route

    def known_to_send(self, topic: str) -> Route | None:
        """Return the cached route to send by, which may be a guess."""
        entry = self._entries.get(topic) or self._guesses.get(topic)
        return None if entry is None or entry.is_stale else entry.route

    def topics(self) -> list[str]:
        """Return the topics whose routes are cached."""
        return list(self._entries)

    def masters(self) -> set[str]:
        """Return the addresses of the brokers to which messages of cached routes can be sent."""
        found = (
            entry.route.master_of(broker)
            for entry in self._entries.values()
            for broker in entry.route.addresses
        )
        return {address for address in found if address is not None}

    def doubt(self, topic: str) -> None:
        """Have a route fetched again that failed, or was a guess that has proved right.

        The next use fetches it, but not more often than every `REFRESH_MS_MIN`.
        """
        for table in (self._entries, self._guesses):
            if (entry := table.get(topic)) is not None:
                entry.doubt()

    def forget(self, topic: str) -> None:
        """Forget a topic's route: the topic was created, changed or deleted."""
        self._entries.pop(topic, None)
        self._guesses.pop(topic, None)

    async def get(self, topic: str, *, timeout: float) -> Route:
        """Return a topic's route; raise `NotFoundError` if the topic does not exist.

        If the name servers do not answer, return an old route.
        """
        if (route := self.known(topic)) is not None:
            return route
        await self._load_once(topic, timeout, guesses=False)
        return self._entries[topic].route

    async def get_to_send(self, topic: str, *, timeout: float) -> Route:
        """Return a topic's route or, for a topic that a send would create, a guess at it."""
        if (route := self.known_to_send(topic)) is not None:
            return route
        await self._load_once(topic, timeout, guesses=True)
        return (self._entries.get(topic) or self._guesses[topic]).route

    async def get_anew(self, topic: str, *, timeout: float) -> Route:
        """Fetch and return a topic's route to send by, however recently it was fetched."""
        for table in (self._entries, self._guesses):
            if (entry := table.get(topic)) is not None:
                entry.is_stale = True
        return await self.get_to_send(topic, timeout=timeout)

    async def refresh(self, *, timeout: float) -> None:
        """Fetch all cached routes again; one that is refused holds up no other."""
        for topic in self.topics():
            try:
                self._keep(read_route(topic, await self.fetch(topic, timeout)))
            except NotFoundError:
                _log.debug("topic %s has no route at the moment", topic)
            except RefusedError as error:
                _log.warning("route of topic %s: %s", topic, error)

    async def _load_once(self, topic: str, timeout: float, *, guesses: bool) -> None:
        """Load a route into the tables, or wait for another task that does."""
        deadline_ms = elapsed_ms() + timeout * 1000
        known = self.known_to_send if guesses else self.known
        while (loading := self._fetching.get(topic)) is not None:
            with anyio.move_on_after((deadline_ms - elapsed_ms()) / 1000):
                await loading.wait()
            if known(topic) is not None:
                return
            if elapsed_ms() >= deadline_ms:
                raise DeadlineError(f"topic {topic!r}: no route within {timeout:.3g} s")
        loading = self._fetching[topic] = anyio.Event()
        try:
            await self._load(topic, max(0.001, (deadline_ms - elapsed_ms()) / 1000), guesses)
        finally:
            del self._fetching[topic]
            loading.set()

    async def _load(self, topic: str, timeout: float, guesses: bool) -> None:
        """Load a route; if that fails, keep an old one, as brokers come back.

        If there is an old one, half of the time is left for the use of the route.
        """
        old = self._entries.get(topic)
        if old is not None:
            timeout /= 2
        try:
            self._keep(read_route(topic, await self.fetch(topic, timeout)))
        except NotFoundError as missing:
            if old is not None:
                self._entries[topic] = _Entry(old.route)
            elif guesses:
                self._guesses[topic] = _Entry(await self._guess(topic, timeout, missing))
            else:
                raise
        except ClientError:
            if old is None:
                raise
            self._entries[topic] = _Entry(old.route)

    async def _guess(self, topic: str, timeout: float, missing: NotFoundError) -> Route:
        try:
            template = await self.fetch(TEMPLATE, timeout)
            route = guess_route(topic, template, self._queue_count)
        except NotFoundError:
            route = None
        if route is not None and route.to_send:
            return route
        if (old := self._guesses.get(topic)) is not None:
            return old.route
        raise missing from None

    def _keep(self, route: Route) -> None:
        old = self._entries.get(route.topic)
        self._entries[route.topic] = _Entry(route)
        self._guesses.pop(route.topic, None)
        if old is None or old.route != route:
            self._changed(route.topic)

    async def fetch(self, topic: str, timeout: float) -> TopicRouteData:
        """Ask for a route without changing the cache."""
        request = Command.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRouteInfoByTopic(topic, accept_standard_json_only=True),
        )
        address, response = await self._nameservers.call(request, timeout=timeout)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRouteError(topic, address)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        try:
            return TopicRouteData.decode(response.body)
        except BodyError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
