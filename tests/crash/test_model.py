"""The store keeps its promises through random endings, and the model would notice if not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.crash import __main__ as crash
from tests.crash.model import run_seed
from tests.crash.mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).resolve().parents[2]
SEEDS = 20
MUTANT_SEEDS = 3_000
"""Most are caught within a hundred. One more random number drawn anywhere shifts all later ones."""
SEEDS_THAT_NOTICED = (690, 1380, 471, 59, 14, 29, 115, 17, 15, 1)
"""Each was the first to notice some mutant; every mutant is tried with these seeds first."""
SEEDS_WITH_FINDINGS = (50, 201, 384, 1154, 3_000_015, 3_000_289, 3_001_207, 3_001_751)
"""Each broke a promise once: a clock set back, an index filled twice after a second replay."""


def test_the_store_keeps_its_promises_through_some_endings() -> None:
    runs = [run_seed(seed) for seed in range(SEEDS)]
    images = sum(run.images for run in runs)
    assert images > 4 * SEEDS
    assert sum(run.spoilt for run in runs) > SEEDS / 2
    assert sum(run.uncovered for run in runs) < images / 50


@pytest.mark.parametrize("seed", SEEDS_WITH_FINDINGS)
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    assert run_seed(seed).uncovered == 0


def test_a_long_run_that_is_stopped_says_what_it_did_and_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def until_ctrl_c(seed: int) -> SimpleNamespace:
        if seed == 5:
            raise KeyboardInterrupt
        return SimpleNamespace(images=10, spoilt=3, uncovered=0)

    monkeypatch.setattr(crash, "run_seed", until_ctrl_c)
    monkeypatch.setattr("sys.argv", ["crash", "--seeds", "2..9"])
    assert crash.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("seeds 2..5: 30 images, 9 spoilt ones, 0 failures")
    assert said.endswith("to go on: --seeds 5..9\n")
    monkeypatch.setattr("sys.argv", ["crash", "--seeds", "6..9"])
    assert crash.main() == 0
    monkeypatch.setattr("sys.argv", ["crash", "--seeds", "6..99", "--images", "20"])
    assert crash.main() == 0


def test_make_crash_makes_the_mistakes_too() -> None:
    said = subprocess.run(
        ["make", "-n", "crash"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert "-m slow tests/crash/test_model.py" in said


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_each_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.at_work():
        for seed in (*SEEDS_THAT_NOTICED, *range(MUTANT_SEEDS)):
            try:
                run_seed(seed, spoils=mutant.is_spoilt)
            except Exception:  # However it shows, it is caught.
                return
    pytest.fail(f"{mutant.name}: not noticed in {MUTANT_SEEDS} seeds")
