"""A broker whose messages expire when its clock jumps."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.pipeline.cluster import Cluster as Asked
from cometmq.pipeline.wire import Settings
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def aging_broker() -> Generator[Cluster]:
    """Run a broker with 200 messages in several segments, which age when its clock jumps."""
    with Cluster(segment_size=1 << 16, retention_interval_ms=100) as cluster:
        cluster.admin.create_topic("aging", queues=1)
        for _ in range(20):
            cluster.client.send_batch("aging", [b"x" * 1000] * 10)
        yield cluster


def expire(cluster: Cluster) -> int:
    """Let the broker delete what it can of its log; return the first offset that is left."""
    log = Path(cluster._servers._folder.name, "store", "commitlog")  # pyright: ignore[reportPrivateUsage]  # No verb has it.
    asked = Asked([cluster.nameserver], Settings(timeout=5.0))
    cluster.clock.jump(80 * 3600)
    assert asked.ask(cluster.broker, 329, {}).code == 0  # Delete now, whatever the hour.
    deadline = time.monotonic() + 60
    # The last file with messages stays, and one that was made ahead.
    while len(list(log.iterdir())) > 2 or not (first := first_offset(asked)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return first


def first_offset(asked: Asked) -> int:
    found = asked.bounds(["aging"])
    ((first, end),) = found.queues.values()
    assert end == 200
    return first
