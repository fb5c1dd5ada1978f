"""Errors can be pickled whole. A process pool hangs on one that cannot be unpickled."""

from __future__ import annotations

import pickle
from copy import copy

import pytest

from cometmq.client import (
    BusyError,
    ClientError,
    DeadlineError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
)
from cometmq.proto.codes import ResponseCode

ERRORS = [
    DeadlineError("no answer within 3 s"),
    OutcomeUnknownError("it may be stored"),
    RefusedError(ResponseCode.MESSAGE_ILLEGAL, "too long", "127.0.0.1:10911"),
    NotFoundError(ResponseCode.TOPIC_NOT_EXIST, None, "127.0.0.1:10911"),
    BusyError(ResponseCode.SYSTEM_BUSY, "later", "127.0.0.1:10911"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_pickled_and_copied_whole(error: ClientError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy(error)):  # Our own data.
        assert type(again) is type(error)
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
        assert (again.whose, again.can_retry) == (error.whose, error.can_retry)
