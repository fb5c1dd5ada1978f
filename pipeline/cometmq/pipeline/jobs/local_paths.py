"""Which paths are local files, as far as that can be told without Spark.

Spark's settings may put a path without a scheme on another file system; `Folder.local_path` knows.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

_ELSEWHERE: Final = re.compile(r"//|(?!file:)[A-Za-z][A-Za-z0-9+.-]*:")
"""The beginning of a path that is not local, whatever Spark's settings."""


def local_path(said: str) -> Path | None:
    """Return the local path of a path or URI; `None` if it is elsewhere."""
    return None if _ELSEWHERE.match(said) else Path(re.sub("^file:/*", "/", said))


def path_within(said: str, folder: str) -> tuple[str, ...] | None:
    """Return the names from a folder down to a path; empty for the folder; `None` if not below."""
    here, there = local_path(said), local_path(folder)
    if here is not None and there is not None:
        one, two = PurePosixPath(here.resolve()), PurePosixPath(there.resolve())
    else:
        one, two = PurePosixPath(said), PurePosixPath(folder)
    return one.relative_to(two).parts if one.is_relative_to(two) else None
