"""Conversion of times to milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given, strategies as some

from cometmq.client._core.checking import time_ms


@given(some.integers(0, 4_000_000_000_000), some.integers(0, 999))
@example(ms=1001, more_us=0)  # Through a float of seconds this would be 1 ms less.
def test_a_time_is_the_millisecond_in_which_it_is(ms: int, more_us: int) -> None:
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms, microseconds=more_us)
    assert time_ms(time) == time_ms(time.astimezone(timezone(timedelta(hours=8)))) == ms
