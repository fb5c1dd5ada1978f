"""trio alone: the first signal asks the process to stop, the second ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import trio
from tests.ending import ENDING

from cometmq.net import alone
from cometmq.net.ending_signals import ONE_REQUEST_SECONDS

PATIENCE_SECONDS = 30
PROGRAM = """
import time, trio
from cometmq.net import alone

async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    if {blocks}:
        time.sleep(1000)  # As a disk that does not answer.
    return 7

raise SystemExit(alone.run(main))
"""


def test_main_ends_and_gives_its_value() -> None:
    async def main(stop: trio.Event) -> int:
        assert not stop.is_set()
        return 5

    assert alone.run(main) == 5


def test_a_signal_is_told() -> None:
    async def main(stop: trio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(PATIENCE_SECONDS):
            await stop.wait()

    before = signal.getsignal(signal.SIGTERM)
    alone.run(main)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("blocks", [False, True])
def test_a_second_signal_kills_whatever_is_being_done(number: signal.Signals, blocks: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(blocks=blocks)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        if blocks:
            time.sleep(ONE_REQUEST_SECONDS)
            process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == (-number if blocks else 7)


def test_a_terminal_that_closes_ends_nothing_that_nohup_has_started() -> None:
    with subprocess.Popen(
        ["nohup", sys.executable, "-c", PROGRAM.format(blocks=False)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(ONE_REQUEST_SECONDS)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 7


async def test_a_function_is_called_after_what_it_says(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    times: list[float] = []

    def function() -> float:
        times.append(trio.current_time())
        return 2.5

    started = trio.current_time()
    with trio.move_on_after(6):
        await alone.repeat(function)
    assert [time - started for time in times] == [0, 2.5, 5]
