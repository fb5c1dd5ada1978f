from __future__ import annotations

import pytest
from tests.crash.kinds import CASES, is_never_seen, points_of

from cometmq.store.config import Flush


@pytest.mark.parametrize("name", ["commit", "delay"])
def test_wherever_a_kind_of_message_is_killed_its_promise_holds(name: str) -> None:
    """This shows it for two kinds; `make crash` plays all kinds, and power cuts, too."""
    assert sum(1 for _ in points_of(CASES[name], Flush.ASYNC)) > 20


def test_a_promise_that_is_broken_is_noticed() -> None:
    wrong = CASES["commit"]._replace(finish=is_never_seen)
    with pytest.raises(AssertionError):
        list(points_of(wrong, Flush.ASYNC))
