"""How many files and connections a daemon may have open at a time.

A shell often allows 1,024, although the system allows a hundred times as many: a daemon raises its
limit as far as it may, as a JVM does. If that is too low, clients must not use up what the store
needs: a store that cannot open its files refuses all sends.
"""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig

log = logging.getLogger("cometmq")

_OTHERS: Final = 100
"""The others: sockets, files being saved or checked, reads by threads, and a burst of clients."""


def raised_limit() -> int:
    """Raise the limit of this process as far as it may be, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    with suppress(OSError, ValueError):  # Some systems have a lower limit that they do not report.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def within_limit(config: BrokerConfig, limit: int) -> BrokerConfig:
    """Reserve files for the store if the limit is too low for all that the settings allow."""
    store, limits = config.store, config.limits
    if limit in (resource.RLIM_INFINITY, -1):
        return config
    others = store.segment_maps_max + _OTHERS
    if limits.connections_max + store.consume_queue_files_max + others <= limit:
        return config
    files = min(store.consume_queue_files_max, max(limit // 4, 1))
    connections = min(limits.connections_max, max(limit - files - others, limit // 4, 1))
    if connections < limits.connections_max:
        log.warning(
            "this process may have %d files open (`ulimit -n`; LimitNOFILE of systemd): clients get"
            " %d connections instead of the %d of connections_max, or the store could not open its"
            " files",
            limit,
            connections,
            limits.connections_max,
        )
    return replace(
        config,
        store=replace(store, consume_queue_files_max=files),
        limits=replace(limits, connections_max=connections),
    )
