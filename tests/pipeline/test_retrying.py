"""What is tried again, how often, and after which pauses."""

from __future__ import annotations

import pytest

from cometmq.pipeline.errors import BusyError, ConnectionLostError, RefusedError
from cometmq.pipeline.retrying import Pauses, retried
from cometmq.pipeline.wire import Answer


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("cometmq.pipeline.retrying.time.sleep", taken.append)
    return taken


@pytest.mark.parametrize("error", [ConnectionLostError("away"), BusyError("h:1", 2, "busy")])
def test_trying_again_ends(pauses: list[float], error: Exception) -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        retried(fail, retries=3, interval_ms=200)
    assert len(tries) == 4
    assert pauses == [0.2, 0.4, 0.8]


def test_what_a_server_refuses_for_good_is_not_tried_again(pauses: list[float]) -> None:
    def refuse() -> None:
        raise RefusedError("h:1", 16, "no")

    with pytest.raises(RefusedError, match="code 16"):
        retried(refuse, retries=3, interval_ms=200)
    assert pauses == []


def test_pauses_double_up_to_ten_seconds_and_begin_anew(pauses: list[float]) -> None:
    patience = Pauses(retries=8, interval_ms=200)
    for _ in range(8):
        patience.take(ConnectionLostError("away"))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    patience.taken = 0
    patience.take(ConnectionLostError("away"))
    assert pauses[-1] == 0.2


@pytest.mark.parametrize(
    ("code", "kind"), [(2, BusyError), (14, BusyError), (215, BusyError), (1, RefusedError)]
)
def test_a_refusal_says_whether_trying_again_may_help(code: int, kind: type[RefusedError]) -> None:
    refusal = Answer(0, code, "no", {}, b"").refusal("h:1")
    assert type(refusal) is kind
    assert (refusal.address, refusal.code, refusal.remark) == ("h:1", code, "no")


def test_an_answer_that_leaves_out_damaged_queues_is_not_taken_for_all() -> None:
    whole = Answer(0, 0, "", {}, b"")
    assert whole.expect_all("h:1") is whole
    with pytest.raises(RefusedError, match="left out: T/1"):
        whole._replace(remark="left out: T/1").expect_all("h:1")
    with pytest.raises(BusyError):
        whole._replace(code=2).expect_all("h:1")
