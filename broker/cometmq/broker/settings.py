"""Settings of a broker by name, as given by files, the environment, flags and peers.

A setting (of the broker, of its store, or a limit) is given as text or typed, under its own name or
under its key in Apache's `broker.conf`, if it has one::

    configured(BrokerConfig(), {"listenPort": "10911", "flush": "async"})

An unknown key is a `ConfigError` with a suggestion. So is a key of Apache's whose value asks for
something that is missing here and that an operator would rely on: replicas, access control.
Apache's other keys only cause a warning. `reconfigured` changes a running broker: only the settings
in `CHANGEABLE`, and it ignores unknown keys as Apache does.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.broker.apache_keys import APACHE_KEYS
from cometmq.broker.config import BrokerConfig
from cometmq.broker.errors import ConfigError, SettingFixedError
from cometmq.net import Limits
from cometmq.proto.settings import (
    SHOWN_MAX,
    SettingError,
    format_setting,
    parse_setting,
    unknown_setting,
)
from cometmq.store.config import (
    BATCH_CONSUME_QUEUE_ENTRY_SIZE,
    CONSUME_QUEUE_ENTRY_SIZE,
    Flush,
    StoreConfig,
)
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PARTS: Final[dict[str, type[BrokerConfig | StoreConfig | Limits]]] = {
    "": BrokerConfig,
    "store": StoreConfig,
    "limits": Limits,
}
_HIDDEN: Final = frozenset({"store", "limits", "store_host"})
"""Fields that are not settings: the parts, and what is derived from other settings."""

PART_OF: Final = {
    field.name: part
    for part, kind in _PARTS.items()
    for field in fields(kind)
    if field.name not in _HIDDEN
}
"""All settings by name, and the part of the config that each belongs to."""

_DEFAULTS: Final = {field.name: field.default for kind in _PARTS.values() for field in fields(kind)}


class Configured(NamedTuple):
    """A config, and warnings for the operator about the keys that it was made from."""

    config: BrokerConfig
    warnings: list[str]


class _Same(NamedTuple):
    """A setting that Apache also has, with conversions if Apache writes its value differently."""

    name: str
    read: Callable[[str], object] | None = None
    write: Callable[[Any], str] | None = None


def _read_flush(text: str) -> Flush:
    for flush in Flush:
        if text.strip() == f"{flush.name}_FLUSH":
            return flush
    raise SettingError(f"{text[:SHOWN_MAX]!r} is not SYNC_FLUSH or ASYNC_FLUSH")


def _write_flush(flush: Flush) -> str:
    return f"{flush.name}_FLUSH"


def _read_id_of_master(text: str) -> int:
    """Check `brokerId` and return 0: Apache gives every master 0, whatever is configured."""
    parse_setting("brokerId", 0, text)
    return 0


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _read_levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word[:-1]) * _SECONDS[word[-1]] * 1000 for word in text.split())
    except (KeyError, ValueError):
        raise SettingError(f"{text[:SHOWN_MAX]!r} is not a list like 1s 5s 10m 2h") from None


def _write_levels(levels_ms: tuple[int, ...]) -> str:
    return " ".join(f"{level // 1000}s" for level in levels_ms)


def _read_seconds(text: str) -> int:
    return int(parse_setting("", 0, text)) * 1000


def _write_seconds(duration_ms: int) -> str:
    return str(duration_ms // 1000)


def _read_whole_entries(text: str, *, name: str, entry_size: int) -> int:
    """Read the size of a queue's files, rounded up to whole entries as Apache does."""
    return -(-int(parse_setting(name, 0, text)) // entry_size) * entry_size


def _files_of(name: str, entry_size: int) -> _Same:
    return _Same(name, partial(_read_whole_entries, name=name, entry_size=entry_size))


def _read_hours(text: str) -> object:
    return parse_setting("", (), text.replace(";", ","))


def _write_hours(hours: tuple[int, ...]) -> str:
    return ";".join(f"{hour:02}" for hour in hours)


MAPPED: Final = {
    "autoCreateSubscriptionGroup": _Same("auto_create_subscription_group"),
    "autoCreateTopicEnable": _Same("auto_create_topic_enable"),
    "bindAddress": _Same("bind_address"),
    "broadcastOffsetExpireMaxSecond": _Same(
        "broadcast_offset_expiry_max_ms", _read_seconds, _write_seconds
    ),
    "broadcastOffsetExpireSecond": _Same(
        "broadcast_offset_expiry_ms", _read_seconds, _write_seconds
    ),
    "brokerClusterName": _Same("cluster_name"),
    "brokerIP1": _Same("advertise_address"),
    "brokerId": _Same("broker_id", _read_id_of_master),
    "brokerName": _Same("broker_name"),
    "channelExpiredTimeout": _Same("client_timeout_ms"),
    "cleanResourceInterval": _Same("retention_interval_ms"),
    "configBlackList": _Same("config_black_list"),
    "defaultTopicQueueNums": _Same("default_topic_queue_nums"),
    "deleteFileBatchMax": _Same("retention_files_max"),
    "deleteWhen": _Same(
        "retention_hours_of_day",
        _read_hours,
        _write_hours,
    ),
    "diskMaxUsedSpaceRatio": _Same("disk_used_percent_expire"),
    "diskSpaceCleanForciblyRatio": _Same("disk_used_percent_force"),
    "diskSpaceWarningLevelRatio": _Same("disk_used_percent_max"),
    "enableBroadcastOffsetStore": _Same("broadcast_offsets_enable"),
    "enablePropertyFilter": _Same("enable_property_filter"),
    "enabledAppendPropCRC": _Same("record_crc"),
    "fileReservedTime": _Same("retention_hours"),
    "flushCommitLogLeastPages": _Same("flush_least_pages"),
    "flushCommitLogThoroughInterval": _Same("flush_thorough_interval_ms"),
    "flushConsumerOffsetInterval": _Same("save_interval_ms"),
    "flushDiskType": _Same("flush", _read_flush, _write_flush),
    "flushIntervalCommitLog": _Same("flush_interval_ms"),
    "listenPort": _Same("listen_port"),
    "longPollingEnable": _Same("long_polling_enable"),
    "mappedFileSizeCommitLog": _Same("segment_size"),
    "mappedFileSizeConsumeQueue": _files_of("consume_queue_file_size", CONSUME_QUEUE_ENTRY_SIZE),
    "mapperFileSizeBatchConsumeQueue": _files_of(
        "batch_consume_queue_file_size", BATCH_CONSUME_QUEUE_ENTRY_SIZE
    ),
    "maxFilterMessageSize": _Same("read_scan_size_max"),
    "maxHashSlotNum": _Same("index_slots"),
    "maxIndexNum": _Same("index_items"),
    "maxMessageSize": _Same("message_size_max"),
    "maxTransferBytesOnMessageInDisk": _Same("read_cold_size_max"),
    "maxTransferBytesOnMessageInMemory": _Same("read_size_max"),
    "maxTransferCountOnMessageInDisk": _Same("read_cold_count_max"),
    "maxTransferCountOnMessageInMemory": _Same("read_count_max"),
    "messageDelayLevel": _Same("delay_levels_ms", _read_levels, _write_levels),
    "messageIndexEnable": _Same("index"),
    "metricsPromExporterPort": _Same("metrics_port"),
    "namesrvAddr": _Same("nameservers"),
    "regionId": _Same("region_id"),
    "registerNameServerPeriod": _Same("register_interval_ms"),
    "rejectTransactionMessage": _Same("reject_transactions"),
    "serverChannelMaxIdleTimeSeconds": _Same("idle_timeout_ms", _read_seconds, _write_seconds),
    "shortPollingTimeMills": _Same("short_polling_ms"),
    "storePathRootDir": _Same("store_path"),
    "storeReplyMessageEnable": _Same("store_replies"),
    "syncFlushTimeout": _Same("sync_flush_timeout_ms"),
    "traceOn": _Same("trace_on"),
    "transactionCheckInterval": _Same("transaction_check_interval_ms"),
    "transactionCheckMax": _Same("transaction_checks_max"),
    "transactionTimeOut": _Same("transaction_timeout_ms"),
    "useServerSideResetOffset": _Same("server_side_reset_enable"),
}
"""Apache's keys for the settings that CometMQ has, too."""

PROMISED: Final = {
    "aclEnable": ("false", "there is no access control yet"),
    "authenticationEnabled": ("false", "there is no authentication yet"),
    "authorizationEnabled": ("false", "there is no access control yet"),
    "brokerPermission": ("6", "a broker that only reads, or only writes, is not supported yet"),
    "brokerRole": ("ASYNC_MASTER", "there are no replicas yet"),
    "enableControllerMode": ("false", "there are no replicas yet"),
    "enableDLegerCommitLog": ("false", "there are no replicas yet"),
    "storeType": ("default", "there is only the store of plain files"),
}
"""Apache's keys that must not be ignored: the only accepted value, and why no other is."""

CHANGEABLE: Final = frozenset(
    {
        "auto_create_subscription_group",
        "auto_create_topic_enable",
        "broadcast_offset_expiry_max_ms",
        "broadcast_offset_expiry_ms",
        "broadcast_offsets_enable",
        "client_timeout_ms",
        "delay_levels_ms",
        "disk_used_percent_expire",
        "disk_used_percent_force",
        "disk_used_percent_max",
        "enable_property_filter",
        "long_polling_enable",
        "offset_from_zero_enable",
        "register_interval_ms",
        "reject_transactions",
        "retention_hours",
        "retention_hours_of_day",
        "save_interval_ms",
        "server_side_reset_enable",
        "short_polling_ms",
        "store_replies",
        "suspend_timeout_max_ms",
        "sync_flush_timeout_ms",
        "transaction_check_interval_ms",
        "transaction_checks_max",
        "transaction_timeout_ms",
    }
)
"""The settings that a running broker changes on request: no address, no path, no limit."""

_FIXED_KEYS: Final = frozenset({"brokerConfigPath", "configBlackList", "rocketmqHome"})
_KEY_OF: Final = {same.name: key for key, same in MAPPED.items()}


def configured(base: BrokerConfig, settings: Mapping[str, object]) -> Configured:
    """Apply settings of a file, the environment or the command line."""
    found: dict[str, Any] = {}
    meaningless: list[str] = []
    for key, value in settings.items():
        if key in MAPPED or key in PART_OF:
            name, read = _parsed(key, value)
            found[name] = read
        elif key in PROMISED:
            _check_promise(key, value)
        elif key in APACHE_KEYS:
            meaningless.append(key)
        else:
            raise ConfigError(unknown_setting(key, [*PART_OF, *sorted(APACHE_KEYS)]))
    config = _applied(base, found)
    _check_commit_log(config, settings)
    if "storePathCommitLog" in meaningless:
        meaningless.remove("storePathCommitLog")
    warnings: list[str] = []
    if meaningless:
        warnings.append(f"settings of Apache's that have no meaning here: {', '.join(meaningless)}")
    return Configured(config, warnings)


def reconfigured(config: BrokerConfig, settings: Mapping[str, str]) -> Configured:
    """Apply the changes that a peer asks of a running broker: all of them, or none.

    Raises a `SettingFixedError` for a key on the black list or a setting not in `CHANGEABLE`.
    """
    fixed = _FIXED_KEYS.union(config.config_black_list.split(";"))
    found: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in settings.items():
        shown = key[:SHOWN_MAX]
        known = key in MAPPED or key in PART_OF
        if key in fixed:
            raise SettingFixedError("Can not update config in black list.")  # Apache's words.
        if known and _name_of(key) not in CHANGEABLE:
            raise SettingFixedError(
                f"Can not update config in black list. {shown}: fixed while the broker runs"
            )
        if known:
            name, read = _parsed(key, value)
            found[name] = read
        elif key in APACHE_KEYS:
            warnings.append(f"{shown}: a setting of Apache's that has no meaning here; ignored")
        else:
            warnings.append(f"{unknown_setting(key, PART_OF)}; ignored")
    return Configured(_applied(config, found), warnings)


def as_texts(config: BrokerConfig) -> dict[str, str]:
    """Return the settings as sorted texts, under Apache's keys where there are any."""
    texts = {key: held for key, (held, _) in PROMISED.items()}
    for name, part in PART_OF.items():
        value: object = getattr(getattr(config, part) if part else config, name)
        key = _KEY_OF.get(name)
        write = MAPPED[key].write if key is not None else None
        texts[key or name] = format_setting(value) if write is None else write(value)
    return dict(sorted(texts.items()))


def own_text(key: str, text: str) -> tuple[str, str]:
    """Translate an item of `as_texts` to our own name and to the form that our files use.

    A value from another version of the broker that this one cannot read is returned unchanged.
    """
    same = MAPPED.get(key)
    if same is None:
        return key, text
    try:
        return same.name, text if same.read is None else format_setting(same.read(text))
    except SettingError:
        return same.name, text


def _name_of(key: str) -> str:
    return MAPPED[key].name if key in MAPPED else key


def _parsed(key: str, value: object) -> tuple[str, object]:
    same = MAPPED.get(key)
    name = _name_of(key)
    try:
        if same is not None and same.read is not None:
            return name, same.read(str(value))
        return name, parse_setting(name, _DEFAULTS[name], value)
    except SettingError as error:
        raise ConfigError(f"{key}: {error}{_hint(name, value)}") from None


def _hint(name: str, value: object) -> str:
    """Say how to write a value in our way that was written in Apache's."""
    key = _KEY_OF.get(name, "")
    read = MAPPED[key].read if key in MAPPED else None
    words: list[object] = [*value] if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]  # As TOML has it.
    text = " ".join(map(str, words))
    try:
        return "" if read is None else f"; write {format_setting(read(text))}, or {key}={text}"
    except SettingError:
        return ""


def _applied(base: BrokerConfig, found: Mapping[str, Any]) -> BrokerConfig:
    """Set each of the found values in the part of the config that it belongs to."""
    of_part: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    for name, value in found.items():
        of_part[PART_OF[name]][name] = value
    try:
        store = replace(base.store, **of_part["store"])
        limits = replace(base.limits, **of_part["limits"])
    except StoreFormatError as error:
        raise ConfigError(str(error)) from None
    return replace(base, store=store, limits=limits, **of_part[""])


def _check_promise(key: str, value: object) -> None:
    held, why = PROMISED[key]
    if str(value).strip().lower() != held.lower():
        raise ConfigError(f"{key}: only {held} is supported: {why}")


def _check_commit_log(config: BrokerConfig, settings: Mapping[str, object]) -> None:
    path = settings.get("storePathCommitLog")
    if path is not None and str(path).strip() != f"{config.store_path}/commitlog":
        raise ConfigError(
            f"storePathCommitLog: {str(path)[:SHOWN_MAX]!r} is not the folder commitlog of"
            f" storePathRootDir, {config.store_path!r}, where the log is"
        )
