"""Administration of a broker that belongs to no other family."""

from __future__ import annotations

from cometmq.proto.header import I32, I64, Header, wire


class GetBrokerConfigResponse(Header):
    """The answer to 26 GET_BROKER_CONFIG; the settings are its body."""

    version: str | None = None  # A data version, in JSON.


class ViewBrokerStatsData(Header):
    """315 VIEW_BROKER_STATS_DATA: a counter over a minute, an hour and a day."""

    stats_name: str
    stats_key: str


class SetCommitlogReadMode(Header):
    """2004 SET_COMMITLOG_READ_MODE: 0 or 1, whether to read ahead."""

    read_ahead_mode: I32 = wire("READ_AHEAD_MODE")


class SwitchTimerEngine(Header):
    """5001 SWITCH_TIMER_ENGINE."""

    # R (RocksDB) or F (file); without it the answer is INVALID_PARAMETER.
    engine_type: str | None = wire("E_T", default=None)


class CheckRocksdbCqWriteProgress(Header):
    """354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS."""

    topic: str
    check_store_time: I64 | None = None


class ExportRocksdbConfigToJson(Header):
    """355 EXPORT_ROCKSDB_CONFIG_TO_JSON."""

    config_type: str  # Names joined by semicolons: topics, subscriptionGroups, consumerOffsets.
