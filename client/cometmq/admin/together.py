"""A name server and a broker on one loop, for `cometmq up` and the pytest fixture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from cometmq.broker import daemon as broker_daemon
from cometmq.nameserver import daemon as nameserver_daemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.clock import Clock
    from cometmq.broker.config import BrokerConfig
    from cometmq.nameserver import NameServerConfig
    from cometmq.net.exposition import Exposition
    from cometmq.proto.host import Host


async def serve_both(
    nameserver: NameServerConfig,
    broker: BrokerConfig,
    *,
    stop: trio.Event,
    ready: Callable[[Host, Host], None],
    exposition: Exposition | None = None,
    clock: Clock | None = None,
) -> None:
    """Run both, on the loop on which trio is a guest, until `stop`.

    `ready` is called with the addresses of name server and broker once sends are accepted. The
    broker unregisters from the name server, so it ends first.
    """
    async with trio.open_nursery() as outer:
        names = await outer.start(nameserver_daemon.serve, nameserver, exposition)
        known = ";".join(filter(None, (str(names), broker.nameservers)))
        async with trio.open_nursery() as inner:

            async def serve_broker(*, task_status: trio.TaskStatus[Host]) -> None:
                config = replace(broker, nameservers=known)
                await broker_daemon.serve(config, exposition, clock=clock, task_status=task_status)

            ready(names, await inner.start(serve_broker))
            await stop.wait()
            inner.cancel_scope.cancel()
        outer.cancel_scope.cancel()
