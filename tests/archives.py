"""The archives among the vectors, unpacked on every Python that the project supports."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def unpack(
    archive: Path, folder: Path, *, wanted: Callable[[tarfile.TarInfo], bool] | None = None
) -> None:
    """Unpack what is wanted of an archive, all of it unless told otherwise."""
    with tarfile.open(archive) as opened:
        members = [member for member in opened if wanted is None or wanted(member)]
        if hasattr(tarfile, "data_filter"):
            opened.extractall(folder, members, filter="data")
        else:  # Python 3.11.3 and older, Debian 12's among them. The archives are our own.
            opened.extractall(folder, members)
