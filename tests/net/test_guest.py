"""trio as a guest beside loop protocols, and the effect of signals on both."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import trio
from tests.ending import ENDING
from tests.net.harness import ECHO, TestOwner

from cometmq.net import Peers, connect, listen_on, serve
from cometmq.net.ending_signals import ONE_REQUEST_SECONDS
from cometmq.net.guest import on_loop, repeat_on_loop, run
from cometmq.proto.command import Command
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable

both_loops = pytest.mark.parametrize("use_uvloop", [True, False])


@both_loops
def test_trio_tasks_and_loop_protocols_share_a_thread(use_uvloop: bool) -> None:
    async def ask(address: Host) -> bytes:
        peers = Peers(TestOwner(), call_soon=asyncio.get_running_loop().call_soon)
        peer = await connect(peers, address, timeout_ms=5000)
        answer = await peer.call(Command.request(ECHO, body=b"hello"), timeout_ms=5000)
        peer.close("done")
        return bytes(answer.body or b"")

    async def main(stop: trio.Event) -> bytes:
        loop = asyncio.get_running_loop()
        assert type(loop).__module__.startswith("uvloop") == use_uvloop
        peers = Peers(TestOwner(), call_soon=loop.call_soon)
        server = await on_loop(serve(peers, listen_on([Host("127.0.0.1", 0)])))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            body = await on_loop(ask(server.addresses[0]))
            nursery.cancel_scope.cancel()
        server.close()
        return body

    assert run(main, use_uvloop=use_uvloop) == b"hello"


@both_loops
def test_a_function_is_repeated_on_the_loop_until_it_is_cancelled(use_uvloop: bool) -> None:
    async def main(stop: trio.Event) -> int:
        calls = 0
        enough = trio.Event()

        def call() -> float:
            nonlocal calls
            calls += 1
            if calls == 3:
                enough.set()
            return 0.0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat_on_loop, call)
            await enough.wait()
            nursery.cancel_scope.cancel()
        ended_after = calls
        await on_loop(asyncio.sleep(0.01))
        return calls - ended_after

    assert run(main, use_uvloop=use_uvloop) == 0


@both_loops
def test_a_repeated_function_is_called_at_once_when_what_it_follows_says_so(
    use_uvloop: bool,
) -> None:
    followers: list[Callable[[], None]] = []

    def follow(call_at_once: Callable[[], None]) -> Callable[[], None]:
        followers.append(call_at_once)
        return lambda: followers.remove(call_at_once)

    async def main(stop: trio.Event) -> int:
        called = [trio.Event(), trio.Event(), trio.Event()]
        calls = 0

        def call() -> float:
            nonlocal calls
            called[calls].set()
            calls += 1
            return 3600.0

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(repeat_on_loop, call, follow)
                for each in called[:2]:
                    await each.wait()
                    followers[0]()
                await called[2].wait()
                nursery.cancel_scope.cancel()
        return calls

    assert run(main, use_uvloop=use_uvloop) == 3
    assert not followers, "it is still called when nobody repeats it any more"


@both_loops
def test_what_a_repeated_function_raises_ends_its_service(use_uvloop: bool) -> None:
    def call() -> float:
        raise ValueError("of the function")

    async def main(stop: trio.Event) -> None:
        await repeat_on_loop(call)

    with pytest.raises(ValueError, match="of the function"):
        run(main, use_uvloop=use_uvloop)


@both_loops
def test_an_error_of_trio_is_raised_and_the_loop_is_closed(use_uvloop: bool) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def main(stop: trio.Event) -> None:
        loops.append(asyncio.get_running_loop())
        raise ValueError("of main")

    with pytest.raises(ValueError, match="of main"):
        run(main, use_uvloop=use_uvloop)
    assert loops[0].is_closed()


@both_loops
@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_asks_to_stop(use_uvloop: bool, number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def main(stop: trio.Event) -> str:
        os.kill(os.getpid(), number)
        await stop.wait()
        await trio.lowlevel.checkpoint()
        return "cleaned up"

    assert run(main, use_uvloop=use_uvloop) == "cleaned up"
    assert signal.getsignal(number) is before


SLOW_TO_STOP = """
import trio
from cometmq.net.guest import run

async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await trio.sleep_forever()

run(main, use_uvloop=USE_UVLOOP)
"""


@both_loops
def test_the_second_signal_ends_the_process_at_once(use_uvloop: bool) -> None:
    script = SLOW_TO_STOP.replace("USE_UVLOOP", str(use_uvloop))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)  # As by `timeout`, to its child and to its group.
        time.sleep(ONE_REQUEST_SECONDS)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


@both_loops
def test_what_is_awaited_on_the_loop_is_cancelled_with_the_task_that_awaits_it(
    use_uvloop: bool,
) -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def refuse() -> None:
        raise LookupError("of the loop")

    async def main(stop: trio.Event) -> None:
        with trio.move_on_after(0.001) as scope:
            await on_loop(forever())
        assert scope.cancelled_caught
        with pytest.raises(LookupError, match="of the loop"):
            await on_loop(refuse())

    run(main, use_uvloop=use_uvloop)
    assert ended == ["cancelled"]


WITHOUT_THREADS = """
import sys, trio
from cometmq.net.guest import run

def refuse(*_, **__):
    raise RuntimeError("can't start new thread")

async def main(_):
    trio._core._run.start_thread_soon = refuse
    await trio.sleep(0.01)

run(main, use_uvloop=sys.argv[1] == "True")
"""


@both_loops
def test_a_thread_that_cannot_be_had_ends_the_process_and_does_not_leave_it_standing(
    use_uvloop: bool,
) -> None:
    """This happens where memory, or the number of threads, is limited."""
    command = [sys.executable, "-c", WITHOUT_THREADS, str(use_uvloop)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "RuntimeError: can't start new thread" in ended.stderr
