"""`NameServer`: the name server without its sockets and its clock.

A driver passes in each request, reports the connections that ended, and calls `tick` to look for
silent brokers every `config.scan_interval_ms`. All methods return at once, except that a change of
the KV table waits for the disk. They are called by one thread::

    server = NameServer.open(config, RealFileSystem(), now_ms=now)
    response = server.handle(request, connection_id=7, peer="10.0.0.1:40000", now_ms=now)
    server.connection_lost(7)
    for connection_id in server.tick(now):
        ...  # close it
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.nameserver.dispatch import Dispatcher
from cometmq.nameserver.kv_config import KvConfig
from cometmq.nameserver.state import Context, State

if TYPE_CHECKING:
    from cometmq.nameserver.config import NameServerConfig
    from cometmq.proto.command import Command
    from cometmq.store.disk.filesystem import FileSystem

log = logging.getLogger(__name__)


class NameServer:
    """Knows who serves which topic. `now_ms` may come from any clock that never goes back."""

    def __init__(self, config: NameServerConfig, kv: KvConfig, *, now_ms: int) -> None:
        self._state = State(config, kv, now_ms=now_ms)
        self._dispatcher = Dispatcher()

    @classmethod
    def open(cls, config: NameServerConfig, filesystem: FileSystem, *, now_ms: int) -> NameServer:
        """Start with the KV table on the disk; raise a `StoreFormatError` if that is damaged."""
        kv = KvConfig.load(filesystem, str(Path(config.kv_config_path).absolute()))
        return cls(config, kv, now_ms=now_ms)

    @property
    def config(self) -> NameServerConfig:
        """The settings in force; requests change some of them."""
        return self._state.config

    @property
    def broker_count(self) -> int:
        """The number of registered broker processes."""
        return self._state.routes.member_count

    @property
    def topic_count(self) -> int:
        """The number of topics that have a route."""
        return len(self._state.routes.topics)

    def problems(self, now_ms: int) -> list[str]:
        """Return why routes are refused; nothing if they are not."""
        wait_ms = self._state.wait_ms(now_ms)
        return [f"brokers have {wait_ms} ms more to register"] if wait_ms > 0 else []

    def serves(self, code: int) -> bool:
        """Whether there is a handler for a request code."""
        return self._dispatcher.serves(code)

    def handle(
        self, request: Command, *, connection_id: int, peer: str, now_ms: int
    ) -> Command | None:
        """Serve a request; return None if it wants no answer. Nothing that a peer sends raises.

        `connection_id` is any number that no other open connection has.
        """
        if request.is_response:
            return None  # A name server sends no requests.
        response = self._dispatcher.answer(
            request, Context(self._state, connection_id, peer, now_ms)
        )
        return None if request.is_oneway else response

    def connection_lost(self, connection_id: int) -> None:
        """Remove the brokers that registered over a connection: they are not reachable, either."""
        for member in self._state.routes.connection_lost(connection_id):
            log.warning("broker %r at %r lost its connection", member.broker_name, member.address)

    def tick(self, now_ms: int) -> list[int]:
        """Remove the brokers that fell silent; return their connections, which are to be closed."""
        expired = self._state.routes.expire(now_ms)
        for member in expired:
            log.warning(
                "broker %r at %r was silent for more than %d ms",
                member.broker_name,
                member.address,
                member.timeout_ms,
            )
        return list(dict.fromkeys(member.connection_id for member in expired))
