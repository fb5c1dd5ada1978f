"""The signals that ask a process to end, and the rule for which of them is a second request.

On the first request a process ends in good order, on the second at once. One request may send two
signals: `timeout` signals its child, and then the child's process group; a terminal or a service
manager may do the same. So all signals within a second belong to the first request.

A terminal that closes, or whose connection breaks, sends SIGHUP. This is a request like the others,
unless the process ignores the signal, as under `nohup`.
"""

from __future__ import annotations

import signal
import time
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONE_REQUEST_SECONDS: Final = 1.0


def heeded_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return _SIGNALS[:-1]
    return _SIGNALS


class Requests:
    """The requests received so far."""

    def __init__(self) -> None:
        self._first_at: float | None = None

    def is_first(self, number: int) -> bool:
        """Whether this signal is the first one. On a second request this does not return."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            return True
        if now - self._first_at >= ONE_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        return False

    def heed_the_second(self) -> None:
        """Handle all of these signals here from now on, whatever the loop is doing."""
        for number in heeded_signals():
            signal.signal(number, lambda number, _: self.is_first(number))

    def wait_for_the_rest(self) -> None:
        """Wait until no more signals of the first request can come."""
        if self._first_at is not None:
            time.sleep(max(self._first_at + ONE_REQUEST_SECONDS - time.monotonic(), 0.0))
