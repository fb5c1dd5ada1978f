"""Every setting of a name server: its default, its unit and the reason for it.

A setting is given as text or typed, under its own name or under its key in Apache's `namesrv.conf`,
if it has one::

    configured(NameServerConfig(), {"listenPort": "9876", "topics_max": 1000})

An unknown key is a `ConfigError` with a suggestion. Apache's keys that make no sense here (thread
pools, Netty's buffers) only cause a warning. `reconfigured` changes a running name server: only the
settings in `CHANGEABLE`, and it ignores unknown keys as Apache does.
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
    """By default only this machine can connect: there is no authentication yet."""
    listen_port: int = 9876
    """Apache's port; 0 picks any free port."""
    insecure: bool = False
    """Whether an address that others can reach may be bound without authentication."""
    metrics_port: int | None = None
    """Port of the metrics page, on the same address; 0 picks any free port, `off` serves none."""
    connection_idle_seconds_max: int = 120
    """A connection without a byte in either direction for this long is closed."""

    # What it answers.

    order_message_enable: bool = False
    """Whether the routes of ordered topics include their queues, from the KV namespace for them."""
    return_order_topic_config_to_broker: bool = True
    """Whether a registration is answered with the ordered topics, so that the broker marks them."""
    support_acting_master: bool = False
    """Whether the first slave of a broker without a master is shown as its master, for reading."""
    enable_all_topic_list: bool = True
    """Whether the list of all topics may be requested (206)."""
    enable_topic_list: bool = True
    """Whether the topics of a cluster and of units are listed (224, 311, 312, 313)."""
    delete_topic_with_broker_registration: bool = False
    """Whether topics that a broker no longer registers are removed. Not for brokers that register
    each new topic by itself: all their other topics would be removed."""
    need_wait_for_service: bool = False
    """Whether routes are refused after a start until every broker has had time to register."""
    wait_seconds_for_service: int = 45
    """How long routes are refused with `need_wait_for_service`."""

    # How long brokers count as alive.

    scan_interval_ms: int = 5_000
    """Time between two looks for silent brokers."""
    broker_silence_ms: int = 120_000
    """A broker that is silent for longer is removed, unless it registered with another timeout.
    This is the time of four registrations of Apache's brokers."""

    # Limits of what peers can make it hold.

    registration_size_max: int = 8 * MIB
    """Bytes of an inflated registration: some 40,000 topics."""
    small_body_size_max: int = 64 * 1024
    """Bytes of the body of any other request."""
    brokers_max: int = 2_000
    """Broker processes, masters and slaves."""
    topics_max: int = 200_000
    """Topics by name."""
    topic_brokers_max: int = 500_000
    """Topics, each counted once for every broker name that serves it."""
    static_queues_max: int = 1_000_000
    """Logical queues of static topics, over all brokers."""
    name_length_max: int = 512
    """Characters of an address or of a name of a topic, broker, cluster or zone."""
    kv_items_max: int = 10_000
    """Items of the KV table."""
    kv_size_max: int = 4 * MIB
    """Bytes of the texts in the KV table; each change writes the whole table."""
    route_cache_size_max: int = 32 * MIB
    """Bytes of encoded routes that are kept for the next requests."""

    # Where it writes.

    kv_config_path: str = "cometmq-data/kvConfig.json"
    """The file of the KV table, in Apache's format."""

    # What may be changed.

    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """More keys, separated by `;`, that a running name server does not change."""

    def __post_init__(self) -> None:
        """Refuse settings that no name server could work with."""
        for name, port in (("listen_port", self.listen_port), ("metrics_port", self.metrics_port)):
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name}: {port} is not a port")
        if problem := exposure(self.bind_address, insecure=self.insecure):
            raise ConfigError(f"bind_address: {problem}")
        for field in fields(self):
            value: object = getattr(self, field.name)
            if type(value) is int and value < 1 and field.name.endswith(("_max", "_ms")):
                raise ConfigError(f"{field.name}: {value} is not positive")


class Configured(NamedTuple):
    """A config, and warnings for the operator about the keys that it was made from."""

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
"""Apache's keys for the settings that CometMQ has, too."""

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
"""Apache's keys that set nothing here."""

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
    """Apply the changes that a peer asks of a running name server: all of them, or none.

    Raises a `SettingFixedError` for a key on the black list or a setting not in `CHANGEABLE`.
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
    """Return the settings as sorted texts, under Apache's keys where there are any."""
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
