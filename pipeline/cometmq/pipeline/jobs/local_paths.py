"""Which paths are those of this machine's files, as far as that can be told without Spark.

Spark's settings may put what has no scheme on another file system; `Folder.local_path` knows.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

_ELSEWHERE: Final = re.compile(r"//|(?!file:)[A-Za-z][A-Za-z0-9+.-]*:")
"""What a path begins with that is none of this machine's files, whatever Spark is told."""


def local_path(said: str) -> Path | None:
    """Return where a path, or a URI, is among this machine's files; `None` of one elsewhere."""
    return None if _ELSEWHERE.match(said) else Path(re.sub("^file:/*", "/", said))


def path_within(said: str, folder: str) -> tuple[str, ...] | None:
    """Return the names by which a path is below a folder, none if it is that; `None` elsewhere."""
    here, there = local_path(said), local_path(folder)
    if here is not None and there is not None:
        one, two = PurePosixPath(here.resolve()), PurePosixPath(there.resolve())
    else:
        one, two = PurePosixPath(said), PurePosixPath(folder)
    return one.relative_to(two).parts if one.is_relative_to(two) else None
