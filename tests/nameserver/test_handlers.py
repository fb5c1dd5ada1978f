from __future__ import annotations

import errno
import logging

import pytest
from tests.crash.disk import Operation, SimulatedFileSystem
from tests.nameserver.servers import (
    addresses_of,
    ask,
    body_of,
    header_of,
    new_server,
    perms_of,
    register,
    registered,
    route_of,
    table_of,
    topic,
    topic_list,
)

from cometmq.nameserver import NameServer, NameServerConfig
from cometmq.proto.bodies import (
    BrokerMemberGroup,
    BrokerMembers,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
    encode_compressed,
)
from cometmq.proto.checksum import crc31
from cometmq.proto.codes import RequestCode as Code, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import broker, route


@pytest.fixture
def server() -> NameServer:
    return new_server()


def with_config(**settings: bool | int) -> NameServer:
    return new_server(NameServerConfig(kv_config_path="/ns/kv.json", **settings))  # type: ignore[arg-type]  # Settings of tests.


def put(server: NameServer, namespace: str, key: str, value: str) -> Command:
    return ask(server, Code.PUT_KV_CONFIG, route.PutKvConfig(namespace, key, value))


def refused(response: Command) -> tuple[int, str | None]:
    assert response.body is None
    return response.code, response.remark


# Brokers.


def test_a_slave_is_told_where_its_master_is(server: NameServer) -> None:
    registered(server, header_of(address="m"))
    response = registered(server, header_of(address="s", broker_id=1))
    assert response.ext_fields == {"masterAddr": "m", "haServerAddr": "m/ha"}
    assert registered(server, header_of(address="m")).ext_fields == {}


