from __future__ import annotations

from dataclasses import fields, replace

import pytest

from cometmq.nameserver.config import (
    APACHE_KEYS,
    APACHE_KEYS_IGNORED,
    CHANGEABLE,
    NameServerConfig,
    as_texts,
    configured,
    reconfigured,
)
from cometmq.nameserver.errors import ConfigError, SettingFixedError
from cometmq.proto.bodies import decode_settings, encode_settings

BASE = NameServerConfig()
NAMES = {field.name for field in fields(NameServerConfig)}


def test_a_setting_is_given_under_its_own_name_or_apaches_as_text_or_typed() -> None:
    for settings in (
        {"listen_port": 1234, "order_message_enable": True},
        {"listenPort": " 1234 ", "orderMessageEnable": "TRUE"},
        {"listen_port": "+1234", "orderMessageEnable": "true"},
    ):
        config, warnings = configured(BASE, settings)
        assert (config.listen_port, config.order_message_enable) == (1234, True)
        assert warnings == []
    assert configured(BASE, {"listen_port": 65535}).config.listen_port == 65535


def test_a_whole_namesrv_conf_of_apache_is_understood() -> None:
    text = (
        b"listenPort=9877\nbindAddress=10.0.0.1\nserverWorkerThreads=8\nkvConfigPath=/a/kv.json\n"
    )
    config, warnings = configured(replace(BASE, insecure=True), decode_settings(text))
    assert config == replace(
        BASE, insecure=True, listen_port=9877, bind_address="10.0.0.1", kv_config_path="/a/kv.json"
    )
    assert warnings == ["serverWorkerThreads: a setting of Apache's that has no meaning here"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("listenport", "listen_port"),
        ("topic_max", "topics_max"),
        ("kvConfigPaht", "kvConfigPath"),
        ("serverWorkerThread", "serverWorkerThreads"),
    ],
)
def test_a_misspelt_key_is_refused_with_a_suggestion(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: no such setting; did you mean {meant}\\?"):
        configured(BASE, {key: "1"})


def test_a_key_like_no_other_is_refused_without_one() -> None:
    with pytest.raises(ConfigError, match=r"zzzz: no such setting$"):
        configured(BASE, {"zzzz": "1"})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listenPort": "http"}, "listenPort: 'http' is not an integer"),
        ({"listen_port": True}, "listen_port: 'True' is not an integer"),
        ({"listen_port": 1.5}, "listen_port: '1.5' is not an integer"),
        ({"orderMessageEnable": "yes"}, "orderMessageEnable: 'yes' is not true or false"),
        ({"bind_address": 5}, "bind_address: '5' is not a text"),
        ({"listen_port": 65536}, "listen_port: 65536 is not a port"),
        ({"listen_port": -1}, "listen_port: -1 is not a port"),
        ({"metrics_port": 65536}, "metrics_port: 65536 is not a port"),
        ({"topics_max": 0}, "topics_max: 0 is not positive"),
        ({"scanNotActiveBrokerInterval": "-1"}, "scan_interval_ms: -1 is not positive"),
    ],
)
def test_a_value_that_cannot_be_names_its_setting(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configured(BASE, settings)


def test_the_tables_of_names_agree_with_the_settings() -> None:
    assert set(APACHE_KEYS.values()) <= NAMES
    assert CHANGEABLE <= NAMES
    assert not APACHE_KEYS_IGNORED & set(APACHE_KEYS)


def test_settings_shown_as_texts_read_back_as_the_same() -> None:
    config = replace(BASE, order_message_enable=True, kv_config_path="/ä b\\c", listen_port=0)
    shown = decode_settings(encode_settings(as_texts(config)))
    assert len(shown) == len(NAMES)
    assert list(shown) == sorted(shown)
    assert configured(BASE, shown) == (config, [])


def test_a_running_server_changes_what_may_change_at_once() -> None:
    settings = {"enableTopicList": "false", "broker_silence_ms": "5"}
    config, warnings = reconfigured(BASE, settings)
    assert config == replace(BASE, enable_topic_list=False, broker_silence_ms=5)
    assert warnings == []


def test_a_running_server_ignores_keys_that_nobody_knows_with_a_warning() -> None:
    config, warnings = reconfigured(BASE, {"enableTopicLst": "false", "serverWorkerThreads": "9"})
    assert config == BASE
    assert warnings == [
        "enableTopicLst: no such setting; did you mean enableTopicList?; ignored",
        "serverWorkerThreads: a setting of Apache's that has no meaning here",
    ]


@pytest.mark.parametrize("name", sorted(NAMES - CHANGEABLE))
def test_a_running_server_keeps_paths_addresses_and_limits(name: str) -> None:
    with pytest.raises(SettingFixedError, match=name):
        reconfigured(BASE, {"enableTopicList": "false", name: "1"})


@pytest.mark.parametrize(
    "key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "listenPort"]
)
def test_a_running_server_keeps_apaches_black_list(key: str) -> None:
    with pytest.raises(SettingFixedError, match=key):
        reconfigured(BASE, {key: "/etc/passwd"})


def test_the_operator_may_make_the_black_list_longer() -> None:
    config = replace(BASE, config_black_list="enableTopicList;")
    with pytest.raises(SettingFixedError):
        reconfigured(config, {"enableTopicList": "false"})
    assert reconfigured(config, {"enableAllTopicList": "false"}).config != config


def test_a_running_server_changes_all_or_nothing() -> None:
    with pytest.raises(ConfigError, match="waitSecondsForService"):
        reconfigured(BASE, {"enableTopicList": "false", "waitSecondsForService": "soon"})


def test_an_address_that_others_reach_must_be_wanted() -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        NameServerConfig(bind_address="0.0.0.0")
    assert NameServerConfig(bind_address="0.0.0.0", insecure=True).insecure
