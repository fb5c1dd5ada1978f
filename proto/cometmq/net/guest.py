"""trio as a guest on the loop that carries the bytes, in one thread.

::

    async def main(stop: trio.Event) -> None:                 # trio
        loop = asyncio.get_running_loop()                     # and asyncio's protocols beside it
        server = await on_loop(serve(peers, listen_on(...)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(retention, ...)
            await stop.wait()

    run(main)

The first SIGTERM, SIGINT or SIGHUP sets `stop`, and `main` ends when it has cleaned up. A second
one, a second or more behind it (`ending_signals`), kills the process at once, whatever it is doing,
and its status says what happened.
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
    """Run `main` in trio on a new uvloop (or asyncio) loop, and give what it returns.

    For the main thread, or for any other when it takes no signals: `stop` is never set then. When
    `main` ends, however it ends, the loop is closed with what is on it.
    """
    if use_uvloop:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    else:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_host(main, heeded_signals() if takes_signals else ()))


async def on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await in trio what must be awaited on the loop: starting a server, connecting.

    When the trio task is cancelled the loop's task is, too, and is waited for.
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
            task.exception()  # Taken note of, or asyncio would complain of it.
        raise
    return task.result()


async def repeat_on_loop(
    function: Callable[[], float],
    follow: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
) -> NoReturn:
    """Call a function on the loop again and again; it says after how many seconds next.

    Until cancelled, or until it raises, which is raised here. For what comes many times a second:
    trio, as a guest, sleeps in a thread of its own, which at each timer must wake up and take the
    interpreter from the loop; a timer of the loop costs a microsecond.

    `follow` is given what makes the next call come at once, and returns what lets go of that again.
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
            requests.heed_the_second()  # Also where the loop stands still.
            stop.set()

    def step(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # trio comes to nothing any more, not even to its end.
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
