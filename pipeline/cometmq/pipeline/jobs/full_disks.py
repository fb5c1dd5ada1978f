"""A disk that is full, told with the folder that is on it: Spark says neither which one nor where.

What is written may be in the folder that a job was given, or among Spark's own files: those of a
shuffle, of a sort, of the state that a task works on. By who wrote they are told apart.
"""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from cometmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Generator

FULL: Final = "its disk is full; make room there"
_NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT)
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
_CALL: Final = re.compile(r"\s+at (?:[\w.@-]+//?)?([\w.$]+)")
_JAVA: Final = ("java.", "jdk.", "sun.")
"""What calls of Java's own library begin with, by which alone files are written."""
_WRITTEN: Final = re.compile(r"while writing rows to (?:file:)?(\S+?)\.?(?:\s|$)")


def about_full(error: Exception | str, path: str = "") -> str:
    """Return what to say where a full disk is the cause; else nothing.

    `path` is that of what was being written to, if it was in no error that Spark names it in.
    """
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    *_, cause = _FULL.split(text)  # What stands behind the last time that it is said.
    if cause == text and getattr(error, "errno", None) not in _NUMBERS:
        return ""
    if _is_by_spark(cause):
        return (
            "the disk of Spark's own files is full; make room there, or name a folder on another"
            " one by --conf spark.local.dir=DIR"
        )
    if not path and (written := _WRITTEN.search(text)):
        path = written[1]
    return f"path: {path}: {FULL}" if path else "a disk is full"


def _is_by_spark(cause: str) -> bool:
    """Whether Spark was writing for itself, by the innermost calls of the stack that follows.

    Into folders of others it writes by Hadoop's hands. A stack that begins neither in Java's
    library nor in RocksDB is of an error that came from Python.
    """
    lines = takewhile(bool, map(_CALL.match, cause.splitlines()[1:]))
    calls = [each[1] for each in lines if each]
    if not calls or calls[0].startswith("org.rocksdb."):
        return bool(calls)
    writer = next((each for each in calls if not each.startswith(_JAVA)), "")
    return calls[0].startswith(_JAVA) and writer.startswith("org.apache.spark.")


@contextmanager
def told_if_full(path: str) -> Generator[None]:
    """Say of a disk that is full which folder is on it, and nothing else of an error."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if said := about_full(error, path):
            raise PipelineError(said) from error
        raise
