"""Whatever keeps a daemon from starting is reported in one line, however it is wrapped."""

from __future__ import annotations

import errno
from io import TextIOWrapper
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cometmq.admin.daemons import failures_told, say_ready
from cometmq.admin.program import program
from cometmq.store.errors import NotAStoreError

DENIED = PermissionError(errno.EACCES, "Permission denied", "/s/lock")


@pytest.mark.parametrize(
    "error",
    [
        DENIED,
        ExceptionGroup("nursery", [DENIED]),
        ExceptionGroup("nursery", [ExceptionGroup("inner", [DENIED, NotAStoreError("other")])]),
    ],
)
def test_a_failure_is_told_by_one_error_of_the_command_line(error: Exception) -> None:
    with pytest.raises(click.ClickException) as told, failures_told():
        raise error
    assert told.value.message == (
        "/s/lock: Permission denied; run it as the user that the store belongs to"
    )


def test_up_in_the_place_of_a_file_names_that_file_and_nothing_in_it(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("not a store")
    ended = CliRunner().invoke(program, ["up", "--dir", str(file), "--metrics-port", "off"])
    assert ended.exit_code == 1
    assert ended.output.splitlines()[-1].startswith(
        f"Error: {file}: is a file; name the folder of a"
    )
    assert file.read_text() == "not a store"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is full")
def test_a_ready_line_that_cannot_be_written_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        TextIOWrapper(full, write_through=True) as output,
        monkeypatch.context() as patch,
    ):
        patch.setattr("sys.stdout", output)
        with pytest.raises(click.ClickException) as told, failures_told():
            say_ready(broker="127.0.0.1:10911")
    assert told.value.message.startswith("standard output: No space left on device")


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ExceptionGroup) as raised, failures_told():
        raise ExceptionGroup("nursery", [DENIED, ValueError("ours")])
    assert raised.value.subgroup(ValueError) is not None


def test_nothing_is_told_when_nothing_failed() -> None:
    with failures_told():
        pass
