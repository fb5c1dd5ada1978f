"""Requests of slaves and operators to a master: HA status (907), timer state (60, 61)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Self

import msgspec

from cometmq.proto.bodies.data_version import DataVersion
from cometmq.proto.body import Body, empty_table, preset
from cometmq.proto.errors import BodyError, LocalProtocolError
from cometmq.proto.header import I32, I64

if TYPE_CHECKING:
    from cometmq.proto.buffer import Buffer


class HAConnection(Body):
    """One slave as its master sees it."""

    addr: str | None = None
    diff: I64 = preset(0)
    in_sync: bool = preset(False)
    slave_ack_offset: I64 = preset(0)
    transfer_from_where: I64 = preset(0)
    transferred_byte_in_second: I64 = preset(0)


class HAClient(Body):
    """A slave as it sees itself; a master also has one, empty and without `master_addr`."""

    last_read_timestamp: I64 = preset(0)
    last_write_timestamp: I64 = preset(0)
    master_addr: str | None = None
    master_flush_offset: I64 = preset(0)
    max_offset: I64 = preset(0)
    transferred_byte_in_second: I64 = preset(0)


class HARuntimeInfo(Body):
    """The answer to 907."""

    ha_client_runtime_info: HAClient = preset(HAClient())
    ha_connection_info: tuple[HAConnection, ...] = preset(())
    in_sync_slave_nums: I32 = preset(0)
    master: bool = preset(False)
    master_commit_log_max_offset: I64 = preset(0)


class TimerMetric(Body):
    """How many messages of a topic wait for their time."""

    count: I64 = preset(0)
    time_stamp: I64 = preset(0)


class TimerMetrics(Body):
    """The answer to 61: by topic."""

    data_version: DataVersion | None = None
    timing_count: dict[str, TimerMetric] = empty_table()


_TIMER_CHECK_POINT = struct.Struct(">7q")
assert _TIMER_CHECK_POINT.size == 56


class TimerCheckPoint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The answer to 60. Not JSON but seven i64, big-endian.

    ====== ===========================
    offset field
    ====== ===========================
    0      last_read_time_ms
    8      last_timer_log_flush_pos
    16     last_timer_queue_offset
    24     master_timer_queue_offset
    32     data_version.state_version
    40     data_version.timestamp
    48     data_version.counter
    ====== ===========================
    """

    last_read_time_ms: I64 = 0
    last_timer_log_flush_pos: I64 = 0
    last_timer_queue_offset: I64 = 0
    master_timer_queue_offset: I64 = 0
    data_version: DataVersion = DataVersion()

    @classmethod
    def decode(cls, data: Buffer | None) -> Self:
        """Read the 56 bytes."""
        if data is None or len(data) != _TIMER_CHECK_POINT.size:
            raise BodyError(f"TimerCheckPoint: {len(data or b'')} bytes, expected 56")
        read, flushed, queued, master, state, timestamp, counter = _TIMER_CHECK_POINT.unpack(data)
        return cls(
            last_read_time_ms=read,
            last_timer_log_flush_pos=flushed,
            last_timer_queue_offset=queued,
            master_timer_queue_offset=master,
            data_version=DataVersion(state_version=state, timestamp=timestamp, counter=counter),
        )

    def encode(self) -> bytes:
        """Write the 56 bytes; raise a LocalProtocolError for a number beyond 64 bits."""
        version = self.data_version
        try:
            return _TIMER_CHECK_POINT.pack(
                self.last_read_time_ms,
                self.last_timer_log_flush_pos,
                self.last_timer_queue_offset,
                self.master_timer_queue_offset,
                version.state_version,
                version.timestamp,
                version.counter,
            )
        except struct.error as error:
            raise LocalProtocolError(f"TimerCheckPoint: {error}") from None
