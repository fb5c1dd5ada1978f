"""Hostile peers, beside an honest client that must not notice them.

In each test an honest client sends and pulls all the while, and its slowest round is checked in the
end. The tests of the network layer cover its own refusals; these cover the whole broker.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio
from msgspec.structs import replace as replace_field
from tests.broker.running import Client, Running, config_of, pull_request, run, send_request
from tests.broker.test_up import up

from cometmq.net import Limits
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import QueryMessage
from cometmq.proto.connection import Answer, Connection
from cometmq.proto.frame import frame_head
from cometmq.proto.header_codecs import HEADER_CODECS
from cometmq.proto.host import Host

SLOWEST_SECONDS: Final = 2.0
"""In processor time of this thread, so that other load does not matter. An honest round takes one
or two milliseconds, plus whatever work the abuse causes in the broker meanwhile."""
PATIENCE_SECONDS: Final = 60.0
ABUSE_SECONDS: Final = 60.0
CLOSED_SECONDS: Final = 20.0
IDLE_CONNECTIONS: Final = 5_000
IDLE_BYTES_MAX: Final = 12 * 1024


class Honest:
    """A client that sends and pulls until it is stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._round_done = trio.Event()
        self.rounds = 0
        self.slowest = 0.0

    async def run(self) -> None:
        while True:
            start = time.thread_time()
            sent = await self._client.send("honest", b"%d" % self.rounds)
            (message,) = await self._client.pull("honest", sent.queue_offset)
            assert message.body == b"%d" % self.rounds
            self.slowest = max(self.slowest, time.thread_time() - start)
            self.rounds += 1
            self._round_done.set()
            self._round_done = trio.Event()

    async def serve(self, rounds: int) -> None:
        """Wait until the client has been served so many more times."""
        goal = self.rounds + rounds
        while self.rounds < goal:
            await self._round_done.wait()


@asynccontextmanager
async def honest(running: Running) -> AsyncGenerator[Honest]:
    async with trio.open_nursery() as nursery:
        client = Honest(await running.new_client())
        nursery.start_soon(client.run)
        await client.serve(5)
        yield client
        await client.serve(20)
        nursery.cancel_scope.cancel()
    assert client.slowest < SLOWEST_SECONDS


def abused(folder: Path, abuse: Callable[[Host, Honest], Awaitable[None]], **limits: int) -> None:
    """Run a broker with these limits, and abuse it beside an honest client."""

    async def scenario(running: Running) -> None:
        with trio.fail_after(ABUSE_SECONDS):
            async with honest(running) as client:
                await abuse(running.address, client)

    run(replace(config_of(folder), limits=replace(Limits(), **limits)), scenario)


async def connect(address: Host) -> trio.SocketStream:
    return await trio.open_tcp_stream(address.address, address.port)


