"""The seam to the caller's event loop: asyncio (also uvloop) or trio, detected automatically.

A runtime connects, and owns what runs in the background. On asyncio these are tasks outside of any
cancel scope of the caller, so that a client may be opened in one task and closed in another
(fixtures, lifespans). On trio it is a nursery, the only sound way there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from cometmq.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from cometmq.client._access import Access
    from cometmq.net import Peers
    from cometmq.proto.command import Command
    from cometmq.proto.host import Host


class Link(Protocol):
    """A connection: a `Peer` of either driver."""

    heard_ms: int
    closed_because: str | None
    context: Any
    connection: Any

    async def call(self, request: Command, *, timeout_ms: int) -> Command:
        """Send a request and wait for the response."""
        ...

    def tell(self, request: Command) -> None:
        """Send a one-way request."""
        ...

    def close(self, reason: str) -> None:
        """Close when everything is sent."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once."""
        ...


class BackgroundTask(Protocol):
    """A task that runs in the background until it ends or is cancelled."""

    def cancel(self) -> object:
        """Have it end at its next await."""
        ...


class Runtime(Protocol):
    """One loop, from `open` to `close`."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], object]:
        """The loop's function that calls another in its next turn."""
        ...

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's next turn, from any thread; do nothing if it has ended."""
        ...

    def is_here(self) -> bool:
        """Whether the caller runs on this loop."""
        ...

    async def open(self) -> None:
        """Begin, on the loop that runs."""
        ...

    async def close(self) -> None:
        """Cancel everything in the background, and wait for its end."""
        ...

    def spawn(self, function: Callable[[], Awaitable[None]], name: str) -> BackgroundTask:
        """Run a function in the background; if it raises, log that."""
        ...

    async def connect(
        self, peers: Peers, address: Host, *, timeout_ms: int, access: Access
    ) -> Link:
        """Connect; a ConnectError says to which address it failed and why."""
        ...


def current_runtime() -> Runtime:
    """Make the runtime for the loop that the caller runs on."""
    if in_trio_task():
        from cometmq.client._trio import TrioRuntime

        return TrioRuntime()
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "no event loop runs here: use `async with Client(...)` within asyncio or trio,"
            " or `with SyncClient(...)` without either"
        ) from None
    from cometmq.client._asyncio import AsyncioRuntime

    return AsyncioRuntime()


def in_trio_task() -> bool:
    """Whether the caller runs in a task of trio; before 0.29, trio has no function for that."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True
