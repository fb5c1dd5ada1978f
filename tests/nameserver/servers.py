"""Name servers for tests, and the requests that brokers and clients send them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.crash.disk import SimulatedFileSystem

from cometmq.nameserver import NameServer, NameServerConfig
from cometmq.proto.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import broker as headers, route
from cometmq.proto.fastjson import loads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.proto.header import Header
    from cometmq.store.disk.filesystem import FileSystem

PEER = "127.0.0.1:40000"
CLIENT = 99


def new_server(
    config: NameServerConfig | None = None, filesystem: FileSystem | None = None, *, now_ms: int = 0
) -> NameServer:
    config = config or NameServerConfig(kv_config_path="/ns/kvConfig.json")
    return NameServer.open(config, filesystem or SimulatedFileSystem(), now_ms=now_ms)


def ask(
    server: NameServer,
    code: int,
    fields: Header | dict[str, str] | None = None,
    *,
    body: bytes | None = None,
    connection_id: int = CLIENT,
    now_ms: int = 0,
    version: int = 513,
) -> Command:
    request = Command(int(code), fields, body=body, opaque=7, version=version)
    response = server.handle(request, connection_id=connection_id, peer=PEER, now_ms=now_ms)
    assert response is not None
    assert response.is_response
    assert response.opaque == 7
    return response


def topic(name: str, *, queues: int = 4, perm: int = 6, flag: int = 0) -> TopicConfig:
    return TopicConfig(
        topic_name=name,
        perm=perm,
        read_queue_nums=queues,
        write_queue_nums=queues,
        topic_sys_flag=flag,
    )


def table_of(
    topics: Iterable[str | TopicConfig], *, counter: int = 1, state_version: int = 0
) -> TopicConfigTable:
    configs = [topic(each) if isinstance(each, str) else each for each in topics]
    return TopicConfigTable(
        data_version=DataVersion(counter=counter, state_version=state_version, timestamp=1),
        topic_config_table={config.topic_name: config for config in configs},
    )


def header_of(
    name: str = "broker-a",
    *,
    broker_id: int = 0,
    address: str = "10.0.0.1:10911",
    cluster: str = "C",
    acting: bool | None = False,
    zone: str | None = None,
    timeout_ms: int | None = None,
    crc: int = 0,
    compressed: bool = False,
) -> headers.RegisterBroker:
    return headers.RegisterBroker(
        broker_name=name,
        cluster_name=cluster,
        broker_addr=address,
        broker_id=broker_id,
        ha_server_addr=f"{address}/ha",
        heartbeat_timeout_millis=timeout_ms,
        enable_acting_master=acting,
        compressed=compressed,
        body_crc32=crc,
        zone_name=zone,
    )


def register(
    server: NameServer,
    header: headers.RegisterBroker | None = None,
    table: TopicConfigTable | None = None,
    *,
    connection_id: int = 1,
    now_ms: int = 0,
) -> Command:
    body = RegisterBrokerBody(topic_config_serialize_wrapper=table or table_of(["T1", "T2"]))
    return ask(
        server,
        RequestCode.REGISTER_BROKER,
        header or header_of(),
        body=body.encode(),
        connection_id=connection_id,
        now_ms=now_ms,
    )


def registered(
    server: NameServer,
    header: headers.RegisterBroker | None = None,
    table: TopicConfigTable | None = None,
    *,
    connection_id: int = 1,
    now_ms: int = 0,
) -> Command:
    response = register(server, header, table, connection_id=connection_id, now_ms=now_ms)
    assert (response.code, response.remark) == (ResponseCode.SUCCESS, None)
    return response


def route_of(
    server: NameServer, name: str, *, now_ms: int = 0, zone: str | None = None
) -> dict[str, Any] | None:
    """Return the route that a current client gets, or None."""
    header = route.GetRouteInfoByTopic(name, zone_mode=zone is not None, zone_name=zone)
    response = ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, now_ms=now_ms)
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        assert response.body is None
        return None
    assert response.code == ResponseCode.SUCCESS
    found: dict[str, Any] = json.loads(bytes(response.body or b""))
    return found


def addresses_of(server: NameServer, name: str) -> dict[str, dict[str, str]]:
    """Return the addresses in a topic's route, by broker name and id."""
    found = route_of(server, name) or {"brokerDatas": []}
    return {data["brokerName"]: data["brokerAddrs"] for data in found["brokerDatas"]}


def perms_of(server: NameServer, name: str) -> dict[str, int]:
    """Return the perms in a topic's route, by broker name."""
    found = route_of(server, name) or {"queueDatas": []}
    return {data["brokerName"]: data["perm"] for data in found["queueDatas"]}


def body_of(response: Command) -> Any:
    """Return an answer's body as a tree."""
    assert response.code == ResponseCode.SUCCESS, response.remark
    return loads(response.body or b"")


def topic_list(response: Command) -> list[str]:
    """Return the names of a topic list, sorted, as their order means nothing."""
    return sorted(body_of(response)["topicList"])
