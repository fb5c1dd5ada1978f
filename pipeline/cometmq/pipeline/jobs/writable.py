"""Checks that a job will be able to write its output, before it works for minutes."""

from __future__ import annotations

import os
from contextlib import contextmanager
from os.path import realpath
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING

from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.full_disks import FULL, about_full

if TYPE_CHECKING:
    from collections.abc import Generator


def require_folder(option: str, path: str, place: Path | None = None) -> None:
    """Refuse a folder of this machine that could not be made, or not be written to.

    `place` is where it is, if the working directory that `path` begins in is not Python's.
    """
    with looked_at(option, path):
        place = (place or Path(path)).absolute()
    while not _is_there(place):
        place = place.parent
    if not place.is_dir():
        raise OptionError(f"{option}: {path}: {place} is a file, not a folder")
    _require(option, path, place)


def require_file(option: str, path: str, *, is_read: bool = False) -> None:
    """Refuse a local file that could not be written; '' means no file.

    A file that `is_read` again must not be a pipe: opening it would wait for a writer for ever.
    """
    if not path:
        return
    if path == "-":
        raise OptionError(f"{option}: -: is not a file; for standard output write /dev/stdout")
    file = Path(path)
    with looked_at(option, path):
        place = Path(realpath(path))  # Where a link leads to.
        parent = place.parent
        if not parent.is_dir():
            raise OptionError(f"{option}: {path}: no such folder")
        if _is_link(place):
            raise OptionError(f"{option}: {path}: is a link to itself")
    if _is_there(file) and file.is_dir():
        raise OptionError(f"{option}: {path}: is a folder, not a file")
    if is_read and _is_there(file) and file.is_fifo():
        raise OptionError(
            f"{option}: {path}: is a pipe, which the next run cannot read; name a file"
        )
    _require(option, path, file if _is_there(file) else parent)


def try_file(option: str, path: str) -> None:
    """Refuse a file that cannot be written, whatever its permissions; leave it unchanged."""
    if not path:
        return
    file = Path(path)
    try:
        is_new = not file.exists()
        if not is_new and not file.is_file():
            return  # The reader of a pipe would take this for its end.
        with file.open("ab"):
            pass
        if is_new:
            file.resolve().unlink()  # Not a link to where it is to be.
    except OSError as error:
        raise OptionError(
            f"{option}: {path}: cannot be written ({error.strerror}); choose another"
        ) from None


@contextmanager
def looked_at(option: str, path: str) -> Generator[None]:
    """Refuse what cannot even be looked at, such as something in a folder closed to us."""
    try:
        yield
    except OSError as error:
        where = error.filename or "the working directory"  # Which may have been removed.
        raise OptionError(f"{option}: {path}: {where}: {error.strerror}") from None


@contextmanager
def told_of_file(option: str, path: str) -> Generator[None]:
    """Add to errors of the system which file they are about."""
    try:
        yield
    except OSError as error:
        why = FULL if about_full(error) else error.strerror
        raise PipelineError(f"{option}: {path}: {why}") from error


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # It may be unknown, or the name too long.
        return False


def _is_link(place: Path) -> bool:
    try:
        return S_ISLNK(place.lstat().st_mode)
    except FileNotFoundError:  # Of a name that is too long another error says so.
        return False


def _require(option: str, path: str, place: Path) -> None:
    if not os.access(place, os.W_OK):
        raise OptionError(f"{option}: {path}: no permission to write to {place}")
