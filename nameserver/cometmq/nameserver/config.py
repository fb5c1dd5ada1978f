"""Every setting of a name server: its default, its unit and why it is what it is.

A setting may be given under its own name or, where Apache has it, under the key of Apache's
`namesrv.conf`, as text or typed::

    configured(NameServerConfig(), {"listenPort": "9876", "topics_max": 1000})

A key that nobody knows is a `ConfigError` with a suggestion. Apache's keys that make no sense here
(thread pools, Netty's buffers) are warnings. A running name server changes the few settings in
`CHANGEABLE`, and ignores unknown keys as Apache does: `reconfigured`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.nameserver.errors import ConfigError, SettingFixedError
from cometmq.net import exposure
from cometmq.proto.settings import (
    SettingError,
    format_setting,
    parse_setting,
    unknown_setting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """The settings of one name server."""

    # Where it listens.

    bind_address: str = "127.0.0.1"
    """Nobody but this machine, unless told otherwise: there is no authentication yet."""
    listen_port: int = 9876
    """Apache's port; 0 is any free one."""
    insecure: bool = False
    """Whether an address that others reach may be bound without authentication."""
    metrics_port: int | None = None
    """Where the metrics page is, on the same address; 0 is any free one, `off` is nowhere."""
    connection_idle_seconds_max: int = 120
    """A connection without a byte in either direction for so long is closed."""

    # What it answers.

    order_message_enable: bool = False
    """Whether routes tell the queues of ordered topics, from the KV namespace for it."""
    return_order_topic_config_to_broker: bool = True
    """Whether a registration is answered with the ordered topics: brokers mark those."""
    support_acting_master: bool = False
    """Whether the first slave of a broker without a master shows as its master, to be read."""
    enable_all_topic_list: bool = True
    """Whether the list of all topics is given (206)."""
    enable_topic_list: bool = True
    """Whether the topics of a cluster and of units are listed (224, 311, 312, 313)."""
    delete_topic_with_broker_registration: bool = False
    """Whether topics go that a broker does not register any more. Not for brokers that register
    each new topic alone: all their others would go."""
    need_wait_for_service: bool = False
    """Whether routes are refused at first, until every broker had the time to register."""
    wait_seconds_for_service: int = 45
    """With `need_wait_for_service`: for how long."""

    # How long brokers are believed.

    scan_interval_ms: int = 5_000
    """Time between two looks for brokers that fell silent."""
    broker_silence_ms: int = 120_000
    """A broker that is silent for longer is removed, unless it registered with a time of its own:
    four registrations of Apache's brokers."""

    # What peers can make it hold.

    registration_size_max: int = 8 * MIB
    """Bytes of a registration, inflated: some 40,000 topics."""
    small_body_size_max: int = 64 * 1024
    """Bytes of any other body."""
    brokers_max: int = 2_000
    """Broker processes, masters and slaves."""
    topics_max: int = 200_000
    """Topics by name."""
    topic_brokers_max: int = 500_000
    """Topics counted once for each broker name that serves them."""
    static_queues_max: int = 1_000_000
    """Logical queues of static topics, over all brokers."""
    name_length_max: int = 512
    """Characters of an address or of a name of a topic, broker, cluster or zone."""
    kv_items_max: int = 10_000
    """Items of the KV table."""
    kv_size_max: int = 4 * MIB
    """Bytes of the KV table's texts. The whole table is written at each change."""
    route_cache_size_max: int = 32 * MIB
    """Bytes of encoded routes that are kept to be given again."""

    # Where it writes.

    kv_config_path: str = "cometmq-data/kvConfig.json"
    """The KV table, in Apache's form."""

    # Who may change what.

    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """More keys, divided by `;`, that a running name server does not change."""

    def __post_init__(self) -> None:
        """Refuse settings that no name server could work with."""
        for name, port in (("listen_port", self.listen_port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name}: {port} is no port")
        if problem := exposure(self.bind_address, insecure=self.insecure):
            raise ConfigError(f"bind_address: {problem}")
        for field in fields(self):
            value: object = getattr(self, field.name)
            if type(value) is int and value < 1 and field.name.endswith(("_max", "_ms")):
                raise ConfigError(f"{field.name}: {value} is not positive")


class Configured(NamedTuple):
    """A config, and what the operator should hear about the keys that it was made of."""

    config: NameServerConfig
    warnings: list[str]


APACHE_KEYS = {
    "bindAddress": "bind_address",
    "listenPort": "listen_port",
    "serverChannelMaxIdleTimeSeconds": "connection_idle_seconds_max",
    "orderMessageEnable": "order_message_enable",
    "returnOrderTopicConfigToBroker": "return_order_topic_config_to_broker",
    "supportActingMaster": "support_acting_master",
    "enableAllTopicList": "enable_all_topic_list",
    "enableTopicList": "enable_topic_list",
    "deleteTopicWithBrokerRegistration": "delete_topic_with_broker_registration",
    "needWaitForService": "need_wait_for_service",
    "waitSecondsForService": "wait_seconds_for_service",
    "scanNotActiveBrokerInterval": "scan_interval_ms",
    "kvConfigPath": "kv_config_path",
    "configBlackList": "config_black_list",
}
"""Apache's keys of the settings that both have."""

APACHE_KEYS_IGNORED = frozenset(
    {
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "clusterTest",
        "configStorePath",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableControllerInNamesrv",
        "enableShutdownGracefully",
        "notifyMinBrokerIdChanged",
        "productEnvName",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
"""Apache's keys that have nothing to set here."""

CHANGEABLE = frozenset(
    {
        "order_message_enable",
        "return_order_topic_config_to_broker",
        "support_acting_master",
        "enable_all_topic_list",
        "enable_topic_list",
        "delete_topic_with_broker_registration",
        "need_wait_for_service",
        "wait_seconds_for_service",
        "scan_interval_ms",
        "broker_silence_ms",
    }
)
"""The settings that a running name server changes on request: no address, no path, no limit."""

_FIXED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
_DEFAULTS = {field.name: field.default for field in fields(NameServerConfig)}
SETTINGS = frozenset(_DEFAULTS)
"""All settings by name."""

_OWN_KEYS = {name: key for key, name in APACHE_KEYS.items()}


def configured(base: NameServerConfig, settings: Mapping[str, object]) -> Configured:
    """Apply settings of a file, the environment or the command line."""
    found: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in settings.items():
        name = APACHE_KEYS.get(key, key)
        if name in _DEFAULTS:
            found[name] = _typed(key, name, value)
        elif key in APACHE_KEYS_IGNORED:
            warnings.append(_meaningless(key))
        else:
            raise ConfigError(unknown_setting(key, _known()))
    return Configured(replace(base, **found), warnings)


def reconfigured(config: NameServerConfig, settings: Mapping[str, str]) -> Configured:
    """Apply what a peer asks a running name server to change: all of it, or nothing.

    `SettingFixedError` for a key of the black list and for a setting that is not `CHANGEABLE`.
    """
    fixed = _FIXED_KEYS.union(config.config_black_list.split(";"))
    found: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in settings.items():
        name = APACHE_KEYS.get(key, key)
        if key in fixed or (name in _DEFAULTS and name not in CHANGEABLE):
            raise SettingFixedError(f"{key}: fixed while the name server runs")
        if name in _DEFAULTS:
            found[name] = _typed(key, name, value)
        elif key in APACHE_KEYS_IGNORED:
            warnings.append(_meaningless(key))
        else:
            warnings.append(f"{unknown_setting(key, _known())}; ignored")
    return Configured(replace(config, **found), warnings)


def as_texts(config: NameServerConfig) -> dict[str, str]:
    """Give the settings as texts, sorted, under Apache's keys where it has them."""
    texts = {_OWN_KEYS.get(name, name): format_setting(getattr(config, name)) for name in _DEFAULTS}
    return dict(sorted(texts.items()))


def _typed(key: str, name: str, value: object) -> Any:
    try:
        return parse_setting(name, _DEFAULTS[name], value)
    except SettingError as error:
        raise ConfigError(f"{key}: {error}") from None


def _meaningless(key: str) -> str:
    return f"{key}: a setting of Apache's that has no meaning here"


def _known() -> list[str]:
    return [*_DEFAULTS, *APACHE_KEYS, *sorted(APACHE_KEYS_IGNORED)]
