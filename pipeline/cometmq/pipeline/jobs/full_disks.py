"""Errors for a full disk that name the folder on it, which Spark does not say.

The file may be in the folder that a job was given, or one of Spark's own files, of a shuffle, a
sort, or a task's state. The writer tells these apart.
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
"""Prefixes of calls in Java's own library, which does all writing of files."""
_WRITTEN: Final = re.compile(r"while writing rows to (?:file:)?(\S+?)\.?(?:\s|$)")


def about_full(error: Exception | str, path: str = "") -> str:
    """Return the error text if a full disk is the cause; otherwise ''.

    `path` is the folder that was being written to, as Spark's error may not name it.
    """
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    *_, cause = _FULL.split(text)  # What follows its last occurrence.
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

    Into other folders it writes through Hadoop. If a stack begins neither in Java's library nor in
    RocksDB, the error came from Python.
    """
    lines = takewhile(bool, map(_CALL.match, cause.splitlines()[1:]))
    calls = [each[1] for each in lines if each]
    if not calls or calls[0].startswith("org.rocksdb."):
        return bool(calls)
    writer = next((each for each in calls if not each.startswith(_JAVA)), "")
    return calls[0].startswith(_JAVA) and writer.startswith("org.apache.spark.")


@contextmanager
def told_if_full(path: str) -> Generator[None]:
    """If a disk is full, raise an error that only names the folder on it."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if said := about_full(error, path):
            raise PipelineError(said) from error
        raise
