"""Files in the working directory that are named like modules of Python's standard library."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from cometmq.pipeline.jobs.hidden_modules import about_hidden, processes_for
from cometmq.pipeline.jobs.spark_errors import ours

if TYPE_CHECKING:
    from pathlib import Path

IMPORTED = """Error from python worker:
  Traceback (most recent call last):
  ImportError: cannot import name 'Random' from 'random' (/elsewhere/random.py)"""
HALF = "  AttributeError: module 'json' has no attribute 'loads'"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return tmp_path


def started() -> int:
    """Start a Python process as Spark does, and return its status."""
    program = [sys.executable, "-m", "wave", "-h"]
    return subprocess.run(program, capture_output=True, check=False).returncode


@pytest.mark.parametrize(("functions", "hides"), [((), False), (("prices:gross",), True)])
def test_only_functions_of_the_users_have_processes_look_in_the_working_directory(
    here: Path, functions: tuple[str, ...], hides: bool
) -> None:
    (here / "wave.py").write_text("raise SystemExit(7)")
    assert started() == 7
    with processes_for(SimpleNamespace(udf=functions)):
        assert (started() == 7) is hides
    assert started() == 7  # Processes started later are as before.


@pytest.mark.parametrize(
    ("file", "error"),
    [("random.py", IMPORTED), ("json.py", HALF), ("json/__init__.py", HALF)],
)
def test_an_error_that_a_hidden_module_makes_names_the_file(
    here: Path, file: str, error: str
) -> None:
    assert "hides" not in str(ours(RuntimeError(error)))
    path = here / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    module = file.partition("/")[0].removesuffix(".py")
    said = f"{path} hides Python's own module {module} from Spark's Python processes: rename it"
    assert str(ours(RuntimeError(error))).startswith(said)


def test_an_error_is_told_even_if_the_working_directory_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert str(ours(RuntimeError("what went wrong"))) == "what went wrong"


def test_an_error_that_only_passes_through_such_a_module_is_none_of_the_file(here: Path) -> None:
    (here / "queue.py").write_text("")
    (here / "prices.py").write_text("")
    assert not about_hidden('File "/usr/lib/python3.11/queue.py", line 1; prices')
    assert about_hidden(f'File "{here}/queue.py", line 1')
