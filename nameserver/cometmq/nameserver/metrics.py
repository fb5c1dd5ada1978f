"""The families on a name server's metrics page; docs/metrics.md lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.net.exposition import Family, Scribe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from cometmq.nameserver.daemon import Daemon

BROKERS: Final = Family(
    "cometmq_nameserver_brokers", "gauge", "Registered broker processes, masters and slaves."
)
TOPICS: Final = Family("cometmq_nameserver_topics", "gauge", "Topics that have a route.")
CONNECTIONS: Final = Family(
    "cometmq_nameserver_connections", "gauge", "Connections of clients and brokers."
)
REQUESTS: Final = Family(
    "cometmq_nameserver_requests_total", "counter", "Requests by code; -1 for those not served."
)


class NameServerMetrics:
    """A name server as a source of an exposition."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._scribe = Scribe(node_type="nameserver")

    async def prepare(self) -> None:
        """Do nothing: no family takes long."""

    def problems(self) -> list[str]:
        """Return why routes would be refused, if they would."""
        return self._daemon.problems()

    def collect(self) -> Iterator[Metric]:
        """Make all families."""
        daemon, single = self._daemon, self._scribe.single
        yield from single(BROKERS, daemon.server.broker_count)
        yield from single(TOPICS, daemon.server.topic_count)
        yield from single(CONNECTIONS, len(daemon.peers))
        requests = sorted(daemon.connections.requests.items())
        yield from self._scribe.family(
            REQUESTS, (({"request_code": str(code)}, count) for code, count in requests)
        )
