"""A refused put carries the response code that Apache answers with."""

from __future__ import annotations

import pytest

from cometmq.proto.codes import ResponseCode
from cometmq.store import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MessageIllegalError, ResponseCode.MESSAGE_ILLEGAL),
        (errors.PropertiesTooLongError, ResponseCode.MESSAGE_ILLEGAL),
        (errors.StoreNotWriteableError, ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.SyncFailedError, ResponseCode.SERVICE_NOT_AVAILABLE),
        (errors.PutRefusedError, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_each_refusal_has_its_code(error: type[errors.PutRefusedError], code: ResponseCode) -> None:
    assert error("why").code is code


def test_corruption_names_the_file_and_the_byte() -> None:
    error = errors.CorruptionError("commitlog/00000000000000000000", 77, "body checksum")
    assert str(error) == "commitlog/00000000000000000000: at byte 77: body checksum"
