"""The signals that ask a process to end, and which of them counts as the second.

The first is heeded in good order, the second ends the process there and then. One request may send
two: `timeout` asks its child, and then the group that the child is in; so may a terminal and a
service manager. What comes within a second is part of the first.

A terminal that closes, or whose connection breaks, sends SIGHUP: a request like the others, but for
who ignores it, as `nohup` has a program do.
"""

from __future__ import annotations

import signal
import time
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONE_REQUEST_SECONDS: Final = 1.0


def heeded_signals() -> tuple[signal.Signals, ...]:
    """Return those that ask this process to end."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return _SIGNALS[:-1]
    return _SIGNALS


class Requests:
    """The requests that came."""

    def __init__(self) -> None:
        self._first_at: float | None = None

    def is_first(self, number: int) -> bool:
        """Whether this signal is the first one; what is a second request does not return."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            return True
        if now - self._first_at >= ONE_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        return False

    def heed_the_second(self) -> None:
        """Have all of these signals looked at here from now on, whatever the loop is at."""
        for number in heeded_signals():
            signal.signal(number, lambda number, _: self.is_first(number))

    def wait_for_the_rest(self) -> None:
        """Wait until nothing can come any more that is part of the first one."""
        if self._first_at is not None:
            time.sleep(max(self._first_at + ONE_REQUEST_SECONDS - time.monotonic(), 0.0))
