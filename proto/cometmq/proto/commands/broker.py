"""Commands between brokers, name servers and the controller."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class RegisterBroker(Header):
    """103 REGISTER_BROKER: a broker is alive and serves these topics."""

    broker_name: str
    cluster_name: str
    broker_addr: str  # ip:port for clients.
    broker_id: I64  # 0 is the master.
    ha_server_addr: str
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0  # Of the body as sent, without its sign bit; 0: do not check.
    zone_name: str | None = wire("__ZONE_NAME", default=None)


class RegisterBrokerResponse(Header):
    """The addresses of a slave's master; a master gets neither."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Header):
    """104 UNREGISTER_BROKER: a broker stops."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersion(Header):
    """322 QUERY_DATA_VERSION: ask if a full registration is due; the body is the data version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersionResponse(Header):
    """Whether the name server has another version than the broker."""

    changed: bool


class BrokerHeartbeat(Header):
    """904 BROKER_HEARTBEAT: a light sign of life between registrations."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_millis: I64 | None = wire("heartbeatTimeoutMills", default=None)
    election_priority: I32 | None = None


class GetBrokerMemberGroup(Header):
    """901 GET_BROKER_MEMBER_GROUP: the addresses of a master and its slaves."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChange(Header):
    """905 NOTIFY_MIN_BROKER_ID_CHANGE: which broker acts as master now."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class ExchangeBrokerHaInfo(Header):
    """906 EXCHANGE_BROKER_HA_INFO, request and answer: how a slave reaches its master."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffset(Header):
    """908 RESET_MASTER_FLUSH_OFFSET: how far the master has synced."""

    master_flush_offset: I64


class NotifyBrokerRoleChanged(Header):
    """1008 NOTIFY_BROKER_ROLE_CHANGED: the controller has elected a master."""

    master_address: str | None = None
    master_epoch: I32 | None = None
    sync_state_set_epoch: I32 | None = None
    master_broker_id: I64 | None = None
