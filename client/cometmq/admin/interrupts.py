"""Handling of a Ctrl-C that comes before a command handles it, such as during its import."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

INTERRUPTED: Final = 130
"""The exit status that shells report for a program that a SIGINT ended."""
_AGAIN_SECONDS: Final = 0.05


@contextmanager
def interrupts_told() -> Generator[None, None, None]:
    """End with one word where Python would print a traceback and Click would print "Aborted"."""
    is_interrupted = False
    try:
        with _none_ignored():
            yield
    except* KeyboardInterrupt:
        is_interrupted = True  # A SystemExit raised here would be wrapped in a group.
    if is_interrupted:
        print("\nInterrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)


@contextmanager
def _none_ignored() -> Generator[None, None, None]:
    """Raise a Ctrl-C again that Python ignored because it came inside a callback.

    Imports and destructors have such callbacks.
    """
    before = sys.unraisablehook

    def hook(ignored: sys.UnraisableHookArgs, /) -> None:
        if ignored.exc_type is not KeyboardInterrupt:
            before(ignored)
            return
        again = threading.Timer(_AGAIN_SECONDS, _interrupt_main)  # At once, it would hit this hook.
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
