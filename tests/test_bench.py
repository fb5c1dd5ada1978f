"""The benchmarks: that all of them can be found and started."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from bench.__main__ import LONG, QUICK, main, summary_of

FOLDER = Path(__file__).parent.parent / "bench"


def test_each_module_that_can_be_run_is_a_part() -> None:
    runnable = {path.stem for path in FOLDER.glob("*.py") if "def main(" in path.read_text()}
    assert runnable - {"__main__"} == {*QUICK, *LONG}


@pytest.mark.parametrize("name", QUICK + LONG)
def test_a_part_imports_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    part = importlib.import_module(f"bench.{name}")
    with pytest.raises(SystemExit) as ended:
        part.main(["--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_help_lists_each_part_with_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for name in QUICK + LONG:
        assert len(summary_of(name)) > 15
        assert f"{name:<14}{summary_of(name)}" in shown


def test_an_unknown_part_is_a_clear_error() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "proto", "nonsense"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "no part 'nonsense'; there are proto, messages, broker" in ended.stderr


def test_without_a_name_the_quick_parts_run_and_the_long_ones_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.measure.ROUNDS", 1)
    monkeypatch.setattr("bench.measure.ROUND_SECONDS", 0.0)
    main([])
    shown = capsys.readouterr().out
    assert "| JSON: the send's answer → bytes |" in shown
    assert "| record read in place |" in shown
    assert shown.endswith(f"python -m bench {' '.join(LONG)}\n")
