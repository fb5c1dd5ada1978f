"""A client survives faults of the network and of servers, and leaks nothing."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings, strategies as some
from tests.client.running import Servers, on_every_loop, on_loop, play_on
from tests.client.test_cancelled import waiting_in

from cometmq.client import (
    BusyError,
    Client,
    ClientConfig,
    DeadlineError,
    NetworkError,
    OutcomeUnknownError,
    ProtocolViolationError,
    Queue,
    Receipt,
    RefusedError,
    UnreachableError,
)
from cometmq.client.errors import refusal, with_stored
from cometmq.proto import Connection
from cometmq.proto.bodies import BrokerData, QueueData, TopicRouteData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.command import Command
from cometmq.proto.commands import SendMessageRefusal, SendMessageResponse
from cometmq.proto.connection import NEED_DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

EAGER = ClientConfig(reconnect_delay=0.01, reconnect_delay_max=0.05, redelivery_delay=0.05)


@on_every_loop
def test_sends_go_on_when_the_broker_is_started_again(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, EAGER) as mq:
            first = await mq.send("orders", b"before")
            await anyio.to_thread.run_sync(servers.stop, "broker")
            with pytest.raises(NetworkError):
                await mq.send("orders", b"x", timeout=0.2)
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(send_with_patience, mq, b"%d" % number)
                await anyio.to_thread.run_sync(servers.start, "broker")
            found = await mq.pull(first.queue, 0)
            assert found.messages[0].body == b"before"
            ends = [await mq.end_offset(queue) for queue in await mq.queues("orders")]
            assert sum(ends) == 21

    play_on(loop, tmp_path, scenario)


async def send_with_patience(mq: Client, body: bytes) -> None:
    await mq.send("orders", body, timeout=30)


@on_every_loop
def test_a_consumer_goes_on_when_the_broker_is_started_again(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, EAGER) as mq:
            await mq.send("orders", b"before")
            async with mq.consume("orders", group="billing") as consumer:
                async with await anext(consumer) as message:
                    assert message.body == b"before"
                await anyio.to_thread.run_sync(servers.stop, "broker")
                await anyio.to_thread.run_sync(servers.start, "broker")
                await mq.send("orders", b"after", timeout=30)
                bodies: set[bytes] = set()
                while b"after" not in bodies:
                    async with await anext(consumer) as message:
                        bodies.add(message.body)

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_name_server_that_dies_is_left_for_another(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        with silent_server() as silent:
            names = f"127.0.0.1:1;{silent};{servers.nameserver}"
            async with Client(names, EAGER) as mq:
                await mq.send("orders", b"x", timeout=20)
                # Known routes suffice while no name server is there.
                await anyio.to_thread.run_sync(servers.stop, "nameserver")
                await mq.send("orders", b"y")
                with pytest.raises(NetworkError):
                    await mq.queues("bills", timeout=0.3)
                await anyio.to_thread.run_sync(servers.start, "nameserver")

    play_on(loop, tmp_path, scenario)


@on_every_loop
def test_a_connection_that_is_half_open_is_given_up(loop: str) -> None:
    async def scenario() -> None:
        with silent_server() as address:
            async with Client(address, EAGER) as mq:
                with anyio.fail_after(5), pytest.raises(DeadlineError) as late:
                    await mq.send("orders", b"x", timeout=1)
        assert late.value.can_retry
        assert isinstance(late.value, TimeoutError)

    on_loop(loop, scenario)


@pytest.mark.parametrize(
    "loop",
    ["uvloop", *(pytest.param(loop, marks=pytest.mark.slow) for loop in ("asyncio", "trio"))],
)
def test_ten_thousand_sends_at_once(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        places: set[tuple[Queue, int]] = set()
        async with Client(servers.nameserver) as mq:

            async def send() -> None:
                receipt = await mq.send("orders", b"x", timeout=60)
                places.add((receipt.queue, receipt.offset))

            async with anyio.create_task_group() as tasks:
                for _ in range(10_000):
                    tasks.start_soon(send)
            assert waiting_in(mq) == 0
        assert len(places) == 10_000

    play_on(loop, tmp_path, scenario)


# A server with scripted answers.


@contextmanager
def silent_server() -> Generator[str]:
    """Listen, take connections, and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class Scripted:
    """A name server and a broker in one, with answers that the test scripts."""

    def __init__(self, answer: Callable[[Command], Command | bytes | None]) -> None:
        self._answer = answer
        self.asked: list[int] = []
        self.connections = 0

    @contextmanager
    def serve(self) -> Generator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.address = f"127.0.0.1:{listening.getsockname()[1]}"
            ended = threading.Event()
            accepting = threading.Thread(target=self._accept, args=(listening, ended))
            accepting.start()
            try:
                yield self.address
            finally:  # Otherwise a failing test would leave a thread running.
                ended.set()
                socket.create_connection(listening.getsockname()).close()
                accepting.join()

    def _accept(self, listening: socket.socket, ended: threading.Event) -> None:
        while True:
            one, _ = listening.accept()
            if ended.is_set():
                one.close()
                return
            threading.Thread(target=self._talk_until_lost, args=(one,)).start()

    def _talk_until_lost(self, one: socket.socket) -> None:
        with suppress(ConnectionError):
            self._talk(one)

    def _talk(self, one: socket.socket) -> None:
        connection = Connection()
        self.connections += 1
        with one:
            while data := one.recv(65536):
                connection.receive_data(data)
                while isinstance(event := connection.next_event(), Command):
                    self.asked.append(event.code)
                    said = self._usual(event) or self._answer(event)
                    if said is None:
                        return
                    raw = said if isinstance(said, bytes) else b"".join(connection.send(said))
                    one.sendall(raw)
                if event is not NEED_DATA:
                    return

    def _usual(self, request: Command) -> Command | None:
        if request.code == RequestCode.HEART_BEAT:
            return request.answer(ResponseCode.SUCCESS)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRouteData(
                broker_datas=(BrokerData(broker_name="b", broker_addrs={0: self.address}),),
                queue_datas=(
                    QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=1),
                ),
            )
            return request.answer(ResponseCode.SUCCESS, body=route.encode())
        return None


