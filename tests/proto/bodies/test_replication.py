"""The timer check point, the one body of 56 bytes."""

from __future__ import annotations

import pytest

from cometmq.proto.bodies import DataVersion, TimerCheckPoint
from cometmq.proto.errors import BodyError


def test_seven_numbers_in_their_order() -> None:
    data = b"".join(number.to_bytes(8, "big") for number in range(1, 8))
    point = TimerCheckPoint.decode(data)
    assert point == TimerCheckPoint(
        last_read_time_ms=1,
        last_timer_log_flush_pos=2,
        last_timer_queue_offset=3,
        master_timer_queue_offset=4,
        data_version=DataVersion(state_version=5, timestamp=6, counter=7),
    )
    assert point.encode() == data


@pytest.mark.parametrize("size", [0, 55, 57])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(BodyError, match="expected 56"):
        TimerCheckPoint.decode(bytes(size))
