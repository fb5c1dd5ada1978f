"""What brokers know about a client: its heartbeats and its groups."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.client.errors import (
    ClientError,
    ConnectionEndedError,
    DeadlineError,
    NotFoundError,
    refusal,
)
from cometmq.net import AnswerTimeoutError, ConnectionLostError
from cometmq.proto.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from cometmq.proto.codes import Language, RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import GetConsumerListByGroup, UnregisterClient
from cometmq.proto.errors import BodyError, LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.client._connections import Connections
    from cometmq.client._core.identity import Identity
    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._core.routes import Route
    from cometmq.client._parts import Parts
    from cometmq.client._runtime import Link
    from cometmq.client.config import ClientConfig

_OURS: Final = int(Language.PYTHON)
_log = logging.getLogger("cometmq.client")


def consumer_data(options: ConsumeOptions, version: int) -> ConsumerData:
    """Return a consumer's part of a heartbeat; `version` is that of its subscriptions."""
    where = {
        "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    }
    return ConsumerData(
        group_name=options.group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=(
            MessageModel.BROADCASTING if options.is_broadcast else MessageModel.CLUSTERING
        ),
        consume_from_where=where.get(str(options.start), ConsumeFromWhere.CONSUME_FROM_TIMESTAMP),
        subscription_data_set=tuple(
            each.subscription(topic, version) for topic, each in options.all_filters.items()
        ),
    )


async def ask_for_members(parts: Parts, group: str, route: Route) -> tuple[str, ...]:
    """Ask the brokers of a topic for the members of a group, until one answers."""
    problem: ClientError | None = None
    timeout, asked = parts.config.timeout, GetConsumerListByGroup(group)
    for address in route.one_of_each():
        request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        try:
            response = await parts.connections.call(address, request, timeout=timeout)
            if response.code != ResponseCode.SUCCESS:
                raise refusal(response.code, response.remark, address)
            return ConsumerList.decode(response.body).consumer_id_list
        except ClientError as error:
            parts.membership.tell_again(address)
            problem = error
        except BodyError as error:
            problem = refusal(ResponseCode.SYSTEM_ERROR, str(error), address)
    raise problem or NotFoundError(
        ResponseCode.TOPIC_NOT_EXIST, f"topic {route.topic!r} has no broker", "its route"
    )


class Membership:
    """The groups of a client, which it tells each broker that it is connected to."""

    def __init__(self, config: ClientConfig, identity: Identity) -> None:
        self._config = config
        self._identity = identity
        self._groups: dict[str, Callable[[], ConsumerData]] = {}
        self._told: dict[str, tuple[Link, frozenset[str]]] = {}
        self.broker_version: dict[str, int] = {}
        self.stores_once: set[str] = set()
        """Brokers that store a message once, however often it is sent: CometMQ's."""

    def join(self, group: str, tell: Callable[[], ConsumerData]) -> None:
        """Be a member of a group from the next heartbeat on; `tell` returns its subscriptions."""
        self._groups[group] = tell

    def has_told(self, link: Link, group: str) -> bool:
        """Whether the broker at the other end of a connection knows of a membership."""
        told = self._told.get(link.context)
        return told is not None and told[0] is link and group in told[1]

    def tell_again(self, address: str) -> None:
        """Note that a broker no longer knows the groups: it forgot them, or was told to."""
        self._told.pop(address, None)

    async def greet(self, link: Link, address: str) -> None:
        """Introduce the client to the broker at the other end of a connection, by a heartbeat."""
        timeout = self._config.connect_timeout
        groups = frozenset(self._groups)
        request = Command.request(RequestCode.HEART_BEAT, body=self._heartbeat())
        try:
            response = await link.call(request, timeout_ms=int(timeout * 1000))
        except AnswerTimeoutError:
            link.drop("no answer to a heartbeat")
            raise DeadlineError(f"{address}: no answer to a heartbeat in {timeout:.3g} s") from None
        except ConnectionLostError as error:  # Its text has the address.
            raise ConnectionEndedError(str(error)) from None
        except LocalProtocolError as error:
            raise ConnectionEndedError(f"{address}: {error}") from None
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response.code, response.remark, address)
        self.broker_version[address] = response.version
        (self.stores_once.add if response.language == _OURS else self.stores_once.discard)(address)
        self._told[address] = (link, groups)

    async def beat(self, connections: Connections) -> None:
        """Send a heartbeat over each connection to a broker."""
        for address, link in connections:
            if address not in self.broker_version:
                continue
            try:
                await self.greet(link, address)
            except ClientError as error:
                _log.info("heartbeat: %s", error)

    async def leave(self, group: str, connections: Connections) -> None:
        """Leave a group and tell the brokers, so that other members take over at once."""
        self._groups.pop(group, None)
        self._told = {
            address: (link, groups - {group}) for address, (link, groups) in self._told.items()
        }
        header = UnregisterClient(self._identity.client_id, consumer_group=group)
        request = Command.request(RequestCode.UNREGISTER_CLIENT, header)
        to_tell = [(a, link) for a, link in connections if a in self.broker_version]
        try:
            while to_tell:
                address, link = to_tell.pop()
                try:
                    await connections.ask(address, link, request, self._config.timeout)
                except ClientError as error:
                    _log.info("leaving group %s: %s", group, error)
        finally:
            for _, link in to_tell:  # There is no time to wait for their answers.
                link.tell(request)

    def _heartbeat(self) -> bytes:
        return HeartbeatData(
            client_id=self._identity.client_id,
            producer_data_set=(ProducerData(group_name=self._identity.producer_group),),
            consumer_data_set=tuple(tell() for tell in self._groups.values()),
        ).encode()
