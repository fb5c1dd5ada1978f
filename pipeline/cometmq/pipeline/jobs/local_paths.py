"""Which paths are those of this machine's files, as far as that can be told without Spark.

Spark's settings may put what has no scheme on another file system; `Folder.local_path` knows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ELSEWHERE: Final = re.compile(r"//|(?!file:)[A-Za-z][A-Za-z0-9+.-]*:")
"""What a path begins with that is none of this machine's files, whatever Spark is told."""


def local_path(said: str) -> Path | None:
    """Return where a path, or a URI, is among this machine's files; `None` of one elsewhere."""
    return None if _ELSEWHERE.match(said) else Path(re.sub("^file:/*", "/", said))
