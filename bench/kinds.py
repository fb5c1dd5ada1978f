"""`python -m bench.kinds`: the times of delays, order and idempotence, each in a new broker.

Broker, name server and client are threads of this process, so that the broker's clock can jump.
Times are by the wall clock: the least of the runs shows what the code takes, the others show what
else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.path import Wired
from bench.servers import start_apache, start_cometmq
from cometmq.client import Client, ClientConfig, SyncClient
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

DELAYED: Final = 100_000
DELAY_SECONDS: Final = 3600
IN_FLIGHT: Final = 256
IDS: Final = 10_000
ROUNDS: Final = 40
JAVA_CASES: Final = {
    "begins": "Java's ordered consumer's first message from an idle queue",
    "takes_over": "the same, when the queue's holder has gone",
}


def delays(count: int) -> float:
    """Return the seconds to deliver `count` delayed messages that are due at the same moment."""
    with Cluster() as rocketmq:
        rocketmq.admin.create_topic("reminders", queues=4)
        asyncio.run(_send_delayed(rocketmq.nameserver, count))
        begun = time.perf_counter()
        rocketmq.clock.jump(DELAY_SECONDS)
        while sum(each.end_offset for each in rocketmq.admin.topic_status("reminders")) < count:
            time.sleep(0.02)
        return time.perf_counter() - begun


async def _send_delayed(nameserver: str, count: int) -> None:
    async with Client(nameserver) as mq:
        numbers = iter(range(count))

        async def send() -> None:
            for number in numbers:
                await mq.send("reminders", b"%d" % number, delay=DELAY_SECONDS)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(send())


async def ordered(nameserver: str, *, takes_over: bool) -> float:
    """Return the ms from when an ordered consumer may have an idle queue to its first message.

    They count from its start or, if another consumer holds the queue, from the close of that one's
    client.
    """
    # In a group of two, the first client by name gets the only queue: the holder.
    first, last = (ClientConfig(instance=f"{letter}-{time.monotonic_ns()}") for letter in "az")
    async with Client(nameserver) as mq, Client(nameserver, last) as waiting:
        topic = f"orders-{time.monotonic_ns()}"
        await mq.admin.create_topic(topic, queues=1)
        options = {"group": f"{topic}-billing", "start": "first", "ordered": True}
        if takes_over:
            holder = Client(nameserver, first)
            await holder.__aenter__()
            await mq.send(topic, b"for the first")
            held = holder.consume(topic, **options)  # type: ignore[arg-type]  # All fit.
            (await anext(held)).ack()
            second = waiting.consume(topic, **options)  # type: ignore[arg-type]  # All fit.
            coming = asyncio.create_task(anext(second))
            await mq.send(topic, b"for the second")
            await asyncio.sleep(1)  # Now it has joined, and waits.
            assert not coming.done()
            begun = time.perf_counter()
            await holder.close()
        else:
            await mq.send(topic, b"for the first")
            begun = time.perf_counter()
            second = waiting.consume(topic, **options)  # type: ignore[arg-type]  # All fit.
            coming = asyncio.create_task(anext(second))
        (await coming).ack()
        taken = time.perf_counter() - begun
        await second.drain()
        return taken * 1000


def idempotence(folder: str) -> tuple[float, float]:
    """Return the microseconds to look up an unknown message, and to note it."""
    found = Wired(folder).broker.idempotence
    looked = noted = float("inf")
    for round_ in range(ROUNDS):
        ids = [b"7F0000014D2C18B4AAC2%012X" % (round_ * IDS + number) for number in range(IDS)]
        find, note = found.find, found.note
        begun = time.thread_time_ns()
        new = [find(each, "T") for each in ids]
        between = time.thread_time_ns()
        for each in new:
            note(each, (1, 2, 3))
        ended = time.thread_time_ns()
        found.written()
        looked = min(looked, (between - begun) / IDS / 1000)
        noted = min(noted, (ended - between) / IDS / 1000)
    return looked, noted


def java_joins(rounds: int) -> None:
    """Print the times of the official client's ordered consumers, with our broker and Apache's."""
    from bench.java_client import java_command  # Needs Java and Maven.

    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as name:
        folder = Path(name).absolute()
        command = java_command(folder, "OrderedJoin")
        for start in (start_cometmq, start_apache):
            server, _ = start(folder / start.__name__, "async")
            try:
                found = _joins(command, f"127.0.0.1:{server.nameserver_port}", rounds)
            finally:
                server.stop()
            for case, text in JAVA_CASES.items():
                shown = _spread(found[case])
                print(f"| ms, {text}, at {server.name} | {shown} | 100 |", flush=True)


def _joins(command: list[str], nameserver: str, rounds: int) -> dict[str, list[float]]:
    prefix = f"joined-{time.monotonic_ns()}-"
    with SyncClient(nameserver) as mq:
        for number in range(2 * rounds):
            mq.admin.create_topic(f"{prefix}{number}", queues=1)
    asked = [*command, nameserver, str(rounds), prefix]
    played = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=900)
    found: dict[str, list[float]] = {case: [] for case in JAVA_CASES}
    for line in played.stdout.splitlines():
        case, _, figure = line.partition(" ")
        if case in found:
            found[case].append(float(figure))
    return found


def several(count: int, once: Callable[[], float]) -> str:
    """Measure several times."""
    return _spread([once() for _ in range(count)])


def _spread(found: Sequence[float]) -> str:
    return f"{min(found):.3g} | {statistics.median(found):.3g} | {max(found):.3g}"


def _run(first: Callable[[], Coroutine[None, None, float]]) -> float:
    return asyncio.run(first())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.kinds", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of what is timed by the wall clock")
    parser.add_argument(
        "--java", action="store_true", help="only the official client's ordered consumers"
    )
    options = parser.parse_args(arguments)
    print("| what | least | median | most | wanted |")
    print("|---|---|---|---|---|")
    if options.java:
        java_joins(options.runs)
        return
    shown = several(min(options.runs, 3), lambda: delays(DELAYED))
    print(f"| s, {DELAYED:,} delayed messages due at once until all are out | {shown} | 1.5 |")
    with Cluster() as rocketmq:
        for what, takes_over in (
            ("an ordered consumer's first message from an idle queue", False),
            ("the same, when the queue's holder has gone", True),
        ):
            first = partial(ordered, rocketmq.nameserver, takes_over=takes_over)
            shown = several(options.runs, partial(_run, first))
            print(f"| ms, {what} | {shown} | 100 |", flush=True)
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=".") as folder:
        looked, noted = idempotence(str(Path(folder).absolute()))
    what = "to look whether a message was sent before, and to note it"
    print(f"| µs, {what} | {looked:.2f}, {noted:.2f} | | | 0.5 |")


if __name__ == "__main__":
    main()
