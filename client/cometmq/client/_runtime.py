"""The seam to the caller's event loop: asyncio (uvloop too) or trio, found by itself.

A runtime connects, and owns what runs beside the caller: tasks on asyncio, which no cancel scope
of the caller's binds, so that a client may be opened in one task and closed in another (fixtures,
lifespans); a nursery on trio, where that is the only honest way.
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
        """Ask, and wait for the response."""
        ...

    def tell(self, request: Command) -> None:
        """Send a one-way request."""
        ...

    def close(self, reason: str) -> None:
        """Close when all has left."""
        ...

    def drop(self, reason: str) -> None:
        """Close at once."""
        ...


class BackgroundTask(Protocol):
    """Something that runs beside the caller, until it ends or is cancelled."""

    def cancel(self) -> object:
        """Have it end at its next await."""
        ...


class Runtime(Protocol):
    """One loop, from `open` to `close`."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], object]:
        """The loop's way of calling a function in its next turn."""
        ...

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call a function in the loop's next turn, from any thread; not when it has ended."""
        ...

    def is_here(self) -> bool:
        """Whether the caller runs on this loop."""
        ...

    async def open(self) -> None:
        """Begin, on the loop that runs."""
        ...

    async def close(self) -> None:
        """Cancel all that runs in the background, and wait for its end."""
        ...

    def spawn(self, function: Callable[[], Awaitable[None]], name: str) -> BackgroundTask:
        """Run a function in the background; one that raises is logged."""
        ...

    async def connect(
        self, peers: Peers, address: Host, *, timeout_ms: int, access: Access
    ) -> Link:
        """Connect; a ConnectError says to whom it failed and why."""
        ...


def current_runtime() -> Runtime:
    """Make the runtime of the loop that the caller runs on."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
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
