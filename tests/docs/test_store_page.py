"""The examples in `docs/store.md` of the store as a library run unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


def test_the_library_s_example_runs(tmp_path: Path) -> None:
    (code,) = (part.partition("\n```")[0] for part in PAGE.read_text().split("```py\n")[1:])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    said = ["0 b'order 0'", "1 b'order 1'", "2 b'order 2'", "[155]", "['orders'] 3", "2"]
    assert done.stdout.splitlines() == said
