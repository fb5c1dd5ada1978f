"""A Ctrl-C that comes before a command heeds it, as while it is imported."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

INTERRUPTED: Final = 130
"""The exit status: what shells say of a program that a SIGINT ended."""


@contextmanager
def interrupts_told() -> Generator[None, None, None]:
    """End with a word where Python would print a traceback, and Click that it was aborted."""
    is_interrupted = False
    try:
        yield
    except* KeyboardInterrupt:
        is_interrupted = True  # Raised in here, the end would be in a group.
    if is_interrupted:
        print("\nInterrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)
