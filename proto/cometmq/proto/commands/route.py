"""Routes and lists of the name server, and its KV table."""

from __future__ import annotations

from cometmq.proto.header import I32, Header, wire


class GetRouteInfoByTopic(Header):
    """105 GET_ROUTEINFO_BY_TOPIC: ask which brokers serve a topic."""

    topic: str
    accept_standard_json_only: bool | None = None  # Quote the keys of the answer's maps.
    zone_mode: bool | None = wire("__ZONE_MODE", default=None)  # Leave other zones' brokers out.
    zone_name: str | None = wire("__ZONE_NAME", default=None)


class GetTopicsByCluster(Header):
    """224 GET_TOPICS_BY_CLUSTER."""

    cluster: str


class DeleteTopicInNamesrv(Header):
    """216 DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicInNamesrv(Header):
    """217 REGISTER_TOPIC_IN_NAMESRV: set a route by hand."""

    topic: str


class WipeWritePermOfBroker(Header):
    """205 WIPE_WRITE_PERM_OF_BROKER: make clients stop sending to a broker."""

    broker_name: str


class WipeWritePermOfBrokerResponse(Header):
    """The number of topics that lost the write bit."""

    wipe_topic_count: I32


class AddWritePermOfBroker(Header):
    """327 ADD_WRITE_PERM_OF_BROKER: let clients send to a broker again."""

    broker_name: str


class AddWritePermOfBrokerResponse(Header):
    """The number of topics that may now be read and written."""

    add_topic_count: I32


class PutKvConfig(Header):
    """100 PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class GetKvConfig(Header):
    """101 GET_KV_CONFIG."""

    namespace: str
    key: str


class GetKvConfigResponse(Header):
    """The value; absent with QUERY_NOT_FOUND."""

    value: str | None = None


class DeleteKvConfig(Header):
    """102 DELETE_KV_CONFIG."""

    namespace: str
    key: str


class GetKvListByNamespace(Header):
    """219 GET_KVLIST_BY_NAMESPACE."""

    namespace: str
