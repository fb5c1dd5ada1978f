"""The archives among the vectors, unpacked on every Python that the project supports.

Some ninety tests want a store of their own, and unpacking costs several times what copying does: so
each archive is unpacked once a run.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path


def unpack(archive: Path, folder: Path, *, timer_wheel: bool = False) -> None:
    """Unpack an archive, without the timer wheel in it, 38 MB of zeros, unless asked for."""
    ignored = [] if timer_wheel else ["timerwheel"]
    shutil.copytree(
        _unpacked(archive), folder, ignore=shutil.ignore_patterns(*ignored), dirs_exist_ok=True
    )


@cache
def _unpacked(archive: Path) -> Path:
    folder = tempfile.mkdtemp(prefix="cometmq-vectors-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, filter="data")
        else:  # Python 3.11.3 and older, Debian 12's among them. The archives are our own.
            opened.extractall(folder)
    return Path(folder)
