"""The load generators in C, compiled on demand."""

from __future__ import annotations

import subprocess
from pathlib import Path


def compiled(name: str, folder: Path) -> Path:
    """Compile a generator of this folder into another folder."""
    program = folder / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O2", "-w", "-o", program, source], check=True)
    return program
