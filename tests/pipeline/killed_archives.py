"""`archive` in a process of its own, which is killed in the middle of its batches."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND: Final = (sys.executable, "-m", "cometmq.admin", "pipeline", "archive")
_LAST_SECONDS: Final = 300.0
_BATCHES: Final = 4


def archive_and_kill(to: Path, *arguments: str) -> None:
    """Let it begin some batches, and kill it somewhere in the next one."""
    log = to.parent / "log"
    begun = _begun(to)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_COMMAND, "--to", str(to), *arguments, "--master", "local[2]"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _LAST_SECONDS
        while _begun(to) < begun + _BATCHES and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        assert _begun(to) >= begun + _BATCHES, log.read_text()
        time.sleep(random.random() / 2)  # Any moment of a batch will do.
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _begun(to: Path) -> int:
    return sum(each.name.isdigit() for each in to.glob("_checkpoint/offsets/*"))
