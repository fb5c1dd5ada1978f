"""All benchmarks can be found and started."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import broker as broker_bench
from bench.__main__ import LONG, QUICK, main, summary_of
from bench.broker import Run

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
    assert f"usage: python -m bench.{name} " in capsys.readouterr().out


def test_help_lists_each_part_with_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    begins: set[int] = set()
    for name in QUICK + LONG:
        assert len(summary_of(name)) > 15
        (line,) = (each for each in shown.splitlines() if each.split()[:1] == [name])
        assert line.endswith(f"  {summary_of(name)}")
        begins.add(line.index(summary_of(name)))
    assert len(begins) == 1  # The summaries are aligned.


def test_that_of_spark_can_be_started_as_a_file_too(tmp_path: Path) -> None:
    shown = subprocess.check_output(
        [sys.executable, str(FOLDER / "spark.py"), "--help"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        text=True,
    )
    assert shown.startswith("usage: python -m bench.spark ")


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
    assert "| JSON: the send's answer encoded |" in shown
    assert "| record read in place |" in shown
    assert shown.endswith(f"python -m bench {' '.join(LONG)}\n")


def test_the_table_beside_apache_has_the_medians_of_ratios_and_says_what_is_missed() -> None:
    pairs = [
        {"CometMQ": Run(ours, 10, 20, 5, 0), "Apache": Run(100, 40, 80, cpu_us, refused)}
        for ours, cpu_us, refused in ((150, 10, 0), (250, 30, 3), (200, 20, 0))
    ]
    table = broker_bench.table({"send-64": broker_bench.medians_of(pairs)})
    row = table.splitlines()[-1]
    assert "100, 40 µs, 80 µs, 20.00 µs" in row
    assert "200, 10 µs, 20 µs, 5.00 µs" in row
    assert "rate 2.00 of 1.6; per core-second 4.00 of 2.4; p99 0.25 of 0.5" in row
    slow = [{**pair, "CometMQ": Run(100, 10, 50, 5, 0)} for pair in pairs]
    row = broker_bench.table({"send-64": broker_bench.medians_of(slow)}).splitlines()[-1]
    assert "**rate 1.00 of 1.6: missed**" in row
    assert "**p99 0.62 of 0.5: missed**" in row


def test_figures_go_between_the_marks_of_their_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    marks = "<!-- begin: python -m bench.x -->\n{}<!-- end: python -m bench.x -->\n"
    page.write_text("before\n" + marks.format("old\n") + "after\n")
    monkeypatch.setattr(broker_bench, "PAGE", page)
    broker_bench.write("bench.x", "new")
    assert page.read_text() == "before\n" + marks.format("new\n") + "after\n"
    with pytest.raises(SystemExit, match=r"bench\.y"):
        broker_bench.write("bench.y", "nowhere")
