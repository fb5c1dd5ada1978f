"""A refused put has the response code with which Apache answers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from cometmq.proto.codes import ResponseCode
from cometmq.store import errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MessageIllegalError, ResponseCode.MESSAGE_ILLEGAL),
        (errors.PropertiesTooLongError, ResponseCode.MESSAGE_ILLEGAL),
        (errors.StoreBusyError, ResponseCode.SYSTEM_BUSY),
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


def test_a_format_error_of_a_file_names_it_in_front_and_carries_it() -> None:
    error = errors.StoreFormatError("is too short", "/s/index/1: odd")
    assert str(error) == "/s/index/1: odd: is too short"
    assert (error.path, error.problem) == ("/s/index/1: odd", "is too short")
    again = pickle.loads(pickle.dumps(error))  # From a process of Spark's.
    assert (str(again), again.path, again.problem) == (str(error), error.path, error.problem)
    setting = errors.StoreFormatError("segment_size: 1 is not positive")
    assert (str(setting), setting.path) == ("segment_size: 1 is not positive", None)


def test_the_file_is_named_that_is_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "T").touch()
    with pytest.raises(NotADirectoryError) as raised:
        (tmp_path / "T" / "0" / "1").open()
    assert errors.disk_error_text(raised.value) == (
        f"{tmp_path}/T: Not a directory; a file is where a folder has to be: move it elsewhere"
    )
