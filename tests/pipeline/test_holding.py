"""One run at a time holds a folder, and a killed run leaves nothing to clean up."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.admin.program import program
from cometmq.pipeline import command
from cometmq.pipeline.errors import HeldError, OptionError
from cometmq.pipeline.jobs.folders import Folder
from cometmq.pipeline.jobs.holding import (
    BATCHES,
    RESULTS,
    STREAM,
    UPKEEP,
    held,
    held_if_free,
    refuse_held,
)
from cometmq.pipeline.jobs.job import Run
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.jobs.writable import require_folder


class Plain(Folder):
    """A folder without Spark; with `local=None` it is one of another file system."""

    def __init__(self, path: Path, local: str | None = "") -> None:
        self.path = str(path)
        self._local = self.path if local == "" else local

    @property
    def local_path(self) -> str | None:
        """Its path on this machine."""
        return self._local

    def require_writable(self) -> None:
        """Refuse a folder that cannot be written to."""
        require_folder("path", self.path)


def test_a_second_run_is_refused_and_told_who_the_first_one_is(tmp_path: Path) -> None:
    folder = Plain(tmp_path / "to")
    with (
        held(Run(), "archive", (folder, BATCHES)),
        pytest.raises(HeldError) as raised,
        held(Run(), "aggregate", (folder, BATCHES)),
    ):
        pytest.fail("two have it")
    text = str(raised.value)
    assert text.startswith(f"path: {tmp_path}/to: archive (process {os.getpid()} on ")
    assert "nothing was changed. Start this again when that one has ended" in text


def test_a_full_disk_lets_a_run_have_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the run writes next will report the disk; and `archive-vacuum` makes room on it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = Plain(tmp_path)
    monkeypatch.setattr("os.pwrite", full)
    with (
        held(Run(), "archive-vacuum", (folder, UPKEEP)),
        pytest.raises(HeldError, match=f"path: {tmp_path}: another job is at work there"),
        held(Run(), "archive-compact", (folder, UPKEEP)),
    ):
        pytest.fail("two have it")


def test_the_second_run_takes_nothing_of_the_first_away(tmp_path: Path) -> None:
    folder = Plain(tmp_path)
    with held(Run(), "archive", (folder, STREAM)):
        for _ in range(2):
            with pytest.raises(HeldError), held(Run(), "archive", (folder, STREAM)):
                pytest.fail("two have it")
        assert [each.name for each in tmp_path.iterdir()] == [STREAM]


def test_a_run_leaves_no_folder_that_it_made_and_wrote_nothing_to(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match="refused"),
        held(Run(), "archive", (Plain(tmp_path / "a" / "b"), BATCHES)),
    ):
        raise OptionError("refused")
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_wrote_stays_and_the_next_one_has_the_folder(tmp_path: Path) -> None:
    folder = Plain(tmp_path / "a")
    for number in range(2):
        with held(Run(), "archive", (folder, BATCHES)):
            (tmp_path / "a" / f"{number}").touch()
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == ["0", "1"]


def test_upkeep_of_an_archive_goes_on_while_it_is_written_to(tmp_path: Path) -> None:
    folder = Plain(tmp_path)
    with (
        held(Run(), "archive", (folder, BATCHES)),
        held(Run(), "archive-compact", (folder, UPKEEP)),
        pytest.raises(HeldError, match="archive-compact"),
        held(Run(), "archive-vacuum", (folder, UPKEEP)),
    ):
        pytest.fail("two have it")


def test_a_second_folder_that_is_held_gives_the_first_one_back(tmp_path: Path) -> None:
    to, checkpoint = Plain(tmp_path / "to"), Plain(tmp_path / "checkpoint")
    with held(Run(), "mirror", (checkpoint, STREAM)):
        with (
            pytest.raises(HeldError, match="mirror"),
            held(Run(), "archive", (to, BATCHES), (checkpoint, STREAM)),
        ):
            pytest.fail("two have it")
        with held(Run(), "archive", (to, BATCHES)):
            pass


def test_a_dry_run_holds_nothing_and_is_not_refused(tmp_path: Path) -> None:
    folder = Plain(tmp_path / "to")
    with held(Run(dry_run=True), "archive", (folder, BATCHES)):
        assert list(tmp_path.iterdir()) == []
    with (
        held(Run(), "archive", (folder, BATCHES)),
        held(Run(dry_run=True), "archive", (folder, BATCHES)),
    ):
        pass


def test_a_folder_that_need_not_be_held_is_if_it_is_free(tmp_path: Path) -> None:
    folder, dry = Plain(tmp_path), Run(dry_run=True)
    for _ in range(2):
        with held_if_free(dry, "look", folder, UPKEEP) as is_free:
            assert is_free
            assert not list(tmp_path.iterdir())
        with (
            held_if_free(Run(), "first", folder, UPKEEP) as is_first_s,
            held_if_free(Run(), "second", folder, UPKEEP) as is_second_s,
            held_if_free(dry, "look", folder, UPKEEP) as is_free,
        ):
            assert (is_first_s, is_second_s, is_free) == (True, False, False)


def test_who_has_looked_at_what_a_killed_run_left_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / BATCHES).touch()
    refuse_held([(str(tmp_path), BATCHES)])
    with held(Run(), "archive", (Plain(tmp_path), BATCHES)):
        pass


def test_another_file_system_is_left_alone(tmp_path: Path) -> None:
    folder = Plain(tmp_path / "to", local=None)
    with (
        held(Run(), "archive", (folder, BATCHES)),
        held(Run(), "archive", (folder, BATCHES)),
    ):
        assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: int, _how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    told: list[Any] = []
    with held(Run(progress=told.append), "archive", (Plain(tmp_path), BATCHES)):
        pass
    assert [each["warning"] for each in told] == [
        f"{tmp_path} cannot be locked (Operation not supported): nothing keeps a second run out;"
        " make sure that only one runs at a time"
    ]


_HOLDS = """
import sys
from pathlib import Path
from tests.pipeline.test_holding import Plain
from cometmq.pipeline.jobs.holding import BATCHES, held
from cometmq.pipeline.jobs.job import Run

