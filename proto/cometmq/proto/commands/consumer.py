"""Clients and their groups: members and connections, and a broker's requests to clients."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class HeartBeatResponse(Header):
    """The answer to 34 HEART_BEAT, whose request has only a body.

    Without these fields, clients assume that the broker does not know heartbeats V2.
    """

    heart_beat_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    sub_changed: bool | None = wire("IS_SUB_CHANGE", default=None)  # Send a full heartbeat again.


class UnregisterClient(Header):
    """35 UNREGISTER_CLIENT: a client leaves its groups."""

    client_id: str = wire("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(Header):
    """38 GET_CONSUMER_LIST_BY_GROUP: the client ids of a group."""

    consumer_group: str


class NotifyConsumerIdsChanged(Header):
    """40 NOTIFY_CONSUMER_IDS_CHANGED: the broker tells a group to rebalance."""

    consumer_group: str


class GetConsumerConnectionList(Header):
    """203 GET_CONSUMER_CONNECTION_LIST: a group's connections and subscriptions."""

    consumer_group: str


class GetProducerConnectionList(Header):
    """204 GET_PRODUCER_CONNECTION_LIST: a producer group's connections."""

    producer_group: str


class ResetOffset(Header):
    """222 INVOKE_BROKER_TO_RESET_OFFSET, and 220 RESET_CONSUMER_CLIENT_OFFSET to each client."""

    topic: str
    group: str
    timestamp: I64  # -1: now.
    is_force: bool  # Go forward as well as back.
    queue_id: I32 = -1  # -1: every queue.
    offset: I64 | None = None  # With `queue_id`: this one, not the timestamp's; -1 means none.


class GetConsumerStatus(Header):
    """223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and 221 GET_CONSUMER_STATUS_FROM_CLIENT."""

    topic: str
    group: str
    client_addr: str | None = None  # A client id.


class GetConsumerRunningInfo(Header):
    """307 GET_CONSUMER_RUNNING_INFO: sent to a broker, which asks the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False  # With the stacks of the client's threads.


class ConsumeMessageDirectly(Header):
    """309 CONSUME_MESSAGE_DIRECTLY: have a client consume a message once, now."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None  # An offset message id.
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
