"""Promises of the client's page that no other test covers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.client.running import Servers, on_every_loop, on_loop, play_on
from tests.client.test_faults import EAGER, Scripted, silent_server

from cometmq.client import Client, ClientConfig, DeadlineError, NetworkError, Queue, _asyncio
from cometmq.net.loop import connect
from cometmq.proto.bodies import BrokerData, QueueData, TopicRouteData
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import SendMessageRefusal, SendMessageResponse, SendMessageV2
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.properties import decode_properties

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from cometmq.net import LoopPeer, Peers
    from cometmq.proto.command import Command
    from cometmq.proto.host import Host

QUEUE = Queue("orders", "b", 0)
RESIDENT_MIB_MAX = 40


class OneOfTwo(Scripted):
    """A name server that is also one of each topic's two brokers, or only a name server."""

    def __init__(
        self, other: str, answer: Callable[[Command], Command | bytes | None], second: str = ""
    ) -> None:
        super().__init__(answer)
        self._other = other
        self._second = second

    def _usual(self, request: Command) -> Command | None:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return super()._usual(request)
        addresses = {"a": self._other, "b": self._second or self.address}
        route = TopicRouteData(
            broker_datas=tuple(
                BrokerData(broker_name=name, broker_addrs={0: address})
                for name, address in addresses.items()
            ),
            queue_datas=tuple(
                QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2)
                for name in addresses
            ),
        )
        return request.answer(ResponseCode.SUCCESS, body=route.encode())


def stored(request: Command) -> Command:
    return request.answer(ResponseCode.SUCCESS, SendMessageResponse("00", 0, 0))


@pytest.mark.parametrize("fault", ["nobody is there", "it hangs up", "it refuses"])
def test_a_send_that_fails_at_a_broker_goes_to_another_one(fault: str) -> None:
    def refuse(request: Command) -> Command | None:
        if fault == "it hangs up":
            return None
        return request.answer(ResponseCode.SYSTEM_BUSY, remark="flow control")

    with ExitStack() as stack:
        bad = "127.0.0.1:1"
        if fault != "nobody is there":
            bad = stack.enter_context(Scripted(refuse).serve())
        good = OneOfTwo(bad, stored)
        stack.enter_context(good.serve())

        async def scenario() -> None:
            # An idempotent message would stay with its broker.
            config = replace(EAGER, idempotent=False)
            async with Client(good.address, config) as mq:
                for _ in range(8):
                    assert (await mq.send("orders", b"x", timeout=10)).queue.broker == "b"

        on_loop("asyncio", scenario)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_send_of_unknown_outcome_goes_to_the_same_queue_again(is_answered: bool) -> None:
    """Only that broker knows whether it already has the message; maybe after its next start."""
    places: dict[str, list[tuple[str, int]]] = {}

    def taker(broker: str) -> Callable[[Command], Command | None]:
        def take(request: Command) -> Command | None:
            header = request.read(SendMessageV2)
            properties = decode_properties((header.properties or "").encode())
            tried = places.setdefault(properties["UNIQ_KEY"], [])
            tried.append((broker, header.queue_id))
            if len(tried) < 3 and is_answered:
                written = SendMessageRefusal(may_be_stored=True)
                return request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, written, remark="sync")
            if len(tried) < 3:
                return None  # The broker hangs up.
            said = SendMessageResponse("00", header.queue_id, 0)
            return request.answer(ResponseCode.SUCCESS, said)

        return take

    with ExitStack() as stack:
        first, second = (stack.enter_context(Scripted(taker(name)).serve()) for name in "ab")
        nameserver = stack.enter_context(OneOfTwo(first, stored, second).serve())

        async def scenario() -> None:
            async with Client(nameserver, EAGER) as mq:
                for _ in range(8):
                    receipt = await mq.send("orders", b"x", timeout=10)
                    place = receipt.queue.broker, receipt.queue.id
                    assert places[receipt.id] == [place] * 3

        on_loop("asyncio", scenario)
    assert {broker for (broker, _), *_ in places.values()} == {"a", "b"}


def codecs_of(mq: Client) -> set[object]:
    """Return the header codecs of a client's connections."""
    connections = mq._open_parts().connections  # pyright: ignore[reportPrivateUsage]  # Seen nowhere else.
    return {link.connection.codec for _, link in connections}


