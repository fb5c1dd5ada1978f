"""The broker's clock, controlled by a test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cometmq.client._core.checking import check_seconds

if TYPE_CHECKING:
    from cometmq.testing.servers import Servers


class JumpingClock:
    """The clock of a broker: `Cluster.clock`.

    ::

        rocketmq.send("orders", b"...", delay=3600)
        rocketmq.clock.jump(3600)

    Everything that the broker does by time follows a jump: delays, retries, transaction checks,
    held pulls, retention. Clients use their own clocks, which a jump does not move: their timeouts,
    heartbeats and retry pauses take as long as ever, and times given to them (`deliver_at`) are
    relative to their own clock. The broker also measures clients' silence in real time, so a jump
    costs nobody a connection, a membership or a lock.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def jump(self, seconds: float) -> None:
        """Move the broker's time ahead; when this returns, the broker's services know it.

        ::

            rocketmq.clock.jump(3600)

        Whatever is due then happens soon, but not necessarily before this returns: wait for it
        with `Cluster.sent`.
        """
        check_seconds("seconds", seconds)
        self._servers.jump(round(seconds * 1000))

    def now(self) -> datetime:
        """Return the broker's time.

        ::

            assert rocketmq.clock.now() - datetime.now(UTC) > timedelta(minutes=59)
        """
        return datetime.fromtimestamp(self._servers.clock.now_ms() / 1000, UTC)
