"""A client's life: opened, used in the wrong place, and closed, with the messages of errors."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
import trio
from tests.client.running import Servers, on_every_loop, on_loop, play, play_on

from cometmq.client import (
    Client,
    ClientConfig,
    ClosedError,
    NetworkError,
    UnreachableError,
    UsageError,
)
from cometmq.client._connections import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@pytest.mark.parametrize("address", ["localhost", "http://a:1", "", ":9876", "a:b", "a:99999"])
def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(UsageError, match="name server"):
        Client(address)


@pytest.mark.parametrize("given", [9876, b"127.0.0.1:9876", ("127.0.0.1", 9876), [None]])
def test_what_is_no_text_for_an_address_says_what_to_write(given: Any) -> None:
    with pytest.raises(UsageError, match="must be 'host:port'"):
        Client(given)


def test_the_environment_names_the_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert repr(Client()) == "<Client of a:1;b:2, not open>"
    assert "a:1;b:2" in repr(Client(["a:1", "b:2"]))


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "route_interval"])
def test_a_setting_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        ClientConfig(**cast("Any", {name: 0}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"timeout": "5"}, "timeout='5': must be a number of seconds"),
        ({"timeout": float("inf")}, "timeout=inf: must be a number of seconds, more than 0"),
        ({"send_attempts": 0}, "send_attempts=0: must be at least 1"),
        ({"body_size_max": "4MiB"}, "body_size_max='4MiB': must be a whole number"),
    ],
)
def test_a_setting_of_the_wrong_kind_says_what_to_give(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ClientConfig(**settings)


@on_every_loop
def test_a_broker_that_is_given_for_a_name_server_is_known(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.broker) as mq:
            for verb in (mq.send("orders", b"x"), mq.queues("orders"), mq.admin.topics()):
                with pytest.raises(UsageError, match="answers, but looks like a broker"):
                    await verb

    play_on(loop, tmp_path, scenario)


def test_without_a_loop_it_says_what_to_use() -> None:
    opening = Client("127.0.0.1:1").__aenter__()
    with pytest.raises(UsageError, match="SyncClient"):
        opening.send(None)


@on_every_loop
def test_a_client_that_is_not_open_says_so(loop: str) -> None:
    async def scenario() -> None:
        client = Client("127.0.0.1:1")
        with pytest.raises(ClosedError, match="open it first"):
            await client.send("orders", b"x")
        async with client:
            pass
        with pytest.raises(ClosedError, match="is closed: make another one"):
            await client.send("orders", b"x")
        with pytest.raises(UsageError, match="opened only once"):
            await client.__aenter__()
        await client.close()

    on_loop(loop, scenario)


@on_every_loop
def test_an_exception_leaves_the_block_as_it_is(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async def fail() -> None:
            async with Client(servers.nameserver) as mq:
                await mq.send("orders", b"x")
                raise KeyError

        with pytest.raises(KeyError):
            await fail()

    play_on(loop, tmp_path, scenario)


def test_a_client_may_be_opened_in_one_task_and_closed_in_another(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async def fixture() -> AsyncGenerator[Client]:
            async with Client(servers.nameserver) as mq:
                yield mq

        generator = fixture()
        mq = await asyncio.create_task(generator.__anext__())  # pyright: ignore[reportArgumentType]  # A coroutine.
        await mq.send("orders", b"x")
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(generator.__anext__())  # pyright: ignore[reportArgumentType]  # As above.

    play_on("asyncio", tmp_path, scenario)


def test_another_loop_is_refused(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        found: list[Client] = []

        async def one() -> None:
            async with Client(servers.nameserver) as mq:
                found.append(mq)
                await anyio.to_thread.run_sync(on_loop, "trio", other)

        async def other() -> None:
            with pytest.raises(UsageError, match="another event loop"):
                await found[0].send("orders", b"x")
            with pytest.raises(UsageError, match="another event loop"):
                found[0].consume("orders", group="billing")

        on_loop("asyncio", one)

    play(tmp_path, scenario)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_consumer_and_its_messages_are_refused_elsewhere_than_on_their_loop(
    loop: str, tmp_path: Path
) -> None:
    """A running consumer refuses, too: a task of another loop in `anext` would never wake."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            consumer = mq.consume("orders", group="billing")
            message = await anext(consumer)

            async def other() -> None:
                awaited = consumer.__anext__, consumer.drain, consumer.__aenter__
                for wait in (*awaited, message.retry, message.reject):
                    with pytest.raises(UsageError, match="another event loop"):
                        await wait()

            await anyio.to_thread.run_sync(on_loop, "asyncio", other)
            for call in consumer.pause, consumer.resume, message.ack:
                with pytest.raises(UsageError, match="another event loop"):
                    await anyio.to_thread.run_sync(call)
            assert consumer.in_hand == 1
            message.ack()
            assert await consumer.drain()

    play_on(loop, tmp_path, scenario)


