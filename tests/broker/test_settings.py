"""Settings of a broker by name: ours, Apache's, and misspelt ones."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from tests.proto.wire_vectors import VECTORS

from cometmq.broker.apache_keys import APACHE_KEYS
from cometmq.broker.config import BrokerConfig
from cometmq.broker.errors import ConfigError, SettingFixedError
from cometmq.broker.settings import (
    CHANGEABLE,
    MAPPED,
    PART_OF,
    PROMISED,
    as_texts,
    configured,
    reconfigured,
)
from cometmq.net import Limits
from cometmq.proto.bodies import decode_settings
from cometmq.store.config import DELAY_LEVELS_MS, Flush, StoreConfig

BASE = BrokerConfig()


def captured() -> dict[str, str]:
    (answer,) = [
        vector
        for vector in VECTORS
        if (vector.said.get("exchange"), vector.said.get("kind")) == ("26-1", "response")
    ]
    return decode_settings(answer.frame[-answer.said["bodyLength"] :])


def test_no_two_parts_of_the_config_have_a_setting_of_one_name() -> None:
    names = [field.name for kind in (BrokerConfig, StoreConfig, Limits) for field in fields(kind)]
    assert len(names) == len(set(names))


def test_every_table_names_settings_and_keys_that_there_are() -> None:
    assert {same.name for same in MAPPED.values()} <= PART_OF.keys()
    assert len({same.name for same in MAPPED.values()}) == len(MAPPED)
    assert PART_OF.keys() >= CHANGEABLE
    assert MAPPED.keys() | PROMISED.keys() <= APACHE_KEYS
    assert not MAPPED.keys() & PROMISED.keys()


def test_every_setting_survives_as_text() -> None:
    config, warnings = configured(BASE, as_texts(BASE))
    assert config == BASE
    assert warnings == []


def test_settings_reach_the_part_that_they_belong_to() -> None:
    config, _ = configured(
        BASE,
        {
            "broker_name": "b",
            "segment_size": "1MiB",
            "flush": "async",
            "retention_hours_of_day": [1, 2],
            "retention_size_max": "10GiB",
            "connections_max": 5,
            "metrics_port": "0",
        },
    )
    assert config.broker_name == "b"
    assert config.metrics_port == 0
    assert config.store == replace(
        BASE.store,
        segment_size=1 << 20,
        flush=Flush.ASYNC,
        retention_hours_of_day=(1, 2),
        retention_size_max=10 << 30,
    )
    assert config.limits == Limits(connections_max=5)
    assert configured(config, {"metrics_port": "off"}).config.metrics_port is None


def test_a_broker_conf_of_apache_means_the_same_here() -> None:
    text = b"""
        # The one that Apache's documentation shows, and more.
        brokerClusterName = east
        brokerName = broker-b
        brokerId = 0
        deleteWhen = 04;16
        fileReservedTime = 48
        brokerRole = ASYNC_MASTER
        flushDiskType = ASYNC_FLUSH
        namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
        listenPort=10921
        storePathRootDir=/data/store
        storePathCommitLog=/data/store/commitlog
        messageDelayLevel=1s 2m 3h 1d
        serverChannelMaxIdleTimeSeconds=60
        sendMessageThreadPoolNums=16
        useReentrantLockWhenPutMessage=true
    """
    config, warnings = configured(BASE, decode_settings(text))
    assert config == replace(
        BASE,
        cluster_name="east",
        broker_name="broker-b",
        nameservers="127.0.0.1:9876;127.0.0.1:9877",
        listen_port=10921,
        store_path="/data/store",
        store=replace(
            BASE.store,
            retention_hours_of_day=(4, 16),
            retention_hours=48,
            flush=Flush.ASYNC,
            delay_levels_ms=(1000, 120_000, 10_800_000, 86_400_000),
        ),
        limits=Limits(idle_timeout_ms=60_000),
    )
    assert warnings == [
        "settings of Apache's that have no meaning here:"
        " sendMessageThreadPoolNums, useReentrantLockWhenPutMessage"
    ]


def test_a_master_is_number_0_whatever_a_broker_conf_of_apache_says() -> None:
    config, warnings = configured(BASE, {"brokerId": "3", "brokerRole": "ASYNC_MASTER"})
    assert (config.broker_id, warnings) == (0, [])
    with pytest.raises(ConfigError, match="brokerId: 'three' is no"):
        configured(BASE, {"brokerId": "three"})


def test_sizes_of_files_are_those_that_apache_makes_of_its_keys() -> None:
    keys = (
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mapperFileSizeBatchConsumeQueue",
    )
    store = configured(BASE, dict.fromkeys(keys, "1000001")).config.store
    assert store.segment_size == 1_000_001
    assert store.consume_queue_file_size == 1_000_020  # Rounded up to whole entries.
    assert store.batch_consume_queue_file_size == 1_000_040


def test_all_that_a_broker_of_apache_says_of_itself_is_known_here() -> None:
    theirs = captured()
    config, (warning,) = configured(BASE, theirs)
    assert config.listen_port == 21911
    assert config.store.flush is Flush.ASYNC
    assert config.store.delay_levels_ms == DELAY_LEVELS_MS
    told = set(warning.partition(": ")[2].split(", "))
    assert told == theirs.keys() - MAPPED.keys() - PROMISED.keys() - {"storePathCommitLog"}


def test_what_we_say_of_ourselves_is_said_as_apache_says_it() -> None:
    theirs = captured()
    ours = as_texts(configured(BASE, theirs).config)
    shared = MAPPED.keys() & theirs.keys() - {"messageDelayLevel"}  # Apache's 1m is our 60s.
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    # Admin tools read these.
    assert {"brokerName", "brokerClusterName", "brokerId", "brokerRole", "brokerIP1"} <= ours.keys()
    assert {"listenPort", "fileReservedTime", "flushDiskType"} <= ours.keys()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("listenPrt", "listenPort"),
        ("segmentsize", "segment_size"),
        ("flushDiskTyp", "flushDiskType"),
        ("sendMessageThreadPoolNum", "sendMessageThreadPoolNums"),
    ],
)
def test_a_misspelt_key_is_refused_with_a_suggestion(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: no such setting; did you mean {meant}\\?"):
        configured(BASE, {key: "1"})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("flush", "maybe", "'maybe' is not sync or async"),
        ("flushDiskType", "sync", "'sync' is not SYNC_FLUSH or ASYNC_FLUSH"),
        ("listen_port", "x", "'x' is not an integer"),
        ("listen_port", "70000", "70000 is not a port"),
        ("listen_port", True, "'True' is not an integer"),
        ("topics_max", "0", "not positive"),
        ("topics_max", "1MiB", "'1MiB' is not an integer"),
        ("segment_size", "4000", "less than 4096"),
        ("retention_size_max", "10GB", "or one directly followed by KiB, MiB or GiB"),
        ("retention_size_max", "10", "less than one segment"),
        ("retention_hours", "0", "not positive"),
        ("retention_hours_of_day", "4,24", "24 is not an hour"),
        ("disk_used_percent_max", "200", "not between 0 and 100"),
        ("connections_max", "0", "not positive"),
        ("messageDelayLevel", "1s soon", "not a list like"),
        ("delay_levels_ms", "1s 1m", "'1s 1m' is.*; write 1000,60000, or messageDelayLevel=1s 1m$"),
        ("delay_levels_ms", ["1s", "1m"], "'1s' is.*; write 1000,60000, or messageDelayLevel=1s"),
        ("delay_levels_ms", "1x 1m", "'1x 1m' is not an integer$"),
        ("flush", "SYNC_FLUSH", "not sync or async; write sync, or flushDiskType=SYNC_FLUSH$"),
        ("deleteWhen", "", "retention_hours_of_day: names no hour; name one from 0 to 23"),
        ("retention_hours_of_day", [], ": names no hour"),
        ("deleteWhen", "four", "not a list of integers|not an integer"),
        ("trace_on", "1", "true or false"),
        ("store_path", "", "store_path: it is empty"),
        ("advertise_address", "0.0.0.0", "not one that a client can connect to.*--advertise 10"),
        ("nameservers", "10.0.0.1", "'10.0.0.1' has no port; write host:port, such as 10"),
        ("namesrvAddr", "a:9876;b:x", "'b:x' has an invalid port, 'x'"),
        ("nameservers", ";", "lists no address"),
        ("nameservers", "a..b:9876", "'a..b:9876' has an invalid host, 'a..b'"),
        ("broker_name", "", "is blank"),
        ("broker_name", "a/b", "broker_name: 'a/b' cannot be the name of the topic"),
        ("brokerName", "..", "neither . nor .. alone"),
        ("brokerName", "a\tb", "no control characters"),
        ("brokerName", "\udc80", "not UTF-8 text"),
        ("cluster_name", "eu/1", "cluster_name: 'eu/1' cannot be"),
        ("brokerClusterName", "é" * 64, "has 128 bytes; .* can have 127 at most"),
        ("advertise_address", "example", "not a numeric address"),
        ("bind_address", "0.0.0.0", "--insecure"),
        ("bind_address", "nonsense", "not a numeric address"),
        ("broker_id", 1, "broker_id: 1: only 0, a master"),
        ("unsent_bytes_pause", -1, "unsent_bytes_pause: -1 is not positive"),
        ("brokerRole", "SYNC_MASTER", "no replicas yet"),
        ("brokerRole", "SLAVE", "no replicas yet"),
        ("aclEnable", "true", "no access control yet"),
        ("storePathCommitLog", "/fast/disk", "where the log is"),
        ("store_host", b"", "no such setting"),
        ("store", StoreConfig(), "no such setting"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(key: str, value: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        configured(BASE, {key: value})


@pytest.mark.parametrize("name", ["host-1.example.com", "Shop Cluster", "%eu|1", "a" * 127])
def test_a_broker_and_its_cluster_are_named_as_those_of_apache_may_be(name: str) -> None:
    """Apache names a broker after its host by default, and does not check a configured name."""
    config, _ = configured(BASE, {"brokerName": name, "brokerClusterName": name})
    assert (config.broker_name, config.cluster_name) == (name, name)


def test_others_may_reach_a_broker_that_is_told_so() -> None:
    config, _ = configured(BASE, {"bind_address": "0.0.0.0", "insecure": "true"})
    assert config.bind_address == "0.0.0.0"


# While it runs


def test_a_running_broker_changes_what_is_safe_to_change() -> None:
    config, warnings = reconfigured(BASE, {"fileReservedTime": "10", "longPollingEnable": "false"})
    assert config == replace(
        BASE, long_polling_enable=False, store=replace(BASE.store, retention_hours=10)
    )
    assert warnings == []


@pytest.mark.parametrize("key", sorted(PART_OF.keys() - CHANGEABLE))
def test_a_running_broker_changes_nothing_else(key: str) -> None:
    with pytest.raises(SettingFixedError, match=f"{key}: fixed"):
        reconfigured(BASE, {key: "1"})


@pytest.mark.parametrize(
    "key", ["brokerConfigPath", "configBlackList", "rocketmqHome", "longPollingEnable"]
)
def test_apaches_fixed_keys_and_those_of_the_black_list_are_fixed(key: str) -> None:
    config = replace(BASE, config_black_list="x;longPollingEnable")
    with pytest.raises(SettingFixedError, match=r"^Can not update config in black list\.$"):
        reconfigured(config, {key: "true"})


def test_unknown_keys_are_passed_over_with_a_warning() -> None:
    config, warnings = reconfigured(BASE, {"putThreads": "1", "sendMessageThreadPoolNums": "4"})
    assert config == BASE
    assert warnings == [
        "putThreads: no such setting; ignored",
        "sendMessageThreadPoolNums: a setting of Apache's that has no meaning here; ignored",
    ]
