"""Who is connected: the members of a consumer group (203), of a producer group (204), and of all
producer groups (328)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.errors import RequestError
from cometmq.proto.bodies import (
    ClientConnection,
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from cometmq.proto.codes import Language, ResponseCode
from cometmq.proto.commands.consumer import GetConsumerConnectionList, GetProducerConnectionList

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.consumers import Member
    from cometmq.broker.session import Session, State
    from cometmq.net import Peer
    from cometmq.proto.command import Command


def get_consumer_connection_list(request: Command, session: Session) -> Command:
    """203: the members of a consumer group, and its subscriptions."""
    name = request.read(GetConsumerConnectionList).consumer_group
    group = session.state.consumers.find(name)
    if group is None:
        raise RequestError(
            ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
        )
    data = group.data
    body = ConsumerConnections(
        connection_set=_connections(group.members),
        consume_from_where=None if data is None else data.consume_from_where,
        consume_type=None if data is None else data.consume_type,
        message_model=None if data is None else data.message_model,
        subscription_table=dict(group.subscriptions),
    )
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def get_producer_connection_list(request: Command, session: Session) -> Command:
    """204: the members of a producer group."""
    name = request.read(GetProducerConnectionList).producer_group
    members = session.state.producers.members(name)
    if not members:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    body = ProducerConnections(connection_set=_connections(members))
    return request.answer(ResponseCode.SUCCESS, body=body.encode())


def get_all_producer_info(request: Command, session: Session) -> Command:
    """328: the members of all producer groups."""
    state = session.state
    table = {
        name: tuple(_info(peer, member, state) for peer, member in members.items())
        for name, members in state.producers.groups()
    }
    return request.answer(ResponseCode.SUCCESS, body=ProducerTable(data=table).encode())


def _connections(members: Mapping[Peer, Member]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(
            client_addr=str(peer.host),
            client_id=member.client_id,
            language=_language(member),
            version=member.version,
        )
        for peer, member in members.items()
    )


def _info(peer: Peer, member: Member, state: State) -> ProducerInfo:
    return ProducerInfo(
        client_id=member.client_id,
        language=_language(member),
        last_update_timestamp=state.now_ms() - (state.alive_ms() - member.heard_ms),
        remote_ip=f"/{peer.host}",
        version=member.version,
    )


def _language(member: Member) -> str:
    try:
        return Language(member.language).name
    except ValueError:
        return Language.OTHER.name
