"""The bit set of a batch acknowledgement."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from cometmq.proto.bodies import BatchAck
from cometmq.proto.errors import BodyError


def ack(bits: str) -> BatchAck:
    return BatchAck(
        bits=bits,
        consumer_group="g",
        invisible_time_ms=15000,
        pop_time_ms=1,
        queue_id=0,
        revive_queue_id=4,
        start_offset=0,
        topic="T",
    )


def test_bits_are_little_endian() -> None:
    assert BatchAck.bits_of((0, 3, 9)) == "CQI="
    assert ack("CQI=").indexes() == (0, 3, 9)
    assert ack("BA==").indexes() == (2,)


@given(st.sets(st.integers(0, 2000)))
def test_what_is_set_is_read(indexes: set[int]) -> None:
    assert ack(BatchAck.bits_of(tuple(indexes))).indexes() == tuple(sorted(indexes))


def test_what_is_not_base64_is_refused() -> None:
    for bits in ("!", "CQI", "é"):
        with pytest.raises(BodyError, match="not base64"):
            ack(bits).indexes()


def test_a_bit_set_larger_than_any_pop_is_refused() -> None:
    with pytest.raises(BodyError, match="the limit is 65536"):
        ack(base64.b64encode(bytes(8193)).decode()).indexes()
    assert ack(base64.b64encode(bytes(8192)).decode()).indexes() == ()
