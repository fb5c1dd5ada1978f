"""The route of a topic, as clients get it: its queues, and the brokers that serve them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from cometmq.nameserver.broker_table import MASTER_ID
from cometmq.proto.bodies import BrokerData, TopicRouteData
from cometmq.proto.commands.topic import may_write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.nameserver.broker_table import Broker
    from cometmq.nameserver.route_table import RouteTable
    from cometmq.proto.bodies import QueueData

# Brokers find each other through these topics, so no slave may be shown as a master there.
_MEMBER_TOPICS = "rmq_sys_SYNC_BROKER_MEMBER_"


def broker_data(broker: Broker) -> BrokerData:
    """Describe a broker name and its processes."""
    return BrokerData(
        broker_addrs=broker.addresses,
        broker_name=broker.name,
        cluster=broker.cluster,
        enable_acting_master=broker.enable_acting_master,
        zone_name=broker.zone_name,
    )


def broker_datas(table: RouteTable) -> dict[str, BrokerData]:
    """Describe every broker name, for `route_of`."""
    return {name: broker_data(broker) for name, broker in table.brokers.items()}


def route_of(
    table: RouteTable,
    topic: str,
    brokers_by_name: Mapping[str, BrokerData],
    *,
    acting_masters: bool = False,
    order_topic_conf: str | None = None,
) -> TopicRouteData:
    """Return the route of an existing topic.

    With `acting_masters`, the first slave of a broker without a master is shown as the master.
    """
    queues = table.topics[topic]
    brokers = [brokers_by_name[name] for name in queues]
    if acting_masters and not topic.startswith(_MEMBER_TOPICS):
        brokers = [_with_master(broker, queues[broker.broker_name]) for broker in brokers]
    mappings = table.mappings_of(topic)
    return TopicRouteData(
        broker_datas=tuple(brokers),
        order_topic_conf=order_topic_conf,
        queue_datas=tuple(queues.values()),
        topic_queue_mapping_by_broker=None if mappings is None else dict(mappings),
    )


def _with_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Show the first slave as the master, if it may act as one and nobody could write to it."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses or not broker.enable_acting_master or may_write(queues.perm):
        return broker
    first, *others = sorted(addresses)
    shown = {MASTER_ID: addresses[first]} | {other: addresses[other] for other in others}
    return structs.replace(broker, broker_addrs=shown)


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Leave out brokers of other zones, except those without a master: slaves are read anywhere.

    As with Apache, the names of zones are not case-sensitive.
    """
    kept = tuple(
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    )
    names = {broker.broker_name for broker in kept}
    queues = tuple(queues for queues in route.queue_datas if queues.broker_name in names)
    return structs.replace(route, broker_datas=kept, queue_datas=queues)
