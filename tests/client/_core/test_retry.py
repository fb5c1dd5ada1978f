"""The rules that decide whether a send is tried again."""

from __future__ import annotations

import pytest

from cometmq.client import (
    ClientError,
    ConnectionEndedError,
    DeadlineError,
    UnreachableError,
    UsageError,
)
from cometmq.client._core.retry import Retrying
from cometmq.client.errors import refusal
from cometmq.proto.codes import ResponseCode


def after(retrying: Retrying, error: ClientError, *, others: bool = False) -> float | None:
    return retrying.after(error, "a", others=others, reconnect=0)


@pytest.mark.parametrize("error", [ConnectionEndedError(""), DeadlineError("")])
def test_what_may_have_been_sent_uses_up_the_attempts(error: ClientError) -> None:
    retrying = Retrying(3)
    assert after(retrying, error, others=True) == 0
    assert after(retrying, error) is not None
    assert after(retrying, error) is None
    assert retrying.failed == {"a"}


def test_what_was_not_sent_is_no_attempt_and_is_tried_ever_more_slowly() -> None:
    retrying = Retrying(1)
    delays = [after(retrying, UnreachableError("")) for _ in range(8)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert retrying.after(UnreachableError(""), "a", others=False, reconnect=5) == 5


@pytest.mark.parametrize(
    ("code", "elsewhere", "here"),
    [
        (ResponseCode.SYSTEM_BUSY, True, True),
        (ResponseCode.SERVICE_NOT_AVAILABLE, True, True),
        (ResponseCode.TOPIC_NOT_EXIST, True, True),
        (ResponseCode.SYSTEM_ERROR, True, False),
        (ResponseCode.NO_PERMISSION, True, False),
        (ResponseCode.MESSAGE_ILLEGAL, False, False),
        (ResponseCode.INVALID_PARAMETER, False, False),
    ],
)
def test_a_refusal_is_tried_where_it_may_be_taken(code: int, elsewhere: bool, here: bool) -> None:
    error = refusal(code, "no", "somewhere")
    assert (after(Retrying(3), error, others=True) is not None) is elsewhere
    assert (after(Retrying(3), error) is not None) is here


def test_a_wrong_call_is_not_tried_again() -> None:
    assert after(Retrying(3), UsageError(""), others=True) is None


def test_a_queue_that_is_lost_is_an_attempt_and_no_failure_of_its_broker() -> None:
    retrying, error = Retrying(3), refusal(ResponseCode.INVALID_PARAMETER, "no", "somewhere")
    delays = [
        retrying.after(error, "a", others=False, reconnect=0, is_queue_lost=True) for _ in range(3)
    ]
    assert delays == [0, 0, None]
    assert not retrying.failed
