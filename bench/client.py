"""`python -m bench client`: the SDK's processor time for sends, batches, consuming and pulls.

A broker, `cometmq up` with async flush, runs beside it. What is stated is the processor time of the
client's process for each message, kernel time included, the least of the rounds: it holds on a busy
machine too, where rates by the wall clock say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import trio
import uvloop

from bench.servers import start_cometmq
from cometmq.client import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

BODY: Final = os.urandom(1024)
ROUNDS: Final = 3
IN_FLIGHT: Final = 64
BATCH: Final = 32
SENDS: Final = 12_800
BATCHES: Final = 400
LOOPS: Final = ("uvloop", "asyncio", "trio")


async def measured(name: str, count: int, once: Callable[[], Awaitable[None]]) -> None:
    """Run something a few times, and print what one of `count` messages cost at least."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        await once()
        least = min(least, time.process_time() - began)
    each = least / count * 1e6
    print(f"| {name} | {each:.1f} | {1e6 / each:,.0f} |", flush=True)


async def at_once(tasks: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run so many of the same beside each other."""
    async with anyio.create_task_group() as group:
        for _ in range(tasks):
            group.start_soon(work)


async def measure(nameserver: str, loop: str) -> None:
    """Measure all cases with one client."""
    async with Client(nameserver) as mq:
        single, batched = f"single-{loop}", f"batched-{loop}"
        await mq.admin.create_topic(single, queues=4)
        await mq.admin.create_topic(batched, queues=4)

        async def send_some() -> None:
            for _ in range(SENDS // IN_FLIGHT):
                await mq.send(single, BODY, timeout=30)

        async def send_batches() -> None:
            for _ in range(BATCHES // 8):
                await mq.send_batch(batched, [BODY] * BATCH, timeout=30)

        async def consume() -> None:
            # Each round as a group of its own, from the beginning.
            group = f"g{time.monotonic_ns()}"
            async with mq.consume(single, group=group, start="first") as consumer:
                for _ in range(SENDS):
                    async with await anext(consumer):
                        pass

        async def pull() -> None:
            left = BATCHES * BATCH
            for queue in await mq.queues(batched):
                offset = 0
                while left and not (found := await mq.pull(queue, offset)).is_empty:
                    offset = found.next_offset
                    left -= len(found.messages)

        await measured(
            f"{loop}: await send, {IN_FLIGHT} in flight",
            SENDS,
            lambda: at_once(IN_FLIGHT, send_some),
        )
        await measured(
            f"{loop}: batches of {BATCH}, 8 in flight",
            BATCHES * BATCH,
            lambda: at_once(8, send_batches),
        )
        await measured(f"{loop}: consume, trivial handler", SENDS, consume)
        await measured(f"{loop}: pull of 32, one after the other", BATCHES * BATCH, pull)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{loop}: {memory:.0f} MiB resident at most\n", flush=True)


def run_on(loop: str, nameserver: str) -> None:
    """Measure on one loop."""
    if loop == "trio":
        trio.run(measure, nameserver, loop)
        return
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(measure(nameserver, loop))


def main(arguments: Sequence[str]) -> None:
    """Measure on each loop, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--loop", choices=LOOPS, help="only this one")
    parser.add_argument("--nameserver", help="of a cluster that runs; only with --loop")
    asked = parser.parse_args(arguments)
    if asked.nameserver:
        run_on(asked.loop or LOOPS[0], asked.nameserver)
        return
    print("| what | µs of the client's CPU a message | messages a core-second |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        server, _ = start_cometmq(Path(folder) / "store", "async")
        try:
            for loop in [asked.loop] if asked.loop else LOOPS:
                address = f"127.0.0.1:{server.nameserver_port}"
                command = [sys.executable, "-m", "bench.client", "--loop", loop]
                subprocess.run([*command, "--nameserver", address], check=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
