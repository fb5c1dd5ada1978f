"""trio alone in its thread: the counterpart of `guest.run` for a process without another loop.

The first SIGTERM, SIGINT or SIGHUP sets `stop`, and `main` ends once it has cleaned up. Another
one, a second or more later (`ending_signals`), kills the process at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from cometmq.net.ending_signals import Requests, heeded_signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")


def run(main: Callable[[trio.Event], Awaitable[T]]) -> T:
    """Run `main` in trio, and return its result. For the main thread."""
    return trio.run(_watched, main)


async def repeat(function: Callable[[], float]) -> None:
    """Call a function again and again, each time after the seconds that it returned."""
    while True:
        seconds = function()
        await trio.sleep(seconds)


async def _watched(main: Callable[[trio.Event], Awaitable[T]]) -> T:
    stop = trio.Event()
    with trio.open_signal_receiver(*heeded_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, signals, stop)
            result = await main(stop)
            nursery.cancel_scope.cancel()
    return result


async def _watch(signals: AsyncIterator[int], stop: trio.Event) -> None:
    requests = Requests()
    async for number in signals:
        if requests.is_first(number):
            requests.heed_the_second()
            stop.set()
