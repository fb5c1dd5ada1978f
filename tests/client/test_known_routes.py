"""Name servers that are gone or silent: what is known does, and no other is held up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on
from tests.client.test_faults import EAGER, Scripted, silent_server

from cometmq.client import Client, OutcomeUnknownError
from cometmq.proto.codes import Language, RequestCode

if TYPE_CHECKING:
    from pathlib import Path

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