def test_a_busy_broker_is_asked_again_and_at_last_is_told_of() -> None:
    scripted = Scripted(lambda r: r.answer(ResponseCode.SYSTEM_BUSY, remark="flow control"))

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(BusyError, match="flow control") as busy:
                await mq.send("orders", b"x")
        assert busy.value.can_retry
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 3

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_who_wakes_too_late_for_another_attempt_tells_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one would only say that there was no time."""
    scripted = Scripted(lambda r: r.answer(ResponseCode.SYSTEM_BUSY, remark="flow control"))
    sleep = anyio.sleep

    async def sleep_too_long(_seconds: float) -> None:
        await sleep(0.5)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            monkeypatch.setattr("cometmq.client._producer.anyio.sleep", sleep_too_long)
            with pytest.raises(BusyError, match="flow control"):
                await mq.send("orders", b"x", timeout=0.5)
            monkeypatch.undo()
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 1

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_name_server_is_not_asked_again_without_time_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first answer says what is wrong; that another did not come in 5 ms does not."""
    sleep = anyio.sleep

    async def sleep_nearly_too_long(_seconds: float) -> None:
        await sleep(max(began[0] + 0.495 - time.monotonic(), 0))

    def answer(listening: socket.socket) -> None:
        first, _ = listening.accept()
        with first:
            first.recv(1)
            first.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def scenario() -> None:
        async with Client(address, EAGER) as mq:
            monkeypatch.setattr("cometmq.client._nameservers.anyio.sleep", sleep_nearly_too_long)
            began.append(time.monotonic())
            with pytest.raises(NetworkError, match="begins with an HTTP answer"):
                await mq.queues("orders", timeout=0.5)
            monkeypatch.undo()

    began: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        answering = threading.Thread(target=answer, args=(listening,))
        answering.start()
        on_loop("asyncio", scenario)
        answering.join()


def test_a_send_without_an_answer_says_so_if_there_is_no_connection() -> None:
    scripted = Scripted(lambda _: None)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                scripted.address = f"127.0.0.1:{closed.getsockname()[1]}"
            with pytest.raises(UnreachableError, match="refused"):
                await mq.send_oneway("orders", b"x")

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_all_parts_of_a_batch_have_one_deadline() -> None:
    def answer(request: Command) -> Command | bytes:
        if scripted.asked.count(RequestCode.SEND_BATCH_MESSAGE) > 1:
            return b""
        is_over.wait(0.7)  # A slow broker; this is its own thread.
        fields = SendMessageResponse(f"{0:032X}", 0, queue_offset=0)
        return request.answer(ResponseCode.SUCCESS, fields)

    is_over = threading.Event()
    scripted = Scripted(answer)

    async def scenario() -> None:
        config = replace(EAGER, body_size_max=100, send_attempts=1)
        async with Client(scripted.address, config) as mq:
            began = time.monotonic()
            with pytest.raises(
                DeadlineError, match=r"\(messages of the batch stored before: 1\)"
            ) as late:
                await mq.send_batch("orders", [b"x" * 20] * 30, timeout=0.9)
            assert 0.8 <= time.monotonic() - began < 1.5
            assert len(late.value.stored) == 1
        is_over.set()

    with scripted.serve():
        on_loop("asyncio", scenario)


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_a_batch_that_fails_half_way_says_what_is_stored(parts: int) -> None:
    def answer(request: Command) -> Command:
        if (before := scripted.asked.count(RequestCode.SEND_BATCH_MESSAGE) - 1) == parts:
            return request.answer(ResponseCode.MESSAGE_ILLEGAL, remark="enough")
        fields = SendMessageResponse(f"{before:032X}", 0, queue_offset=before * 2)
        return request.answer(ResponseCode.SUCCESS, fields)

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address, replace(EAGER, body_size_max=250)) as mq:
            with pytest.raises(RefusedError, match="enough") as refused:
                await mq.send_batch("orders", [b"x" * 20] * 20)
        error = refused.value
        assert (error.code, error.address) == (ResponseCode.MESSAGE_ILLEGAL, scripted.address)
        assert [receipt.offset for receipt in error.stored] == list(range(2 * parts))
        assert len({receipt.id for receipt in error.stored}) == 2 * parts
        said = f" (messages of the batch stored before: {2 * parts})"
        assert str(error).endswith(said if parts else "enough")

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_what_a_batch_had_stored_is_in_no_error_of_others() -> None:
    """All who want to connect to a silent address share one error."""
    receipt = Receipt("id", Queue("orders", "b", 0), 0, "at", 0, "")
    for error in (DeadlineError("late"), refusal(ResponseCode.SYSTEM_ERROR, "no", "b:1")):
        marked = with_stored(error, [receipt])
        assert type(marked) is type(error)
        assert {**vars(marked), "stored": ()} == {**vars(error), "stored": ()}
        assert (marked.stored, error.stored) == ((receipt,), ())
        assert str(marked) == f"{error} (messages of the batch stored before: 1)"


