"""A limit on the rate: how many per second."""

from __future__ import annotations

import anyio


class Pace:
    """Lets at most so many through per second."""

    def __init__(self, rate: float | None) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next one may go."""
        if self._interval:
            now = anyio.current_time()
            self._next = max(self._next, now)
            await anyio.sleep(self._next - now)
            self._next += self._interval
