"""The next step comes at once while there is more to do, and later the longer nothing is due."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from cometmq.broker.stepping import RETRY_SECONDS, Step, Stepping

if TYPE_CHECKING:
    from cometmq.broker.cold_reads import ColdReads


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        (Step(done=3), 0.0),
        (Step(done=3, wait_ms=80), 0.0),
        (Step(), 0.01),
        (Step(wait_ms=4), 0.01),
        (Step(wait_ms=80), 0.08),
        (Step(refused=True, wait_ms=80), RETRY_SECONDS),
    ],
)
def test_the_next_step_comes_when_it_is_needed(step: Step, seconds: float) -> None:
    stepping = Stepping("x", lambda _: step, cast("ColdReads", None), idle_seconds=0.01)
    assert stepping.run() == seconds
