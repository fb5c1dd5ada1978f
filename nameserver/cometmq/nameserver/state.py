"""What handlers work on: the tables of one name server, and the origin of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.nameserver.answers import Answers
from cometmq.nameserver.route_table import RouteTable

if TYPE_CHECKING:
    from cometmq.nameserver.config import NameServerConfig
    from cometmq.nameserver.kv_config import KvConfig


class State:
    """Everything that one name server knows."""

    def __init__(self, config: NameServerConfig, kv: KvConfig, *, now_ms: int) -> None:
        self.config = config
        self.kv = kv
        self.started_ms = now_ms
        self.routes = RouteTable(config)
        self.answers = Answers(self.routes, config)

    def wait_ms(self, now_ms: int) -> int:
        """Return how long routes are still refused, so that every broker has time to register."""
        if not self.config.need_wait_for_service:
            return 0
        return max(0, self.started_ms + self.config.wait_seconds_for_service * 1000 - now_ms)

    def configure(self, config: NameServerConfig) -> None:
        """Work with other settings from now on."""
        self.config = config
        self.routes.configure(config)
        self.answers.configure(config)


class Context(NamedTuple):
    """Where a request came from, and when."""

    state: State
    connection_id: int
    peer: str
    """The address at the other end, for the log."""
    now_ms: int
