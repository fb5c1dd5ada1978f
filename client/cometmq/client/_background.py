"""A thread with an event loop and an open client on it, for those who have no loop of their own."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.client.errors import ClosedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cometmq.client.client import Client

R = TypeVar("R")

_CLOSE_SECONDS: Final = 10.0


class Background:
    """A thread with an event loop, and an open client on it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._thread = threading.Thread(target=self._work, name="cometmq", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until the client is open."""
        self._thread.start()
        self.run(self._wait_until_open())

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop, and wait for what it returns."""
        if (problem := self._problem()) is not None:
            coroutine.close()
            raise problem
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # A KeyboardInterrupt, say: what was asked is asked no longer.
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, and do not wait for it."""
        if (problem := self._problem()) is not None:
            raise problem
        self.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Close the client, and end the thread."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_SECONDS)

    def _problem(self) -> UsageError | None:
        if os.getpid() != self._process_id:
            return UsageError("this was made before a fork: make it in the child")
        if threading.current_thread() is self._thread:
            return UsageError("a sync verb on the client's own thread would wait for itself")
        if self.loop.is_closed():
            return ClosedError("the client is closed")
        return None

    async def _wait_until_open(self) -> None:
        await self._opened

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        async with self.client:
            self._opened.set_result(None)
            await self._stop.wait()
