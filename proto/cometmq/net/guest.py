"""trio as a guest on the loop that carries the bytes, in the same thread.

::

    async def main(stop: trio.Event) -> None:                 # trio
        loop = asyncio.get_running_loop()                     # and asyncio's protocols beside it
        server = await on_loop(serve(peers, listen_on(...)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retention, ...)
            await stop.wait()

    run(main)

The first SIGTERM, SIGINT or SIGHUP sets `stop`, and `main` ends once it has cleaned up. Another
one, a second or more later (`ending_signals`), kills the process at once, whatever it is doing; its
exit status shows the signal.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import trio

from cometmq.net.ending_signals import Requests, heeded_signals

if TYPE_CHECKING:
    import signal
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any, NoReturn

    import outcome

T = TypeVar("T")


def run(
    main: Callable[[trio.Event], Awaitable[T]],
    *,
    use_uvloop: bool = True,
    takes_signals: bool = True,
) -> T:
    """Run `main` in trio on a new uvloop (or asyncio) loop, and return its result.

    For the main thread; with `takes_signals` off also for others, but then `stop` is never set.
    When `main` ends, in whatever way, the loop is closed with everything on it.
    """
    if use_uvloop:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    else:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_host(main, heeded_signals() if takes_signals else ()))


async def on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await from trio what must be awaited on the loop: starting a server, connecting.

    If the trio task is cancelled, so is the loop's task, which is then waited for.
    """
    task = asyncio.get_running_loop().create_task(coroutine)
    ended = trio.Event()
    task.add_done_callback(lambda _: ended.set())
    try:
        await ended.wait()
    except trio.Cancelled:
        task.cancel()
        with trio.CancelScope(shield=True):
            await ended.wait()
        if not task.cancelled():
            task.exception()  # Retrieved, or asyncio would complain about it.
        raise
    return task.result()


async def repeat_on_loop(
    function: Callable[[], float],
    follow: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
) -> NoReturn:
    """Call a function on the loop again and again, each time after the seconds that it returned.

    It runs until it is cancelled or the function raises, which is raised here. It is meant for
    calls many times a second: as a guest, trio sleeps in a separate thread, which must wake up at
    each timer and take the interpreter from the loop; a timer of the loop costs a microsecond.

    `follow` gets a function that makes the next call come at once, and returns one that ends this.
    """
    loop = asyncio.get_running_loop()
    ended = trio.Event()
    errors: list[Exception] = []
    next_call: asyncio.Handle

    def call() -> None:
        nonlocal next_call
        try:
            next_call = loop.call_later(function(), call)
        except Exception as error:
            errors.append(error)
            ended.set()

    def call_at_once() -> None:
        nonlocal next_call
        next_call.cancel()
        next_call = loop.call_soon(call)

    next_call = loop.call_soon(call)
    let_go = None if follow is None else follow(call_at_once)
    try:
        await ended.wait()
    finally:
        next_call.cancel()
        if let_go is not None:
            let_go()
    raise errors[0]


async def _host(
    main: Callable[[trio.Event], Awaitable[T]], signals: tuple[signal.Signals, ...]
) -> T:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[outcome.Outcome[T]] = loop.create_future()
    stop = trio.Event()
    requests = Requests()

    def signalled(number: int) -> None:
        if requests.is_first(number):
            requests.heed_the_second()  # Works even if the loop stands still.
            stop.set()

    def step(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # trio cannot go on, and not even end.
            if not done.done():
                done.set_exception(error)

    trio.lowlevel.start_guest_run(
        main,
        stop,
        run_sync_soon_threadsafe=lambda function: loop.call_soon_threadsafe(step, function),
        run_sync_soon_not_threadsafe=lambda function: loop.call_soon(step, function),
        done_callback=done.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    for number in signals:
        loop.add_signal_handler(number, signalled, number)
    try:
        return (await done).unwrap()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
