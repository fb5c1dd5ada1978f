"""A Ctrl-C that comes before a command heeds it, as while it is imported."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

INTERRUPTED: Final = 130
"""The exit status: what shells say of a program that a SIGINT ended."""
_AGAIN_SECONDS: Final = 0.05


@contextmanager
def interrupts_told() -> Generator[None, None, None]:
    """End with a word where Python would print a traceback, and Click that it was aborted."""
    is_interrupted = False
    try:
        with _none_ignored():
            yield
    except* KeyboardInterrupt:
        is_interrupted = True  # Raised in here, the end would be in a group.
    if is_interrupted:
        print("\nInterrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)


@contextmanager
def _none_ignored() -> Generator[None, None, None]:
    """Have a Ctrl-C raised once more that Python throws away because it came inside a callback.

    An import has such, and so has what is freed.
    """
    before = sys.unraisablehook

    def hook(ignored: sys.UnraisableHookArgs, /) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            before(ignored)
            return
        again = threading.Timer(_AGAIN_SECONDS, _interrupt_main)  # At once it would come in here.
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt_main() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)
