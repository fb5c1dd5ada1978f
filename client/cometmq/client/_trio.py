"""The client's runtime on trio."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from cometmq.net.errors import ConnectError
from cometmq.net.trio_streams import TrioPeer, open_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from cometmq.client._access import Access
    from cometmq.net import Peers
    from cometmq.proto.host import Host

_log = logging.getLogger("cometmq.client")


class TrioRuntime:
    """A nursery that is open as long as the client; see `Runtime`."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._soon: list[Callable[[], None]] = []
        self._resting: trio.lowlevel.Task | None = None
        self._opened: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call a function in trio's next turn, from any thread; do nothing if it has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    def is_here(self) -> bool:
        """Whether the caller runs in this trio."""
        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    async def open(self) -> None:
        """Open the nursery."""
        self._opened = trio.open_nursery()
        self._nursery = await self._opened.__aenter__()
        self._nursery.start_soon(self._call_what_is_soon, name="cometmq turns")

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the next turn; only on trio's thread, where it costs no wake-up."""
        self._soon.append(function)
        if self._resting is not None:
            resting, self._resting = self._resting, None
            trio.lowlevel.reschedule(resting)

    async def _call_what_is_soon(self) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._resting = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            while self._soon:
                soon, self._soon = self._soon, []
                for function in soon:
                    function()
            self._resting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    async def close(self) -> None:
        """Cancel the tasks of the nursery and close it.

        It is not given an exception that passes through the caller's block, as it would wrap it.
        """
        assert self._opened is not None
        self._nursery.cancel_scope.cancel()
        await self._opened.__aexit__(None, None, None)

    def spawn(self, function: Callable[[], Awaitable[None]], name: str) -> trio.CancelScope:
        """Run a function as a task of the nursery."""
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    await function()
                except Exception:
                    _log.exception("the task %r failed; this is a bug", name)

        self._nursery.start_soon(run, name=f"cometmq {name}")
        return scope

    async def connect(
        self, peers: Peers, address: Host, *, timeout_ms: int, access: Access
    ) -> TrioPeer:
        """Connect with the stream driver; the connection's two tasks run in the nursery."""
        stream, local_port = await open_stream(address, timeout_ms=timeout_ms, tls=access.tls)
        peer = TrioPeer(
            peers, stream, offer_messagepack=access.offer_messagepack, prepare=access.sign
        )

        async def carry(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                await peer.run(address, local_port, task_status=task_status)
            except* Exception:
                _log.exception("%s: the task of the connection failed; this is a bug", address)

        await self._nursery.start(carry)
        if peer.closed_because is not None:
            raise ConnectError(f"{address}: {peer.closed_because}")
        return peer
