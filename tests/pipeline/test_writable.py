"""A job that could not write its output says so before it does any work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.dlq import DlqSettings
from cometmq.pipeline.jobs.mirror import MirrorSettings
from cometmq.pipeline.jobs.receipts import Receipts
from cometmq.pipeline.jobs.streams import look_for_topics
from cometmq.pipeline.jobs.writable import require_file, require_folder, try_file


def test_a_folder_may_be_there_or_be_made(tmp_path: Path) -> None:
    require_folder("to", str(tmp_path))
    require_folder("to", str(tmp_path / "not" / "there" / "yet"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["file", "file/in/it"])
def test_a_file_is_no_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"^to: .*/file is a file, not a folder$"):
        require_folder("to", str(tmp_path / path))


def test_a_file_may_be_there_or_be_made_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    for path in ("", str(tmp_path / "old"), str(tmp_path / "new")):
        require_file("report", path)
    with pytest.raises(OptionError, match=r"^report: .*/no/new: no such folder$"):
        require_file("report", str(tmp_path / "no" / "new"))
    with pytest.raises(OptionError, match=r"is a folder, not a file$"):
        require_file("report", str(tmp_path))
    with pytest.raises(OptionError, match=r"^report: -: is not a file; for standard"):
        require_file("report", "-")


@pytest.mark.parametrize(
    ("leads_to", "why"), [("link", "is a link to itself"), ("no/file", "no such folder")]
)
def test_a_link_to_where_no_file_can_be_is_refused(tmp_path: Path, leads_to: str, why: str) -> None:
    """Jobs used to end in a traceback, or to say so only when all was done."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / leads_to)
    with pytest.raises(OptionError, match=f"^report: {link}: {why}$"):
        require_file("report", str(link))


def test_what_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may be run by root, who may write everywhere."""

    def denies(place: Path, mode: int) -> bool:
        return not (mode & os.W_OK and place == tmp_path)

    monkeypatch.setattr(os, "access", denies)
    for require in (require_folder, require_file):
        with pytest.raises(OptionError, match=f"^to: .*: no permission to write to {tmp_path}$"):
            require("to", str(tmp_path / "new"))


def test_what_cannot_even_be_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that is closed to us; Python's own `is_dir` raises an error there."""

    def denied(place: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    monkeypatch.setattr(Path, "is_dir", denied)
    with pytest.raises(OptionError, match=f"^report: {tmp_path}/r: {tmp_path}: Permission denied$"):
        require_file("report", str(tmp_path / "r"))
    settings = MirrorSettings(
        nameserver="a:1", to_nameserver="b:1", topic="t", checkpoint=str(tmp_path)
    )
    said = f"^checkpoint: {tmp_path}: {tmp_path}/offsets: Permission denied$"
    with pytest.raises(OptionError, match=said):
        look_for_topics(settings)


def test_a_working_directory_that_was_removed_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    for require in (require_folder, require_file):
        with pytest.raises(OptionError, match=r"^to: new: the working directory: No such file or"):
            require("to", "new")


def test_a_name_that_is_too_long_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    """A report is written when all is done, and used to end in a traceback with status 1."""
    path = str(tmp_path / ("n" * 300))
    with pytest.raises(OptionError, match=f"^report: {path}: {path}: File name too long$"):
        require_file("report", path)
    with pytest.raises(OptionError, match=r"^html: .*: cannot be written \(File name too long\)"):
        try_file("html", path)


def test_a_file_that_is_tried_is_left_as_it_was(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("as it was")
    for path in ("", str(old), str(new)):
        try_file("html", path)
    assert old.read_text() == "as it was"
    assert not new.exists()
    link = tmp_path / "link"
    link.symlink_to(new)
    try_file("html", str(link))
    assert link.is_symlink()
    assert not new.exists()


def test_a_pipe_is_not_opened_before_there_is_something_to_write(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.close(reading)  # Opening it to write waits now, until somebody reads again.
    try:
        try_file("html", str(pipe))
    finally:
        os.close(writing)


def test_a_pipe_is_refused_for_what_is_read_again(tmp_path: Path) -> None:
    """A shell's `>(gzip > receipts.gz)` makes one, and `/dev/stdout` may be one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    require_file("html", str(pipe))
    with pytest.raises(
        OptionError, match=f"^receipts: {pipe}: is a pipe, which the next run cannot"
    ):
        DlqSettings(nameserver="127.0.0.1:9876", group="billing", receipts=str(pipe))


def test_receipts_read_nothing_but_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a terminal would wait until somebody types something."""

    def read(*_: object) -> bytes:
        pytest.fail("read")

    monkeypatch.setattr(Path, "read_bytes", read)
    Receipts(os.devnull).write([{"group": "billing"}])


def test_a_file_that_nobody_can_make_is_refused(tmp_path: Path) -> None:
    """Permissions do not tell: root may write everywhere, even on a disk that takes no file."""
    gone = tmp_path / "gone" / "new"
    with pytest.raises(OptionError, match=r"^html: .*/gone/new: cannot be written \(No such"):
        try_file("html", str(gone))


def test_receipts_on_a_full_disk_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "receipts.jsonl"
    receipts = Receipts(str(path))

    def is_full(*_: object) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "open", is_full)
    with pytest.raises(PipelineError, match=f"^receipts: {path}: its disk is full; make r"):
        receipts.write([{"group": "billing"}])
