"""Registration of the broker's topics at the name servers, over connections that stay open.

How it works. For each name server there is a `NameServer`, with a connection that lasts as long as
the broker, because a name server forgets a broker whose connection ends. A `NameServer` knows which
topics have changed since its server was told, and `tell` sends only those: if sends create ten
thousand topics, sending all topics for each would take a quarter of an hour. All topics are sent to
a server that is new, was lost or failed to answer, and to each every `register_interval_ms`.

A server that is down does not hold up the others. It misses no change, because it is told
everything when it is back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cometmq.net import LATER, NetError, Peers, connect
from cometmq.proto.bodies import KVTable, RegisterBrokerBody, TopicConfigTable
from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.broker import RegisterBroker, UnregisterBroker
from cometmq.proto.errors import BodyError
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.topics import Topics
    from cometmq.net import Later, LoopPeer, Peer
    from cometmq.proto.bodies import DataVersion, TopicConfig

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 3_000
CALL_TIMEOUT_MS: Final = 24_000
GOODBYE_TIMEOUT_MS: Final = 1_000
EVERYTHING: Final = 1 << 62
"""The version that counts as told if there is no name server to tell."""


class NameServer:
    """One name server, and the changes that it has to be told of."""

    def __init__(self, host: Host, registration: Registration) -> None:
        self.host = host
        self.wake: Callable[[], None] = lambda: None
        """Called when there is something to tell."""
        self.has_failed = False
        """Whether the last attempt to tell it failed."""
        self.told_version = -1
        """The version of the topic table that the last attempt told of, even if it failed."""
        self._registration = registration
        self._changed: set[str] = set()
        self._needs_all = True
        self._peer: LoopPeer | None = None

    @property
    def is_behind(self) -> bool:
        """Whether there is something to tell."""
        return self._needs_all or bool(self._changed)

    def changed(self, topic: str) -> None:
        """Note that the server has to be told of a topic."""
        self._changed.add(topic)
        self.wake()

    def renew(self) -> None:
        """Note that it is time to tell the server everything."""
        self._needs_all = True

    async def tell(self) -> None:
        """Tell the server what is new; `has_failed` says afterwards whether that failed."""
        registration = self._registration
        version = registration.topics.file.version
        try:
            peer = await self._connected()
            request = self._request()
            response = await peer.call(request, timeout_ms=CALL_TIMEOUT_MS)
        except NetError as error:
            problem: str | None = str(error)
        else:
            problem = _refusal(response)
            if problem is None and response.body:
                registration.mark_ordered(bytes(response.body), self.host)
        self._note(problem)
        self.told_version = version
        registration.on_told()

    async def _connected(self) -> LoopPeer:
        peer = self._peer
        if peer is None or peer.closed_because is not None:
            self._needs_all = True
            peer = self._peer = await connect(
                self._registration.peers,
                self.host,
                timeout_ms=CONNECT_TIMEOUT_MS,
                offer_messagepack=False,
            )
        return peer

    def _request(self) -> Command:
        """Make the request for everything that is due, and mark it as told."""
        topics = None if self._needs_all else self._changed
        self._needs_all = False
        self._changed = set()
        return self._registration.request(topics)

    def _note(self, problem: str | None) -> None:
        if problem is None:
            if self.has_failed:
                log.info("registered at name server %s again", self.host)
        else:
            self._needs_all = True
            if not self.has_failed:  # One line until it works again.
                log.warning("not registered at name server %s: %s; retrying", self.host, problem)
        self.has_failed = problem is not None

    def lost(self, peer: Peer) -> None:
        """Note that a connection is gone; a server that loses its connection forgets the broker."""
        if peer is self._peer and not self._registration.is_over:
            self._needs_all = True
            self.wake()

    async def say_goodbye(self, request: Command) -> None:
        """Unregister, if the server is connected."""
        peer = self._peer
        if peer is None or peer.closed_because is not None:
            return
        try:
            await peer.call(request, timeout_ms=GOODBYE_TIMEOUT_MS)
        except NetError as error:
            log.info(
                "name server %s could not be told that this broker stops: %s", self.host, error
            )
        peer.close("the broker stops")


class Registration:
    """The registration of this broker at all its name servers. Await everything on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        servers: Sequence[Host],
        *,
        address: Host,
        call_soon: Callable[[Callable[[], None]], object],
        alive_ms: int,
        now_ms: Callable[[], int],
        on_told: Callable[[], None],
    ) -> None:
        """`address` is where clients connect; `on_told` is called when `told_version` may grow.

        The owner calls `changed` of each of `servers`, and `tell` when it is time to.
        """
        self.peers = Peers(self, config.limits, call_soon=call_soon, now_ms=alive_ms)
        self.topics = topics
        self.on_told = on_told
        self.is_over = False
        self.servers = [NameServer(server, self) for server in servers]
        self._config = config
        self._address = address
        self._now_ms = now_ms
        self._whole: tuple[DataVersion, bytes] | None = None

    @property
    def registered_count(self) -> int:
        """The number of servers that know of this broker."""
        return sum(server.told_version >= 0 and not server.has_failed for server in self.servers)

    @property
    def told_version(self) -> int:
        """The version of the topic table that all reachable servers know."""
        there = (server.told_version for server in self.servers if not server.has_failed)
        return min(there, default=EVERYTHING)

    def request(self, names: set[str] | None) -> Command:
        """Make the request that registers these topics, or all topics if `names` is None."""
        config = self._config
        body = self._whole_body() if names is None else self._body_of(names)
        header = RegisterBroker(
            broker_name=config.broker_name,
            cluster_name=config.cluster_name,
            broker_addr=str(self._address),
            broker_id=config.broker_id,
            ha_server_addr=str(Host(self._address.address, self._address.port + 1)),
            enable_acting_master=False,
            body_crc32=crc32(body) & CRC_MASK,
        )
        return Command.request(RequestCode.REGISTER_BROKER, header, body=body)

    def _body_of(self, names: set[str]) -> bytes:
        # Deleted topics are not told: operators delete them at each server.
        found = [self.topics.find(name) for name in names]
        configs = {topic.config.topic_name: topic.config for topic in found if topic}
        return self._encode(configs)

    def _whole_body(self) -> bytes:
        """Encode all topics. It takes 15 ms for 10,000, so the result is kept until a change."""
        version = self.topics.data_version
        if self._whole is None or self._whole[0] != version:
            self._whole = (version, self._encode(self.topics.configs()))
        return self._whole[1]

    def _encode(self, configs: dict[str, TopicConfig]) -> bytes:
        table = TopicConfigTable(data_version=self.topics.data_version, topic_config_table=configs)
        return RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()

    def mark_ordered(self, body: bytes, server: Host) -> None:
        """Mark as ordered the topics named in a name server's answer to a registration."""
        try:
            names = KVTable.decode(body).table
        except BodyError as error:
            log.warning("name server %s: the answer to a registration: %s", server, error)
            return
        for name in names:
            topic = self.topics.find(name)
            if topic is not None and not topic.config.order:
                self.topics.put(replace(topic.config, order=True), self._now_ms())
                log.info("topic %s is ordered: name server %s says so", name, server)

    async def unregister(self) -> None:
        """Unregister from each name server that is connected."""
        self.is_over = True
        config = self._config
        header = UnregisterBroker(
            broker_name=config.broker_name,
            broker_addr=str(self._address),
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        request = Command.request(RequestCode.UNREGISTER_BROKER, header)
        for server in self.servers:
            await server.say_goodbye(request)

    # Called by `net`, as for any owner; name servers ask nothing of a broker.

    def handle(self, request: Command, peer: Peer) -> Command | Later:  # noqa: ARG002  # Owner's
        """Refuse any request."""
        if request.is_oneway:
            return LATER
        return request.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )

    def end_turn(self) -> None:
        """Do nothing: a turn leaves nothing open."""

    def opened(self, peer: Peer) -> None:
        """Do nothing: nothing is kept for a connection."""

    def closed(self, peer: Peer) -> None:
        """Have the server at its other end told everything again."""
        for server in self.servers:
            server.lost(peer)


def _refusal(response: Command) -> str | None:
    """Return why a name server refused a registration; None if it did not."""
    if response.code == ResponseCode.SUCCESS:
        return None
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return (
            "it answers, but does not know what name servers do: it looks like a broker. Give the"
            " name server's address, port 9876 unless it was told otherwise"
        )
    return f"code {response.code}: {response.remark}"