with held(Run(), "archive", (Plain(Path(sys.argv[1])), BATCHES)):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_run_holds_nothing_any_more(tmp_path: Path) -> None:
    folder = Plain(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            with (
                pytest.raises(HeldError, match=rf"process {process.pid} on "),
                held(Run(), "archive", (folder, BATCHES)),
            ):
                pytest.fail("two have it")
        finally:
            process.kill()
    assert [each.name for each in tmp_path.iterdir()] == [BATCHES]  # The file alone holds nothing.
    with held(Run(), "archive", (folder, BATCHES)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_with_a_longer_name_wrote_is_replaced(tmp_path: Path) -> None:
    (tmp_path / UPKEEP).write_text('{"job": "archive-compact", "host": "%s"}\n' % ("h" * 200))
    with (
        held(Run(), "archive-vacuum", (Plain(tmp_path), UPKEEP)),
        pytest.raises(HeldError, match=rf": archive-vacuum \(process {os.getpid()} on "),
    ):
        refuse_held([(str(tmp_path), UPKEEP)])


def test_a_file_that_goes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, folder = fcntl.flock, Plain(tmp_path)

    def lock(file: int, how: int) -> None:
        monkeypatch.undo()
        (tmp_path / BATCHES).unlink()  # By the previous holder.
        flock(file, how)

    monkeypatch.setattr("fcntl.flock", lock)
    with (
        held(Run(), "archive", (folder, BATCHES)),
        pytest.raises(HeldError),
        held(Run(), "aggregate", (folder, BATCHES)),
    ):
        pytest.fail("two have it")


def test_a_file_that_cannot_be_removed_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlink(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", unlink)
    for _ in range(2):
        with held(Run(), "archive", (Plain(tmp_path), BATCHES)):
            pass
    assert [each.name for each in tmp_path.iterdir()] == [BATCHES]


def test_a_folder_that_is_held_is_found_without_spark(tmp_path: Path) -> None:
    folder = tmp_path / "to"
    refuse_held([(str(folder), BATCHES)])
    with held(Run(), "archive", (Plain(folder), BATCHES)):
        for path in (str(folder), f"file:{folder}", f"file://{folder}/", f"{folder}/"):
            with pytest.raises(HeldError, match=rf"^path: {path}: archive \(process {os.getpid()}"):
                refuse_held([(str(tmp_path), BATCHES), (path, BATCHES)])
        # A folder of another file system, and folders that nobody holds.
        refuse_held([(f"s3a:{folder}", BATCHES), ("", BATCHES), (str(folder), STREAM)])
    refuse_held([(str(folder), BATCHES)])
    assert list(tmp_path.iterdir()) == []


def test_who_only_looks_keeps_no_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = (tmp_path / STREAM).open("w")  # A killed run left it.
    fcntl.flock(looking, fcntl.LOCK_SH)

    def sleep(_seconds: float) -> None:
        looking.close()

    monkeypatch.setattr("cometmq.pipeline.jobs.holding.time.sleep", sleep)
    with held(Run(), "mirror", (Plain(tmp_path), STREAM)):
        assert looking.closed


SECOND = {
    "archive --topic t --to {to}": BATCHES,
    "archive --topic t --to other --checkpoint {to}": STREAM,
    "aggregate --topic t --to {to} --checkpoint other": BATCHES,
    "aggregate --topic t --to-topic u --checkpoint {to}": STREAM,
    "transform --topic t --to-topic u --sql s --checkpoint {to}": STREAM,
    "mirror --topic t --to-nameserver 127.0.0.1:2 --checkpoint {to}": STREAM,
    "archive-compact --archive {to}": UPKEEP,
    "archive-vacuum --archive {to}": UPKEEP,
    "audit --store other --findings {to}": RESULTS,
    "latency --topic t --tables {to}": RESULTS,
    "reconcile --left topic:t@h:1 --right store:other --findings {to}": RESULTS,
    "replay --from other --to-topic u --checkpoint {to}": "to-u.lock",
    "replay --from other --to-topic u --checkpoint {to} --name again": "again.lock",
}


@pytest.mark.parametrize("line", SECOND)
def test_a_second_run_is_refused_before_spark_is_started(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_in_session", pytest.fail)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")  # Nobody there is asked.
    monkeypatch.chdir(tmp_path)
    arguments = ["pipeline", *line.format(to=tmp_path / "to").split()]
    with held(Run(), "first", (Plain(tmp_path / "to"), SECOND[line])):
        done = CliRunner().invoke(program, arguments)
    assert done.exit_code == 3, done.output
    option = line.partition(" {to}")[0].rpartition("--")[2]
    assert f": {option}: {tmp_path}/to: first (process {os.getpid()} on " in done.stderr
    assert done.stderr.endswith("Start this again when that one has ended\n")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_is_not_refused_before_it_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_spark(*_: object) -> Report:
        return Report("archive-vacuum")

    monkeypatch.setattr(command, "run_in_session", without_spark)
    with held(Run(), "first", (Plain(tmp_path), UPKEEP)):
        arguments = ["pipeline", "archive-vacuum", "--archive", str(tmp_path), "--dry-run"]
        done = CliRunner().invoke(program, arguments)
    assert done.exit_code == 0, done.output


def test_a_name_that_is_too_long_is_a_mistake(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match=r"/a+: nothing can be written there \(File name too long"),
        held(Run(), "aggregate", (Plain(tmp_path / ("a" * 256)), BATCHES)),
    ):
        pytest.fail("it has it")


def test_where_nothing_can_be_written_says_so_with_what_to_do() -> None:
    """Even root, who may do everything, can put no file into the kernel's own folders."""
    said = r"^path: /proc/x: nothing can be written there \(.+\); choose another folder$"
    if os.geteuid():
        said = "^path: /proc/x: no permission to write to /proc$"
    with (
        pytest.raises(OptionError, match=said),
        held(Run(), "archive", (Plain(Path("/proc/x")), BATCHES)),
    ):
        pytest.fail("it has it")


def test_where_nothing_holds_a_folder_each_run_has_names_of_its_own(tmp_path: Path) -> None:
    """Otherwise one would remove the files that another has written, and committed to a table."""
    assert Plain(tmp_path).free_name("data/7") == "data/7"
    one, other = (Plain(tmp_path, None).free_name("data/7") for _ in range(2))
    assert one != other
    assert one.startswith("data/7-")
