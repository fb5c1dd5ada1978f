from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.nameserver.servers import header_of, table_of, topic

from cometmq.nameserver.config import NameServerConfig
from cometmq.nameserver.route_table import RouteTable
from cometmq.nameserver.routes import broker_datas, in_zone, route_of

if TYPE_CHECKING:
    from cometmq.proto.bodies import TopicConfigTable, TopicRouteData
    from cometmq.proto.commands.broker import RegisterBroker

SYNC_TOPIC = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"


@pytest.fixture
def table() -> RouteTable:
    return RouteTable(NameServerConfig())


def register(
    table: RouteTable, header: RegisterBroker, topics: TopicConfigTable | None = None
) -> None:
    table.register(header, topics or table_of(["T1", "T2"]), connection_id=1, now_ms=0)


def route(table: RouteTable, name: str = "T1", *, acting_masters: bool = True) -> TopicRouteData:
    return route_of(table, name, broker_datas(table), acting_masters=acting_masters)


def addresses(found: TopicRouteData) -> dict[str, dict[int, str]]:
    return {data.broker_name: data.broker_addrs for data in found.broker_datas}


def test_a_route_has_the_queues_and_the_brokers_of_a_topic(table: RouteTable) -> None:
    register(table, header_of("a", address="a", cluster="C", zone="z", acting=True))
    register(table, header_of("a", address="a1", broker_id=1, cluster="C", zone="z", acting=True))
    register(table, header_of("b", address="b"), table_of(["T2", "T3"]))
    found = route(table)
    (broker,) = found.broker_datas
    assert broker.broker_addrs == {0: "a", 1: "a1"}
    assert (broker.cluster, broker.zone_name, broker.enable_acting_master) == ("C", "z", True)
    assert [data.broker_name for data in found.queue_datas] == ["a"]
    assert [data.broker_name for data in route(table, "T2").queue_datas] == ["a", "b"]


def test_an_ordered_topic_has_its_conf_in_the_route(table: RouteTable) -> None:
    register(table, header_of())
    found = route_of(table, "T1", broker_datas(table), order_topic_conf="broker-a:4")
    assert found.order_topic_conf == "broker-a:4"


def with_slaves_only(table: RouteTable, *, acting: bool) -> None:
    for broker_id in (3, 2):
        header = header_of(broker_id=broker_id, address=f"s{broker_id}", acting=acting)
        register(table, header, table_of(["T1", SYNC_TOPIC]))


def test_the_first_slave_shows_as_the_master_of_a_broker_without_one(table: RouteTable) -> None:
    with_slaves_only(table, acting=True)
    assert addresses(route(table)) == {"broker-a": {0: "s2", 3: "s3"}}
    assert addresses(route(table, acting_masters=False)) == {"broker-a": {2: "s2", 3: "s3"}}


def test_brokers_find_each_other_by_what_they_are(table: RouteTable) -> None:
    with_slaves_only(table, acting=True)
    assert addresses(route(table, SYNC_TOPIC)) == {"broker-a": {2: "s2", 3: "s3"}}


def test_a_slave_that_does_not_act_shows_as_a_slave(table: RouteTable) -> None:
    with_slaves_only(table, acting=False)
    table.wipe_write_permission("broker-a")
    assert addresses(route(table)) == {"broker-a": {2: "s2", 3: "s3"}}


def test_nobody_acts_while_the_master_is_there(table: RouteTable) -> None:
    with_slaves_only(table, acting=True)
    register(table, header_of(address="m", acting=True))
    table.wipe_write_permission("broker-a")
    assert addresses(route(table)) == {"broker-a": {0: "m", 2: "s2", 3: "s3"}}


def test_nobody_acts_where_clients_would_write(table: RouteTable) -> None:
    with_slaves_only(table, acting=True)
    table.add_write_permission("broker-a")
    assert addresses(route(table)) == {"broker-a": {2: "s2", 3: "s3"}}


def test_a_zone_leaves_out_the_brokers_of_others(table: RouteTable) -> None:
    register(table, header_of("a", address="a", zone="Zone1"))
    register(table, header_of("b", address="b", zone="zone2"))
    register(table, header_of("c", address="c"))
    found = in_zone(route(table), "zone1")
    assert set(addresses(found)) == {"a"}
    assert [data.broker_name for data in found.queue_datas] == ["a"]
    assert in_zone(route(table), "zone3").queue_datas == ()


def test_a_broker_without_a_master_is_in_every_zone(table: RouteTable) -> None:
    register(
        table, header_of("a", address="a", zone="z", broker_id=1), table_of([topic("T1"), "x"])
    )
    assert set(addresses(in_zone(route(table), "other"))) == {"a"}
