"""Telling the name servers: which topics this broker serves, over a connection that stays open.

A name server forgets a broker whose connection ends, so there is one to each, kept for the broker's
whole life and made anew when it is lost. One that is down holds up no other.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.net import LATER, NetError, Peers, connect
from cometmq.proto.bodies import RegisterBrokerBody, TopicConfigTable
from cometmq.proto.checksum import CRC_MASK, crc32
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands.broker import RegisterBroker, UnregisterBroker
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.topics import Topics
    from cometmq.net import Later, LoopPeer, Peer

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 3_000
CALL_TIMEOUT_MS: Final = 24_000
GOODBYE_TIMEOUT_MS: Final = 1_000


class _NothingAsked:
    """The owner of our connections to name servers, which ask nothing of a broker."""

    def handle(self, request: Command, peer: Peer) -> Command | Later:  # noqa: ARG002  # Owner's
        """Refuse whatever it is."""
        if request.is_oneway:
            return LATER
        return request.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )

    def end_turn(self) -> None:
        """Nothing is left open by a turn."""

    def opened(self, peer: Peer) -> None:
        """Nothing is kept of a connection."""

    def closed(self, peer: Peer) -> None:
        """Nothing is kept of a connection."""


class Registration:
    """This broker at all of its name servers. Everything is awaited on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        servers: Sequence[Host],
        *,
        address: Host,
        call_soon: Callable[[Callable[[], None]], object],
        elapsed_ms: int,
    ) -> None:
        """`address` is what clients are told to connect to."""
        self.peers = Peers(_NothingAsked(), config.limits, call_soon=call_soon, now_ms=elapsed_ms)
        self._config = config
        self._topics = topics
        self._servers = servers
        self._address = address
        self._open: dict[Host, LoopPeer] = {}
        self._failing: set[Host] = set()

    async def register(self) -> int:
        """Register with each name server; returns with how many it worked."""
        request = self._request()
        return sum([await self._say(server, request) for server in self._servers])

    def _request(self) -> Command:
        config = self._config
        table = TopicConfigTable(
            data_version=self._topics.data_version, topic_config_table=self._topics.configs()
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
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

    async def _say(self, server: Host, request: Command) -> bool:
        try:
            peer = await self._peer(server)
            response = await peer.call(request, timeout_ms=CALL_TIMEOUT_MS)
        except NetError as error:
            self._note_failure(server, str(error))
            return False
        if response.code != ResponseCode.SUCCESS:
            self._note_failure(server, f"code {response.code}: {response.remark}")
            return False
        if server in self._failing:
            self._failing.discard(server)
            log.info("registered at name server %s again", server)
        return True

    def _note_failure(self, server: Host, problem: str) -> None:
        if server not in self._failing:  # One line until it works again.
            self._failing.add(server)
            log.warning("not registered at name server %s: %s; going on", server, problem)

    async def _peer(self, server: Host) -> LoopPeer:
        peer = self._open.get(server)
        if peer is None or peer.closed_because is not None:
            peer = await connect(
                self.peers, server, timeout_ms=CONNECT_TIMEOUT_MS, offer_messagepack=False
            )
            self._open[server] = peer
        return peer

    async def unregister(self) -> None:
        """Take leave of each name server that is there."""
        config = self._config
        header = UnregisterBroker(
            broker_name=config.broker_name,
            broker_addr=str(self._address),
            cluster_name=config.cluster_name,
            broker_id=config.broker_id,
        )
        request = Command.request(RequestCode.UNREGISTER_BROKER, header)
        for peer in self._open.values():
            try:
                await peer.call(request, timeout_ms=GOODBYE_TIMEOUT_MS)
            except NetError as error:
                log.info("name server %s did not hear the goodbye: %s", peer.host, error)
            peer.close("the broker stops")