@pytest.mark.parametrize("is_offered", [True, False])
def test_headers_are_messagepack_where_servers_read_it(is_offered: bool, tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        config = ClientConfig(offer_messagepack=is_offered)
        async with Client(servers.nameserver, config) as mq:
            for _ in range(2):
                await mq.send("orders", b"x")
            assert (codecs_of(mq) == {MESSAGEPACK}) is is_offered

    play_on("asyncio", tmp_path, scenario)


def test_nothing_is_dialled_but_what_name_servers_and_routes_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VIP channel is off: no verb uses the broker's second port, two below its first."""
    dialled: set[str] = set()

    async def connect_and_note(peers: Peers, address: Host, **how: Any) -> LoopPeer:
        dialled.add(str(address))
        return await connect(peers, address, **how)

    monkeypatch.setattr(_asyncio, "connect", connect_and_note)

    async def scenario(servers: Servers) -> None:
        async with Client(servers.nameserver) as mq:
            await mq.admin.create_topic("orders", queues=1)
            queue = (await mq.send("orders", b"sent")).queue
            await mq.send_batch("orders", [b"one", b"two"])
            await mq.send_oneway("orders", b"told")
            async with mq.transaction("orders", b"half"):
                pass
            assert (await mq.pull(queue, 0)).messages
            async with mq.consume("orders", group="billing", start="first") as consumer:
                message = await anext(consumer)
                await message.retry()
            await mq.admin.group_progress("billing")
            assert (await mq.admin.message(message.id)).body == message.body
        assert dialled == {servers.nameserver, servers.broker}

    play_on("asyncio", tmp_path, scenario)


VERBS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "send": lambda mq: mq.send("orders", b"x", timeout=0.2),
    "send_oneway": lambda mq: mq.send_oneway("orders", b"x"),
    "send_batch": lambda mq: mq.send_batch("orders", [b"x"], timeout=0.2),
    "request": lambda mq: mq.request("orders", b"x", timeout=0.2),
    "queues": lambda mq: mq.queues("orders", timeout=0.2),
    "first_offset": lambda mq: mq.first_offset(QUEUE, timeout=0.2),
    "end_offset": lambda mq: mq.end_offset(QUEUE, timeout=0.2),
    "offset_at": lambda mq: mq.offset_at(QUEUE, datetime.now(UTC), timeout=0.2),
    "committed": lambda mq: mq.committed(QUEUE, "billing", timeout=0.2),
    "commit": lambda mq: mq.commit(QUEUE, "billing", 0, timeout=0.2),
    "pull": lambda mq: mq.pull(QUEUE, 0),
    "topics": lambda mq: mq.admin.topics(),
    "groups": lambda mq: mq.admin.groups(),
    "create_topic": lambda mq: mq.admin.create_topic("orders"),
}


@pytest.mark.parametrize("verb", VERBS)
@on_every_loop
def test_no_verb_waits_longer_than_its_time_for_a_silent_server(loop: str, verb: str) -> None:
    async def scenario() -> None:
        with silent_server() as address:
            async with Client(address, ClientConfig(timeout=0.2, connect_timeout=0.2)) as mq:
                with anyio.fail_after(10), pytest.raises(NetworkError) as late:
                    await VERBS[verb](mq)
        assert late.value.can_retry or isinstance(late.value, DeadlineError)

    on_loop(loop, scenario)


IDLE = """
import asyncio
from pathlib import Path
from cometmq.client import Client

async def main():
    async with Client({nameserver!r}) as mq:
        await mq.send("orders", b"x")
        print(Path("/proc/self/status").read_text())

asyncio.run(main())
"""


def test_a_connected_idle_client_takes_little_memory(tmp_path: Path) -> None:
    async def scenario(servers: Servers) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", IDLE.format(nameserver=servers.nameserver)]
        shown = await anyio.to_thread.run_sync(
            lambda: (
                subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True, timeout=60
                ).stdout
            )
        )
        resident = re.search(r"VmRSS:\s+(\d+) kB", shown)
        assert resident is not None
        assert int(resident[1]) / 1024 <= RESIDENT_MIB_MAX

    play_on("asyncio", tmp_path, scenario)
