"""Whether what a job will write can be written: asked before it works for minutes."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.pipeline.errors import OptionError


def require_folder(option: str, path: str) -> None:
    """Refuse a folder of this machine that could not be made, or not be written to."""
    place = Path(path).absolute()
    while not _is_there(place):
        place = place.parent
    if not place.is_dir():
        raise OptionError(f"{option}: {path}: {place} is a file, and no folder")
    _require(option, path, place)


def require_file(option: str, path: str) -> None:
    """Refuse a file of this machine that could not be written; nothing names none."""
    if not path:
        return
    parent = Path(path).absolute().parent
    if not parent.is_dir():
        raise OptionError(f"{option}: {path}: no such folder")
    file = Path(path)
    if _is_there(file) and file.is_dir():
        raise OptionError(f"{option}: {path}: a folder, and no file")
    _require(option, path, file if _is_there(file) else parent)


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except PermissionError:  # Not even that may be known.
        return False


def _require(option: str, path: str, place: Path) -> None:
    if not os.access(place, os.W_OK):
        raise OptionError(f"{option}: {path}: no permission to write to {place}")
