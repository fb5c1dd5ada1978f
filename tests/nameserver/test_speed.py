"""Limits on the cost of a request, so far above bench/nameserver.py's figures that none flakes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.nameserver.servers import PEER, header_of, new_server, table_of

from cometmq.proto.bodies import RegisterBrokerBody, TopicQueueMappingInfo
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.route import GetRouteInfoByTopic

if TYPE_CHECKING:
    from cometmq.nameserver import NameServer

TOPICS = [f"topic-{number}" for number in range(1000)]


def registration(broker: int, counter: int = 1, *, is_static: bool = False) -> Command:
    table = table_of(TOPICS, counter=counter)
    if is_static:
        mapping = TopicQueueMappingInfo(
            bname=f"b{broker}", topic=TOPICS[0], total_queues=1, curr_id_map={0: 0}
        )
        table = msgspec.structs.replace(table, topic_queue_mapping_info_map={TOPICS[0]: mapping})
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table).encode()
    header = header_of(f"b{broker}", address=f"10.0.0.{broker}:10911")
    return Command(RequestCode.REGISTER_BROKER, header, body=body, version=513)


def cpu_seconds(server: NameServer, request: Command, connection_id: int = 1) -> float:
    begun = time.process_time()
    response = server.handle(request, connection_id=connection_id, peer=PEER, now_ms=0)
    spent = time.process_time() - begun
    assert response is not None
    assert response.code == 0
    return spent


@pytest.fixture(scope="module")
def server() -> NameServer:
    server = new_server()
    for broker in range(100):
        cpu_seconds(server, registration(broker), broker)
    return server


@pytest.mark.parametrize("is_static", [False, True])
def test_a_registration_of_1000_topics_among_100_brokers_takes_less_than_20_ms(
    server: NameServer, is_static: bool
) -> None:
    requests = [registration(7, counter, is_static=is_static) for counter in range(2, 7)]
    assert min(cpu_seconds(server, request, 7) for request in requests) < 0.020


def test_a_route_of_100_brokers_takes_less_than_100_us_of_cpu(server: NameServer) -> None:
    requests = [
        Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoByTopic(name), version=513)
        for name in TOPICS[:100]
    ]
    for _ in range(2):  # First encoded, then cached.
        assert min(cpu_seconds(server, request) for request in requests) < 0.000_100
