"""The request handlers: plain functions of a request and its context that return the answer.

A handler reads the header, calls one or two verbs of a table, and answers. It refuses by raising a
`RequestError`, or whatever reading a field or a body raises; `dispatch` turns that into an answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.nameserver.config import as_texts, reconfigured
from cometmq.nameserver.errors import ConfigError, RequestError, SettingFixedError
from cometmq.nameserver.kv_config import ORDER_TOPIC_CONFIG
from cometmq.proto.bodies import (
    BrokerMemberGroup,
    BrokerMembers,
    DataVersion,
    KVTable,
    TopicList,
    TopicRouteData,
    decode_registration,
    decode_settings,
    encode_settings,
)
from cometmq.proto.checksum import crc31
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands import broker, route
from cometmq.proto.version import STANDARD_JSON_ROUTE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.nameserver.route_table import Registered
    from cometmq.nameserver.state import Context
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)

_SUCCESS = ResponseCode.SUCCESS
_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_UNIT = 1
_UNIT_SUBSCRIBED = 2


# Brokers.


def register_broker(request: Command, context: Context) -> Command:
    """103: a broker is alive and serves these topics. A slave is told where its master is."""
    header = request.read(broker.RegisterBroker)
    received = bytes(request.body or b"")
    if header.body_crc32 and crc31(received) != header.body_crc32:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    state = context.state
    registration = decode_registration(
        received,
        version=request.version,
        compressed=header.compressed,
        size_max=state.config.registration_size_max,
    )
    table = registration.topic_config_serialize_wrapper
    done = state.routes.register(
        header, table, connection_id=context.connection_id, now_ms=context.now_ms
    )
    _log_registration(header, len(table.topic_config_table), done, context.peer)
    fields = broker.RegisterBrokerResponse()
    if (master := done.master) is not None:
        fields = broker.RegisterBrokerResponse(master.ha_address, master.address)
    ordered = None
    if state.config.return_order_topic_config_to_broker:
        ordered = state.kv.namespace(ORDER_TOPIC_CONFIG)
    body = None if ordered is None else KVTable(table=dict(ordered)).encode()
    return request.answer(_SUCCESS, fields, body=body)


def _log_registration(
    header: broker.RegisterBroker, topic_count: int, done: Registered, peer: str
) -> None:
    if not done.is_applied:
        log.warning(
            "%s: broker %r %r is ignored: a newer one has replaced it",
            peer,
            header.broker_name,
            header.broker_addr,
        )
        return
    if done.is_new:
        log.info(
            "%s: broker %r id %d at %r registered %d topics",
            peer,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            topic_count,
        )
    if done.displaced is not None:
        log.warning(
            "broker %r id %d at %r replaces the one at %r, which clients no longer find: if"
            " both are to run, each needs a name of its own (cometmq broker --name)",
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            done.displaced,
        )


def unregister_broker(request: Command, context: Context) -> Command:
    """104: a broker stops."""
    header = request.read(broker.UnregisterBroker)
    for member in context.state.routes.unregister(header.broker_name, header.broker_addr):
        log.info("%s: broker %r at %r left", context.peer, member.broker_name, member.address)
    return request.answer(_SUCCESS)


def query_data_version(request: Command, context: Context) -> Command:
    """322: whether a full registration is due. The request also counts as a sign of life."""
    header = request.read(broker.QueryDataVersion)
    said = DataVersion.decode(request.body) if request.body else None
    known = context.state.routes.renew(header.cluster_name, header.broker_addr, context.now_ms)
    return request.answer(
        _SUCCESS,
        broker.QueryDataVersionResponse(changed=known is None or known != said),
        body=None if known is None else known.encode(),
    )


def broker_heartbeat(request: Command, context: Context) -> Command:
    """904: a light sign of life; it has no effect from an unknown broker."""
    header = request.read(broker.BrokerHeartbeat)
    context.state.routes.renew(header.cluster_name, header.broker_addr, context.now_ms)
    return request.answer(_SUCCESS)


def get_broker_member_group(request: Command, context: Context) -> Command:
    """901: the addresses of a broker name."""
    header = request.read(broker.GetBrokerMemberGroup)
    found = context.state.routes.brokers.get(header.broker_name)
    members = BrokerMembers(
        broker_addrs={} if found is None else found.addresses,
        broker_name=header.broker_name,
        cluster=header.cluster_name,
    )
    return request.answer(_SUCCESS, body=BrokerMemberGroup(broker_member_group=members).encode())


def get_broker_cluster_info(request: Command, context: Context) -> Command:
    """106: all brokers."""
    return request.answer(_SUCCESS, body=context.state.answers.cluster_info())


def wipe_write_permission(request: Command, context: Context) -> Command:
    """205: clients stop sending to a broker, until it registers a change."""
    header = request.read(route.WipeWritePermOfBroker)
    count = context.state.routes.wipe_write_permission(header.broker_name)
    log.info(
        "%s: write permission of broker %r wiped, %d topics",
        context.peer,
        header.broker_name,
        count,
    )
    return request.answer(_SUCCESS, route.WipeWritePermOfBrokerResponse(count))


def add_write_permission(request: Command, context: Context) -> Command:
    """327: clients send to a broker again."""
    header = request.read(route.AddWritePermOfBroker)
    count = context.state.routes.add_write_permission(header.broker_name)
    log.info(
        "%s: write permission of broker %r added, %d topics",
        context.peer,
        header.broker_name,
        count,
    )
    return request.answer(_SUCCESS, route.AddWritePermOfBrokerResponse(count))


# Topics.


def get_route(request: Command, context: Context) -> Command:
    """105: which brokers serve a topic: the most frequent request of clients."""
    header = request.read(route.GetRouteInfoByTopic)
    state = context.state
    config = state.config
    if state.wait_ms(context.now_ms):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "name server not ready")
    is_standard = (
        request.version >= STANDARD_JSON_ROUTE_VERSION or header.accept_standard_json_only is True
    )
    conf = state.kv.get(ORDER_TOPIC_CONFIG, header.topic) if config.order_message_enable else None
    zone = (header.zone_name or "").strip() if header.zone_mode else ""
    body = state.answers.route(
        header.topic, is_standard=is_standard, order_topic_conf=conf, zone=zone or None
    )
    if body is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}{_FAQ}",
        )
    return request.answer(_SUCCESS, body=body)


def register_topic(request: Command, context: Context) -> Command:
    """217: set a route by hand; nothing happens if one of its brokers is unknown."""
    header = request.read(route.RegisterTopicInNamesrv)
    queues = TopicRouteData.decode(request.body).queue_datas if request.body else ()
    if not context.state.routes.register_topic(header.topic, queues):
        log.warning("%s: route of %r names an unknown broker", context.peer, header.topic)
    return request.answer(_SUCCESS)


def delete_topic(request: Command, context: Context) -> Command:
    """216: forget a topic, everywhere or in one cluster."""
    header = request.read(route.DeleteTopicInNamesrv)
    context.state.routes.delete_topic(header.topic, header.cluster_name or None)
    log.info("%s: topic %r deleted", context.peer, header.topic)
    return request.answer(_SUCCESS)


def get_all_topics(request: Command, context: Context) -> Command:
    """206: the names of all topics."""
    if not context.state.config.enable_all_topic_list:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")
    return request.answer(_SUCCESS, body=context.state.answers.topic_list())


def get_topics_of_cluster(request: Command, context: Context) -> Command:
    """224: the topics of a cluster; none for an unknown cluster."""
    _check_lists_are_enabled(context)
    header = request.read(route.GetTopicsByCluster)
    return _topics(request, context.state.routes.topics_of_cluster(header.cluster))


def get_system_topics(request: Command, context: Context) -> Command:
    """304: the names of clusters and brokers, each also a topic's, and the address of some broker.

    The tools ask that broker for the other system topics.
    """
    routes = context.state.routes
    names = dict.fromkeys([*routes.clusters, *routes.brokers])
    addresses = [address for b in routes.brokers.values() for address in b.addresses.values()]
    return _topics(request, names, next(iter(addresses), None))


def get_unit_topics(request: Command, context: Context) -> Command:
    """311: topics of a unit."""
    _check_lists_are_enabled(context)
    return _topics(request, context.state.routes.topics_flagged(_UNIT, _UNIT))


def get_unit_subscribed_topics(request: Command, context: Context) -> Command:
    """312: topics that units subscribe to."""
    _check_lists_are_enabled(context)
    flags = _UNIT_SUBSCRIBED
    return _topics(request, context.state.routes.topics_flagged(flags, flags))


def get_unit_subscribed_topics_of_no_unit(request: Command, context: Context) -> Command:
    """313: topics that units subscribe to but that belong to no unit."""
    _check_lists_are_enabled(context)
    mask = _UNIT | _UNIT_SUBSCRIBED
    return _topics(request, context.state.routes.topics_flagged(mask, _UNIT_SUBSCRIBED))


def _check_lists_are_enabled(context: Context) -> None:
    if not context.state.config.enable_topic_list:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")


def _topics(request: Command, names: Iterable[str], address: str | None = None) -> Command:
    body = TopicList(broker_addr=address, topic_list=tuple(names)).encode()
    return request.answer(_SUCCESS, body=body)


# Texts and settings.


def put_kv_config(request: Command, context: Context) -> Command:
    """100: set a text of the KV table."""
    header = request.read(route.PutKvConfig)
    state = context.state
    try:
        state.kv.put(header.namespace, header.key, header.value, state.config)
    except OSError as error:
        raise _not_saved(error) from error
    log.info("%s: KV config %r %r put", context.peer, header.namespace, header.key)
    return request.answer(_SUCCESS)


def get_kv_config(request: Command, context: Context) -> Command:
    """101: a text of the KV table."""
    header = request.read(route.GetKvConfig)
    value = context.state.kv.get(header.namespace, header.key)
    if value is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return request.answer(_SUCCESS, route.GetKvConfigResponse(value))


def delete_kv_config(request: Command, context: Context) -> Command:
    """102: remove a text of the KV table, if it is there."""
    header = request.read(route.DeleteKvConfig)
    try:
        context.state.kv.delete(header.namespace, header.key)
    except OSError as error:
        raise _not_saved(error) from error
    log.info("%s: KV config %r %r deleted", context.peer, header.namespace, header.key)
    return request.answer(_SUCCESS)


def get_kv_namespace(request: Command, context: Context) -> Command:
    """219: all texts of a namespace."""
    header = request.read(route.GetKvListByNamespace)
    table = context.state.kv.namespace(header.namespace)
    if table is None:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
        )
    return request.answer(_SUCCESS, body=KVTable(table=dict(table)).encode())


def _not_saved(error: OSError) -> RequestError:
    log.error("KV config not saved: %s", error)
    return RequestError(
        ResponseCode.SYSTEM_ERROR, f"KV config not saved, nothing is changed: {error.strerror}"
    )


def update_config(request: Command, context: Context) -> Command:
    """318: change settings of this name server, all that are asked for or none.

    Unknown keys are ignored, as Apache does, whose tools send all kinds of keys.
    """
    settings = decode_settings(request.body)
    state = context.state
    try:
        config, warnings = reconfigured(state.config, settings)
    except SettingFixedError as error:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"Can not update config in black list. {error}"
        ) from None
    except ConfigError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    for warning in warnings:
        log.warning("%s: update of the config: %s", context.peer, warning)
    if config != state.config:
        changed = as_texts(config).items() - as_texts(state.config).items()
        state.configure(config)
        log.info("%s: config updated: %s", context.peer, dict(sorted(changed)))
    return request.answer(_SUCCESS)


def get_config(request: Command, context: Context) -> Command:
    """319: the settings of this name server."""
    return request.answer(_SUCCESS, body=encode_settings(as_texts(context.state.config)))
