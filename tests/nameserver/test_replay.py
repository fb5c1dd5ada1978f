"""Each captured request gets the answer that Apache RocketMQ 5.5.0 gave.

docs/compatibility.md lists the differences, with reasons.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.nameserver.servers import PEER, header_of, new_server, registered, topic
from tests.proto.wire_vectors import VECTORS, Vector

from cometmq.nameserver import NameServer, NameServerConfig, configured
from cometmq.nameserver.config import APACHE_KEYS, APACHE_KEYS_IGNORED
from cometmq.nameserver.dispatch import TABLE
from cometmq.proto.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    decode_settings,
)
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.route import PutKvConfig
from cometmq.proto.fastjson import loads
from cometmq.proto.frame import FrameParser
from cometmq.proto.header_codecs import HEADER_CODECS

ADDRESS = "127.0.0.1:21911"

ASKED = {
    vector.said["exchange"]: vector
    for vector in VECTORS
    if vector.said["direction"] == "client->namesrv" and vector.said["requestCode"] in TABLE
}
ANSWERED = {
    vector.said["exchange"]: vector
    for vector in VECTORS
    if vector.said["direction"] == "namesrv->client"
}
UNSUPPORTED = ["10-1", "34-7"]  # Brokers' codes, sent to the name server.


def command_of(vector: Vector) -> Command:
    parser = FrameParser()
    parser.receive_data(vector.frame)
    found = parser.next_frame()
    assert found is not None
    return HEADER_CODECS[found[0]].decode(found[1], found[2], 1024)


def at_first() -> TopicConfigTable:
    """Return the first registration of the captured broker."""
    body = RegisterBrokerBody.decode(command_of(ASKED["103-1"]).body or b"")
    return body.topic_config_serialize_wrapper


def at_the_end(without: str | None = None, more: int = 0) -> TopicConfigTable:
    """Return the captured broker's registration at the time when its topics were listed."""
    names = loads(command_of(ANSWERED["206-2"]).body or b"")["topicList"]
    topics = dict(at_first().topic_config_table)
    for name in names:
        topics.setdefault(name, topic(name, queues=2 if name == "T_norm" else 1))
    topics |= {name: topic(name) for name in ("T_more_1", "T_more_2")[:more]}
    return TopicConfigTable(
        data_version=DataVersion(counter=27, timestamp=1795253614689),
        topic_config_table={n: config for n, config in topics.items() if n != without},
    )


def young() -> TopicConfigTable:
    """Return its registration, of few topics, at the time when routes were asked for."""
    topics = {name: topic(name, queues=n) for name, n in (("T_norm", 2), ("T_bcq", 1))}
    return TopicConfigTable(topic_config_table=at_first().topic_config_table | topics)


def server_for(exchange: str) -> NameServer:
    """Return a name server in the state in which the captured one got this request."""
    code = int(exchange.split("-")[0])
    config = NameServerConfig(kv_config_path="/ns/kvConfig.json")
    if code == RequestCode.GET_NAMESRV_CONFIG:
        said = decode_settings(command_of(ANSWERED[exchange]).body or b"")
        config = configured(config, {**said, "kvConfigPath": config.kv_config_path}).config
    server = new_server(config)
    table = at_the_end()
    if exchange == "206-1":
        table = at_the_end(without="%RETRY%g_ord2")
    elif exchange in {"205-2", "327-1"}:
        table = at_the_end(more=2)
    elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
        table = young()
    if exchange not in {"103-1", "103-2"}:
        header = header_of(address=ADDRESS, cluster="DefaultCluster")
        registered(server, header, table)
    if exchange in {"101-3", "102-2", "103-5", "103-6", "219-1"}:
        put = Command(100, PutKvConfig("ORDER_TOPIC_CONFIG", "T_order", "broker-a:2"))
        assert server.handle(put, connection_id=9, peer=PEER, now_ms=0)
    return server


def replayed(exchange: str) -> Command:
    request = command_of(ASKED[exchange])
    response = server_for(exchange).handle(request, connection_id=1, peer=PEER, now_ms=0)
    assert response is not None
    assert response.codec is request.codec
    return response


def shape(body: Any) -> Any:
    """Return a body as a tree, with sets where Apache's order is that of a hash table."""
    tree: Any = loads(body) if body else {}
    if "topicList" in tree:
        tree["topicList"] = set(tree["topicList"])
    return tree


EXCHANGES = [exchange for exchange in ASKED if exchange in ANSWERED]


def test_every_served_code_that_was_captured_is_replayed() -> None:
    assert len(EXCHANGES) == 51
    replayed_codes = {int(exchange.split("-")[0]) for exchange in EXCHANGES}
    assert set(TABLE) - replayed_codes == {RequestCode.REGISTER_TOPIC_IN_NAMESRV}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_captured_request_gets_apaches_code_and_fields(exchange: str) -> None:
    response = replayed(exchange)
    wanted = command_of(ANSWERED[exchange])
    assert response.code == wanted.code
    assert response.ext_fields == wanted.ext_fields


# In these Apache's text names a null pointer, which is its own mistake, or no field.
OTHER_REMARKS = {"103-9", "901-1", "100-2"}


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if e not in OTHER_REMARKS])
def test_a_captured_request_gets_apaches_remark(exchange: str) -> None:
    assert replayed(exchange).remark == command_of(ANSWERED[exchange]).remark


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if not e.startswith("319-")])
def test_a_captured_request_gets_apaches_body(exchange: str) -> None:
    body = replayed(exchange).body
    wanted = command_of(ANSWERED[exchange]).body
    assert shape(body) == shape(wanted)


@pytest.mark.parametrize(
    "exchange",
    [e for e in EXCHANGES if e.split("-")[0] in {"105", "106", "901", "219", "103", "322"}],
)
def test_bodies_that_clients_take_apart_by_hand_are_apaches_to_the_byte(exchange: str) -> None:
    assert replayed(exchange).body == command_of(ANSWERED[exchange]).body


@pytest.mark.parametrize("exchange", ["319-1", "319-2"])
def test_the_config_has_apaches_values_under_apaches_keys(exchange: str) -> None:
    ours = decode_settings(replayed(exchange).body or b"")
    theirs = decode_settings(command_of(ANSWERED[exchange]).body or b"")
    assert set(theirs) == set(APACHE_KEYS) | APACHE_KEYS_IGNORED
    shared = set(APACHE_KEYS) - {"kvConfigPath"}
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}


@pytest.mark.parametrize("exchange", UNSUPPORTED)
def test_what_a_name_server_does_not_serve_is_answered_as_apache_does(exchange: str) -> None:
    asked = next(v for v in VECTORS if v.said["name"] == f"{exchange}-request")
    response = new_server().handle(command_of(asked), connection_id=1, peer=PEER, now_ms=0)
    assert response is not None
    wanted = command_of(ANSWERED[exchange])
    assert (response.code, response.remark) == (wanted.code, wanted.remark)
