"""What a worker of Spark does once, before the first task that reads."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """Take what is there from the garbage collection that Spark runs after each task: 20 ms."""
    gc.freeze()
