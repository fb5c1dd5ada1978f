"""The tree of commands, most of which are imported only when they are used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cometmq.admin.program import program


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("snd orders x", "send"),
        ("topics", "topic"),
        ("pipeline archiv --to x", "archive"),
        ("pipeline doctr", "doctor"),
    ],
)
def test_a_misspelt_command_is_told_with_the_one_that_may_be_meant(line: str, meant: str) -> None:
    done = CliRunner().invoke(program, line.split())
    assert done.exit_code == 2
    assert f". Did you mean '{meant}'?" in done.stderr


def test_one_that_is_like_none_is_told_alone() -> None:
    done = CliRunner().invoke(program, ["zzzz"])
    assert done.exit_code == 2
    assert done.stderr.endswith("Error: No such command 'zzzz'.\n")


@pytest.mark.parametrize("line", ["send orders x", "store stat x", "--help"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_ctrl_c_that_comes_while_a_command_is_imported_ends_it_with_a_word(
    monkeypatch: pytest.MonkeyPatch, line: str, wrapped: bool
) -> None:
    def interrupted(_: str) -> None:
        raise BaseExceptionGroup("", [KeyboardInterrupt()]) if wrapped else KeyboardInterrupt

    monkeypatch.setattr("cometmq.admin.program.import_module", interrupted)
    done = CliRunner().invoke(program, line.split())
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "\nInterrupted\n")


def test_a_ctrl_c_that_python_would_ignore_ends_it_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised in a callback, as of an import's lock, where Python would ignore it."""

    class Freed:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def interrupted(_: str) -> None:
        Freed()
        time.sleep(60)

    monkeypatch.setattr("cometmq.admin.program.import_module", interrupted)
    done = CliRunner().invoke(program, ["store", "stat", "x"])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "\nInterrupted\n")


def without(modules: tuple[str, ...], folder: Path, *line: str) -> tuple[int, str, str]:
    """Run the program as if these modules were not installed; return its status and outputs."""
    hide = "; ".join(f"sys.modules[{module!r}] = None" for module in modules)
    run = "from cometmq.admin.program import program; program(prog_name='cometmq')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}; {run}", *line],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return done.returncode, done.stdout, done.stderr


NO_BROKER = ("crc32c", "isal", "lark", "lz4", "trio", "uvloop", "zstandard")
"""Modules that the extra `[broker]` installs and `[spark]` does not."""


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        ("up --broker-port 0 --nameserver-port 0 --metrics-port off", "trio", "broker"),
        ("store stat --json store", "crc32c", "broker"),
        ("store verify --help", "crc32c", "broker"),
        ("pipeline --help", "numpy", "spark"),
    ],
)
def test_a_command_of_another_extra_says_what_to_install(
    line: str, module: str, extra: str, tmp_path: Path
) -> None:
    status, said, error = without((*NO_BROKER, "numpy"), tmp_path, *line.split())
    assert (status, said) == (1, "")
    assert error == (
        f"Error: `cometmq {line.split()[0]}` needs {module}, which is not installed here.\n"
        f"Install it with:  pip install 'cometmq[{extra}]'\n"
    )


def test_the_list_of_commands_has_those_that_miss_something(tmp_path: Path) -> None:
    status, said, error = without(NO_BROKER, tmp_path, "--help")
    assert (status, error) == (0, "")
    told = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ")}
    assert "pip install 'cometmq[broker]'" in told["store"]
    assert "pip install" not in told["send"]


def test_a_module_of_ours_that_is_not_there_is_no_matter_of_what_is_installed(
    tmp_path: Path,
) -> None:
    _, _, error = without(("cometmq.admin.commands.send",), tmp_path, "send", "orders", "x")
    assert "ModuleNotFoundError" in error
    assert "pip install" not in error


@pytest.mark.parametrize("line", ["stat", "dump", "verify", "rebuild", "repair"])
def test_a_command_on_a_store_does_not_begin_where_nobody_can_see_what_it_says(
    line: str, tmp_path: Path
) -> None:
    command = f'"$0" -m cometmq.admin store {line} {tmp_path} >&-'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("Error: standard output is closed, so nothing can be shown\n")


def test_no_file_gets_the_number_of_a_closed_output() -> None:
    look = "import os; print([os.stat(n).st_rdev for n in (0, 1, 2)], os.dup(0), file=told)"
    said = "from cometmq.admin.closed_streams import hold_closed_streams; hold_closed_streams()"
    code = f"told = open(9, 'w'); {said}; {look}"
    command = ["sh", "-c", f'exec 9>&1; exec "$0" -c "{code}" <&- >&- 2>&-', sys.executable]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    null = Path(os.devnull).stat().st_rdev
    assert done.stdout == f"{[null] * 3} 3\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["--help", "store dump --help"])
@pytest.mark.parametrize("room", [0, 100])
def test_what_is_printed_comes_out_whole_or_the_command_fails_in_one_line(
    room: int, line: str, unbuffered: str, tmp_path: Path
) -> None:
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))"
    run = "runpy.run_module('cometmq.admin', run_name='__main__')"
    with (tmp_path / "printed").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", f"import resource, runpy; {limit}; {run}", *line.split()],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert (tmp_path / "printed").stat().st_size == room
    said = "Error: the output cannot be written: File too large; check where it goes\n"
    assert (done.returncode, done.stderr) == (1, said)


STUCK = """
import io, runpy, sys

class Stuck(io.RawIOBase):
    interrupts = 2

    def writable(self):
        return True

    def write(self, data):
        if not self.interrupts:
            return len(data)
        self.interrupts -= 1
        raise KeyboardInterrupt

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Stuck()))
runpy.run_module("cometmq.admin", run_name="__main__")
"""


def test_a_second_ctrl_c_ends_the_wait_for_one_who_reads_no_more_in_one_word() -> None:
    """A pager with a full window is such a reader, and ignores Ctrl-C itself."""
    command = [sys.executable, "-c", STUCK, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "\nInterrupted\n")
