"""The threads of `SyncConsumer.run` end when they should."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Literal

import pytest
from tests.client.running import Servers, play

from cometmq.client import SyncClient, SyncMessage, UsageError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_SECONDS = 60
PROGRAM = """
import signal, sys
from cometmq.client import SyncClient

signal.signal(signal.SIGINT, signal.default_int_handler)

def bill(message):
    print("got", flush=True)
    sys.stdin.readline()
    print("done", flush=True)

mq = SyncClient(sys.argv[1])
mq.send("orders", b"x")
try:
    mq.consume("orders", group="billing", start="first").run(bill, threads=4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
queue, = [each for each in mq.queues("orders") if mq.end_offset(each)]
print("committed", mq.committed(queue, "billing"), flush=True)
"""


def test_an_interrupt_finishes_what_is_in_hand_and_ends_it(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, servers.nameserver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "got\n"
                process.send_signal(signal.SIGINT)
                rest, _ = process.communicate("\n", timeout=PATIENCE_SECONDS)
                assert rest == "done\ninterrupted\ncommitted 1\n"
            finally:
                process.kill()

    play(tmp_path, scenario)


@pytest.mark.parametrize("at", [0, 5])
def test_what_a_handler_raises_ends_it_if_that_is_wanted(at: int, tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            mq.send_batch("orders", [b"%d" % number for number in range(10)])

            def handle(message: SyncMessage) -> None:
                if message.body == b"%d" % at and message.attempt == 1:
                    raise KeyError(at)

            consumer = mq.consume("orders", group="billing", start="first", on_error="raise")
            errors: list[BaseException] = []

            def run() -> None:
                with pytest.raises(KeyError) as raised:
                    consumer.run(handle, threads=4)
                errors.append(raised.value)

            running = threading.Thread(target=run, daemon=True)
            running.start()
            running.join(PATIENCE_SECONDS)
            assert [error.args for error in errors] == [(at,)]

    play(tmp_path, scenario)


@pytest.mark.parametrize("threads", [0, "8", 1.5])
def test_a_number_of_threads_that_is_none_is_refused(threads: int, tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            consumer = mq.consume("orders", group="billing")
            with pytest.raises(UsageError, match=f"threads={threads!r}"):
                consumer.run(print, threads=threads)

    play(tmp_path, scenario)


@pytest.mark.parametrize("on_error", ["retry", "raise"])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_an_async_handler_is_refused_and_consumes_nothing(
    is_hidden: bool, on_error: Literal["retry", "raise"], tmp_path: Path
) -> None:
    async def bill(message: SyncMessage) -> None:
        raise AssertionError(message)

    def scenario(servers: Servers) -> None:
        with SyncClient(servers.nameserver) as mq:
            queue = mq.send("orders", b"x").queue
            consumer = mq.consume("orders", group="billing", start="first", on_error=on_error)
            with pytest.raises(UsageError, match="async function"):
                consumer.run((lambda message: bill(message)) if is_hidden else bill)
            assert not mq.committed(queue, "billing") or mq.queues("%RETRY%billing")

    play(tmp_path, scenario)