def test_a_broker_is_told_which_topics_are_ordered(server: NameServer) -> None:
    assert registered(server).body is None
    put(server, "ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert body_of(registered(server)) == {"table": {"T": "broker-a:4"}}


def test_a_broker_is_not_told_if_so_configured() -> None:
    server = with_config(return_order_topic_config_to_broker=False)
    put(server, "ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert registered(server).body is None


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_body_is_checked_against_its_checksum(server: NameServer, wrong: int) -> None:
    table = table_of(["T1", "T2"])
    crc = crc31(RegisterBrokerBody(topic_config_serialize_wrapper=table).encode())
    response = register(server, header_of(crc=crc ^ wrong), table)
    assert (response.code, response.remark) == ((1, "crc32 not match") if wrong else (0, None))


def test_a_body_may_be_missing(server: NameServer) -> None:
    assert ask(server, Code.REGISTER_BROKER, header_of()).code == 0
    assert body_of(ask(server, Code.GET_BROKER_CLUSTER_INFO))["clusterAddrTable"] == {
        "C": ["broker-a"]
    }


def test_brokers_before_3_0_11_send_the_topic_table_alone(server: NameServer) -> None:
    body = table_of(["T1", "T2"]).encode()
    assert ask(server, Code.REGISTER_BROKER, header_of(), body=body, version=36).code == 0
    assert perms_of(server, "T1") == {"broker-a": 6}


def test_old_brokers_may_compress_the_body(server: NameServer) -> None:
    registration = RegisterBrokerBody(topic_config_serialize_wrapper=table_of(["T1", "T2"]))
    body = encode_compressed(registration, version=409)
    header = header_of(compressed=True, crc=crc31(body))
    assert ask(server, Code.REGISTER_BROKER, header, body=body, version=409).code == 0
    assert perms_of(server, "T1") == {"broker-a": 6}


def test_a_body_that_inflates_beyond_the_limit_is_refused() -> None:
    server = with_config(registration_size_max=2000)
    table = table_of([f"T{number}" for number in range(100)])
    body = encode_compressed(RegisterBrokerBody(topic_config_serialize_wrapper=table), version=513)
    assert len(body) < 2000
    response = ask(server, Code.REGISTER_BROKER, header_of(compressed=True), body=body)
    assert refused(response) == (1, "RegisterBrokerBody: inflates to more than 2000 bytes")


def test_a_registration_that_is_outranked_is_answered_with_success(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    registered(server, header_of(address="new"), table_of(["T1", "T2"], state_version=2))
    registered(server, header_of(address="old"), table_of(["T1", "T2"], state_version=1))
    assert addresses_of(server, "T1") == {"broker-a": {"0": "new"}}
    assert "a newer one has replaced it" in caplog.text


def test_two_brokers_of_one_name_are_told_apart_in_the_log(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("a:10911", "a:10911", "b:10911", "a:10911"):
        registered(server, header_of(address=address))
    turns = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [turn.split(", which")[0] for turn in turns] == [
        "broker 'broker-a' id 0 at 'b:10911' replaces the one at 'a:10911'",
        "broker 'broker-a' id 0 at 'a:10911' replaces the one at 'b:10911'",
    ]
    assert "--name" in turns[0]
    caplog.clear()
    leaving = broker.UnregisterBroker("broker-a", "a:10911", "C", 0)
    assert ask(server, Code.UNREGISTER_BROKER, leaving).code == 0
    registered(server, header_of(address="c:10911"))
    assert "replaces the one" not in caplog.text


def test_a_broker_leaves(server: NameServer) -> None:
    registered(server)
    header = broker.UnregisterBroker("broker-a", "10.0.0.1:10911", "C", 0)
    assert ask(server, Code.UNREGISTER_BROKER, header).code == 0
    assert route_of(server, "T1") is None
    assert ask(server, Code.UNREGISTER_BROKER, header).code == 0


@pytest.mark.parametrize(
    ("counter", "address", "changed", "known"),
    [
        (1, "10.0.0.1:10911", "false", DataVersion(counter=1, timestamp=1)),
        (2, "10.0.0.1:10911", "true", DataVersion(counter=1, timestamp=1)),
        (1, "no", "true", None),
    ],
)
def test_a_data_version_is_compared(
    server: NameServer, counter: int, address: str, changed: str, known: DataVersion | None
) -> None:
    registered(server)
    header = broker.QueryDataVersion("broker-a", address, "C", 0)
    body = DataVersion(counter=counter, timestamp=1).encode()
    response = ask(server, Code.QUERY_DATA_VERSION, header, body=body)
    assert response.ext_fields == {"changed": changed}
    assert response.body == (None if known is None else known.encode())


def test_no_data_version_is_another_one(server: NameServer) -> None:
    registered(server)
    header = broker.QueryDataVersion("broker-a", "10.0.0.1:10911", "C", 0)
    assert ask(server, Code.QUERY_DATA_VERSION, header).ext_fields == {"changed": "true"}


@pytest.mark.parametrize("code", [Code.QUERY_DATA_VERSION, Code.BROKER_HEARTBEAT])
def test_a_light_sign_of_life_keeps_a_broker(server: NameServer, code: Code) -> None:
    registered(server, header_of(timeout_ms=100))
    for now_ms in (80, 160):
        fields = {
            "brokerName": "broker-a",
            "clusterName": "C",
            "brokerAddr": "10.0.0.1:10911",
            "brokerId": "0",
        }
        assert ask(server, code, fields, now_ms=now_ms).code == 0
    assert server.tick(200) == []
    assert server.tick(300) == [1]


def test_the_members_behind_a_name_are_listed(server: NameServer) -> None:
    registered(server, header_of(address="s", broker_id=1))
    registered(server, header_of(address="m"))
    response = ask(
        server, Code.GET_BROKER_MEMBER_GROUP, broker.GetBrokerMemberGroup("Z", "broker-a")
    )
    assert BrokerMemberGroup.decode(response.body or b"").broker_member_group == BrokerMembers(
        broker_addrs={0: "m", 1: "s"}, broker_name="broker-a", cluster="Z"
    )
    response = ask(server, Code.GET_BROKER_MEMBER_GROUP, broker.GetBrokerMemberGroup("Z", "no"))
    assert body_of(response)["brokerMemberGroup"]["brokerAddrs"] == {}


def test_write_permission_is_wiped_and_added(server: NameServer) -> None:
    registered(server)
    wiped = ask(server, Code.WIPE_WRITE_PERM_OF_BROKER, route.WipeWritePermOfBroker("broker-a"))
    assert wiped.ext_fields == {"wipeTopicCount": "2"}
    assert perms_of(server, "T1") == {"broker-a": 4}
    added = ask(server, Code.ADD_WRITE_PERM_OF_BROKER, route.AddWritePermOfBroker("broker-a"))
    assert added.ext_fields == {"addTopicCount": "2"}
    assert perms_of(server, "T1") == {"broker-a": 6}


# Topics.


@pytest.mark.parametrize(
    ("version", "asks", "key"),
    [(401, None, '"0"'), (400, None, "0"), (0, True, '"0"'), (0, False, "0")],
)
def test_a_route_has_quoted_keys_for_who_wants_standard_json(
    server: NameServer, version: int, asks: bool | None, key: str
) -> None:
    registered(server)
    header = route.GetRouteInfoByTopic("T1", accept_standard_json_only=asks)
    response = ask(server, Code.GET_ROUTEINFO_BY_TOPIC, header, version=version)
    assert f'"brokerAddrs":{{{key}:"10.0.0.1:10911"}}'.encode() in bytes(response.body or b"")


def test_the_route_of_an_unknown_topic_is_told_as_apache_tells_it(server: NameServer) -> None:
    code, remark = refused(
        ask(server, Code.GET_ROUTEINFO_BY_TOPIC, route.GetRouteInfoByTopic("T9"))
    )
    assert code == ResponseCode.TOPIC_NOT_EXIST
    assert (remark or "").startswith("No topic route info in name server for the topic: T9\nSee ")


def test_the_names_of_clusters_and_brokers_have_routes_once_registered(server: NameServer) -> None:
    registered(server, header_of(), table_of(["C", "broker-a", "TBW102"]))
    assert addresses_of(server, "C") == addresses_of(server, "broker-a") != {}


def test_an_ordered_topic_has_its_conf_only_if_so_configured(server: NameServer) -> None:
    for each, expected in ((server, None), (with_config(order_message_enable=True), "a:1")):
        registered(each)
        assert (route_of(each, "T1") or {}).get("orderTopicConf") is None
        put(each, "ORDER_TOPIC_CONFIG", "T1", "a:1")
        assert (route_of(each, "T1") or {}).get("orderTopicConf") == expected


def test_a_zone_filters_only_in_zone_mode(server: NameServer) -> None:
    registered(server, header_of("a", address="a", zone="z"))
    registered(server, header_of("b", address="b"))
    fields = {"topic": "T1", "__ZONE_NAME": "z"}
    for mode, expected in (("true", 1), ("false", 2), ("", 2)):
        response = ask(server, Code.GET_ROUTEINFO_BY_TOPIC, {**fields, "__ZONE_MODE": mode})
        assert len(body_of(response)["brokerDatas"]) == expected
    response = ask(
        server, Code.GET_ROUTEINFO_BY_TOPIC, {**fields, "__ZONE_MODE": "true", "__ZONE_NAME": " "}
    )
    assert len(body_of(response)["brokerDatas"]) == 2
    assert route_of(server, "no", zone="z") is None


def test_routes_wait_until_brokers_had_the_time_to_register() -> None:
    server = with_config(need_wait_for_service=True, wait_seconds_for_service=45)
    registered(server)
    header = route.GetRouteInfoByTopic("T1")
    early = ask(server, Code.GET_ROUTEINFO_BY_TOPIC, header, now_ms=44_999)
    assert refused(early) == (1, "name server not ready")
    assert server.problems(44_999) == ["brokers have 1 ms more to register"], "it is not ready"
    for now_ms in (45_000, 45_001):
        assert ask(server, Code.GET_ROUTEINFO_BY_TOPIC, header, now_ms=now_ms).code == 0
        assert server.problems(now_ms) == []
    assert with_config().problems(0) == []


def test_a_route_by_hand(server: NameServer, caplog: pytest.LogCaptureFixture) -> None:
    registered(server)
    for name, broker_name in (("T9", "broker-a"), ("T8", "no")):
        data = QueueData(broker_name=broker_name, perm=6)
        response = ask(
            server,
            Code.REGISTER_TOPIC_IN_NAMESRV,
            route.RegisterTopicInNamesrv(name),
            body=TopicRouteData(queue_datas=(data,)).encode(),
        )
        assert response.code == 0
    assert ask(server, Code.REGISTER_TOPIC_IN_NAMESRV, route.RegisterTopicInNamesrv("T7")).code == 0
    assert perms_of(server, "T9") == {"broker-a": 6}
    assert route_of(server, "T8") is None
    assert route_of(server, "T7") is None
    assert "'T8' names an unknown broker" in caplog.text


@pytest.mark.parametrize(
    ("cluster", "left"), [(None, set[str]()), ("", set[str]()), ("C", {"b"}), ("no", {"a", "b"})]
)
def test_a_topic_is_deleted_in_a_cluster_or_everywhere(
    server: NameServer, cluster: str | None, left: set[str]
) -> None:
    registered(server, header_of("a", address="a", cluster="C"))
    registered(server, header_of("b", address="b", cluster="D"))
    ask(server, Code.DELETE_TOPIC_IN_NAMESRV, route.DeleteTopicInNamesrv("T1", cluster))
    assert set(perms_of(server, "T1")) == left


def test_topics_are_listed(server: NameServer) -> None:
    registered(server, header_of("a", address="a", cluster="C"))
    topics = [topic("T2"), topic("U", flag=1), topic("S", flag=2)]
    registered(server, header_of("b", address="b", cluster="D"), table_of(topics))
    assert topic_list(ask(server, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == [
        "S",
        "T1",
        "T2",
        "U",
    ]
    in_cluster = ask(server, Code.GET_TOPICS_BY_CLUSTER, route.GetTopicsByCluster("D"))
    assert topic_list(in_cluster) == ["S", "T2", "U"]
    nowhere = ask(server, Code.GET_TOPICS_BY_CLUSTER, route.GetTopicsByCluster("no"))
    assert topic_list(nowhere) == []
    assert topic_list(ask(server, Code.GET_UNIT_TOPIC_LIST)) == ["U"]
    assert topic_list(ask(server, Code.GET_HAS_UNIT_SUB_TOPIC_LIST)) == ["S"]
    assert topic_list(ask(server, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)) == ["S"]
    system = ask(server, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert topic_list(system) == ["C", "D", "a", "b"]
    assert body_of(system)["brokerAddr"] in {"a", "b"}


def test_an_empty_name_server_names_no_broker(server: NameServer) -> None:
    assert body_of(ask(server, Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {"topicList": []}


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "enable_all_topic_list"),
        (Code.GET_TOPICS_BY_CLUSTER, "enable_topic_list"),
        (Code.GET_UNIT_TOPIC_LIST, "enable_topic_list"),
        (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, "enable_topic_list"),
        (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, "enable_topic_list"),
    ],
)
def test_a_list_that_is_switched_off_says_so(code: Code, setting: str) -> None:
    assert refused(ask(with_config(**{setting: False}), code)) == (1, "disable")


# Texts and settings.


def test_texts_are_put_read_listed_and_deleted(server: NameServer) -> None:
    assert put(server, "N", "k", "v").code == 0
    found = ask(server, Code.GET_KV_CONFIG, route.GetKvConfig("N", "k"))
    assert found.ext_fields == {"value": "v"}
    listed = ask(server, Code.GET_KVLIST_BY_NAMESPACE, route.GetKvListByNamespace("N"))
    assert KVTable.decode(listed.body or b"").table == {"k": "v"}
    assert ask(server, Code.DELETE_KV_CONFIG, route.DeleteKvConfig("N", "k")).code == 0
    missing = ask(server, Code.GET_KV_CONFIG, route.GetKvConfig("N", "k"))
    assert refused(missing) == (22, "No config item, Namespace: N Key: k")
    unknown = ask(server, Code.GET_KVLIST_BY_NAMESPACE, route.GetKvListByNamespace("M"))
    assert refused(unknown) == (22, "No config item, Namespace: M")


def test_a_text_that_the_disk_refuses_is_not_put(caplog: pytest.LogCaptureFixture) -> None:
    filesystem = SimulatedFileSystem()
    server = new_server(filesystem=filesystem)
    put(server, "N", "k", "v")

    def refuse(operation: Operation) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    filesystem.hook = refuse
    remark = "KV config not saved, nothing is changed: No space left on device"
    assert refused(put(server, "N", "k", "w")) == (1, remark)
    gone = ask(server, Code.DELETE_KV_CONFIG, route.DeleteKvConfig("N", "k"))
    assert refused(gone) == (1, remark)
    found = ask(server, Code.GET_KV_CONFIG, route.GetKvConfig("N", "k"))
    assert found.ext_fields == {"value": "v"}
    assert caplog.text.count("KV config not saved") == 2


def update(server: NameServer, text: bytes | None) -> Command:
    return ask(server, Code.UPDATE_NAMESRV_CONFIG, body=text)


def test_settings_take_effect_at_once(server: NameServer) -> None:
    assert update(server, b"enableAllTopicList=false\nbroker_silence_ms=10\n").code == 0
    assert ask(server, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).remark == "disable"
    registered(server)
    assert server.tick(11) == [1]
    assert b"enableAllTopicList=false\n" in bytes(ask(server, Code.GET_NAMESRV_CONFIG).body or b"")


def test_a_setting_takes_effect_on_a_route_that_was_already_asked_for(server: NameServer) -> None:
    registered(server, header_of(broker_id=1, acting=True))
    assert addresses_of(server, "T1") == {"broker-a": {"1": "10.0.0.1:10911"}}
    assert update(server, b"supportActingMaster=true\n").code == 0
    assert addresses_of(server, "T1") == {"broker-a": {"0": "10.0.0.1:10911"}}


@pytest.mark.parametrize("text", [None, b"", b"# nothing\n"])
def test_an_update_of_nothing_is_a_success(server: NameServer, text: bytes | None) -> None:
    config = server.config
    assert update(server, text).code == 0
    assert server.config is config


def test_unknown_settings_are_ignored_with_a_warning(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert update(server, b"nosuch\\n=1\nenableTopicList=false\n").code == 0
    assert "'nosuch\\n': no such setting" in caplog.text
    assert not server.config.enable_topic_list


@pytest.mark.parametrize("key", [b"kvConfigPath", b"configBlackList", b"listenPort", b"topics_max"])
def test_fixed_settings_are_refused_as_apache_refuses_its_black_list(
    server: NameServer, key: bytes
) -> None:
    config = server.config
    code, remark = refused(update(server, b"enableTopicList=false\n" + key + b"=1\n"))
    assert code == ResponseCode.NO_PERMISSION
    assert (remark or "").startswith("Can not update config in black list. " + key.decode())
    assert server.config is config


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        (b"enableTopicList=no\n", 29, "enableTopicList: 'no' is not true or false"),
        (b"scanNotActiveBrokerInterval=0\n", 29, "scan_interval_ms: 0 is not positive"),
        (b"a=\\u12\n", 1, "properties: malformed \\uXXXX in line 1"),
        (b"a=\xff\n", 1, "properties: not UTF-8 at byte 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    server: NameServer, text: bytes, code: int, remark: str
) -> None:
    assert refused(update(server, text)) == (code, remark)


def test_an_update_is_logged_by_what_it_changed(
    server: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        update(server, b"enableTopicList=false\nenableAllTopicList=true\npassword=secret\n")
    assert "config updated: {'enableTopicList': 'false'}" in caplog.text
    assert "secret" not in caplog.text
