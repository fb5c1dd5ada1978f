"""Who is connected: consumers (203), producers (204), all producers (328)."""

from __future__ import annotations

from cometmq.proto.bodies.enums import ConsumeFromWhere, ConsumeType, MessageModel
from cometmq.proto.bodies.heartbeat import SubscriptionData
from cometmq.proto.body import Body, empty_table, preset, wire
from cometmq.proto.header import I32, I64


class ClientConnection(Body):
    """One client of a group."""

    client_addr: str | None = None
    client_id: str | None = None
    language: str | None = None
    """The name of a language; a newer peer may know further ones."""

    version: I32 = preset(0)


class ConsumerConnections(Body):
    """The answer to 203."""

    connection_set: tuple[ClientConnection, ...] = preset(())
    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    subscription_table: dict[str, SubscriptionData] = empty_table()


class ProducerConnections(Body):
    """The answer to 204."""

    connection_set: tuple[ClientConnection, ...] = preset(())


class ProducerInfo(Body):
    """One client of a producer group. `remote_ip` is as Java prints it: `/127.0.0.1:53576`."""

    client_id: str | None = None
    language: str | None = None
    last_update_timestamp: I64 = preset(0)
    remote_ip: str | None = wire("remoteIP", default=None)
    version: I32 = preset(0)


class ProducerTable(Body):
    """The answer to 328: by group."""

    data: dict[str, tuple[ProducerInfo, ...]] = empty_table()
