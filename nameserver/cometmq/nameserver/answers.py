"""A cache of the answers that many clients ask for, encoded once and kept until they change.

Every client asks for the route of each of its topics twice a minute, and routes rarely change.
Nobody has to invalidate this cache: each answer is kept with the state that it was made from (see
`route_table.py`), and is made again once that is no longer the present state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.nameserver.routes import broker_datas, in_zone, route_of
from cometmq.proto.bodies import ClusterInfo, TopicList

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.nameserver.config import NameServerConfig
    from cometmq.nameserver.route_table import RouteTable
    from cometmq.proto.bodies import BrokerData, QueueData


class _Route(NamedTuple):
    """An encoded route, and the state that it was made from."""

    queues: Mapping[str, QueueData]
    brokers_version: int
    order_topic_conf: str | None
    body: bytes


class Answers:
    """The encoded routes and lists of one table."""

    def __init__(self, table: RouteTable, config: NameServerConfig) -> None:
        self._table = table
        self._config = config
        self._routes: dict[tuple[str, bool], _Route] = {}
        self._routes_size = 0
        self._brokers: tuple[int, dict[str, BrokerData]] = (-1, {})
        self._cluster_info = (-1, b"")
        self._topic_list = (-1, b"")

    def configure(self, config: NameServerConfig) -> None:
        """Work with other settings; the table's `configure` outdates the kept answers."""
        self._config = config

    def route(
        self,
        topic: str,
        *,
        is_standard: bool,
        order_topic_conf: str | None = None,
        zone: str | None = None,
    ) -> bytes | None:
        """Return the route of a topic, in standard JSON or with bare keys; None if there is none.

        With a `zone`, the brokers of other zones are left out; such a route is rare and not kept.
        """
        table = self._table
        queues = table.topics.get(topic)
        if queues is None:
            return None
        if zone is not None:
            return self._encoded(topic, is_standard, order_topic_conf, zone)
        kept = self._routes.get((topic, is_standard))
        if (
            kept is not None
            and kept.queues is queues
            and kept.brokers_version == table.brokers_version
            and kept.order_topic_conf == order_topic_conf
        ):
            return kept.body
        body = self._encoded(topic, is_standard, order_topic_conf)
        self._keep(
            (topic, is_standard), _Route(queues, table.brokers_version, order_topic_conf, body)
        )
        return body

    def cluster_info(self) -> bytes:
        """Return all brokers by name, and their names by cluster (106)."""
        version, body = self._cluster_info
        if version != self._table.brokers_version:
            body = ClusterInfo(
                broker_addr_table=self._broker_datas(),
                cluster_addr_table={n: tuple(names) for n, names in self._table.clusters.items()},
            ).encode()
            self._cluster_info = (self._table.brokers_version, body)
        return body

    def topic_list(self) -> bytes:
        """Return the names of all topics (206)."""
        version, body = self._topic_list
        if version != self._table.topics_version:
            body = TopicList(topic_list=tuple(self._table.topics)).encode()
            self._topic_list = (self._table.topics_version, body)
        return body

    def _encoded(
        self, topic: str, is_standard: bool, order_topic_conf: str | None, zone: str | None = None
    ) -> bytes:
        route = route_of(
            self._table,
            topic,
            self._broker_datas(),
            acting_masters=self._config.support_acting_master,
            order_topic_conf=order_topic_conf,
        )
        if zone is not None:
            route = in_zone(route, zone)
        return route.encode_standard() if is_standard else route.encode()

    def _broker_datas(self) -> dict[str, BrokerData]:
        version, datas = self._brokers
        if version != self._table.brokers_version:
            datas = broker_datas(self._table)
            self._brokers = (self._table.brokers_version, datas)
        return datas

    def _keep(self, key: tuple[str, bool], route: _Route) -> None:
        if (old := self._routes.get(key)) is not None:
            self._routes_size -= len(old.body)
        if self._routes_size + len(route.body) > self._config.route_cache_size_max:
            self._routes.clear()
            self._routes_size = 0
        self._routes[key] = route
        self._routes_size += len(route.body)
