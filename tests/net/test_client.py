"""The connecting side of both drivers: the same scenarios on asyncio, uvloop and trio."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from tests.net.harness import DRIVERS, ECHO, HOLD, TestOwner, loop_factory, running

from cometmq.net import (
    AnswerTimeoutError,
    ConnectError,
    ConnectionLostError,
    Limits,
    LoopPeer,
    NetError,
    Peers,
    connect,
    listen_on,
)
from cometmq.net.listener import address_of
from cometmq.net.trio_streams import TrioPeer, connected
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.errors import LocalProtocolError
from cometmq.proto.header_msgpack import MESSAGEPACK
from cometmq.proto.host import Host

pytestmark = pytest.mark.parametrize("driver", DRIVERS)

CallingPeer = LoopPeer | TrioPeer
Scenario = Callable[[CallingPeer], Awaitable[None]]


def with_client(
    driver: str,
    address: Host,
    scenario: Scenario,
    *,
    owner: TestOwner | None = None,
    limits: Limits | None = None,
    **how: Any,
) -> None:
    """Connect with this driver and play a scenario, which awaits only the peer."""
    owner = owner or TestOwner()
    how = {"timeout_ms": 5000} | how

    async def on_loop() -> None:
        peers = Peers(owner, limits, call_soon=asyncio.get_running_loop().call_soon)
        peer = await connect(peers, address, **how)
        try:
            await scenario(peer)
        finally:
            peer.close("the scenario is over")

    async def on_trio() -> None:
        peers = Peers(owner, limits, call_soon=trio.lowlevel.current_trio_token().run_sync_soon)
        async with connected(peers, address, **how) as peer:
            await scenario(peer)

    if driver == "trio":
        trio.run(on_trio)
    else:
        with asyncio.Runner(loop_factory=loop_factory(driver)) as runner:
            runner.run(on_loop())


def test_calls_are_answered(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        for number in range(20):
            request = Command.request(ECHO, body=b"%d" % number)
            assert (await peer.call(request, timeout_ms=5000)).body == b"%d" % number
        assert not peer.connection.pending

    with running(driver) as server:
        with_client(driver, server.address, scenario)


def test_the_first_call_offers_messagepack_and_both_go_on_in_it(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        assert peer.connection.codec.name == "JSON"
        peer.tell(Command.request(ECHO))  # A oneway request makes no offer.
        await peer.call(Command.request(ECHO), timeout_ms=5000)
        assert peer.connection.codec.name == "MESSAGEPACK"
        answer = await peer.call(Command.request(ECHO, {"a": "b"}), timeout_ms=5000)
        assert answer.codec is MESSAGEPACK
        assert answer.ext_fields == {"a": "b"}

    with running(driver) as server:
        with_client(driver, server.address, scenario)


def test_a_request_is_prepared_with_everything_in_it(driver: str) -> None:
    def sign(request: Command) -> Command:
        names = ",".join(sorted(request.ext_fields))
        return replace(request, extras={**(request.extras or {}), "signed": names})

    async def scenario(peer: CallingPeer) -> None:
        first = await peer.call(Command.request(ECHO, {"a": "1"}), timeout_ms=5000)
        assert first.ext_fields["signed"] == "a,cometmqHeaders"
        second = await peer.call(Command.request(ECHO, {"a": "1"}), timeout_ms=5000)
        assert second.ext_fields["signed"] == "a"

    with running(driver) as server:
        with_client(driver, server.address, scenario, prepare=sign)


def test_a_call_without_an_answer_times_out_and_the_connection_goes_on(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        with pytest.raises(AnswerTimeoutError, match=r"127\.0\.0\.1"):
            await peer.call(Command.request(HOLD), timeout_ms=10)
        assert not peer.connection.pending
        assert (await peer.call(Command.request(ECHO), timeout_ms=5000)).code == 0

    with running(driver) as server:
        with_client(driver, server.address, scenario)


def test_calls_that_are_pending_fail_when_the_connection_ends(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        request = Command.request(HOLD)
        others: list[Command | NetError] = []
        peer.ask(request, others.append, timeout_ms=60_000)
        with pytest.raises(ConnectionLostError, match="the peer closed it"):
            await peer.call(request, timeout_ms=60_000)
        assert isinstance(others[0], ConnectionLostError)
        with pytest.raises(ConnectionLostError, match="is closed"):
            await peer.call(request, timeout_ms=5000)

    class Closing(TestOwner):
        def handle(self, request: Command, peer: Any) -> Any:
            if len(self.held) == 1:
                server.peers.call_soon(lambda: peer.close("enough"))
            return super().handle(request, peer)

    with running(driver) as server:
        server.on_loop(lambda: setattr(server.peers, "owner", Closing()))
        with_client(driver, server.address, scenario)


def test_the_server_can_ask_the_client(driver: str) -> None:
    owner = TestOwner()

    async def scenario(peer: CallingPeer) -> None:
        await peer.call(Command.request(ECHO), timeout_ms=5000)
        of_server = server.owner.wait_for("opened")
        results: list[Command | NetError] = []
        request = Command.request(ECHO, {"who": "server"})
        server.on_loop(lambda: of_server.ask(request, results.append, timeout_ms=60_000))
        while not results:
            await peer.call(Command.request(ECHO), timeout_ms=5000)
        assert isinstance(results[0], Command)
        assert results[0].ext_fields == {"who": "server"}
        assert owner.handled_count == 1

    with running(driver) as server:
        with_client(driver, server.address, scenario, owner=owner)
    assert [owner.told.get_nowait()[0] for _ in range(2)] == ["opened", "closed"]


def test_what_cannot_be_sent_is_refused_and_not_pending(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        with pytest.raises(LocalProtocolError):
            await peer.call(Command.request(ECHO, {"a": "\ud800"}), timeout_ms=5000)
        assert not peer.connection.pending
        assert (await peer.call(Command.request(ECHO), timeout_ms=5000)).code == 0

    with running(driver) as server:
        with_client(driver, server.address, scenario)


def test_nobody_listening_is_a_clear_error(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        raise AssertionError(peer)

    with socket.socket() as bound:  # Bound but not listening, so that nobody else gets the port.
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(ConnectError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
            with_client(driver, Host("127.0.0.1", port), scenario)


def test_one_connection_too_many_is_a_clear_error(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        raise AssertionError(peer)

    def one_too_many(address: Host) -> None:
        with pytest.raises(ConnectError, match="connections_max connections are open"):
            with_client(driver, address, scenario, limits=Limits(connections_max=0))

    with running(driver) as server:
        one_too_many(server.address)
        server.owner.wait_for("closed")


def test_a_server_that_takes_nobody_in_is_given_up(driver: str) -> None:
    async def scenario(peer: CallingPeer) -> None:
        await peer.call(Command.request(RequestCode.HEART_BEAT), timeout_ms=10)

    (listening,) = listen_on([Host("127.0.0.1", 0)])
    with listening, pytest.raises(AnswerTimeoutError):
        with_client(driver, address_of(listening), scenario)
