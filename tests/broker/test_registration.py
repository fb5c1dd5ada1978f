"""What name servers are told and when, also while one of them is down."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio
from tests.broker.running import PATIENCE_SECONDS, Client, config_of, run
from tests.broker.test_topic_admin import list_request, topic_request

from cometmq.broker import acknowledgements, daemon as broker_daemon
from cometmq.net import LATER, Peers, guest, listen_on, loop as loop_driver
from cometmq.net.guest import on_loop
from cometmq.net.listener import address_of
from cometmq.proto.bodies import KVTable, RegisterBrokerBody, TopicConfig, TopicRouteData
from cometmq.proto.checksum import crc31
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands import GetMaxOffset, SendMessageResponse
from cometmq.proto.commands.broker import RegisterBroker, UnregisterBroker
from cometmq.proto.commands.route import GetRouteInfoByTopic
from cometmq.proto.host import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.broker.running import Running

    from cometmq.net import Later, Peer
    from cometmq.proto.command import Command


class Registrar:
    """A name server that records what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, TopicConfig]] = []
        self.sums: list[tuple[int, int]] = []
        """The checksum that came with each registration, and the real one."""
        self.left: list[str] = []
        """The brokers that have unregistered."""
        self.is_silent = False
        self.is_broker = False
        """Whether it answers like a broker, which accepts no registrations."""
        self.ordered: bytes | None = None
        """The ordered topics, for its answers."""
        self.peers = Peers(self, call_soon=asyncio.get_running_loop().call_soon)
        (listener,) = listen_on([Host("127.0.0.1", 0)])
        self.host = Host("127.0.0.1", address_of(listener).port)
        self._listener = listener
        self._heard = trio.Event()

    async def start(self) -> None:
        self._server = await on_loop(loop_driver.serve(self.peers, [self._listener]))

    def close(self) -> None:
        self._server.close()
        self.peers.close("the test is over")

    async def heard(self, count: int) -> dict[str, TopicConfig]:
        """Wait for this many registrations and return the topics of the last of these."""
        with trio.fail_after(PATIENCE_SECONDS):
            while len(self.told) < count:
                self._heard = trio.Event()
                await self._heard.wait()
        return self.told[count - 1]

    def handle(self, request: Command, peer: Peer) -> Command | Later:  # noqa: ARG002  # Owner's
        if self.is_silent:
            return LATER
        if self.is_broker:
            return request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if request.code == RequestCode.UNREGISTER_BROKER:
            self.left.append(request.read(UnregisterBroker).broker_name)
        if request.code == RequestCode.REGISTER_BROKER:
            body = RegisterBrokerBody.decode(request.body)
            sum_made = crc31(bytes(request.body or b""))
            self.sums.append((request.read(RegisterBroker).body_crc32, sum_made))
            self.told.append(dict(body.topic_config_serialize_wrapper.topic_config_table))
            self._heard.set()
            if self.ordered is not None:
                return request.answer(0, body=self.ordered)
        return request.answer(0)

    def end_turn(self) -> None: ...

    def opened(self, peer: Peer) -> None: ...

    def closed(self, peer: Peer) -> None: ...


def closed_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


def play(
    folder: Path,
    scenario: Callable[[Registrar, Client], Awaitable[None]],
    *others: str,
    **settings: Any,
) -> None:
    """Start a broker with a registrar beside other name servers, and play the scenario."""

    async def main(_: trio.Event) -> None:
        registrar = Registrar()
        await registrar.start()
        names = ";".join([*others, str(registrar.host)])
        config = replace(config_of(folder, **settings), nameservers=names)
        # An open server would keep the loop from ending, and a failure would never be shown.
        with closing(registrar):
            async with trio.open_nursery() as nursery:
                address = await nursery.start(broker_daemon.serve, config)
                await scenario(registrar, await Client().connect(address))
                nursery.cancel_scope.cancel()

    guest.run(main)


def test_a_change_tells_of_the_changed_topic_only(tmp_path: Path) -> None:
    async def scenario(registrar: Registrar, client: Client) -> None:
        assert "DefaultCluster" in await registrar.heard(1)
        await client.send("fresh", b"x")
        assert set(await registrar.heard(2)) == {"fresh"}
        assert registrar.sums
        assert all(came == right for came, right in registrar.sums)

    play(tmp_path, scenario)


def test_a_topic_whose_order_the_name_server_has_is_marked_and_told(tmp_path: Path) -> None:
    """Apache's broker does so after `mqadmin updateOrderConf`."""

    async def scenario(registrar: Registrar, client: Client) -> None:
        await client.send("fresh", b"x")
        assert not (await registrar.heard(2))["fresh"].order
        conf = {"fresh": "broker-a:8", "unknown": "broker-a:8"}
        registrar.ordered = KVTable(table=conf).encode()
        await client.send("other", b"x")
        assert set(await registrar.heard(3)) == {"other"}
        marked = await registrar.heard(4)
        assert set(marked) == {"fresh"}
        assert marked["fresh"].order
        assert not any("unknown" in told for told in registrar.told)

    play(tmp_path, scenario)


