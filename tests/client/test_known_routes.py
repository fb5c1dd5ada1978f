"""While name servers are gone or silent, known routes are used and nobody else is held up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on
from tests.client.test_faults import EAGER, Scripted, silent_server

from cometmq.client import (
    BusyError,
    Client,
    ClientError,
    ConnectionEndedError,
    DeadlineError,
    NotFoundError,
    OutcomeUnknownError,
    Queue,
    RefusedError,
)
from cometmq.proto.bodies import TopicRouteData
from cometmq.proto.codes import Language, RequestCode, ResponseCode
from cometmq.proto.commands import GetRouteInfoByTopic, SendMessageResponse, SendMessageV2

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.client._core.routes import Route
    from cometmq.proto.command import Command


@on_every_loop
def test_an_old_route_does_while_no_name_server_answers(loop: str, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, EAGER) as mq:
            first = await mq.send("orders", b"x")
            await mq.queues("orders")
            await anyio.to_thread.run_sync(servers.stop, "nameserver")
            (entry,) = mq._open_parts().routes._entries.values()  # pyright: ignore[reportPrivateUsage]  # To make it old.
            entry.is_stale = True
            began = time.monotonic()
            receipt = await mq.send("orders", b"x", timeout=3)
            assert time.monotonic() - began < 2.5, "half of the time is the send's own"
            assert receipt.queue.broker == first.queue.broker

    play_on(loop, tmp_path, scenario)


def test_a_topic_whose_route_is_refused_keeps_no_other_old() -> None:
    class Refusing(Scripted):
        refuses = False

        def _usual(self, request: Command) -> Command | None:
            if self.refuses and request.read(GetRouteInfoByTopic).topic == "first":
                return request.answer(ResponseCode.SYSTEM_ERROR, remark="cannot say")
            return super()._usual(request)

    scripted = Refusing(lambda _: None)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            routes = mq._open_parts().routes  # pyright: ignore[reportPrivateUsage]  # To look at it.
            for topic in ("first", "second"):
                await mq.queues(topic)
            known = routes.known("second")
            scripted.refuses = True
            await routes.refresh(timeout=5)
            assert routes.known("second") is not known

    with scripted.serve():
        on_loop("asyncio", scenario)


@on_every_loop
def test_a_silent_name_server_takes_its_share_of_the_time_only(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(count: int) -> int:
        return min(count, 0)

    monkeypatch.setattr("cometmq.client._nameservers.random.randrange", first)
    scripted = Scripted(lambda _: None)

    async def scenario() -> None:
        with silent_server() as silent:
            async with Client([silent, scripted.address], EAGER) as mq:
                assert len(await mq.queues("orders", timeout=1)) == 1

    with scripted.serve():
        on_loop(loop, scenario)


@on_every_loop
def test_a_topic_that_has_fewer_queues_now_is_sent_to_in_those(loop: str, tmp_path: Path) -> None:
    """This holds even for a route learned just before, whose queues the sends still name."""

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver, EAGER) as operator:
            for rounds in range(3):
                await operator.admin.create_topic("orders", queues=8)
                async with Client(servers.nameserver, EAGER) as mq:
                    gone = (await mq.queues("orders"))[7]
                    await operator.admin.create_topic("orders", queues=2)
                    if rounds == 0:
                        receipts = [await mq.send("orders", b"x", sharding_key="g")]  # 103 % 8 = 7
                    elif rounds == 1:
                        receipts = [await mq.send("orders", b"x") for _ in range(8)]
                    else:
                        receipts = []
                        with pytest.raises(NotFoundError, match=rf"no queue {gone}.*queueId\[7\]"):
                            await mq.send("orders", b"x", queue=gone)
                    assert {each.queue.id for each in receipts} <= {0, 1}
                    assert len(await mq.queues("orders")) == 2
                    # The broker is not to blame, so it is not avoided.
                    assert not mq._open_parts().producer._selection._avoided_until_ms  # pyright: ignore[reportPrivateUsage]  # Shown nowhere.

    play_on(loop, tmp_path, scenario)


class Shrunk(Scripted):
    """A broker whose topic has one queue left, which its name server shows after `looks` requests.

    It refuses sends to other queues with `code`, after leaving the first `lost` sends unanswered.
    """

    def __init__(self, code: int, lost: int = 0, looks: int = 2) -> None:
        super().__init__(self._answer_send)
        self._code = code
        self._lost = lost
        self._looks = looks

    def _usual(self, request: Command) -> Command | None:
        usual = super()._usual(request)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and usual is not None:
            looks = self.asked.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            route = TopicRouteData.decode(usual.body)
            count = 8 if looks <= self._looks else 1
            rows = [msgspec.structs.replace(each, write_queue_nums=count, read_queue_nums=count)
                    for each in route.queue_datas]  # fmt: skip
            body = msgspec.structs.replace(route, queue_datas=tuple(rows)).encode()
            return msgspec.structs.replace(usual, body=body)
        return usual

    def _answer_send(self, request: Command) -> Command | None:
        if self.asked.count(RequestCode.SEND_MESSAGE_V2) <= self._lost:
            return None
        queue_id = request.read(SendMessageV2).queue_id
        if queue_id:
            return request.answer(self._code, remark=f"queueId[{queue_id}] is illegal")
        fields = SendMessageResponse(f"{0:032X}", 0, queue_offset=0)
        return request.answer(ResponseCode.SUCCESS, fields)


@pytest.mark.parametrize(
    ("code", "looks"),
    [
        (ResponseCode.INVALID_PARAMETER, 2),
        (ResponseCode.INVALID_PARAMETER, 3),
        (ResponseCode.SYSTEM_ERROR, 1),  # Like Apache's older brokers, which refuse everything so.
    ],
)
def test_a_lost_queue_is_known_though_the_name_server_learns_it_later(
    code: int, looks: int
) -> None:
    scripted = Shrunk(code, looks=looks)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            receipt = await mq.send("orders", b"x", sharding_key="g")
        assert receipt.queue.id == 0
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 2
        assert scripted.asked.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) == looks + 1

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_refusal_that_is_not_of_the_queue_is_told_as_it_is() -> None:
    scripted = Shrunk(ResponseCode.INVALID_PARAMETER, looks=99)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(RefusedError, match="refuses with INVALID_PARAMETER") as refused:
                await mq.send("orders", b"x", sharding_key="g")
        assert type(refused.value) is RefusedError
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 1

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_queue_that_is_lost_after_an_attempt_without_an_answer_leaves_it_unknown() -> None:
    scripted = Shrunk(ResponseCode.INVALID_PARAMETER, lost=1)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(OutcomeUnknownError, match="may be stored") as unknown:
                await mq.send("orders", b"x", queue=Queue("orders", "b", 7))
        assert isinstance(unknown.value.__cause__, NotFoundError)

    with scripted.serve():
        on_loop("asyncio", scenario)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_route_that_is_not_found_again_does_not_hide_what_the_attempt_got(
    is_answered: bool, is_closed: bool
) -> None:
    """Before a topic is created there is only a guess, and then nobody says, or it is closed."""

    class Guessed(Scripted):
        def _usual(self, request: Command) -> Command | None:
            usual = super()._usual(request)
            if usual is None or request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return usual
            if RequestCode.SEND_MESSAGE_V2 not in self.asked:
                if request.read(GetRouteInfoByTopic).topic == "orders":
                    return request.answer(ResponseCode.TOPIC_NOT_EXIST)
            elif is_closed:
                closed = msgspec.structs.replace(TopicRouteData.decode(usual.body), queue_datas=())
                return msgspec.structs.replace(usual, body=closed.encode())
            else:
                return request.answer(ResponseCode.SYSTEM_ERROR, remark="cannot say")
            return usual

    def answer(request: Command) -> Command | None:
        time.sleep(0.3)  # So that the route is asked for again.
        return request.answer(ResponseCode.SYSTEM_BUSY, remark="so busy") if is_answered else None

    scripted = Guessed(answer)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            with pytest.raises(ClientError) as failed:
                await mq.send("orders", b"x")
        assert type(failed.value) is (BusyError if is_answered else ConnectionEndedError)
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 1

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_route_that_comes_when_the_time_is_up_is_too_late_to_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted = Scripted(lambda _: None)

    async def scenario() -> None:
        async with Client(scripted.address, EAGER) as mq:
            routes = mq._open_parts().routes  # pyright: ignore[reportPrivateUsage]  # To delay it.
            get_to_send = routes.get_to_send

            async def late(topic: str, *, timeout: float) -> Route:  # noqa: ASYNC109  # As it is.
                await anyio.sleep(timeout)
                return await get_to_send(topic, timeout=9)

            monkeypatch.setattr(routes, "get_to_send", late)
            with pytest.raises(DeadlineError, match=r"^topic 'orders': no route within 0\.1 s$"):
                await mq.send("orders", b"x", timeout=0.1)
        assert RequestCode.SEND_MESSAGE_V2 not in scripted.asked

    with scripted.serve():
        on_loop("asyncio", scenario)


def test_a_broker_that_is_not_cometmqs_is_not_trusted_to_store_it_once() -> None:
    class Javas(Scripted):
        def _usual(self, request: Command) -> Command | None:
            answer = super()._usual(request)
            if answer is not None and request.code == RequestCode.HEART_BEAT:
                return msgspec.structs.replace(answer, language=int(Language.JAVA))
            return answer

    scripted = Javas(lambda _: None)

    async def scenario() -> None:
        async with Client(scripted.address.replace("127.0.0.1", "localhost"), EAGER) as mq:
            with pytest.raises(OutcomeUnknownError):
                await mq.send("orders", b"x", timeout=1.5)
        assert scripted.asked.count(RequestCode.SEND_MESSAGE_V2) == 3

    with scripted.serve():
        on_loop("asyncio", scenario)
