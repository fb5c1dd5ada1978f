"""A client at work while servers are killed, freeze or slow down, or handlers hang."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from tests.client.daemons import Daemon
from tests.client.running import Servers, on_every_loop, on_loop, play_on
from tests.client.test_faults import EAGER, Scripted
from tests.client.under_load import more, under_load

from cometmq.client import Client, ClientConfig, DeadlineError, NetworkError
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands import SendMessageResponse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cometmq.client import Message
    from cometmq.proto.command import Command

KILLS = 2
OFFSET_ID = "7F00000100002A9F0000000000000000"


# Name servers that die one by one.


class Wire:
    """A connection path to a server that can be cut, and mended at the same address."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._port = 0
        self.mend()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def mend(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listening.getsockname()[1]
        self._run(self._accept, self._listening)

    def cut(self) -> None:
        for each in (self._listening, *self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listening, *self._ends):
            each.close()
        self._ends, self._threads = [], []

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                self._run(self._pass_on, near, far)
                self._run(self._pass_on, far, near)

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def _run(self, function: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()


@on_every_loop
def test_name_servers_may_die_one_by_one(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        wires = [Wire(servers.nameserver) for _ in range(3)]
        names = ";".join(wire.address for wire in wires)
        async with Client(names, EAGER) as mq:
            for number, wire in enumerate(wires):
                await mq.send(f"topic-{number}", b"x")
                await anyio.to_thread.run_sync(wire.cut)
            await mq.send("topic-0", b"what is known is enough")
            with pytest.raises(NetworkError, match="no name server answers") as nobody:
                await mq.queues("fresh", timeout=0.3)
            assert all(wire.address in str(nobody.value) for wire in wires)
            wires[1].mend()
            await mq.send("fresh", b"x")
        await anyio.to_thread.run_sync(wires[1].cut)

    play_on(loop, tmp_path, scenario)


# A broker that does not answer, or answers late.


def stored(request: Command, offset: int) -> Command:
    fields = SendMessageResponse(OFFSET_ID, 0, queue_offset=offset)
    return request.answer(ResponseCode.SUCCESS, fields)


@on_every_loop
def test_a_connection_whose_other_end_is_gone_without_a_word_is_replaced(loop: str) -> None:
    """No FIN and no reset comes, as when a host loses power or a firewall its state."""
    is_gone: list[bool] = []

    def answer(request: Command) -> Command | bytes:
        connections = scripted.connections
        return b"" if is_gone and connections == 1 else stored(request, connections)

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            assert (await mq.send("orders", b"x")).offset == 1
            is_gone.append(True)
            assert (await mq.send("orders", b"y", timeout=2.2)).offset == 2

    with scripted.serve():
        on_loop(loop, scenario)


@on_every_loop
def test_an_answer_that_comes_too_late_is_nobody_elses(loop: str) -> None:
    is_time = threading.Event()
    offsets = iter(range(10))

    def answer(request: Command) -> Command:
        is_time.wait()
        return stored(request, next(offsets))

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address, ClientConfig(send_attempts=1)) as mq:
            with pytest.raises(DeadlineError):
                await mq.send("orders", b"late", timeout=0.2)
            is_time.set()
            assert (await mq.send("orders", b"in time")).offset == 1

    with scripted.serve():
        on_loop(loop, scenario)


# A handler that hangs.


@on_every_loop
def test_a_handler_that_hangs_holds_up_nobody_and_its_message_comes_again(
    loop: str, tmp_path: Path
) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            for number in range(10):
                await mq.send("orders", b"%d" % number)
            consumer = mq.consume("orders", group="billing")
            seen: set[bytes] = set()

            async def handle(message: Message) -> None:
                if message.body == b"3":
                    await anyio.sleep_forever()
                seen.add(message.body)
                if len(seen) == 9:
                    others_are_done.set()

            others_are_done = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, handle)
                await others_are_done.wait()
                assert consumer.in_hand == 1
                assert not await consumer.drain(timeout=0.05)
                tasks.cancel_scope.cancel()
            async with mq.consume("orders", group="billing") as following:
                while (message := await anext(following)).body != b"3":
                    message.ack()  # The messages before it in its queue.
                message.ack()

    play_on(loop, tmp_path, scenario)


# A broker that is killed under load.


@pytest.mark.slow
@on_every_loop
def test_a_broker_that_is_killed_under_load_costs_no_message(loop: str, tmp_path: Path) -> None:
    up = Daemon("up", tmp_path / "data", port_options=("--nameserver-port", "--broker-port"))

    async def disturb(acknowledged: set[bytes], _: set[bytes]) -> None:
        for _kill in range(KILLS):
            await more(acknowledged, 200)
            await anyio.to_thread.run_sync(up.kill)
            await anyio.to_thread.run_sync(up.start)
        await more(acknowledged, 200)

    async def scenario(nameserver: str) -> None:
        async with Client(nameserver, EAGER) as mq, Client(nameserver, EAGER) as reader:
            count = await under_load(mq, reader, disturb, send_seconds=30)
            ends = [await mq.end_offset(queue) for queue in await mq.queues("orders")]
            # Each is stored once, and none is there without its answer.
            assert count == sum(ends)

    with up.running() as nameserver:
        on_loop(loop, lambda: scenario(nameserver))
