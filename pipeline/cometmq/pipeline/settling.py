"""What a worker of Spark does at the beginning of its first tasks."""

from __future__ import annotations

import gc
from itertools import count
from typing import Final

_TASKS: Final = 2
"""Arrow imports pandas with the first array, behind the beginning of the first task; the second
finds all that lasts."""
_begun = count()


def settle() -> None:
    """Take what is there from the garbage collection that Spark runs after each task: 20 ms."""
    if next(_begun) < _TASKS:
        gc.freeze()