def test_the_time_to_connect_is_part_of_the_time_of_a_send() -> None:
    """A slow greeting and an unanswered send take the time limit once together, not twice."""

    def answer(request: Command) -> Command | bytes:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            return b""
        raise AssertionError(request)

    class SlowToGreet(Scripted):
        def _usual(self, request: Command) -> Command | None:
            if request.code == RequestCode.HEART_BEAT:
                is_over.wait(0.6)
            return super()._usual(request)

    is_over = threading.Event()
    scripted = SlowToGreet(answer)

    async def scenario() -> None:
        # A name other than the broker's, so that the broker gets a separate connection.
        nameserver = scripted.address.replace("127.0.0.1", "localhost")
        async with Client(nameserver, replace(EAGER, send_attempts=1)) as mq:
            began = time.monotonic()
            with pytest.raises(DeadlineError):
                await mq.send("orders", b"x", timeout=1)
            assert 0.9 <= time.monotonic() - began < 1.4
        is_over.set()

    with scripted.serve():
        on_loop("asyncio", scenario)


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_connection_that_ends_is_an_attempt_each(idempotent: bool) -> None:
    """A message that a broker stores only once is sent again as often as time allows."""
    scripted = Scripted(lambda _: None)

    async def scenario() -> None:
        config = replace(EAGER, idempotent=idempotent)
        async with Client(scripted.address, config) as mq:
            with pytest.raises(OutcomeUnknownError):
                await mq.send("orders", b"x", timeout=1.5)
        count = scripted.asked.count(RequestCode.SEND_MESSAGE_V2)
        assert count > 3 if idempotent else count == 3

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_refusal_after_an_attempt_without_an_answer_leaves_it_unknown() -> None:
    """The first attempt may have stored the message, so the refusal proves nothing."""

    def answer(request: Command) -> Command | None:
        if scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 1:
            return None
        return request.answer(ResponseCode.MESSAGE_ILLEGAL, remark="too late")

    scripted = Scripted(answer)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(OutcomeUnknownError, match="may be stored") as unknown:
                await mq.send("orders", b"x")
        assert isinstance(unknown.value.__cause__, RefusedError)

    with scripted.serve():
        on_loop("asyncio", scenario)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_refusal_says_whether_the_message_may_be_stored(is_written: bool) -> None:
    fields = SendMessageRefusal(may_be_stored=is_written or None)
    scripted = Scripted(
        lambda r: r.answer(ResponseCode.SERVICE_NOT_AVAILABLE, fields, remark="a sync failed")
    )

    async def scenario() -> None:
        async with Client(scripted.address, replace(EAGER, idempotent=False)) as mq:
            with pytest.raises(OutcomeUnknownError if is_written else BusyError) as refused:
                await mq.send("orders", b"x", timeout=1)
        assert "a sync failed" in str(refused.value)
        assert ("may be stored" in str(refused.value)) == is_written

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_an_answer_that_lacks_what_it_must_have_is_a_violation() -> None:
    scripted = Scripted(lambda r: r.answer(ResponseCode.SUCCESS))

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(ProtocolViolationError, match="msgId"):
                await mq.send("orders", b"x")

    with scripted.serve():
        on_loop("asyncio", scenario)


@settings(max_examples=8)
@given(garbage=some.binary(min_size=1, max_size=60))
def test_garbage_is_an_error_of_the_tree(garbage: bytes) -> None:
    scripted = Scripted(lambda _: garbage)

    async def scenario() -> None:
        config = ClientConfig(timeout=0.1, reconnect_delay=0.01)
        async with Client(scripted.address, config) as mq:
            with pytest.raises(NetworkError):
                await mq.send("orders", b"x")

    with scripted.serve():
        on_loop("asyncio", scenario)
