"""Conversion of times to milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given, strategies as some

from cometmq.client._admin_asking import time_of
from cometmq.client._core.checking import time_at, time_ms


@given(some.integers(0, 4_000_000_000_000), some.integers(0, 999))
@example(ms=1001, more_us=0)  # Through a float of seconds this would be 1 ms less.
def test_a_time_is_the_millisecond_in_which_it_is(ms: int, more_us: int) -> None:
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms, microseconds=more_us)
    assert time_ms(time) == time_ms(time.astimezone(timezone(timedelta(hours=8)))) == ms


@pytest.mark.parametrize("ms", [10**18, -(10**18), 1 << 62])
def test_a_time_that_cannot_be_is_1970_so_that_the_message_is_read(ms: int) -> None:
    assert time_ms(time_at(ms)) == 0


def test_an_admin_shows_a_time_that_cannot_be_and_none_for_no_time() -> None:
    assert time_of(1 << 62) == time_at(0)
    assert time_of(1) == time_at(1)
    assert time_of(0) is time_of(-1) is None