def test_an_answer_that_cannot_be_read_marks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(registrar: Registrar, client: Client) -> None:
        registrar.ordered = b"[1"
        await client.send("fresh", b"x")
        await registrar.heard(2)
        await client.send("other", b"x")
        assert "fresh" not in await registrar.heard(3)

    play(tmp_path, scenario)
    assert "the answer to a registration" in caplog.text


def test_many_new_topics_are_told_once_each(tmp_path: Path) -> None:
    """Telling all topics with each new one would grow with the square of their number."""

    async def scenario(registrar: Registrar, client: Client) -> None:
        own = len(await registrar.heard(1))
        for number in range(100):
            await client.send(f"sent{number}", b"x")
        topics = [TopicConfig(topic_name=f"listed{number}") for number in range(100)]
        assert (await client.call(list_request(*topics))).code == 0
        assert sum(map(len, registrar.told)) == own + 200

    play(tmp_path, scenario)


def test_a_topic_has_its_route_when_its_making_is_answered(tmp_path: Path) -> None:
    """Tools and tests ask for the route at once."""

    async def scenario(running: Running) -> None:
        names = await Client().connect(running.nameserver)
        assert (await running.client.call(topic_request("made"))).code == 0
        asked = GetRouteInfoByTopic(topic="made")
        answer = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
        assert answer.code == 0
        (queues,) = TopicRouteData.decode(answer.body).queue_datas
        assert (queues.read_queue_nums, queues.perm) == (2, 6)

    run(config_of(tmp_path), scenario)


def test_a_name_server_whose_connection_was_lost_is_told_everything(tmp_path: Path) -> None:
    async def scenario(registrar: Registrar, client: Client) -> None:
        await client.send("fresh", b"x")
        await registrar.heard(2)
        for peer in registrar.peers:
            peer.close("restarted")
        again = await registrar.heard(3)
        assert {"fresh", "DefaultCluster", "broker-a"} <= set(again)

    play(tmp_path, scenario)


def test_registration_goes_on_when_a_name_server_is_down(tmp_path: Path) -> None:
    async def scenario(registrar: Registrar, client: Client) -> None:
        assert (await client.call(topic_request("made"))).code == 0
        assert set(await registrar.heard(2)) == {"made"}

    play(tmp_path, scenario, f"127.0.0.1:{closed_port()}")


def test_a_broker_that_is_given_as_a_name_server_is_told_as_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(registrar: Registrar, client: Client) -> None:
        registrar.is_broker = True
        assert (await client.call(topic_request("made"))).code == 0

    play(tmp_path, scenario)
    assert "does not know what name servers do: it looks like a broker" in caplog.text


def test_a_name_server_that_is_down_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maker of a topic waits only until the reachable name servers know it."""
    monkeypatch.setattr(acknowledgements, "TELLING_PATIENCE_MS", 600_000)
    monkeypatch.setattr(broker_daemon, "REGISTRATION_RETRY_SECONDS", 600)

    async def scenario(registrar: Registrar, client: Client) -> None:
        await client.send("fresh", b"x")
        assert set(await registrar.heard(2)) == {"fresh"}

    play(tmp_path, scenario, f"127.0.0.1:{closed_port()}")


def test_a_broker_that_stops_takes_leave(tmp_path: Path) -> None:
    """It does so at once, so that no client is sent to it while its connection is still fading."""
    told: list[Registrar] = []

    async def scenario(registrar: Registrar, _: Client) -> None:
        told.append(registrar)
        assert registrar.left == []

    play(tmp_path, scenario)
    assert [registrar.left for registrar in told] == [["broker-a"]]


def test_everything_is_told_now_and_then(tmp_path: Path) -> None:
    """A name server forgets silent brokers, and whatever it is told to forget."""

    async def scenario(registrar: Registrar, client: Client) -> None:
        await client.send("fresh", b"x")
        with trio.fail_after(PATIENCE_SECONDS):
            while sum("fresh" in told and len(told) > 1 for told in registrar.told) < 3:
                await registrar.heard(len(registrar.told) + 1)

    play(tmp_path, scenario, register_interval_ms=20)


def test_a_send_that_waits_for_a_silent_name_server_is_answered_when_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made its topic. The message is stored, and the answer waited only for the route."""
    monkeypatch.setattr(acknowledgements, "TELLING_PATIENCE_MS", 600_000)
    answers: list[SendMessageResponse] = []

    async def main(_: trio.Event) -> None:
        registrar = Registrar()
        await registrar.start()
        config = replace(config_of(tmp_path), nameservers=str(registrar.host))
        with closing(registrar):
            async with trio.open_nursery() as outer, trio.open_nursery() as inner:
                address = await inner.start(broker_daemon.serve, config)
                client = await Client().connect(address)
                await registrar.heard(1)
                registrar.is_silent = True
                outer.start_soon(send, client)
                with trio.fail_after(PATIENCE_SECONDS):
                    while (await client.ask(RequestCode.GET_MAX_OFFSET, asked)).code != 0:
                        await trio.lowlevel.checkpoint()
                assert answers == []
                inner.cancel_scope.cancel()

    async def send(client: Client) -> None:
        answers.append(await client.send("fresh", b"x"))

    asked = GetMaxOffset("fresh", 0)
    guest.run(main)
    assert [answer.queue_offset for answer in answers] == [0]
