"""The time of one broker: all its services read it and wait by it, so that a jump moves them all.

Only tests jump. The signs of life of peers do not follow a jump: heartbeats arrive in real time, so
by a clock that jumped an hour ahead every client would seem dead. They are judged by `alive_ms`.
The limits of the sockets (idle connections, answers of name servers) are in real time, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


def now_ms() -> int:
    """Return the time by the machine's wall clock."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Return the time by the machine's clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Clock:
    """A wall clock and a clock that never goes back; the two can jump ahead together.

    Everything but `sleep` may be called on the broker's loop; `now_ms` also from any thread.
    """

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._jumped = trio.Event()
        self._followers: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the time by the wall clock, for records and tables."""
        return now_ms() + self._ahead_ms

    def elapsed_ms(self) -> int:
        """Return the time by a clock that never goes back, for deadlines."""
        return elapsed_ms() + self._ahead_ms

    def alive_ms(self) -> int:
        """Return the time by a clock that never goes back nor jumps, for clients' signs of life."""
        return elapsed_ms()

    def jump(self, ms: int) -> None:
        """Jump ahead, and wake all that sleep by this clock."""
        assert ms >= 0, "a broker's time does not go back"
        self._ahead_ms += ms
        jumped, self._jumped = self._jumped, trio.Event()
        jumped.set()
        for each in list(self._followers):
            each()

    def follow(self, jumped: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after each jump; return a function that ends this."""
        self._followers.append(jumped)
        return lambda: self._followers.remove(jumped)

    async def sleep(self, seconds: float) -> None:
        """Wait until this clock has advanced by this time."""
        end = self.elapsed_ms() + seconds * 1000
        while (left := end - self.elapsed_ms()) > 0:
            with trio.move_on_after(left / 1000):
                await self._jumped.wait()