async def send_if_open(stream: trio.SocketStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(data)


async def read_to_the_end(stream: trio.SocketStream) -> bytes:
    """Return everything that comes until the broker closes."""
    found = b""
    async with stream:
        with trio.fail_after(CLOSED_SECONDS), suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                found += data
    return found


def json_frame(fields: str, *, code: int = 30, more: str = "") -> bytes:
    header = f'{{"code":{code},"flag":0,"opaque":1,"extFields":{fields}{more}}}'.encode()
    return frame_head(0, len(header), 0) + header


LENGTHS = [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, (16 << 20) + 1, 0, 3]


def test_a_length_that_no_frame_has_ends_the_connection(tmp_path: Path) -> None:
    async def abuse(address: Host, _: Honest) -> None:
        for length in LENGTHS:
            stream = await connect(address)
            await send_if_open(stream, struct.pack(">I", length) + b"\0\0\0\x02{}" * 100)
            assert await read_to_the_end(stream) == b"", hex(length)

    abused(tmp_path, abuse)


def bombs() -> dict[str, bytes]:
    fields = json.dumps({f"f{number}": "x" for number in range(80_000)})
    array = struct.pack(">BI", 0xDD, 0xFFFFFFFF)
    pairs = struct.pack(">hBhiiiiH", 30, 0, 0, 1, 0, 0, 0x7FFFFFFF, 3) + b"abc"
    return {
        "a header larger than its frame": struct.pack(">II", 100, 0x00FFFFFF) + b"x" * 96,
        "a header over its limit": frame_head(0, (1 << 20) + 1, 0) + b" " * ((1 << 20) + 1),
        "many fields": json_frame(fields),
        "deep fields": json_frame('{"a":' * 100_000 + "1" + "}" * 100_000),
        "deep lists": json_frame('{"topic":' + "[" * 200_000 + "]" * 200_000 + "}"),
        "a number of many digits": json_frame('{"queueId":' + "9" * 900_000 + "}"),
        "an exponent": json_frame('{"queueId":1e999999999}'),
        "a text of escapes": json_frame('{"topic":"' + "\\u0000" * 150_000 + '","queueId":0}'),
        "a code of many digits": json_frame("{}", more=',"version":' + "1" * 900_000),
        "an array of four billion": frame_head(2, len(array), 0) + array,
        "a map of two billion bytes": frame_head(1, len(pairs), 0) + pairs,
        "a codec that there is not": frame_head(7, 2, 0) + b"{}",
        "a compressed nothing": json_frame("{}", code=310) + frame_head(0, 0, 0),
    }


def test_a_header_that_is_a_bomb_is_refused_or_ends_the_connection(tmp_path: Path) -> None:
    async def abuse(address: Host, client: Honest) -> None:
        for name, bomb in bombs().items():
            stream = await connect(address)
            for _ in range(3):
                await send_if_open(stream, bomb)
            await client.serve(3)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_eof()
            for answer in answers(await read_to_the_end(stream)):
                assert len(answer.remark or "") < 5_000, name

    abused(tmp_path, abuse)


def answers(data: bytes) -> list[Command]:
    found: list[Command] = []
    while len(data) >= 8:
        size, head = struct.unpack_from(">II", data)
        header_size = head & 0xFFFFFF
        header, body = data[8 : 8 + header_size], data[8 + header_size : 4 + size]
        found.append(HEADER_CODECS[head >> 24].decode(header, body, 1024))
        data = data[4 + size :]
    return found


def test_who_sends_a_frame_byte_by_byte_is_closed_in_time(tmp_path: Path) -> None:
    async def loris(address: Host, client: Honest) -> None:
        stream = await connect(address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle, stream, client)
            await read_to_the_end(stream)
            nursery.cancel_scope.cancel()

    async def trickle(stream: trio.SocketStream, client: Honest) -> None:
        for byte in frame_head(0, 1000, 1 << 20) + b" " * (1 << 20):
            await send_if_open(stream, bytes([byte]))
            await client.serve(1)

    async def abuse(address: Host, client: Honest) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(loris, address, client)

    abused(tmp_path, abuse, frame_timeout_ms=300)


def test_unfinished_frames_have_a_limit_over_all_connections(tmp_path: Path) -> None:
    async def flood(stream: trio.SocketStream, ended: list[bool]) -> None:
        async with stream:
            await send_if_open(stream, frame_head(0, 10, 1 << 20) + bytes(900_000))
            await read_to_the_end(stream)
        ended.append(True)

    async def abuse(address: Host, client: Honest) -> None:
        ended: list[bool] = []
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(flood, await connect(address), ended)
            with trio.fail_after(CLOSED_SECONDS):
                while len(ended) < 16:  # 4 MiB hold a little more than four such frames.
                    await client.serve(1)
            nursery.cancel_scope.cancel()

    abused(tmp_path, abuse, receiving_bytes_max=4 << 20)


def test_connections_beyond_the_limit_are_closed_as_they_come(tmp_path: Path) -> None:
    async def abuse(address: Host, _: Honest) -> None:
        streams = [await connect(address) for _ in range(60)]
        for stream in streams[20:]:
            assert await read_to_the_end(stream) == b""
        for stream in streams[:20]:
            await stream.aclose()

    abused(tmp_path, abuse, connections_max=20)


def test_requests_that_are_not_answered_yet_have_a_limit(tmp_path: Path) -> None:
    async def abuse(address: Host, _: Honest) -> None:
        stream = await connect(address)
        connection = Connection()
        held = pull_request("BenchmarkTest", sys_flag=6, suspend_timeout_millis=60_000)
        for number in range(30):
            numbered = replace_field(held, opaque=number)
            await stream.send_all(b"".join(connection.send(numbered)))
        found: list[Command] = []
        with trio.fail_after(CLOSED_SECONDS):
            while len(found) < 20:
                connection.receive_data(await stream.receive_some())
                while isinstance(event := connection.next_event(), Answer):
                    found.append(event.response)
        assert {answer.code for answer in found} == {ResponseCode.SYSTEM_BUSY}
        assert all("in_flight_max 10 " in (answer.remark or "") for answer in found)
        await stream.aclose()

    abused(tmp_path, abuse, in_flight_max=10)


@contextmanager
def sockets(address: Host, count: int) -> Generator[list[socket.socket]]:
    with ExitStack() as stack:
        place = (address.address, address.port)
        yield [
            stack.enter_context(socket.create_connection(place, PATIENCE_SECONDS))
            for _ in range(count)
        ]


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def call(to: socket.socket, request: Command) -> Command:
    """Send one request over a plain socket and wait for its answer."""
    to.sendall(frame(request))
    (size,) = struct.unpack(">I", read(to, 4))
    (answer,) = answers(struct.pack(">I", size) + read(to, size))
    return answer


def frame(request: Command) -> bytes:
    return b"".join(Connection().send(request))


def read(of: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += of.recv(size - len(data))
    return bytes(data)


def be_served(to: socket.socket, calls: int) -> None:
    for _ in range(calls):
        assert call(to, send_request("honest", b"x")).code == 0


@pytest.mark.slow
def test_idle_connections_are_cheap(tmp_path: Path) -> None:
    with up(tmp_path) as (process, address), sockets(address, 1) as (one,):
        be_served(one, 100)
        before = anonymous_bytes(process.pid)
        with sockets(address, IDLE_CONNECTIONS) as idle:
            for each in idle:
                assert call(each, pull_request("honest")).code == 0
            grown = anonymous_bytes(process.pid) - before
            be_served(one, 100)
        assert grown / IDLE_CONNECTIONS <= IDLE_BYTES_MAX


@pytest.mark.slow
def test_who_never_reads_costs_little_and_holds_nobody_up(tmp_path: Path) -> None:
    with up(tmp_path) as (process, address), sockets(address, 1) as (one,):
        for _ in range(32):
            assert call(one, send_request("big", bytes(60_000))).code == 0
        before = anonymous_bytes(process.pid)
        with sockets(address, 50) as greedy:
            for each in greedy:
                each.setblocking(False)
                with suppress(BlockingIOError):
                    for _ in range(1000):
                        each.send(frame(pull_request("big")) * 100)
            be_served(one, 100)
            grown = anonymous_bytes(process.pid) - before
        assert grown / len(greedy) < 1 << 20


def query_request(topic: str) -> Command:
    fields = QueryMessage(topic, "nobody", 1, 0, 1 << 60)
    return Command.request(RequestCode.QUERY_MESSAGE, fields)


@pytest.mark.slow
def test_who_comes_and_goes_leaves_nothing(tmp_path: Path) -> None:
    def come_and_go(address: Host, times: int) -> None:
        request = frame(pull_request("honest", 10**6, sys_flag=6))
        for _ in range(times):
            with sockets(address, 1) as (short,):
                short.sendall(request + request[:50])

    with up(tmp_path) as (process, address), sockets(address, 1) as (one,):
        come_and_go(address, 1000)
        be_served(one, 100)
        # Loads the index's libraries, some 20 MB, which a thread would otherwise load about now.
        assert call(one, query_request("honest")).code == ResponseCode.QUERY_NOT_FOUND
        before = anonymous_bytes(process.pid)
        come_and_go(address, 2000)
        be_served(one, 100)
        assert anonymous_bytes(process.pid) - before < 4 << 20
