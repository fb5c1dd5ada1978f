"""Unpacks the archives among the vectors, on every Python that the project supports.

Some ninety tests each need a copy of a store. Unpacking takes several times as long as copying, so
each archive is unpacked only once a run.
"""

from __future__ import annotations

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path


def unpack(archive: Path, folder: Path, *, timer_wheel: bool = False) -> None:
    """Unpack an archive, by default without its timer wheel, which is 38 MB of zeros."""
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
        else:  # Python 3.11.3 and older, such as Debian 12's. We made the archives.
            opened.extractall(folder)
    return Path(folder)
