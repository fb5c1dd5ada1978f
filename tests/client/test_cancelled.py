"""A verb that is cancelled, at each of its awaits in turn, leaks nothing."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trio
from tests.client.running import Servers, on_every_loop, play_on

from cometmq.client import Client, ClientConfig, ClosedError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from pathlib import Path

    Verb = Callable[[Client, str], Coroutine[Any, Any, object]]

AWAITS_MAX = 200
TURNS = [*range(1, 60), *(60 << doubling for doubling in range(12))]
"""The numbers of turns of the loop after which a task is cancelled: first each, then far beyond the
last, because on a busy machine a loop turns often while it waits for an answer."""


class _Stepped:
    """A coroutine whose suspending awaits are counted. At one of them the scope is cancelled."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, object], at: int, scope: anyio.CancelScope
    ) -> None:
        self._coroutine = coroutine
        self._at = at
        self._scope = scope
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, object]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731  # It is replaced below.
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._at:
                self._scope.cancel()
            try:
                sent = yield waits_for
            except BaseException as error:  # Passed on to the waiting coroutine.
                step = _raising(self._coroutine, error)
            else:
                step = _sending(self._coroutine, sent)


def _raising(coroutine: Coroutine[Any, Any, object], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def _sending(coroutine: Coroutine[Any, Any, object], sent: object) -> Callable[[], Any]:
    return lambda: coroutine.send(sent)


async def is_cancelled_at(at: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Cancel a coroutine at its await of that number; return False if it has fewer.

    If the awaited event comes first, the coroutine ends as if it had not been cancelled.
    """
    scope = anyio.CancelScope()
    stepped = _Stepped(coroutine, at, scope)
    with scope:
        await stepped
    return stepped.awaits >= at


def task_count() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


def waiting_in(mq: Client) -> int:
    """Return how many requests of a client wait for answers or replies."""
    connections = mq._open_parts().connections  # pyright: ignore[reportPrivateUsage]  # What leaks is within.
    requests = mq._requests  # pyright: ignore[reportPrivateUsage]  # As above.
    return len(requests) + sum(len(link.connection.pending) for _, link in connections)


async def send(mq: Client, topic: str) -> object:
    return await mq.send(topic, b"x")


async def send_batch(mq: Client, topic: str) -> object:
    return await mq.send_batch(topic, [b"x", b"y"])


async def send_oneway(mq: Client, topic: str) -> object:
    await mq.send_oneway(topic, b"x")
    return None


async def request(mq: Client, topic: str) -> object:
    with suppress(DeadlineError):  # Nobody replies.
        await mq.request(topic, b"x", timeout=0.3)
    return None


async def transaction(mq: Client, topic: str) -> object:
    async with mq.transaction(topic, b"x"):
        await anyio.lowlevel.checkpoint()
    return None


on_every_verb = pytest.mark.parametrize(
    "verb", [send, send_batch, send_oneway, request, transaction], ids=lambda verb: verb.__name__
)


async def at_each_await(one: Callable[[int], Awaitable[bool]]) -> int:
    """Run it, cancelled at the first await, the second, and so on; return how many there are."""
    for at in range(1, AWAITS_MAX):
        if not await one(at):
            return at - 1
    raise AssertionError(f"it still waits after {AWAITS_MAX} awaits")


@on_every_verb
@on_every_loop
def test_a_client_goes_on_as_if_nothing_had_been(loop: str, verb: Verb, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"first")
            tasks = task_count()

            async def one(at: int) -> bool:
                is_cancelled = await is_cancelled_at(at, verb(mq, f"orders-{at}"))
                with anyio.fail_after(10):
                    while (task_count(), waiting_in(mq)) != (tasks, 0):  # noqa: ASYNC110  # Untold.
                        await anyio.sleep(0.001)
                return is_cancelled

            assert await at_each_await(one) > 0
            receipt = await mq.send("orders", b"after")
            assert (await mq.pull(receipt.queue, receipt.offset)).messages[0].body == b"after"

    play_on(loop, tmp_path, scenario)


@on_every_verb
@on_every_loop
def test_a_client_that_had_not_connected_yet_closes_with_all_it_had(
    loop: str, verb: Verb, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        tasks = task_count()

        async def one(at: int) -> bool:
            async with Client(servers.nameserver) as mq:
                is_cancelled = await is_cancelled_at(at, verb(mq, "orders"))
            assert task_count() == tasks
            return is_cancelled

        assert await at_each_await(one) > 2
        gc.collect()  # A socket left open would raise a ResourceWarning, which is an error.

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_readers_pull_has_moved_nowhere(loop: str, tmp_path: Path) -> None:
    """Otherwise messages that it has from the first queues would be lost, and committed as read."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"first")
            for queue in await mq.queues("orders"):
                await mq.send_batch("orders", [b"x"] * 20, queue=queue)

            async def one(at: int) -> bool:
                reader = mq.reader("orders", group="reports")
                await reader.assign(start="first")
                found = await reader.pull(count=10)

                async def pull() -> None:
                    found.extend(await reader.pull(count=50))

                is_cancelled = await is_cancelled_at(at, pull())
                while more := await reader.pull(count=50):
                    found.extend(more)
                assert len({(m.queue, m.offset) for m in found}) == len(found) == 81
                return is_cancelled

            assert await at_each_await(one) > 2

    play_on(loop, tmp_path, scenario)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_close_that_a_task_is_cancelled_in_leaves_nothing(loop: str, tmp_path: Path) -> None:
    """No shield stops `Task.cancel`, which a second Ctrl-C or a timeout of asyncio calls."""

    async def scenario(servers: Servers) -> None:
        tasks = task_count()
        for turns in TURNS:
            mq = Client(servers.nameserver)
            await mq.__aenter__()
            queue = (await mq.send("orders", b"x")).queue
            (await anext(mq.consume("orders", group=f"g-{turns}", start="first"))).ack()
            closing = asyncio.create_task(mq.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            if is_closed := closing.done():
                await closing
                async with Client(servers.nameserver) as other:
                    assert await other.committed(queue, f"g-{turns}") is not None
            closing.cancel()
            await asyncio.wait([closing])
            with anyio.fail_after(10):
                while task_count() != tasks:  # noqa: ASYNC110  # Untold.
                    await anyio.sleep(0.001)
            with pytest.raises(ClosedError):
                await mq.send("orders", b"x")
            if is_closed:
                break
            del closing, mq
            gc.collect()  # A socket left open would raise a ResourceWarning.
        else:
            raise AssertionError("it never closes")

    play_on(loop, tmp_path, scenario)


def test_a_group_is_free_again_after_a_drain_that_a_task_is_cancelled_in(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            for turns in TURNS:
                consumer = mq.consume("orders", group="billing", start="first")
                await anext(consumer)
                draining = asyncio.create_task(consumer.drain(timeout=0.001))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if draining.done():
                    break
                draining.cancel()
                await asyncio.wait([draining])
            else:
                raise AssertionError("it never ends")

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_a_consumer_that_cannot_commit_leaves_its_group_nevertheless(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise heartbeats would keep it a member, with queues that nobody reads."""

    async def hang(*_: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("cometmq.client._offset_store.GroupOffsets.commit", hang)
    monkeypatch.setattr("cometmq.client._consumption.LEAVE_SECONDS", 0.1)

    async def scenario(servers: Servers) -> None:
        await anyio.to_thread.run_sync(lambda: servers.add("two", tmp_path / "2", broker_name="b"))
        eager = ClientConfig(heartbeat_interval=0.01)
        async with Client(servers.nameserver, eager) as mq, Client(servers.nameserver) as other:
            await mq.admin.create_topic("orders")
            await mq.send("orders", b"x")
            consumer = mq.consume("orders", group="billing", start="first")
            (await anext(consumer)).ack()
            assert len(await other.admin.group_members("billing")) == 1
            await consumer.drain()
            with anyio.fail_after(10):
                while await other.admin.group_members("billing"):  # noqa: ASYNC110  # Untold.
                    await anyio.sleep(0.01)

    play_on(loop, tmp_path, scenario)
