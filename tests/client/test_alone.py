"""Parts of a client alone, with stand-ins that do what our brokers never do."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.client.running import on_every_loop, on_loop

from cometmq.client import (
    ClientConfig,
    ConnectionEndedError,
    DeadlineError,
    Queue,
    ReceivedMessage,
    UsageError,
)
from cometmq.client._agreement import check_agreement
from cometmq.client._core.filters import parse_filter
from cometmq.client._core.identity import Identity
from cometmq.client._core.process_queue import ProcessQueue
from cometmq.client._core.routes import Route
from cometmq.client._core.trace_format import TRACE_TOPIC
from cometmq.client._delivery import Delivery
from cometmq.client._membership import Membership
from cometmq.client._reading import Reading
from cometmq.client._trace import Trace
from cometmq.client.hooks import ConsumeWatch
from cometmq.client.request import send_reply
from cometmq.net.errors import AnswerTimeoutError
from cometmq.proto import property_names as names
from cometmq.proto.bodies import MessageModel
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import PullMessageResponse

if TYPE_CHECKING:
    from cometmq.client import Message
    from cometmq.client._connections import Connections
    from cometmq.client._core.options import ConsumeOptions
    from cometmq.client._parts import Parts
    from cometmq.client._routes import Routes
    from cometmq.client._runtime import Link
    from cometmq.proto.command import Command

QUEUE = Queue("orders", "broker-a", 0)
ROUTE = Route("orders", (QUEUE,), (QUEUE,), {"broker-a": {0: "master:1", 1: "replica:1"}})


class TwoBrokers:
    """A master and its replica, whose answers suggest the one to pull from next.

    In place of an answer, a suggestion of -1 has the connection end.
    """

    def __init__(self, *suggestions: int) -> None:
        self.suggestions = list(suggestions)
        self.asked: list[tuple[str, float]] = []

    async def call(self, address: str, request: Command, **how: float) -> Command:
        self.asked.append((address, how["timeout"]))
        suggestion = self.suggestions.pop(0)
        if suggestion < 0:
            raise ConnectionEndedError(address)
        said = PullMessageResponse(suggestion, 0, 0, 0)
        return request.answer(ResponseCode.PULL_NOT_FOUND, said)

    def known(self, _: str) -> Route:
        return ROUTE

    def reading(self, config: ClientConfig) -> Reading:
        return Reading(config, cast("Connections", self), cast("Routes", self))


async def pull(reading: Reading, wait: float = 0) -> None:
    def make(*_: object) -> ReceivedMessage:
        raise AssertionError("there are no messages")

    await reading.pull(QUEUE, 0, group="g", count=32, filter=None, wait=wait, make=make)


async def test_the_next_pull_goes_where_the_broker_suggests_and_back() -> None:
    brokers = TwoBrokers(1, 1, 0, 0)
    reading = brokers.reading(ClientConfig())
    for _ in range(4):
        await pull(reading)
    assert [address for address, _ in brokers.asked] == [
        "master:1",
        "replica:1",
        "replica:1",
        "master:1",
    ]


async def test_a_replica_that_does_not_answer_is_left_for_the_master() -> None:
    brokers = TwoBrokers(1, -1, 0)
    reading = brokers.reading(ClientConfig())
    await pull(reading)
    with pytest.raises(ConnectionEndedError):
        await pull(reading)
    await pull(reading)
    assert [address for address, _ in brokers.asked] == ["master:1", "replica:1", "master:1"]


@pytest.mark.parametrize(("seconds", "answered_in"), [(1.0, 10.0), (40.0, 40.0)])
async def test_a_pull_that_waits_has_the_time_of_an_answer_on_top(
    seconds: float, answered_in: float
) -> None:
    brokers = TwoBrokers(0, 0)
    reading = brokers.reading(ClientConfig(timeout=seconds))
    await pull(reading)
    await pull(reading, wait=5)
    assert [each for _, each in brokers.asked] == [answered_in, 5 + answered_in]


async def test_a_connection_that_does_not_answer_a_heartbeat_is_given_up() -> None:
    dropped: list[str] = []

    async def call(_: Command, *, timeout_ms: int) -> Command:
        raise AnswerTimeoutError(f"nothing in {timeout_ms} ms")

    link = SimpleNamespace(call=call, drop=dropped.append)
    config = ClientConfig()
    membership = Membership(config, Identity("127.0.0.1", config))
    with pytest.raises(DeadlineError, match="no answer to a heartbeat"):
        await membership.greet(cast("Link", link), "broker:1")
    assert dropped == ["no answer to a heartbeat"]
    assert "broker:1" not in membership.broker_version


async def test_each_broker_hears_a_heartbeat_even_if_another_does_not_answer() -> None:
    heard: list[int] = []

    async def call(request: Command, *, timeout_ms: int) -> Command:
        heard.append(request.code)
        if len(heard) == 1:
            raise AnswerTimeoutError(f"nothing in {timeout_ms} ms")
        return request.answer(ResponseCode.SUCCESS)

    link = SimpleNamespace(call=call, drop=lambda _: None)  # pyright: ignore[reportUnknownLambdaType]  # Any text.
    config = ClientConfig()
    membership = Membership(config, Identity("127.0.0.1", config))
    brokers = {"broker:1": 497, "broker:2": 497}
    membership.broker_version.update(brokers)
    connections = [(address, link) for address in (*brokers, "nameserver:1")]
    await membership.beat(cast("Connections", connections))
    assert heard == [RequestCode.HEART_BEAT] * len(brokers)


async def test_a_reply_is_kept_for_as_long_as_its_request_waits() -> None:
    sent: list[dict[str, str]] = []

    def pack(*arguments: Any) -> object:
        sent.append(arguments[-1])
        return object()

    async def send(*_: object) -> None:
        pass

    parts = SimpleNamespace(
        config=ClientConfig(),
        packing=SimpleNamespace(pack=pack),
        producer=SimpleNamespace(send_reply=send),
    )
    asked = {names.CLUSTER: "c", names.CORRELATION_ID: "7", names.REPLY_TO_CLIENT: "me"}
    for properties in (asked, {**asked, names.TTL: "300"}):
        request = SimpleNamespace(properties=properties, queue=QUEUE)
        await send_reply(cast("Parts", parts), cast("ReceivedMessage", request), b"yes", None)
    assert [each.get(names.TTL) for each in sent] == [None, "300"]


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_member_need_not_agree_with_what_it_asked_for_before(
    monkeypatch: pytest.MonkeyPatch, *, is_own: bool
) -> None:
    client_id = "me" if is_own else "another"

    async def members(*_: object) -> object:
        before = {"orders": parse_filter("refunded").subscription("orders", 1)}
        connections = [SimpleNamespace(client_id=client_id)]
        return SimpleNamespace(
            connection_set=connections,
            subscription_table=before,
            message_model=MessageModel.CLUSTERING,
        )

    monkeypatch.setattr("cometmq.client._agreement._members", members)
    parts = cast("Parts", SimpleNamespace(identity=SimpleNamespace(client_id="me")))
    asked = SimpleNamespace(group="g", filters={"orders": parse_filter("paid")}, is_broadcast=False)
    with nullcontext() if is_own else pytest.raises(UsageError, match="is another"):
        await check_agreement(parts, cast("ConsumeOptions", asked))


@on_every_loop
def test_a_message_for_one_who_waits_no_longer_goes_to_the_next(loop: str) -> None:
    async def scenario() -> None:
        delivery = Delivery(5, lambda _: None)
        got: list[object] = []
        scopes: list[anyio.CancelScope] = []
        message = SimpleNamespace(process_queue=ProcessQueue(QUEUE, 0), taken=lambda: None)

        async def wait() -> None:
            with anyio.CancelScope() as scope:
                scopes.append(scope)
                got.append(await delivery.next())

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                scopes[0].cancel()
                delivery.put_first(cast("Message", message))
        assert got == [message]

    on_loop(loop, scenario)


@on_every_loop
@pytest.mark.parametrize("is_late", [True, False])
def test_a_message_that_fails_while_its_queue_parts_comes_again_if_the_queue_stays(
    loop: str, *, is_late: bool
) -> None:
    async def scenario() -> None:
        delivery = Delivery(1, lambda _: None, lambda _: True)
        queue = ProcessQueue(QUEUE, 0)
        first, second = (
            cast(
                "Message",
                SimpleNamespace(process_queue=queue, taken=lambda: None, offset=offset, size=1),
            )
            for offset in range(2)
        )
        delivery.add([first, second])
        with anyio.fail_after(5):
            assert await delivery.next() is first
            assert delivery.part(queue)
            if is_late:
                delivery.set_aside(first)
                delivery.put_again(first)
            else:
                delivery.give_back(first)
            delivery.keep(queue)
            for message in (first, second):
                assert await delivery.next() is message
                delivery.settle(message)

    on_loop(loop, scenario)


def test_the_traces_themselves_are_not_traced() -> None:
    message = cast("ReceivedMessage", SimpleNamespace(topic=TRACE_TOPIC))
    assert type(Trace("shop").consuming(message, "tools")) is ConsumeWatch
