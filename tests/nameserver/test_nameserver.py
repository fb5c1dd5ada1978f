from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.disk import SimulatedFileSystem
from tests.nameserver.servers import (
    CLIENT,
    PEER,
    addresses_of,
    ask,
    header_of,
    new_server,
    registered,
    route_of,
    table_of,
)

from cometmq.nameserver import NameServer, NameServerConfig
from cometmq.proto.codes import RequestCode as Code
from cometmq.proto.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from cometmq.proto.commands import broker, route
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.version import CURRENT_VERSION
from cometmq.store.disk.filesystem import RealFileSystem
from cometmq.store.errors import StoreFormatError


@pytest.fixture
def server() -> NameServer:
    return new_server()


@pytest.mark.parametrize("flag", [ONEWAY_FLAG, RESPONSE_FLAG, RESPONSE_FLAG | ONEWAY_FLAG])
def test_what_wants_no_answer_gets_none(server: NameServer, flag: int) -> None:
    for code in (Code.GET_BROKER_CLUSTER_INFO, Code.GET_KV_CONFIG, 12345):
        request = Command(code, flag=flag)
        assert server.handle(request, connection_id=1, peer=PEER, now_ms=0) is None


def test_a_oneway_request_is_carried_out(server: NameServer) -> None:
    registered(server)
    header = broker.UnregisterBroker("broker-a", "10.0.0.1:10911", "C", 0)
    request = Command.request(Code.UNREGISTER_BROKER, header, oneway=True)
    assert server.handle(request, connection_id=1, peer=PEER, now_ms=0) is None
    assert route_of(server, "T1") is None


def test_a_response_of_a_peer_is_not_carried_out(server: NameServer) -> None:
    registered(server)
    header = broker.UnregisterBroker("broker-a", "10.0.0.1:10911", "C", 0)
    request = Command(Code.UNREGISTER_BROKER, header, flag=RESPONSE_FLAG)
    assert server.handle(request, connection_id=1, peer=PEER, now_ms=0) is None
    assert route_of(server, "T1") is not None


@pytest.mark.parametrize("serialize_type", sorted(HEADER_CODECS))
def test_an_answer_has_the_codec_and_number_of_its_request(
    server: NameServer, serialize_type: int
) -> None:
    codec = HEADER_CODECS[serialize_type]
    request = Command(
        Code.GET_ROUTEINFO_BY_TOPIC, route.GetRouteInfoByTopic("T1"), opaque=-3, codec=codec
    )
    received = codec.decode(codec.encode(request), None, 100)
    registered(server)
    response = server.handle(received, connection_id=1, peer=PEER, now_ms=0)
    assert response is not None
    assert response.codec is codec
    sent = codec.decode(codec.encode(response), response.body, 100)
    assert (sent.code, sent.opaque, sent.version) == (0, -3, CURRENT_VERSION)


def test_a_broker_whose_connection_is_lost_is_gone_at_once(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    registered(server, header_of(address="m"), connection_id=4)
    registered(server, header_of(address="s", broker_id=1), connection_id=5)
    server.connection_lost(CLIENT)
    server.connection_lost(4)
    assert addresses_of(server, "T1") == {"broker-a": {"1": "s"}}
    assert "'m' lost its connection" in caplog.text


def test_a_silent_broker_is_gone_and_its_connection_is_to_be_closed(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    registered(server, header_of("a", address="a", timeout_ms=10), connection_id=4)
    registered(server, header_of("b", address="b", timeout_ms=10), connection_id=4)
    registered(server, header_of("c", address="c", timeout_ms=20), connection_id=5)
    assert server.tick(10) == []
    assert server.tick(15) == [4]
    server.connection_lost(4)
    assert addresses_of(server, "T1") == {"c": {"0": "c"}}
    assert caplog.text.count("was silent for more than 10 ms") == 2
    assert server.tick(21) == [5]
    assert server.tick(99) == []


def test_the_kv_table_outlives_the_process() -> None:
    filesystem = SimulatedFileSystem()
    server = new_server(filesystem=filesystem)
    ask(server, Code.PUT_KV_CONFIG, route.PutKvConfig("N", "k", "v"))
    registered(server)
    again = new_server(filesystem=filesystem.kill())
    found = ask(again, Code.GET_KV_CONFIG, route.GetKvConfig("N", "k"))
    assert found.ext_fields == {"value": "v"}
    assert route_of(again, "T1") is None, "routes are what live brokers register"


def test_a_relative_path_is_of_the_folder_it_starts_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = NameServer.open(NameServerConfig(), RealFileSystem(), now_ms=0)
    ask(server, Code.PUT_KV_CONFIG, route.PutKvConfig("N", "k", "v"))
    path = tmp_path / "cometmq-data" / "kvConfig.json"
    assert path.read_text() == '{"configTable":{"N":{"k":"v"}}}'


def test_a_damaged_kv_table_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    with pytest.raises(StoreFormatError, match="kvConfig"):
        NameServer.open(NameServerConfig(kv_config_path=str(path)), RealFileSystem(), now_ms=0)


def test_two_name_servers_know_nothing_of_each_other() -> None:
    one, two = new_server(), new_server()
    registered(one, header_of(), table_of(["T1", "T2"]))
    assert route_of(one, "T1") is not None
    assert route_of(two, "T1") is None
