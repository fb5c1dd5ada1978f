"""A name server on real sockets, where it learns from connections and from the clock."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest
import trio
from tests.broker.running import PATIENCE_SECONDS, Client
from tests.nameserver.servers import header_of, table_of

from cometmq.nameserver import NameServerConfig, daemon
from cometmq.net import guest
from cometmq.proto.bodies import RegisterBrokerBody
from cometmq.proto.codes import RequestCode, ResponseCode
from cometmq.proto.commands.route import GetRouteInfoByTopic
from cometmq.store.errors import StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


IDLE_SECONDS = 110
SILENCE_MS = 100_000
"""Shorter than the time that a connection may be idle."""


def play(folder: Path, scenario: Callable[[Client, Client], Awaitable[None]]) -> None:
    """Start a name server, register a broker, and play a scenario with a second connection."""

    async def main(_: trio.Event) -> None:
        config = NameServerConfig(
            listen_port=0,
            kv_config_path=str(folder / "kvConfig.json"),
            scan_interval_ms=10,
            connection_idle_seconds_max=IDLE_SECONDS,
        )
        async with trio.open_nursery() as nursery:
            address = await nursery.start(daemon.serve, config)
            broker, client = await Client().connect(address), await Client().connect(address)
            body = RegisterBrokerBody(topic_config_serialize_wrapper=table_of(["T1", "T2"]))
            header = header_of(timeout_ms=SILENCE_MS)
            answer = await broker.ask(RequestCode.REGISTER_BROKER, header, body=body.encode())
            assert answer.code == ResponseCode.SUCCESS
            assert await route_code(client) == ResponseCode.SUCCESS
            await scenario(broker, client)
            nursery.cancel_scope.cancel()

    guest.run(main)


async def route_code(client: Client) -> int:
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoByTopic("T1"))
    return answer.code


async def until_gone(client: Client) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while await route_code(client) != ResponseCode.TOPIC_NOT_EXIST:
            pass


def test_a_broker_whose_connection_ends_is_gone_before_it_would_count_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "TICK_SECONDS", 600)

    async def scenario(broker: Client, client: Client) -> None:
        broker.peer.close("killed")
        await until_gone(client)

    play(tmp_path, scenario)


def test_a_silent_broker_is_gone_and_its_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "TICK_SECONDS", 0.01)

    async def scenario(broker: Client, client: Client) -> None:
        later_ms = time.monotonic_ns() // 1_000_000 + SILENCE_MS + 1_000
        monkeypatch.setattr(daemon, "_now_ms", lambda: later_ms)
        await until_gone(client)
        with trio.fail_after(PATIENCE_SECONDS):
            while broker.peer.closed_because is None:
                await trio.lowlevel.checkpoint()
        assert client.peer.closed_because is None

    play(tmp_path, scenario)


def test_a_connection_without_a_byte_for_its_time_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "TICK_SECONDS", 0.01)

    async def scenario(broker: Client, client: Client) -> None:
        later_ms = time.monotonic_ns() // 1_000_000 + IDLE_SECONDS * 1000 + 1_000
        monkeypatch.setattr(daemon, "_now_ms", lambda: later_ms)
        with trio.fail_after(PATIENCE_SECONDS):
            while client.peer.closed_because is None:
                await trio.lowlevel.checkpoint()

    play(tmp_path, scenario)


def test_a_name_server_that_cannot_start_leaves_its_port(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    config = NameServerConfig(listen_port=port, kv_config_path=str(path))
    with pytest.raises(StoreFormatError, match="kvConfig") as failed:
        daemon.Daemon(config, lambda call: call())
    assert failed.traceback, "which keeps what was left open"
    socket.create_server(("127.0.0.1", port)).close()
