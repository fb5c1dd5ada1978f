"""On a really full disk, sends are refused clearly, reads work, nothing is lost, and no SIGBUS."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no mounts of our own here (unshare)")
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("mode", ["nearly", "wholly"])
def test_a_broker_whose_disk_is_full_refuses_serves_and_goes_on_when_there_is_room(
    tmp_path: Path, mode: str, flush: str
) -> None:
    command = [sys.executable, "-m", "tests.admin.full_disk", str(tmp_path), flush, mode]
    ended = subprocess.run(
        [*OWN_MOUNTS, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "result   sound" in ended.stdout
