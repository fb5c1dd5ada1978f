"""The client's runtime on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from cometmq.net.loop import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.client._access import Access
    from cometmq.net import LoopPeer, Peers
    from cometmq.proto.host import Host

_log = logging.getLogger("cometmq.client")


class AsyncioRuntime:
    """Tasks of one running loop; see `Runtime`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.call_soon = self._loop.call_soon

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's next turn, from any thread; do nothing if it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def is_here(self) -> bool:
        """Whether the caller runs on this loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def open(self) -> None:
        """Begin: nothing to do."""

    async def close(self) -> None:
        """Cancel all tasks but the caller's own and wait for them to end."""
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)  # In the next turn, transports let go of their sockets.

    def spawn(self, function: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Run a function as a task."""

        async def run() -> None:
            try:
                await function()
            except Exception:
                _log.exception("the task %r failed; this is a bug", name)

        task = self._loop.create_task(run(), name=f"cometmq {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(
        self, peers: Peers, address: Host, *, timeout_ms: int, access: Access
    ) -> LoopPeer:
        """Connect with the loop driver."""
        return await connect(
            peers,
            address,
            timeout_ms=timeout_ms,
            offer_messagepack=access.offer_messagepack,
            prepare=access.sign,
            tls=access.tls,
        )
