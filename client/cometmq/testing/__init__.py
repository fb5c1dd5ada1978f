"""A real broker as the pytest fixture `rocketmq`; `Cluster` is the same without pytest.

::

    def test_refund(rocketmq: Cluster) -> None:
        rocketmq.send("orders", b"o-17", delay=3600)
        rocketmq.clock.jump(3600)
        assert rocketmq.sent("orders", count=1)[0].body == b"o-17"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.testing.clock import JumpingClock as JumpingClock
    from cometmq.testing.cluster import (
        AsyncCluster as AsyncCluster,
        Cluster as Cluster,
        MissingMessagesError as MissingMessagesError,
    )

__all__ = ["AsyncCluster", "Cluster", "JumpingClock", "MissingMessagesError"]


def __getattr__(name: str) -> object:
    """Import the heavy modules only on demand: pytest loads this package on each start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cometmq.testing import clock, cluster

    return getattr(clock if name == "JumpingClock" else cluster, name)
