"""A thread with an event loop and an open client, for callers without a loop."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.client.errors import ClosedError, OutcomeUnknownError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cometmq.client.client import Client

R = TypeVar("R")
S = TypeVar("S")

_CLOSE_SECONDS: Final = 10.0
_LAST_WORDS_SECONDS: Final = 1.0
"""How long running verbs may take to end when the client is closed."""


class Background:
    """A thread with an event loop and an open client on it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._lock = threading.Lock()  # Guards whether the loop still accepts work.
        self._is_over = False
        self._stop = asyncio.Event()
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name="cometmq", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until the client is open; raise what keeps it from that."""
        self._thread.start()
        self._opened.result()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop and return its result."""
        try:
            future = self._submit(lambda: asyncio.run_coroutine_threadsafe(coroutine, self.loop))
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise OutcomeUnknownError(
                "the client was closed before the call ended; it may have been done"
            ) from None
        except BaseException:
            future.cancel()  # A KeyboardInterrupt, say: nobody waits for the result any more.
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop without waiting for it."""
        self._submit(lambda: self.loop.call_soon_threadsafe(function))

    def close(self) -> None:
        """Close the client and end the thread."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_CLOSE_SECONDS)

    def _submit(self, submit: Callable[[], S]) -> S:
        """Give the loop work while it still accepts any; it then also sees the work through."""
        if os.getpid() != self._process_id:
            raise UsageError("this was made before a fork: make another one in the child process")
        if threading.current_thread() is self._thread:
            raise UsageError("a sync call on the client's own thread would wait for itself")
        with self._lock:
            if self._is_over:
                raise ClosedError("the client is closed: make another one")
            return submit()

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        try:
            async with self.client:
                self._opened.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)
        finally:
            with self._lock:
                self._is_over = True
            await asyncio.sleep(0)  # Work accepted before that begins in this turn.
            asked = asyncio.all_tasks() - {asyncio.current_task()}
            if asked:
                await asyncio.wait(asked, timeout=_LAST_WORDS_SECONDS)
