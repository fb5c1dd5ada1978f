"""The broker's clock, in the hands of a test."""

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

    All that the broker does by time follows a jump: delays, retries, transaction checks, held
    pulls, retention. Clients have clocks of their own, which no broker can move: their timeouts,
    heartbeats and the pauses of their retries take as long as ever, and what they are told to do at
    a time (`deliver_at`) they count from their own. The broker counts their silence in real time,
    too, so a jump makes nobody lose a connection, a membership or a lock.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def jump(self, seconds: float) -> None:
        """Move the broker's time ahead; when it returns, the broker's services know.

        ::

            rocketmq.clock.jump(3600)

        What is due by then happens at once, but not before this returns: wait for it with
        `Cluster.sent`.
        """
        check_seconds("seconds", seconds)
        self._servers.jump(round(seconds * 1000))

    def now(self) -> datetime:
        """Return the broker's time.

        ::

            assert rocketmq.clock.now() - datetime.now(UTC) > timedelta(minutes=59)
        """
        return datetime.fromtimestamp(self._servers.clock.now_ms() / 1000, UTC)
