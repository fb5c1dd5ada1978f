"""A name server and a broker on real sockets in the test's process, and a client of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from cometmq.broker import daemon as broker_daemon
from cometmq.broker.config import BrokerConfig
from cometmq.nameserver import NameServerConfig, daemon as nameserver_daemon
from cometmq.net import LATER, LoopPeer, Peers, connect, guest
from cometmq.net.guest import on_loop
from cometmq.proto.command import Command
from cometmq.proto.commands import PullMessage, SendMessageResponse, SendMessageV2
from cometmq.proto.message_list import MessageList
from cometmq.store.config import Flush, StoreConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from cometmq.net import Later, Peer
    from cometmq.proto.host import Host
    from cometmq.proto.message import StoredMessage

PATIENCE_SECONDS = 20
STORE = StoreConfig(
    segment_size=1 << 20, consume_queue_file_size=20_000, index_slots=64, index_items=256
)


def config_of(folder: Path, **settings: Any) -> BrokerConfig:
    store = replace(STORE, flush=settings.pop("flush", Flush.ASYNC))
    return replace(
        BrokerConfig(listen_port=0, store_path=str(folder / "data"), store=store), **settings
    )


class Client:
    """One connection, and the broker's requests over it."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.heard = trio.Event()
        self.peer: LoopPeer

    async def connect(self, address: Host) -> Client:
        call_soon = asyncio.get_running_loop().call_soon
        self.peer = await on_loop(
            connect(Peers(self, call_soon=call_soon), address, timeout_ms=3000)
        )
        return self

    async def call(self, request: Command) -> Command:
        with trio.fail_after(PATIENCE_SECONDS):
            return await on_loop(self.peer.call(request, timeout_ms=PATIENCE_SECONDS * 1000))

    async def ask(self, code: int, fields: Any = None, *, body: bytes | None = None) -> Command:
        return await self.call(Command.request(code, fields, body=body))

    async def send(self, topic: str, body: bytes, **fields: Any) -> SendMessageResponse:
        response = await self.call(send_request(topic, body, **fields))
        assert response.code == 0, response.remark
        return response.read(SendMessageResponse)

    async def pull(self, topic: str, offset: int = 0, **fields: Any) -> list[StoredMessage]:
        response = await self.call(pull_request(topic, offset, **fields))
        assert response.code == 0, response.remark
        return list(MessageList(bytes(response.body or b"")))

    def handle(self, request: Command, peer: Peer) -> Command | Later:  # noqa: ARG002  # Owner's
        self.asked.append(request)
        self.heard.set()
        return LATER

    def end_turn(self) -> None: ...

    def opened(self, peer: Peer) -> None: ...

    def closed(self, peer: Peer) -> None: ...


def send_request(topic: str, body: bytes, *, code: int = 310, **fields: Any) -> Command:
    header: dict[str, Any] = {
        "producer_group": "p",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "flag": 0,
        **fields,
    }
    return Command.request(code, SendMessageV2(**header), body=body)


def pull_request(topic: str, offset: int = 0, *, code: int = 11, **fields: Any) -> Command:
    header: dict[str, Any] = {
        "consumer_group": "g",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_millis": 0,
        "sub_version": 0,
        "subscription": "*",
        **fields,
    }
    return Command.request(code, PullMessage(**header))


class Running:
    """The servers, and a client of the broker."""

    def __init__(self, nameserver: Host, address: Host) -> None:
        self.nameserver = nameserver
        self.address = address
        self.client: Client

    async def new_client(self) -> Client:
        return await Client().connect(self.address)


def run(config: BrokerConfig, scenario: Callable[[Running], Awaitable[None]]) -> None:
    """Start both servers, play the scenario, and shut them down in order."""

    async def main(_: trio.Event) -> None:
        kv_path = f"{config.store_path}-names/kvConfig.json"
        names = NameServerConfig(listen_port=0, kv_config_path=kv_path)
        async with trio.open_nursery() as outer:
            nameserver = await outer.start(nameserver_daemon.serve, names)
            async with trio.open_nursery() as inner:
                named = replace(config, nameservers=str(nameserver))
                address = await inner.start(broker_daemon.serve, named)
                running = Running(nameserver, address)
                running.client = await running.new_client()
                await scenario(running)
                inner.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    guest.run(main)