def test_who_waits_for_a_connection_hears_at_once_that_the_client_is_closed(
    tmp_path: Path,
) -> None:
    """This holds even before the connecting task has had its first turn."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            sending = asyncio.create_task(mq.send("orders", b"x", timeout=1000))
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await sending

    play_on("asyncio", tmp_path, scenario)


def test_closing_leaves_no_task_and_no_socket_behind(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        before = asyncio.all_tasks()
        async with Client(servers.nameserver) as mq:
            await mq.send("orders", b"x")
            sending = [asyncio.create_task(mq.send("orders", b"x")) for _ in range(10)]
        ended = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, ClosedError | NetworkError) for each in ended), ended
        assert asyncio.all_tasks() == before
        gc.collect()  # A socket left open would raise a ResourceWarning, which is an error.

    play_on("asyncio", tmp_path, scenario)


@on_every_loop
def test_no_name_server_is_a_network_error_in_time(loop: str) -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1;127.0.0.1:2") as mq:
            with pytest.raises(UnreachableError) as refused:
                await mq.send("orders", b"x", timeout=1)
        assert refused.value.whose == "network"
        assert refused.value.can_retry
        assert "127.0.0.1:1: Connection refused" in str(refused.value)
        assert "127.0.0.1:2: Connection refused" in str(refused.value)

    on_loop(loop, scenario)


def test_importing_the_client_is_quick_and_loads_no_trio_and_no_broker() -> None:
    script = (
        "import sys, time; began = time.process_time(); import cometmq.client;"
        "taken = time.process_time() - began;"
        "heavy = {'trio', 'uvloop', 'numpy', 'rich', 'click', 'cometmq.broker', 'cometmq.store'};"
        "print(taken, sorted(heavy & set(sys.modules)))"
    )
    taken, heavy = min(
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        ).stdout.split(" ", 1)
        for _ in range(3)
    )
    assert heavy.strip() == "[]"
    assert float(taken) < 0.5


@on_every_loop
def test_connections_are_looked_after_every_second(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise requests on a silently dead one would wait until the system gives it up."""

    async def scenario() -> None:
        looked = anyio.Event()
        ours = threading.get_ident()

        def look(_: Connections) -> None:
            if threading.get_ident() == ours:  # Clients of fixtures run in other threads.
                looked.set()

        monkeypatch.setattr(Connections, "tick", look)
        async with Client("127.0.0.1:1"):
            with anyio.fail_after(30):
                await looked.wait()

    on_loop(loop, scenario)


@on_every_loop
def test_a_client_opens_beside_a_trio_that_cannot_tell_who_asks(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for since_029 in ("in_trio_task", "in_trio_run"):
        monkeypatch.delattr(trio.lowlevel, since_029, raising=False)

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=1)
            await mq.send("orders", b"hello")

    play_on(loop, tmp_path, scenario)
